"""Story 12: two writers fight for one log; every append is acknowledged, once, in its place."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Options
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

APPENDS_EACH = 200


class World:
    """One store, seen by several processes, in simulated time."""

    def __init__(self, seed, latency, **faults):
        """A store with latency and faults in front of a memory."""
        self.seed = seed
        self.memory = MemoryStore(clock=LoopClock())
        entropy = SeededEntropy(f"faults-{seed}")
        self.faulty = FaultyStore(
            self.memory, entropy, LoopClock(), latency=latency, write_faults=faults
        )
        self.told = {}
        """Each body, with the offset its writer was told."""

    def log(self, name):
        """The log as one process sees it."""
        entropy = SeededEntropy(f"{name}-{self.seed}")
        store = cordwood.Store.over(RetryingStore(self.faulty, LoopClock(), entropy))
        return cordwood.Log(store, "orders", clock=LoopClock(), entropy=entropy)

    async def append_all(self, name, options, pace_s, at_once=4):
        """One process: its appends, several under way at a time."""
        room = asyncio.Semaphore(at_once)

        async def tell(body, answer):
            offset = await answer
            assert body not in self.told
            self.told[body] = offset
            room.release()

        log = self.log(name)
        async with log.writer(create=True, options=options) as writer, asyncio.TaskGroup() as group:
            for n in range(APPENDS_EACH):
                await room.acquire()
                body = b"%s %d" % (name.encode(), n)
                group.create_task(tell(body, writer.append(body)))
                await asyncio.sleep(pace_s)

    async def check(self, *names):
        """Everything was told once and lies where it was told, in each writer's order."""
        log = self.log("reader")
        async with log.reader() as reader:
            found = {record.offset: record.body async for record in reader.read()}
        assert len(names) * APPENDS_EACH == len(self.told) == len(found)
        assert {offset: body for body, offset in self.told.items()} == found
        for name in names:
            mine = [self.told[b"%s %d" % (name.encode(), n)] for n in range(APPENDS_EACH)]
            assert sorted(mine) == mine
        report = await log.scrub()
        assert ([], len(found)) == (report.errors, report.records)


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", range(2))
def test_two_writers_share_a_log(seed, in_flight):
    """400 appends, all acknowledged exactly once, and neither writer starves."""

    async def main():
        world = World(seed, Latency(0.02, 0.1))
        options = Options(in_flight=in_flight)
        await asyncio.gather(
            world.append_all("a", options, 0.01), world.append_all("b", options, 0.01)
        )
        await world.check("a", "b")
        return asyncio.get_running_loop().time()

    assert 600 > simulate(seed, main)


def test_a_newcomer_gets_its_turn_beside_a_busy_writer():
    """A second writer's few appends come through long before the busy one is done."""

    async def main():
        world = World(3, Latency(0.05))
        stop = asyncio.Event()
        count = 0

        async def keep_busy():
            nonlocal count
            async with world.log("busy").writer(create=True) as writer:
                while not stop.is_set():
                    answers = [writer.append(b"busy %d" % (count + i)) for i in range(20)]
                    count += 20
                    await asyncio.sleep(0.01)
                await asyncio.gather(*answers)

        busy = asyncio.create_task(keep_busy())
        await asyncio.sleep(1)
        async with world.log("newcomer").writer() as writer:
            for n in range(5):
                world.told[b"new %d" % n] = await writer.append(b"new %d" % n)
        took_s = asyncio.get_running_loop().time()
        stop.set()
        await busy
        async with world.log("reader").reader() as reader:
            found = {record.body: record.offset async for record in reader.read()}
        assert count + 5 == len(found)
        assert world.told.items() <= found.items()
        return took_s

    assert 60 > simulate(3, main)


@pytest.mark.parametrize("seed", range(2))
def test_two_writers_on_a_store_that_loses_answers(seed):
    """Lost answers, late writes and refusals on top: still exactly once."""

    async def main():
        faults = {Fault.ERROR_AFTER: 0.05, Fault.ERROR_BEFORE: 0.05, Fault.CONFLICT: 0.02}
        world = World(seed, Latency(0.02, 0.1), **faults)
        options = Options(in_flight=3, batch_bytes=100)
        await asyncio.gather(
            world.append_all("a", options, 0.01), world.append_all("b", options, 0.02)
        )
        await world.check("a", "b")

    simulate(seed, main)


@pytest.mark.parametrize("seed", range(1))
def test_two_writers_on_a_store_without_latency(seed):
    """Where every request is answered at once, in any order of events, it is the same."""
    # EVIDENCE-OF: G-2, G-6, G-18
    # EVIDENCE-OF: G-7
    # EVIDENCE-OF: G-2, G-3, G-4, G-6, G-8

    async def main():
        world = World(seed, Latency(0.0))
        await asyncio.gather(
            world.append_all("a", Options(), 0.0, at_once=1),
            world.append_all("b", Options(), 0.0, at_once=1),
        )
        await world.check("a", "b")

    simulate(seed, main)
