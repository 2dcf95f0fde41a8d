"""Over a store that fails and throttles, the retrying store passes the suite."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.testing.stores import StoreTests

READ_FAULTS = {Fault.ERROR_BEFORE: 0.05, Fault.THROTTLED: 0.05}
WRITE_FAULTS = {Fault.THROTTLED: 0.1}
"""No lost answers: what becomes of those is not part of the contract of one put, see unit tests."""


class TestRetryingStore(StoreTests):
    """Faults on about one request in ten."""

    swaps_per_writer = 3
    many_keys = 1_001

    @pytest.fixture
    async def store(self):
        faulty = FaultyStore(
            MemoryStore(),
            SeededEntropy(2),
            SYSTEM_CLOCK,
            read_faults=READ_FAULTS,
            write_faults=WRITE_FAULTS,
        )
        yield RetryingStore(
            faulty,
            SYSTEM_CLOCK,
            SeededEntropy(3),
            backoff_first_s=0.0002,
            backoff_max_s=0.001,
        )
        await faulty.drain()
