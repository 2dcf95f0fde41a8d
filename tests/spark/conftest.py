"""What the tests of the connector share. The session itself, `spark`, is in tests/conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Every test here needs a JRE, and all of them run in one process: one JVM is enough."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture
def url(tmp_path):
    """Where the log of a test lies."""
    return f"file://{tmp_path}/wood/orders"
