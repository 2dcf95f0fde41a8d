"""The reference passes the suite, by itself and as users open it."""

from __future__ import annotations

import pytest

from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.stores import StoreTests


class TestMemoryStore(StoreTests):
    """The plain class."""

    many_keys = 3_000

    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestMemoryUrl(StoreTests):
    """By URL."""

    @pytest.fixture
    def store(self):
        return Store("memory:")


class TestChild(StoreTests):
    """A view of a folder, with neighbours that it must not show."""

    @pytest.fixture
    async def store(self):
        store = Store("memory:")
        for key in ["orders-old/a", "order", "orders0", "zz"]:
            await store.put(key, b"a neighbour")
        return store.child("orders")
