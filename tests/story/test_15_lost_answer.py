"""Story 15: the answer of a fragment put is lost, and a naive retry appends the record twice.

This is hazard (a) of wal3: the put took effect, its answer did not arrive, the retry is refused
because the slot is taken, "taken" is read as contention, the log is opened again (which adopts the
first copy), and the same batch is appended again. `NaiveWriter` does just that and reproduces the
duplicate. Ours looks at what is in the slot before it says anything.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import AlreadyExistsError, ContendedError, Options, StoreError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log import paths, tree
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.objects import LogObjects
from cordwood.log.records import content_of_bodies
from cordwood.log.recovery import find_ground, next_tag
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate


class NaiveWriter:
    """Retries a put as a client library does, and takes "exists" for somebody else's object."""

    def __init__(self, store):
        """On the objects of the log."""
        self._objects = LogObjects(store, "orders")
        self._entropy = SeededEntropy("naive")

    async def append(self, body):
        """Open, put, swap; on contention start again with the same record."""
        while True:
            ground = await find_ground(self._objects, self._entropy, {})
            batch = Batch()
            batch.add_block(content_of_bodies([body]), None)
            flight, data = build(batch, ground.tail, 1, self._entropy.token(), "none")
            try:
                await self._put(flight.seq_no, data)
                tail = ground.tail.after(flight.link, flight.seq_no)
                tag = next_tag(ground.manifest, tail, self._entropy)
                manifest = tree.append(ground.manifest, [flight.fragment], tag)
                await self._objects.swap(manifest, ground.etag)
            except (AlreadyExistsError, ContendedError):
                continue
            return flight.fragment.start

    async def _put(self, seq_no, data):
        for _ in range(5):
            try:
                return await self._objects.put_fragment(paths.fragment(seq_no), data)
            except StoreError:
                continue
        raise AssertionError("the store does not answer")


def faulty_store(memory, **options):
    """A store that does what its script says, in simulated time."""
    return FaultyStore(memory, SeededEntropy("faults"), LoopClock(), **options)


def log_over(store, name="ours"):
    """The log in simulated time."""
    entropy = SeededEntropy(name)
    return cordwood.Log(cordwood.Store.over(store), "orders", clock=LoopClock(), entropy=entropy)


def retrying(store, deadline_s=60.0):
    """What every remote store is wrapped in."""
    return RetryingStore(
        store, LoopClock(), SeededEntropy("retry"), deadline_s=deadline_s, attempt_s=5.0
    )


def test_a_naive_writer_appends_twice(bodies):
    """One append, one lost answer, two records."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory).create()
        faulty = faulty_store(memory)
        faulty.script("put", Fault.ERROR_AFTER)
        await NaiveWriter(faulty).append(b"a")
        assert [b"a", b"a"] == await bodies(log_over(memory))

    simulate(1, main)


LOST = [Fault.ERROR_AFTER, Fault.HANG_AFTER, Fault.ZOMBIE, Fault.CONFLICT, Fault.ERROR_BEFORE]


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("nth", range(6))
def test_ours_appends_once(nth, fault, bodies):
    """Whichever put it hits, fragment or manifest, the record is there once where it was told."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory).create()
        faulty = faulty_store(memory, zombie_delay=Latency(0.5))
        faulty.script("put", *[Fault.NONE] * nth, fault)
        async with log_over(retrying(faulty)).writer() as writer:
            told = [await writer.append(b"%d" % n) for n in range(4)]
        await faulty.drain()
        assert [1, 2, 3, 4] == told
        assert [b"0", b"1", b"2", b"3"] == await bodies(log_over(memory))
        async with log_over(memory, "later").writer() as writer:
            assert 5 == await writer.append(b"4")
        assert 5 == len(await bodies(log_over(memory)))

    simulate(1, main)


@pytest.mark.parametrize("seed", range(8))
def test_ours_appends_once_however_often_answers_are_lost(seed, bodies):
    """Every third answer lost, several fragments in flight: every record once, in order."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory).create()
        faulty = faulty_store(
            memory,
            latency=Latency(0.02, 0.2),
            write_faults={Fault.ERROR_AFTER: 0.2, Fault.ZOMBIE: 0.1, Fault.CONFLICT: 0.05},
            zombie_delay=Latency(0.3, 3.0),
        )
        options = Options(batch_bytes=50, in_flight=8)
        log = log_over(retrying(faulty, 600.0), f"ours-{seed}")
        async with log.writer(options=options) as writer:
            answers = [writer.append(b"%d" % n) for n in range(60)]
            assert list(range(1, 61)) == list(await asyncio.gather(*answers))
        faulty.heal()
        await faulty.drain()
        assert [b"%d" % n for n in range(60)] == await bodies(log_over(memory))

    simulate(seed, main)


@pytest.mark.parametrize("nth", range(4))
def test_a_writer_on_a_store_that_does_not_retry_finds_out_by_itself(nth, bodies):
    """Without the retrying store the writer reads the slot or the manifest back: still once."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory).create()
        faulty = faulty_store(memory)
        faulty.script("put", *[Fault.NONE] * nth, Fault.ERROR_AFTER)
        async with log_over(faulty).writer() as writer:
            assert [1, 2, 3] == [await writer.append(b"%d" % n) for n in range(3)]
        assert [b"0", b"1", b"2"] == await bodies(log_over(memory))

    simulate(1, main)


def test_a_lost_answer_in_the_middle_of_a_chain(bodies):
    """Of several fragments in flight one loses its answer: nothing is written twice."""
    # EVIDENCE-OF: G-2, G-4, G-18
    # EVIDENCE-OF: G-2, G-18

    async def main():
        memory = MemoryStore(clock=LoopClock())
        await log_over(memory).create()
        for lost in range(8):
            faulty = faulty_store(memory, latency=Latency(0.05))
            faulty.script("put", *[Fault.NONE] * lost, Fault.HANG_AFTER)
            options = Options(batch_bytes=1, in_flight=8)
            log = log_over(retrying(faulty), f"writer {lost}")
            async with log.writer(options=options) as writer:
                await asyncio.gather(*(writer.append(b"%d %d" % (lost, n)) for n in range(8)))
        found = await bodies(log_over(memory))
        assert [b"%d %d" % (lost, n) for lost in range(8) for n in range(8)] == found

    simulate(1, main)
