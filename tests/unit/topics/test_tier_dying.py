"""An uploader that dies in any of its requests, or whose answers are lost there."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import CordwoodError
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.dying import DeadError, dying
from cordwood.topics import tier as tiers
from cordwood.topics.batch import iter_topic_records
from cordwood.topics.config import TopicConfig
from cordwood.topics.folder import Folder
from cordwood.topics.rows import checked_row
from cordwood.topics.shelf import Shelf

URL = "memory:tier"
CONFIG = TopicConfig(
    namespace="shop",
    topic="clicks",
    tier=URL,
    extent_bytes=4096,
    retention_s=None,
    local_retention_s=0,
)


@pytest.fixture(autouse=True)
def in_hand(monkeypatch):
    """Uploads happen when the test says so, in several blocks."""
    monkeypatch.setattr(tiers, "UPLOAD_FIRST_S", 3600.0)
    monkeypatch.setattr(tiers, "UPLOAD_BYTES", 2000)


def home(root, backend):
    """A directory as a process has it."""
    made = Folder(str(root), clock=SYSTEM_CLOCK, entropy=SeededEntropy(1))
    made._shelves[URL] = Shelf(Store.over(backend))
    return made


def read(partition):
    """All records."""
    scan, found = partition.scan(0), []
    while batches := scan.take():
        found += [one.value for batch in batches for one in iter_topic_records(0, batch)]
    return found


@pytest.mark.parametrize("takes_effect", [True, False])
def test_an_uploader_that_dies_in_any_request(tmp_path, takes_effect):
    """The next one goes on: each record is there once, at its place, and none is lost here."""
    # EVIDENCE-OF: G-96
    values = [b"%0500d" % number for number in range(12)]
    for last in range(1, 300):
        memory, root = MemoryStore(), tmp_path / str(last)
        mine = home(root, memory)
        mine.create([CONFIG])
        for value in values:
            part = mine.partition("shop", "clicks", 0)
            part.append_one(checked_row(value, None, None, None))
        dead = home(root, dying(memory, last, takes_effect=takes_effect))
        try:
            dead.partition("shop", "clicks", 0).upload()
        except (DeadError, CordwoodError):
            pass
        else:
            assert last > 10
            return
        assert values == read(home(root, memory).partition("shop", "clicks", 0))
        later = home(root, memory).partition("shop", "clicks", 0)
        assert 12 == later.upload()
        assert values == read(Shelf(Store.over(memory)).partition("shop", "clicks", 0))
        assert values == read(later)
    pytest.fail("it never ends")
