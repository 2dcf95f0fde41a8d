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


def pytest_generate_tests(metafunc):
    """Some of what Spark does is done with logs of both protocols: those marked `both`."""
    if metafunc.definition.get_closest_marker("both") is not None:
        metafunc.parametrize("protocol", ["cas", "chain"], indirect=True)


@pytest.fixture
def protocol(request):
    """The protocol of the log."""
    return getattr(request, "param", "cas")


@pytest.fixture
def log(url, protocol):
    """An empty log, at `url`."""
    made = sync.Log.from_url(url)
    made.create(grace_s=1, protocol=protocol, shards=3 if protocol == "chain" else 1)
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
