"""A real Azure Blob server passes the suite."""

from __future__ import annotations

import itertools

import pytest

from cordwood.store.url import Store
from cordwood.testing.stores import StoreTests

pytestmark = pytest.mark.azure

_number = itertools.count()


class TestAzure(StoreTests):
    """As users open it."""

    swaps_per_writer = 2
    create_rounds = 2
    many_keys = 1_001

    @pytest.fixture
    def store(self, azure):
        return Store(f"{azure.url}/store-{next(_number)}", **azure.options)
