"""The fault-injecting store is a store: without faults, and with latency, it passes the suite."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.stores import StoreTests


class TestFaultyStore(StoreTests):
    """Latency of a tenth of a millisecond, with a tail, and no faults."""

    many_keys = 1_001
    swaps_per_writer = 3

    @pytest.fixture
    async def store(self):
        latency = Latency(0.0001, p99_s=0.0004, tail_probability=0.01, tail_mean_s=0.001)
        store = FaultyStore(MemoryStore(), SeededEntropy(1), SYSTEM_CLOCK, latency=latency)
        yield store
        await store.drain()
