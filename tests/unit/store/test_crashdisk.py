"""The crash model keeps what was synced, and may lose each thing that was not."""

from __future__ import annotations

import errno

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.testing.crashdisk import CrashDisk, PowerCut


def after(disk, seeds=60):
    """The disk after a power cut, for many choices of what survives."""
    return [disk.power_cut(SeededEntropy(seed)) for seed in range(seeds)]


def names(disk, path="/"):
    return frozenset(name for name, _ in disk.scan(path))


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_unsynced_names_may_go_or_stay(model):
    """A name not yet synced may survive or not; one that was, does."""
    disk = CrashDisk(model)
    disk.write("/kept", b"bytes", 1)
    disk.fsync_dir("/")
    disk.mkdir("/open")
    assert {frozenset({"kept"}), frozenset({"kept", "open"})} == {names(one) for one in after(disk)}


def test_posix_names_are_independent():
    """By the standard, of two unsynced names any may survive; on ext4 the later not alone."""
    found = {}
    for model in ("posix", "ext4"):
        disk = CrashDisk(model)
        disk.mkdir("/a")
        disk.mkdir("/b")
        found[model] = {names(one) for one in after(disk)}
    none, first, second, both = map(frozenset, ["", "a", "b", "ab"])
    assert {none, first, second, both} == found["posix"]
    assert {none, first, both} == found["ext4"]


def test_ext4_commits_with_any_sync():
    """On ext4 the sync of any file makes all earlier names durable; by the standard it does not."""
    found = {}
    for model in ("posix", "ext4"):
        disk = CrashDisk(model)
        disk.mkdir("/a")
        disk.write("/a/file", b"", 1)
        found[model] = {names(one) for one in after(disk)}
    assert {frozenset(), frozenset("a")} == found["posix"]
    assert {frozenset("a")} == found["ext4"]


def test_unsynced_bytes_may_tear():
    """A file whose sync failed may be found whole, empty, cut short, or with zeros."""
    disk = CrashDisk()
    disk.fail(4, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.write("/file", b"12345678", 1)
    disk.fsync_dir("/")
    found = {one.read("/file")[1] for one in after(disk, 300)}
    assert {b"", b"12345678"} < found
    assert any(0 < len(data) < 8 for data in found)
    assert any(len(data) == 8 and data.endswith(b"\0") and data[:1] == b"1" for data in found)


def test_rename_replaces_or_does_not():
    """After a cut a replaced name has the old file or the new one, never neither."""
    disk = CrashDisk()
    disk.write("/old", b"old", 1)
    disk.write("/new", b"new", 2)
    disk.fsync_dir("/")
    disk.rename("/new", "/old")
    assert {b"old", b"new"} == {one.read("/old")[1] for one in after(disk)}
    disk = CrashDisk()
    disk.write("/old", b"old", 1)
    disk.write("/new", b"new", 2)
    disk.fsync_dir("/")
    disk.rename("/new", "/old")
    disk.fsync_dir("/")
    assert {(b"new", frozenset({"old"}))} == {
        (one.read("/old")[1], names(one)) for one in after(disk)
    }


def test_folder_lost_with_all_in_it():
    """A folder whose own name was not synced may be lost with everything synced inside it."""
    disk = CrashDisk()
    disk.mkdir("/a")
    disk.write("/a/file", b"", 1)
    disk.fsync_dir("/a")
    assert {frozenset(), frozenset("a")} == {names(one) for one in after(disk)}


def test_dead_disk():
    """After the cut, whatever still runs on the old disk gets no further."""
    disk = CrashDisk()
    disk.cut_after(1)
    disk.mkdir("/a")
    with pytest.raises(PowerCut):
        disk.mkdir("/b")
    with pytest.raises(PowerCut):
        disk.stat("/a")
    disk.revive()
    assert {"a"} == names(disk)


def test_planned_failure():
    """The step that is to fail does, once, and changes nothing; a write leaves half its bytes."""
    disk = CrashDisk()
    disk.fail(2, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        disk.write("/file", b"12345678", 1)
    assert b"1234" == disk.read("/file")[1]
    disk.fail(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.unlink("/file")
    disk.unlink("/file")
    assert set() == names(disk)


def test_errors_of_the_real_thing():
    """Wrong calls fail as they do on a real disk."""
    disk = CrashDisk()
    disk.write("/file", b"", 1)
    disk.mkdir("/folder")
    with pytest.raises(FileNotFoundError):
        disk.stat("/absent")
    with pytest.raises(NotADirectoryError):
        disk.stat("/file/below")
    with pytest.raises(FileExistsError):
        disk.link("/file", "/folder")
    with pytest.raises(FileExistsError):
        disk.mkdir("/folder")
    with pytest.raises(FileExistsError):
        disk.write("/file", b"", 1)
    with pytest.raises(IsADirectoryError):
        disk.read("/folder")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/absent")


def test_memory_that_is_shared_is_anything_after_a_power_cut():
    """All who share it see what was written; the cut leaves zeros, all, or blocks of it."""
    found = set()
    for seed in range(40):
        disk = CrashDisk()
        first = disk.share("/m", 1024)
        second = disk.share("/m", 0)
        first.view[0], first.view[600] = 1, 2
        assert (1, 2, 1024) == (second.view[0], second.view[600], len(second.view))
        disk.fsync_dir("/")
        after = disk.power_cut(SeededEntropy(seed)).share("/m", 1024)
        found.add((after.view[0], after.view[600]))
    assert {(0, 0), (1, 2), (1, 0), (0, 2)} >= found >= {(0, 0), (1, 2)}


def test_memory_that_is_shared_outlives_a_process():
    """And grows without losing what is in it; a disk that is full says so before it is written."""
    disk = CrashDisk()
    disk.share("/m", 1024).view[7] = 9
    disk.revive()
    grown = disk.share("/m", 4096)
    assert (9, 4096) == (grown.view[7], len(grown.view))
    disk.fail(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        grown.reserve(0, 4096)
    grown.reserve(0, 4096)


def test_shared_locks_of_open_files():
    """Many share one, or one has it alone."""
    disk = CrashDisk()
    one, two, three = (disk.open("/l", create=True) for _ in range(3))
    assert one.try_lock(shared=True)
    assert two.try_lock(shared=True)
    assert not three.try_lock()
    one.unlock()
    two.unlock()
    assert three.try_lock()
    assert not one.try_lock(shared=True)
