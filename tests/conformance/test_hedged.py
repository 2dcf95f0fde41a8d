"""With a budget so large that about every second request is sent twice, the suite still passes."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.store.hedged import HedgedStore
from cordwood.store.memory import MemoryStore
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.stores import StoreTests


class TestHedgedStore(StoreTests):
    """The threshold is the median, and hedges are as good as unlimited."""

    swaps_per_writer = 3
    many_keys = 1_001

    @pytest.fixture
    async def store(self):
        latency = Latency(0.0002, p99_s=0.002)
        faulty = FaultyStore(MemoryStore(), SeededEntropy(4), SYSTEM_CLOCK, latency=latency)
        yield HedgedStore(faulty, SYSTEM_CLOCK, hedges_per_s=1e6, window=20, quantile=0.5)
        await faulty.drain()
