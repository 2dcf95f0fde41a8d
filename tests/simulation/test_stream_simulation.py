"""Streams opened, closed and written by several processes, over a store that loses answers."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import CordwoodError, StateError, StoreError, UncertainError
from cordwood.log import paths
from cordwood.log.format import decode
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.roll import Change
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

FAULTS = {
    Fault.ERROR_BEFORE: 0.04,
    Fault.ERROR_AFTER: 0.06,
    Fault.ZOMBIE: 0.03,
    Fault.THROTTLED: 0.03,
    Fault.CONFLICT: 0.03,
}
STREAMS = ("a", "b", "c")
PROMISED_S = 10.0
"""When a close counts for everybody."""

SLOW_S = 0.25
"""Longer than a request takes here, so that what is judged by time is judged with a margin."""


class World:
    """A store that misbehaves, processes that share a log, and what they were told."""

    def __init__(self, seed):
        self.entropy = SeededEntropy(f"streams {seed}")
        self.ground = MemoryStore(clock=LoopClock())
        self.faulty = FaultyStore(
            self.ground,
            self.entropy,
            LoopClock(),
            latency=Latency(0.02, p99_s=0.06),
            write_faults=FAULTS,
            read_faults={Fault.ERROR_BEFORE: 0.05},
        )
        self.told = []
        """Stream, open or closed, when it was called, when it returned."""
        self.appends = []
        """Stream, when it was called, what came of it: an offset, or an error."""

    def log(self):
        """As another process sees it."""
        store = RetryingStore(self.faulty, LoopClock(), self.entropy, deadline_s=30.0)
        return Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=self.entropy)

    async def change(self, turns):
        """Open and close streams, one after the other."""
        log = self.log()
        for _ in range(turns):
            stream = STREAMS[int(self.entropy.uniform() * len(STREAMS))]
            is_open = self.entropy.uniform() < 0.5
            called_s = now_s()
            try:
                await (log.streams.open(stream) if is_open else log.streams.close(stream))
            except (StoreError, UncertainError):
                continue
            self.told.append((stream, is_open, called_s, now_s()))
            await asyncio.sleep(self.entropy.uniform() * 6)

    async def write(self, seconds):
        """Append to any stream, and note what comes of it; the process dies now and then."""
        until_s = now_s() + seconds
        while now_s() < until_s:
            writer = await self.log().writer(options=Options(batch_bytes=200)).open()
            for _ in range(12):
                stream = STREAMS[int(self.entropy.uniform() * len(STREAMS))]
                called_s = now_s()
                try:
                    outcome = await writer.append(stream.encode(), stream=stream)
                except CordwoodError as error:
                    outcome = error
                self.appends.append((stream, called_s, outcome))
                await asyncio.sleep(self.entropy.uniform() * 3)
            await writer.close()

    async def history(self):
        """Every change there is, in order."""
        found = []
        async for meta in self.ground.list("log/stream/"):
            number = paths.stream_change_number(meta.key.removeprefix("log/"))
            data = (await self.ground.get(meta.key)).data
            found.append((number, decode(Change, data, meta.key)))
        return [change for _, change in sorted(found, key=lambda pair: pair[0])]


def now_s():
    """Virtual time."""
    return LoopClock().monotonic_s()


async def run(seed, protocol="cas"):
    """A minute of it, then peace."""
    world = World(seed)
    await world.log().create(protocol=protocol)
    await world.log().streams.open(*STREAMS)
    await world.log().streams.close(*STREAMS)
    world.told.extend((stream, False, now_s(), now_s()) for stream in STREAMS)
    await asyncio.gather(
        *(world.change(12) for _ in range(3)), *(world.write(40) for _ in range(2))
    )
    world.faulty.heal()
    await world.faulty.drain()
    return world, await world.history(), await world.log().streams.list(closed=True)


def was_open_throughout(told, stream, start_s, end_s):
    """Whether nothing that was said of the stream lets it be closed in that time."""
    sure = [t for t in told if t[0] == stream and t[3] < start_s]
    maybe = [t for t in told if t[0] == stream and t[2] < end_s and t[3] >= start_s]
    if not sure or any(not is_open for _, is_open, _, _ in maybe):
        return False
    last = max(sure, key=lambda t: t[3])
    rivals = [t for t in sure if t[3] > last[2]]
    return all(is_open for _, is_open, _, _ in rivals)


def was_closed_throughout(told, stream, start_s, end_s):
    """Whether nothing that was said of the stream lets it be open in that time."""
    turned = [(name, not is_open, called, done) for name, is_open, called, done in told]
    return was_open_throughout(turned, stream, start_s, end_s)


@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(6)), *((n, "chain") for n in range(2))]
)
def test_streams_under_faults(seed, protocol):
    """Changes are one order without a gap; records are taken and refused as was promised."""
    # EVIDENCE-OF: G-98, G-99, G-100
    world, history, streams = simulate(seed, lambda: run(seed, protocol))
    assert [change.number for change in history] == list(range(1, len(history) + 1))
    state = {}
    for change in history:
        assert change.base <= change.number
        state = dict(change.streams) if change.base == change.number else state | change.streams
    assert state == streams
    assert 10 < len(history)
    taken = refused = judged = 0
    for stream, called_s, outcome in world.appends:
        if isinstance(outcome, int):
            taken += 1
            # A close that was over long before: nobody may have been taken.
            before_s = called_s - PROMISED_S - SLOW_S
            judged += was_closed_throughout(world.told, stream, before_s, called_s + SLOW_S)
        elif isinstance(outcome, StateError):
            refused += 1
            assert not was_open_throughout(world.told, stream, called_s, called_s + 60)
    assert 0 == judged
    assert taken > 3
    assert refused > 3


def test_a_record_is_in_the_log_once_or_refused():
    """What was acknowledged is read from its stream; what was refused is nowhere."""
    world, _, _ = simulate(11, lambda: run(11))

    async def read():
        log = Log(Store.over(world.ground, "sim:"), "log")
        async with log.reader() as reader:
            return {s: [r.offset async for r in reader.read(stream=s)] for s in STREAMS}

    found = simulate(1, read)
    for stream in STREAMS:
        told = [o for s, _, o in world.appends if s == stream and isinstance(o, int)]
        assert sorted(told) == [o for o in found[stream] if o in set(told)]
    count = sum(map(len, found.values()))
    open_end = sum(isinstance(o, UncertainError) for _, _, o in world.appends)
    told = sum(isinstance(o, int) for _, _, o in world.appends)
    assert told <= count <= told + open_end
