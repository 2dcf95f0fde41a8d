"""What lies between a log and its store is a store itself."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.log.objects import LogObjects
from cordwood.store.memory import MemoryStore
from cordwood.testing.limited import LimitedStore
from cordwood.testing.stores import StoreTests


class TestRegisters(StoreTests):
    """Objects that are not a log's are left as they are."""

    many_keys = 1_001
    swaps_per_writer = 3

    @pytest.fixture
    def store(self):
        return LogObjects(MemoryStore(), "orders").store


class TestLimitedStore(StoreTests):
    """Limits so high that nobody waits long."""

    many_keys = 1_001
    swaps_per_writer = 3

    @pytest.fixture
    def store(self):
        return LimitedStore(MemoryStore(), SYSTEM_CLOCK, writes_per_s=1e6, reads_per_s=1e6)
