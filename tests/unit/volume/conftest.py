"""A fresh store and a fresh directory for each test of volumes."""

from __future__ import annotations

import pytest
from volume_desk import Desk
from volume_flavours import World


@pytest.fixture
def desk(tmp_path):
    """A fresh store and a fresh directory."""
    return Desk(tmp_path)


@pytest.fixture
async def world(tmp_path):
    """A memory store, awaited; its volumes are closed in the end."""
    made = World("async", "memory", tmp_path)
    yield made
    for volume in made.open_ones:
        await volume.close()
