"""Damage within a large commit: what follows it is looked for however far behind it is."""

from __future__ import annotations

import pytest

from cordwood.base.errors import CorruptionError
from cordwood.journal import frames, pair
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.volumemodel import PAGE_BYTES, commit, page_of
from cordwood.volume.local import Local

# EVIDENCE-OF: G-110


@pytest.fixture
def disk(monkeypatch):
    """A disk in memory, and a search in small steps."""
    monkeypatch.setattr(frames, "SEARCHED_BYTES", 4096)
    made = CrashDisk()
    made.mkdir("/v")
    return made


def test_a_large_commit_that_small_ones_follow(disk):
    """It is refused, wherever the damage is."""
    local = Local.open("/v/log", PAGE_BYTES, disk=disk, switch_pages=1000)
    commit(local, {n: page_of(n, 1) for n in range(1, 31)}, 30)
    commit(local, {1: page_of(1, 2)}, 30)
    state = local.control.read()
    local.close()
    path = "/v/log/wal/wal0.wal"
    kept = bytes(disk.read(path)[1])
    for place in (pair.FRAMES_AT + 1, pair.FRAMES_AT + 5, 5000, state.end - 700):
        disk.overwrite(path, b"rot", place)
        with pytest.raises(CorruptionError, match="wal0"):
            Local.open("/v/log", PAGE_BYTES, disk=disk)
        disk.overwrite(path, kept, 0)
    with Local.open("/v/log", PAGE_BYTES, disk=disk) as again, again.snapshot() as view:
        assert page_of(1, 2) == view.read(1)


def test_a_head_that_a_large_commit_follows(disk):
    """The head of the newer file is damaged, and its first commit is large."""
    local = Local.open("/v/log", PAGE_BYTES, disk=disk, switch_pages=2)
    for version in range(1, 4):
        commit(local, {n: page_of(n, version) for n in range(1, 9)}, 30)
    state = local.control.read()
    assert (2, 1, pair.FRAMES_AT) == (state.sequence, local.control.drained, state.end)
    local.switch_bytes = 1 << 20
    commit(local, {n: page_of(n, 4) for n in range(1, 31)}, 30)
    local.close()
    disk.overwrite("/v/log/wal/wal0.wal", b"rot", 20)
    with pytest.raises(CorruptionError, match="head is not whole"):
        Local.open("/v/log", PAGE_BYTES, disk=disk)
