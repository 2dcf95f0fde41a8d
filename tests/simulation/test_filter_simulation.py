"""Reading one stream beside writers, bulk commits, collections and forks: nothing is missed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pyarrow as pa
import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import CollectedError, CordwoodError, StateError
from cordwood.log.bulk import Token
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.reader import Limits
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

STREAMS = [f"s{n}" for n in range(12)]
FAULTS = {Fault.ERROR_BEFORE: 0.01, Fault.ERROR_AFTER: 0.02, Fault.ZOMBIE: 0.01}


class World:
    """A log, and those who work on it until it is over."""

    def __init__(self, seed):
        self.entropy = SeededEntropy(f"filters {seed}")
        self.faulty = FaultyStore(
            MemoryStore(LoopClock()),
            self.entropy,
            LoopClock(),
            latency=Latency(0.005, p99_s=0.02),
            write_faults=FAULTS,
            read_faults={Fault.ERROR_BEFORE: 0.01},
        )
        self.is_over = False
        self.compared = self.skipped = self.forks = 0

    def log(self):
        """As another process sees it."""
        store = RetryingStore(self.faulty, LoopClock(), self.entropy, deadline_s=60.0)
        return Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=self.entropy)

    def draw(self, most):
        """Some streams, often the first ones."""
        count = 1 + int(self.entropy.uniform() * most)
        drawn = [STREAMS[int(12 * self.entropy.uniform() ** 2)] for _ in range(count)]
        return [None if self.entropy.uniform() < 0.2 else name for name in drawn]

    def table(self, most):
        """Records of some streams."""
        names = self.draw(most)
        return pa.table({"body": [b""] * len(names), "stream": pa.array(names, pa.string())})

    async def write(self):
        """Appends, by one writer after the other."""
        while not self.is_over:
            async with self.log().writer(options=Options(batch_bytes=200)) as writer:
                for _ in range(10):
                    await asyncio.sleep(self.entropy.uniform() * 0.2)
                    futures = [writer.append_arrow(self.table(3)) for _ in range(3)]
                    await asyncio.gather(*futures, return_exceptions=True)

    async def commit(self):
        """Bulk commits of several uploads."""
        number = 0
        while not self.is_over:
            await asyncio.sleep(self.entropy.uniform() * 2)
            token, number = Token("job", number), number + 1
            log = self.log()
            try:
                staged = [await log.stage(self.table(4), token) for _ in range(12)]
                await log.commit(staged, token)
            except CordwoodError:
                continue

    async def collect(self):
        """Frees the older half, now and then."""
        log = self.log()
        witness = await log.cursors.init("c", 1)
        while not self.is_over:
            await asyncio.sleep(2)
            manifest = await log.manifest()
            middle = (manifest.oldest_offset + manifest.next_offset) // 2
            try:
                witness = await log.cursors.save("c", middle, await log.cursors.load("c"))
                await log.collect(wait_s=0)
            except CordwoodError:
                continue
        return witness

    async def compare(self, turns):
        """Read the log whole and stream by stream, up to where it ends just then; and a fork."""
        for turn in range(turns):
            await asyncio.sleep(1 + self.entropy.uniform())
            log = self.log()
            fork = Log(log.store, f"fork{turn}", clock=LoopClock(), entropy=self.entropy)
            with suppress(CollectedError):
                # Where a collection is quicker there is nothing to compare.
                await self._compare(log)
            with suppress(StateError):
                # It may be collected under the fork again and again.
                await log.fork(fork)
                await self._compare(fork)
                self.forks += 1
        self.is_over = True

    async def _compare(self, log):
        async with log.reader() as reader:
            manifest = await log.manifest()
            start, limits = manifest.oldest_offset, Limits(limit_offset=manifest.next_offset)
            records = [record async for record in reader.read(start, limits)]
            total = len(await reader.scan(start, limits))
            for stream in (*STREAMS[::4], "never"):
                found = [record async for record in reader.read(start, limits, stream=stream)]
                assert [r for r in records if r.stream == stream] == found
                skipped = total - len(await reader.scan(start, limits, stream=stream))
                self.skipped += skipped
                self.compared += len(found)


async def run(seed, protocol):
    """Everybody at once."""
    world = World(seed)
    log = world.log()
    await log.create(grace_s=1, protocol=protocol)
    await log.streams.open(*STREAMS)
    await asyncio.gather(world.write(), world.commit(), world.collect(), world.compare(4))
    await world._compare(log)
    assert (await log.scrub(deep=True)).ok
    return world


@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(2)), *((n, "chain") for n in range(1))]
)
def test_one_stream_is_what_the_log_has_of_it(seed, protocol):
    """In forks made at any moment, and in the log at the end; and something was passed over."""
    # EVIDENCE-OF: G-101
    world = simulate(seed, lambda: run(seed, protocol))
    assert world.compared > 100
    assert world.skipped > 100
