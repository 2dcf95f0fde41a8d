"""Story 06: thirty-two openers race to create one log; all succeed, one log comes of it."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

OPENERS = 32


async def test_opening_alone_creates_one_log(log, bucket):
    """Nobody writes more than the first manifest."""

    async def just_open():
        async with log.writer(create=True):
            pass

    await asyncio.gather(*(just_open() for _ in range(OPENERS)))
    assert ["manifest/MANIFEST"] == await bucket.keys()
    assert [] == (await bucket.manifest())["fragments"]


def racer(faulty, name):
    """The log as one of many processes sees it, in simulated time."""
    entropy = SeededEntropy(name)
    store = cordwood.Store.over(RetryingStore(faulty, LoopClock(), entropy))
    return cordwood.Log(store, "orders", clock=LoopClock(), entropy=entropy)


def slow_store(memory, seed, **faults):
    """A store with latency and faults in front of the memory."""
    entropy = SeededEntropy(f"faults-{seed}")
    latency = Latency(0.02, 0.2)
    return FaultyStore(memory, entropy, LoopClock(), latency=latency, write_faults=faults)


@pytest.mark.parametrize("seed", range(6))
def test_all_openers_succeed_where_answers_are_lost(seed, bucket_of):
    """With latency, lost answers and S3's 409 on create nobody sees an error."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        rates = {Fault.ERROR_AFTER: 0.1, Fault.CONFLICT: 0.1, Fault.ERROR_BEFORE: 0.1}
        faulty = slow_store(memory, seed, **rates)

        async def just_open(number):
            log = racer(faulty, f"{number}-{seed}")
            async with log.writer(create=True):
                return await log.state()

        states = await asyncio.gather(*(just_open(n) for n in range(OPENERS)))
        assert {1} == {state.next_offset for state in states}
        assert ["manifest/MANIFEST"] == await bucket_of(memory).keys()

    simulate(seed, main)


@pytest.mark.parametrize("seed", range(3))
def test_all_openers_append(seed, bodies):
    """Each opens, each appends one record, and each record is there once, where it was told."""
    # EVIDENCE-OF: G-6
    # EVIDENCE-OF: G-19

    async def main():
        memory = MemoryStore(clock=LoopClock())
        faulty = slow_store(memory, seed)

        async def open_and_append(number):
            async with racer(faulty, f"{number}-{seed}").writer(create=True) as writer:
                return await writer.append(b"%d" % number)

        offsets = await asyncio.gather(*(open_and_append(n) for n in range(OPENERS)))
        assert list(range(1, OPENERS + 1)) == sorted(offsets)
        log = racer(memory, "reader")
        found = dict(enumerate(await bodies(log), 1))
        assert {offset: b"%d" % n for n, offset in enumerate(offsets)} == found
        assert (await log.scrub()).ok
        return asyncio.get_running_loop().time()

    assert 120 > simulate(seed, main)
