"""A saturated writer still lets a second writer through, within seconds of simulated time."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log.intents import TurnKeeper
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.pipeline import Pipeline
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.simloop import simulate


async def _outsider(intent_interval_s, protocol="cas"):
    """How long an outsider's single append takes beside a writer that never rests."""
    entropy = SeededEntropy("turns")
    latency = Latency(0.05, 0.1)
    store = FaultyStore(MemoryStore(clock=LoopClock()), entropy, LoopClock(), latency=latency)
    log = Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)
    await log.create(protocol=protocol)
    loop = asyncio.get_running_loop()
    is_over = False
    appended = 0

    async def saturate():
        nonlocal appended
        options = Options(batch_bytes=200, intent_interval_s=intent_interval_s)
        async with log.writer(options=options) as writer:
            while not is_over:
                futures = [writer.append(b"busy" * 5) for _ in range(50)]
                await asyncio.wait(futures[:25])
                appended += len(futures)

    busy = asyncio.ensure_future(saturate())
    await asyncio.sleep(3.0)
    before = appended
    async with log.writer() as writer:
        started_s = loop.time()
        offsets = []
        for number in range(3):
            append = writer.append(f"outsider {number}".encode())
            done, _ = await asyncio.wait([append], timeout=120)
            if not done:
                break
            offsets.append(append.result())
        took_s = loop.time() - started_s
        is_over = True
        await busy
    bodies = []
    async with log.reader() as reader:
        bodies = [record.body async for record in reader.read()]
    return took_s, offsets, bodies, appended - before


@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(4)), *((n, "chain") for n in range(2))]
)
def test_an_outsider_gets_its_turn(seed, protocol):
    """Three appends beside a busy writer take seconds, and the busy writer goes on meanwhile."""
    # EVIDENCE-OF: G-7
    took_s, offsets, bodies, appended = simulate(seed, lambda: _outsider(2.0, protocol))
    assert len(offsets) == 3
    assert took_s < 30
    assert [f"outsider {n}".encode() for n in range(3)] == [bodies[o - 1] for o in offsets]
    assert appended > 100


def test_without_turns_an_outsider_starves():
    """A busy writer that never looks keeps the outsider out: what turns are for."""
    took_s, offsets, _, _ = simulate(1, lambda: _outsider(1e9))
    assert len(offsets) < 3
    assert took_s >= 120


async def _crowd(writers, seconds, protocol):
    """The slowest append of each of several writers that all append all the time."""
    store = FaultyStore(
        MemoryStore(clock=LoopClock()),
        SeededEntropy("crowd"),
        LoopClock(),
        latency=Latency(0.05, 0.12),
    )
    manifests = []
    loop = asyncio.get_running_loop()

    def log(name):
        entropy = SeededEntropy(name)
        return Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)

    await log("creator").create(protocol=protocol)

    async def append_all(number):
        slowest = 0.0
        async with log(f"writer {number}").writer() as writer:
            answers = []
            while loop.time() < seconds:
                answers.append((loop.time(), loop.create_future()))
                writer.append(b"%d" % number).add_done_callback(
                    lambda done, told=answers[-1][1]: told.set_result(done.result() and loop.time())
                )
                manifest = await log("watcher").manifest()
                manifests.append(len(manifest.nodes) + len(manifest.fragments))
                await asyncio.sleep(0.05)
            for begun_s, told in answers:
                slowest = max(slowest, await told - begun_s)
        return slowest

    return await asyncio.gather(*map(append_all, range(writers))), max(manifests)


@pytest.mark.parametrize(("protocol", "seconds"), [("cas", 40.0), ("chain", 12.0)])
def test_a_crowd_takes_turns(protocol, seconds):
    """Eight writers without a rest: none waits long, and the root stays short."""
    # EVIDENCE-OF: G-7
    slowest, largest_root = simulate(3, lambda: _crowd(8, seconds, protocol))
    assert max(slowest) < 25
    assert largest_root < 60


@pytest.mark.parametrize("seed", range(2))
def test_an_unlink_that_was_asked_for_is_looked_at_before_it_is_forgotten(seed, monkeypatch):
    """Also one that is found while a manifest is on its way, which is nearly always."""
    looked, forgotten = set(), []
    look, forget = Pipeline._without_garbage, TurnKeeper._forget

    async def noted_look(self, manifest, intent):
        looked.add(intent)
        return await look(self, manifest, intent)

    async def noted_forget(self, key):
        forgotten.append(key in looked)
        return await forget(self, key)

    monkeypatch.setattr(Pipeline, "_without_garbage", noted_look)
    monkeypatch.setattr(TurnKeeper, "_forget", noted_forget)

    async def main():
        clock, entropy = LoopClock(), SeededEntropy(f"unlinks-{seed}")
        memory = MemoryStore(clock=clock)
        store = FaultyStore(memory, entropy, clock, latency=Latency(0.01, 0.02))
        log = Log(Store.over(store, "sim:"), "log", clock=clock, entropy=entropy)
        await log.create(grace_s=1)
        is_over = False

        async def append(writer):
            while not is_over:
                await writer.append(b"busy")

        async def saturate():
            options = Options(batch_bytes=1, batch_interval_s=0)
            async with log.writer(options=options) as writer:
                await asyncio.gather(*(append(writer) for _ in range(20)))

        busy = asyncio.ensure_future(saturate())
        await asyncio.sleep(3.0)
        witness = await log.cursors.init("jobs", 9)
        started_s = clock.monotonic_s()
        for _ in range(4):
            assert (await log.collect(wait_s=2)).records
            end = (await log.manifest()).next_offset
            witness = await log.cursors.save("jobs", end - 200, witness)
        is_over = True
        await busy
        return clock.monotonic_s() - started_s

    assert 30 > simulate(seed, main)
    assert forgotten
    assert all(forgotten)
