"""A fresh store and a fresh directory for each test of volumes."""

from __future__ import annotations

import pytest
from volume_desk import Desk


@pytest.fixture
def desk(tmp_path):
    """A fresh store and a fresh directory."""
    return Desk(tmp_path)
