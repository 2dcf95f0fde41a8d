"""The fault-injecting store does what its table says, no more, and the same for the same seed."""

from __future__ import annotations

import asyncio
import math

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import AlreadyExistsError, NotFoundError, StoreError
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate
from cordwood.testing.stores import keys_of


def faulty(**options):
    """A faulty store and the ground below it."""
    ground = MemoryStore(LoopClock())
    return FaultyStore(ground, SeededEntropy(1), LoopClock(), **options), ground


async def is_there(ground, key="object"):
    try:
        await ground.get(key)
    except NotFoundError:
        return False
    return True


@pytest.mark.parametrize(
    ("fault", "applied", "happens", "happens_later"),
    [
        (Fault.ERROR_BEFORE, True, False, False),
        (Fault.ERROR_AFTER, True, True, True),
        (Fault.ZOMBIE, True, False, True),
        (Fault.THROTTLED, False, False, False),
    ],
)
def test_errors(fault, applied, happens, happens_later):
    """An error says what is known, and the write happens, or does, or will."""

    async def main():
        store, ground = faulty(latency=Latency(0.01))
        store.script("put", fault)
        with pytest.raises(StoreError) as caught:
            await store.put("object", b"", "create")
        assert (applied, True) == (caught.value.applied, caught.value.transient)
        assert happens is await is_there(ground)
        await store.drain()
        assert happens_later is await is_there(ground)
        assert {"put": 1, f"put:{fault}": 1} == dict(store.counts)

    simulate(1, main)


@pytest.mark.parametrize(
    ("fault", "happens"), [(Fault.HANG_BEFORE, False), (Fault.HANG_AFTER, True)]
)
def test_hangs(fault, happens):
    """A hang lasts until the caller stops waiting, with or without its effect."""

    async def main():
        store, ground = faulty()
        store.script("put", fault)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await store.put("object", b"", "create")
        assert happens is await is_there(ground)

    simulate(1, main)


def test_conflict():
    """A conflict says "exists" of a create although nothing does, and leaves a swap open."""

    async def main():
        store, ground = faulty()
        store.script("put", Fault.CONFLICT, Fault.CONFLICT)
        with pytest.raises(AlreadyExistsError):
            await store.put("object", b"", "create")
        with pytest.raises(StoreError) as caught:
            await store.put("object", b"", Match("m1"))
        assert caught.value.applied
        assert not await is_there(ground)

    simulate(1, main)


def test_cancelled_put_takes_effect():
    """A put is on the wire once it is sent: cancelling its caller changes nothing."""

    async def main():
        store, ground = faulty(latency=Latency(1.0))
        task = asyncio.ensure_future(store.put("object", b"", "create"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await is_there(ground)
        await store.drain()
        assert await is_there(ground)

    simulate(1, main)


def test_reads():
    """Reads fail and hang to order, and then go well."""

    async def main():
        store, ground = faulty()
        await ground.put("object", b"bytes")
        for operation in ("get", "head", "list"):
            store.script(operation, Fault.ERROR_AFTER)
        with pytest.raises(StoreError):
            await store.get("object")
        with pytest.raises(StoreError):
            await store.head("object")
        with pytest.raises(StoreError):
            await keys_of(store)
        assert b"bytes" == (await store.get("object")).data
        assert ["object"] == await keys_of(store)

    simulate(1, main)


def test_heal():
    """After healing nothing goes wrong any more."""

    async def main():
        store, _ = faulty(write_faults={Fault.ERROR_BEFORE: 1.0})
        with pytest.raises(StoreError):
            await store.put("object", b"")
        store.heal()
        await store.put("object", b"")

    simulate(1, main)


def test_rates():
    """Faults come as often as they were asked for."""

    async def main():
        rates = {Fault.ERROR_BEFORE: 0.1, Fault.THROTTLED: 0.2}
        store, _ = faulty(write_faults=rates)
        outcomes = await asyncio.gather(
            *(store.put(f"{num}", b"") for num in range(5_000)), return_exceptions=True
        )
        assert 0.7 == pytest.approx(sum(isinstance(one, str) for one in outcomes) / 5_000, abs=0.03)
        assert 0.1 == pytest.approx(store.counts["put:error_before"] / 5_000, abs=0.02)

    simulate(1, main)


def test_latency():
    """Latencies have the median, the 99th percentile and the tail they were given."""
    entropy = SeededEntropy(1)
    body = sorted(Latency(0.03, p99_s=0.09).draw(entropy) for _ in range(20_000))
    assert 0.03 == pytest.approx(body[10_000], rel=0.05)
    assert 0.09 == pytest.approx(body[19_800], rel=0.1)
    slow = Latency(0.03, p99_s=0.09, tail_probability=0.02, tail_mean_s=0.6)
    tail = [seconds for seconds in (slow.draw(entropy) for _ in range(20_000)) if seconds > 0.2]
    assert 0.02 * math.exp(-0.2 / 0.6) == pytest.approx(len(tail) / 20_000, rel=0.25)
    assert {0.1} == {Latency(0.1).draw(entropy) for _ in range(10)}


def trace(seed):
    """What a few writers see of a faulty store, with the times."""

    async def main():
        ground = MemoryStore(LoopClock())
        store = FaultyStore(
            ground,
            SeededEntropy(seed),
            LoopClock(),
            latency=Latency(0.01, p99_s=0.1),
            write_faults={Fault.ZOMBIE: 0.2, Fault.ERROR_AFTER: 0.2},
        )
        seen = []

        async def write(name):
            for num in range(20):
                try:
                    outcome = await store.put(f"{num}", name, "create")
                except (StoreError, AlreadyExistsError) as error:
                    outcome = str(error)
                seen.append((LoopClock().monotonic_s(), name, outcome))

        await asyncio.gather(*(write(name) for name in (b"a", b"b", b"c")))
        await store.drain()
        return seen, [tuple(await ground.get(key)) for key in await keys_of(ground)]

    return simulate(1, main)


def test_same_seed_same_run():
    """Equal seeds give equal runs, to the microsecond; others do not."""
    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
