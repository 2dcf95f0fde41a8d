"""Damage to a pair of WAL files: a torn tail is cut off, all else is refused and kept."""

from __future__ import annotations

import pytest

from cordwood.base.errors import CorruptionError
from cordwood.journal import frames, pair
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.volumemodel import PAGE_BYTES, Version, commit, page_of, seen
from cordwood.volume.local import Local

# EVIDENCE-OF: G-110

WAL = "/v/log/wal"
PATHS = [f"{WAL}/wal0.wal", f"{WAL}/wal1.wal"]
PARTS = 6


def opened(disk):
    """A handle whose files are full after two commits."""
    return Local.open("/v/log", PAGE_BYTES, disk=disk, switch_pages=2)


def filled():
    """Two commits in the idle file, which is not drained, and two in the other; each version."""
    disk = CrashDisk()
    disk.mkdir("/v")
    local = opened(disk)
    versions = [Version()]
    for version in range(1, 4):
        pages = {version: page_of(version, version)}
        commit(local, pages, 4)
        versions.append(versions[-1].changed(pages, 4, None))
    # The last one is short, so that the file is not left again.
    commit(local, {}, 3)
    versions.append(versions[-1].changed({}, 3, None))
    state = local.control.read()
    ends = [state.idle_end, state.end]
    assert (1, 0) == (state.sequence, local.control.drained)
    local.close()
    for path, end in zip(PATHS, ends, strict=True):
        disk.truncate(path, end + 40)
    return disk, versions, ends


DISK, VERSIONS, ENDS = filled()
CONTENT = [bytes(DISK.read(path)[1]) for path in PATHS]


def last_frame(data):
    """Where the last frame of a file begins."""
    head = pair.head_of(data[: pair.FRAMES_AT], "it")
    return frames.scan(data[pair.FRAMES_AT :], head.start).frames[-1].begin


def put_back():
    """The files as they were."""
    for path, data in zip(PATHS, CONTENT, strict=True):
        DISK.truncate(path, 0)
        DISK.overwrite(path, data, 0)


def looked():
    """Which version is found; None if opening is refused, and the error."""
    try:
        local = opened(DISK)
    except CorruptionError as error:
        return None, error
    with local, local.snapshot() as view:
        found = seen(view, {0: Version()})
    return next(n for n, version in enumerate(VERSIONS) if version.same_as(found)), None


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("which", [0, 1])
def test_every_byte(which, part):
    """A byte of the last frame costs that commit, which looks torn; any other is refused."""
    data, end = CONTENT[which], ENDS[which]
    last = last_frame(data) if which == 1 else end
    for place in range(part, len(data), PARTS):
        put_back()
        DISK.overwrite(PATHS[which], bytes([data[place] ^ 0x41]), place)
        damaged = bytes(DISK.read(PATHS[which])[1])
        version, error = looked()
        if place >= end:
            assert version == len(VERSIONS) - 1, place
        elif place >= last:
            assert version == len(VERSIONS) - 2, place
        else:
            assert version is None, place
            assert PATHS[which] in str(error) or PATHS[which] in error.where
            assert damaged == bytes(DISK.read(PATHS[which])[1])
    put_back()
    assert (len(VERSIONS) - 1, None) == looked()


def test_a_file_that_is_cut_short():
    """The idle one is refused wherever it ends; the other has lost its tail."""
    for size in range(0, ENDS[0], 97):
        put_back()
        DISK.truncate(PATHS[0], size)
        version, error = looked()
        assert version is None
        assert "wal0.wal" in str(error)
    put_back()
    DISK.truncate(PATHS[1], last_frame(CONTENT[1]) + 3)
    assert (len(VERSIONS) - 2, None) == looked()
    put_back()


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_gone(which):
    """It is missed, whichever it is: both are there from the beginning."""
    disk, *_ = filled()
    disk.unlink(PATHS[which])
    with pytest.raises(CorruptionError, match=rf"wal{which}\.wal"):
        opened(disk)


def test_a_page_that_rots_while_the_volume_is_open():
    """It is never handed out, and the error says where it is."""
    disk, *_ = filled()
    with opened(disk) as local, local.snapshot() as view:
        _, index, place, _ = view._newest(1)
        disk.overwrite(PATHS[index], b"rot", place + 100)
        with pytest.raises(CorruptionError, match=f"damaged at byte {place}: page 1"):
            view.read(1)
        with pytest.raises(CorruptionError):
            local.drain()
        assert disk.read(f"{WAL}/base.map")[1] == b""
