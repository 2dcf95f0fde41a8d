"""A topic with a tier is made in both places or in none, wherever its making is cut off."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import AlreadyExistsError, CordwoodError, NotFoundError
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.dying import DeadError, dying
from cordwood.topics import tier as tiers
from cordwood.topics.config import TopicConfig
from cordwood.topics.folder import Folder
from cordwood.topics.rows import checked_row
from cordwood.topics.shelf import Shelf

URL = "memory:tier"
CONFIG = TopicConfig(namespace="shop", topic="clicks", tier=URL, extent_bytes=4096)


@pytest.fixture(autouse=True)
def in_hand(monkeypatch):
    """Nothing is uploaded by itself."""
    monkeypatch.setattr(tiers, "UPLOAD_FIRST_S", 3600.0)


def home(disk, backend, seed):
    """A directory as a process has it."""
    made = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(seed))
    made._shelves[URL] = Shelf(Store.over(backend))
    return made


def check(disk, backend):
    """The topic is there, or is made now; records go through it; and it can be deleted."""
    later = home(disk, backend, 2)
    if ("shop", "clicks") not in later.topics():
        later.create([CONFIG])
    part = later.partition("shop", "clicks", 0)
    assert 0 == part.append_one(checked_row(b"x", None, None, None))
    assert 1 == part.upload()
    later.delete("shop", "clicks")
    assert [] == Shelf(Store.over(backend)).topics()
    later.create([CONFIG])


def test_a_maker_that_dies_in_a_request():
    """Whether the request takes effect or not, the next maker has it."""
    for last in range(1, 200):
        for takes_effect in (True, False):
            disk, memory = CrashDisk(), MemoryStore()
            disk.mkdir("/wood")
            try:
                home(disk, dying(memory, last, takes_effect=takes_effect), 1).create([CONFIG])
            except DeadError:
                disk.revive()
            else:
                assert last > 5
                return
            check(disk, memory)


@pytest.mark.parametrize("kind", ["power", "died", errno.ENOSPC])
def test_a_maker_that_is_cut_off_at_any_step_on_the_disk(kind):
    """By a power cut, by its death, by a full disk."""
    for step in range(200):
        disk, memory = CrashDisk(), MemoryStore()
        disk.mkdir("/wood")
        disk.fsync_dir("/")
        if isinstance(kind, int):
            disk.fail(step + 1, kind)
        else:
            disk.cut_after(step)
        before, is_over = disk.steps, False
        with suppress(PowerCut, CordwoodError):
            home(disk, memory, 1).create([CONFIG])
            is_over = disk.steps - before <= step
        if kind == "power":
            disk = disk.power_cut(SeededEntropy(step))
        disk.revive()
        check(disk, memory)
        if is_over:
            assert step > 8
            return
    pytest.fail("it never ends")


def test_only_what_is_empty_and_ones_own_is_removed():
    """A topic that was used stays, also if the directory is gone and the plan was left."""
    disk, memory = CrashDisk(), MemoryStore()
    disk.mkdir("/wood")
    mine = home(disk, memory, 1)
    mine.create([CONFIG])
    mine.partition("shop", "clicks", 0).append_one(checked_row(b"x", None, None, None))
    mine.partition("shop", "clicks", 0).upload()
    there = Shelf(Store.over(memory)).partition("shop", "clicks", 0)
    shelf = Shelf(Store.over(memory))
    shelf.delete_unused("shop", "clicks", there.config.tier_id)
    assert 1 == shelf.partition("shop", "clicks", 0).bounds().next
    other = CrashDisk()
    other.mkdir("/wood")
    with pytest.raises(AlreadyExistsError, match="exists already"):
        home(other, memory, 3).create([CONFIG])
    shelf.delete_unused("shop", "clicks", "another")
    assert [("shop", "clicks")] == shelf.topics()
    assert [] == home(other, memory, 3).topics()


def test_a_deletion_that_was_cut_off_is_finished_by_the_next():
    """What it left on the disk does not stay there for ever."""
    for step in range(100):
        disk = CrashDisk()
        disk.mkdir("/wood")
        mine = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(1))
        plain = TopicConfig(namespace="shop", topic="clicks", extent_bytes=4096)
        mine.create([plain])
        mine.partition("shop", "clicks", 0).append_one(checked_row(b"x", None, None, None))
        disk.cut_after(step)
        try:
            mine.delete("shop", "clicks")
        except PowerCut:
            disk.revive()
        else:
            assert step > 5
            return
        later = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(2))
        other = TopicConfig(namespace="shop", topic="other")
        later.create([other])
        with suppress(NotFoundError):
            later.delete("shop", "clicks")
        assert ["other"] == [name for name, _ in disk.scan("/wood/shop")]
    pytest.fail("it never ends")
