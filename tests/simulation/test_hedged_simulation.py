"""Competing writers over a store that is asked twice, is slow, and loses answers."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import CordwoodError, UncertainError
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store import hedged
from cordwood.store.hedged import HedgedStore
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

SLOW = Latency(0.03, p99_s=0.09, tail_probability=0.05, tail_even_s=(0.1, 0.6))
FAULTS = {
    Fault.ERROR_BEFORE: 0.02,
    Fault.ERROR_AFTER: 0.03,
    Fault.ZOMBIE: 0.02,
    Fault.CONFLICT: 0.01,
    Fault.THROTTLED: 0.02,
}


async def compete(seed, protocol):
    """Two writers, each with a store of its own before the same objects; what each was told."""
    entropy = SeededEntropy(f"hedged {seed}")
    ground = MemoryStore(LoopClock())
    faulty = FaultyStore(
        ground,
        entropy,
        LoopClock(),
        latency=SLOW,
        write_faults=FAULTS,
        read_faults={Fault.ERROR_BEFORE: 0.02},
    )
    told, doubtful, hedges = {}, set(), 0

    async def write(name):
        nonlocal hedges
        inner = RetryingStore(faulty, LoopClock(), entropy, deadline_s=60.0)
        store = HedgedStore(inner, LoopClock(), hedges_per_s=1e6, quantile=0.5)
        log = Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)
        await log.create(exist_ok=True, protocol=protocol)
        async with log.writer(options=Options(batch_bytes=100)) as writer:
            for turn in range(25):
                bodies = [b"%s %d %d" % (name, turn, n) for n in range(3)]
                futures = [writer.append(body) for body in bodies]
                answers = await asyncio.gather(*futures, return_exceptions=True)
                for body, answer in zip(bodies, answers, strict=True):
                    if isinstance(answer, int):
                        told[body] = answer
                    elif isinstance(answer, UncertainError):
                        doubtful.add(body)
                    else:
                        assert isinstance(answer, CordwoodError)
                await asyncio.sleep(entropy.uniform() * 0.2)
        hedges += store.hedges

    await asyncio.gather(write(b"a"), write(b"b"))
    await faulty.drain()
    log = Log(Store.over(ground, "sim:"), "log", clock=LoopClock(), entropy=entropy)
    async with log.reader() as reader:
        found = {record.body: record.offset async for record in reader.read()}
        count = (await log.state()).records
    report = await log.scrub(deep=True)
    return told, doubtful, found, count, report, hedges


@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(6)), *((n, "chain") for n in range(3))]
)
def test_everything_acknowledged_is_there_once(seed, protocol, monkeypatch):
    """At the offset that was told; what was refused is nowhere; the log is whole."""
    # EVIDENCE-OF: G-104
    # Nearly every other request counts as slow, from the first ones on.
    monkeypatch.setattr(hedged, "_SAMPLES_MIN", 3)
    monkeypatch.setattr(hedged, "_SLOWER", 1.0)
    told, doubtful, found, count, report, hedges = simulate(seed, lambda: compete(seed, protocol))
    assert len(found) == count
    assert told == {body: offset for body, offset in found.items() if body in told}
    assert set(found) <= set(told) | doubtful
    assert report.ok
    assert 100 < len(told)
    assert 50 < hedges
