"""What the tests of the connector share. The session itself, `spark`, is in tests/conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood import sync

HERE = Path(__file__).parent


def pytest_itemcollected(item):
    """Every test here needs a JRE."""
    if item.path.is_relative_to(HERE):
        item.add_marker(pytest.mark.spark)


@pytest.fixture
def url(tmp_path):
    """Where the log of a test lies."""
    return f"file://{tmp_path}/wood/orders"


@pytest.fixture
def log(url):
    """An empty log, at `url`."""
    made = sync.Log.from_url(url)
    made.create(grace_s=1)
    return made


@pytest.fixture
def fill():
    """Append so many records in so many fragments; their bodies are their offsets."""

    def append(log, fragments, each=10):
        with log.writer() as writer:
            for _ in range(fragments):
                start = log.state().next_offset
                writer.append_many([b"%d" % offset for offset in range(start, start + each)])

    return append
