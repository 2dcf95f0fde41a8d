"""What the meter counts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import AlreadyExistsError, ContendedError, NotFoundError, StoreError
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import OPERATIONS, MeteredStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate


def metered(latency_s=0.0):
    """A meter in front of a store that takes this long."""
    faulty = FaultyStore(
        MemoryStore(LoopClock()), SeededEntropy(1), LoopClock(), latency=Latency(latency_s)
    )
    return MeteredStore(faulty, LoopClock()), faulty


def test_counts():
    """Requests, bytes each way, refusals and errors are counted by operation."""

    async def main():
        store, faulty = metered()
        await store.put("a", b"12345", "create")
        await store.put("b", b"123")
        with pytest.raises(AlreadyExistsError):
            await store.put("a", b"1", "create")
        with pytest.raises(ContendedError):
            await store.put("a", b"1", Match("nonsense"))
        faulty.script("put", Fault.ERROR_BEFORE)
        with pytest.raises(StoreError):
            await store.put("a", b"1")
        await store.get("a")
        await store.get_range("a", 1, 2)
        await store.head("a")
        with pytest.raises(NotFoundError):
            await store.get("absent")
        assert 2 == len([meta async for meta in store.list()])
        await store.sync(["a"])
        await store.delete(["a", "b"])
        found = store.snapshot()
        put, get = found.operations["put"], found.operations["get"]
        assert (5, 2, 1, 11) == (put.requests, put.refused, put.errors, put.bytes_up)
        assert (2, 1, 0, 5) == (get.requests, get.refused, get.errors, get.bytes_down)
        assert 2 == found.operations["get_range"].bytes_down
        assert set(OPERATIONS) == set(found.operations)
        assert 12 == found.requests
        store.reset()
        assert 0 == store.snapshot().requests

    simulate(1, main)


def test_latencies():
    """Quantiles are right to within a bucket, and the largest is exact."""

    async def main():
        store, faulty = metered()
        for num in range(1, 101):
            faulty._latency = Latency(num / 1_000)
            await store.put(f"{num}", b"")
        latency = store.snapshot().operations["put"].latency
        assert 100 == latency.count
        assert 0.1 == pytest.approx(latency.max_s)
        assert 0.05 == pytest.approx(latency.quantile_s(0.5), rel=0.1)
        assert 0.099 == pytest.approx(latency.quantile_s(0.99), rel=0.1)
        assert latency.max_s == latency.quantile_s(1.0)
        assert 5.05 == pytest.approx(latency.total_s)
        assert 5.05 == pytest.approx(store.snapshot().elapsed_s)
        assert 0.0 == store.snapshot().operations["get"].latency.quantile_s(0.5)

    simulate(1, main)


def test_list_time_is_what_its_consumer_waited():
    """The time a list's consumer takes between keys does not count; leaving early does."""

    async def main():
        store, _ = metered(0.25)
        for num in range(3):
            await store.put(f"{num}", b"")
        async with aclosing(store.list()) as metas:
            async for _ in metas:
                await asyncio.sleep(10)
                break
        found = store.snapshot().operations["list"]
        assert (1, 0) == (found.requests, found.errors)
        assert 0.25 == pytest.approx(found.latency.max_s)

    simulate(1, main)


def test_failed_list():
    """A list that fails counts as an error."""

    async def main():
        store, faulty = metered()
        faulty.script("list", Fault.ERROR_BEFORE)
        with pytest.raises(StoreError):
            [meta async for meta in store.list()]
        assert 1 == store.snapshot().operations["list"].errors

    simulate(1, main)
