"""The shortest way of an entry: the same bytes as the long one, and no other outcome."""

from __future__ import annotations

import errno
import os
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import NotFoundError
from cordwood.journal import frames
from cordwood.journal.extent import END_BYTES
from cordwood.journal.journal import LOOK_US, Journal
from cordwood.journal.lane import PAYLOAD_BYTES_MAX, entered, lane_of, mark_of
from cordwood.journal.mark import SLOT_BYTES, Mark, encoded
from cordwood.journal.reading import Reading
from cordwood.store.disk import Disk
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.handclock import HandClock

FOLDER = "/j"
NUMBERS = st.integers(0, 2**63)


def made(disk, *, size=1 << 20, seed=1):
    """A journal as a process has it that comes to it."""
    return Journal(FOLDER, disk, HandClock(), SeededEntropy(seed), extent_bytes=size)


@pytest.fixture
def disk():
    """One with an empty folder."""
    disk = CrashDisk()
    disk.mkdir(FOLDER)
    disk.fsync_dir("/")
    return disk


def append(journal, payload):
    """In a turn."""
    with journal.turn() as turn:
        number = turn.append([payload], time_us=5)
        turn.sync()
    return number


def read(journal):
    """All payloads."""
    reading, found = Reading(journal, 0), []
    while some := reading.take(100):
        found += [bytes(frame.payload) for frame in some]
    return found


@given(st.tuples(*[NUMBERS] * 7), st.binary(max_size=40), NUMBERS)
def test_the_bytes_are_those_of_a_turn(numbers, payload, time_us):
    """Frame, slot, and what is known afterwards."""
    *begin, newest_us = numbers
    mark = Mark(*begin, *begin[3:], newest_us)
    slots = bytes(SLOT_BYTES) + encoded(mark) if mark.turn % 2 else encoded(mark) + bytes(96)
    frame, slot, after = entered(lane_of(mark, slots), payload, time_us)
    parts, tail = frames.framed(
        mark.tail, [payload], number=mark.number, synced=mark.end, time_us=time_us
    )
    expected = mark.moved(tail, time_us).synced().said()
    assert (frame, slot) == (b"".join(parts), encoded(expected))
    both = [encoded(mark), slot] if expected.turn % 2 else [slot, encoded(mark)]
    assert after == lane_of(expected, b"".join(both))
    assert expected == mark_of(after)


@pytest.mark.parametrize("changed", [{"is_closed": True}, {"end": 8}])
def test_there_is_no_lane_behind_what_is_closed_or_not_synced(changed):
    """The next entry goes elsewhere, or something else has to be synced first."""
    mark = Mark(1, 2, 3, 4, 5, 6, 4, 5, 6, 7)
    assert lane_of(mark, b"") is not None
    assert lane_of(mark._replace(**changed), b"") is None


def test_a_large_entry_takes_a_turn(disk):
    """It is not copied."""
    journal = made(disk)
    append(journal, b"0")
    assert 1 == journal.append_alone(bytes(PAYLOAD_BYTES_MAX), 5, 0)
    assert journal.append_alone(bytes(PAYLOAD_BYTES_MAX + 1), 5, 0) is None


def test_the_last_entry_leaves_room_for_the_end(disk):
    """A full extent has a last frame; the entry that would take its place goes to the next one."""
    journal = made(disk, size=4096)
    append(journal, b"0")
    room = 4096 - journal.newest().end - END_BYTES - frames.OVERHEAD
    assert journal.append_alone(bytes(room + 8), 5, 0) is None
    assert 1 == journal.append_alone(bytes(room), 5, 0)
    assert 2 == append(journal, b"2")
    assert [b"0", bytes(room), b"2"] == read(made(disk, size=4096))


def test_a_write_that_takes_only_a_part_is_no_entry(disk, monkeypatch):
    """A turn writes it anew; a part of what the tail says is completed."""
    journal = made(disk)
    append(journal, b"0")
    whole = journal._extent.file.pwrite

    def half(file_write, data, start):
        return file_write(data[: len(data) // 2], start)

    with monkeypatch.context() as patch:
        patch.setattr(journal._extent.file, "pwrite", partial(half, whole), raising=False)
        assert journal.append_alone(b"1", 5, 0) is None
    assert 1 == append(journal, b"1")
    tail = journal._tail_file
    with monkeypatch.context() as patch:
        patch.setattr(tail, "pwrite", partial(half, tail.pwrite), raising=False)
        assert 2 == journal.append_alone(b"2", 5, 0)
    assert 3 == journal.append_alone(b"3", 5, 0)
    assert [b"0", b"1", b"2", b"3"] == read(journal) == read(made(disk))


@pytest.mark.parametrize("step", range(1, 4))
def test_an_entry_that_fails_is_not_there(disk, step):
    """Neither now nor for who comes later, whichever step failed; and the next one is."""
    journal = made(disk)
    append(journal, b"0")
    disk.fail(step, errno.EIO)
    with pytest.raises(OSError, match="put/output"):
        journal.append_alone(b"lost", 5, 0)
    assert 1 == append(journal, b"1")
    assert [b"0", b"1"] == read(journal) == read(made(disk))


def test_an_entry_whose_failure_cannot_be_said_is_not_there(disk):
    """Neither sync nor tail could be written: whoever comes later must not take it for an entry."""
    journal = made(disk)
    append(journal, b"0")
    disk.fail(2, errno.EIO)
    disk.fail(3, errno.EIO)
    with pytest.raises(OSError, match="put/output"):
        journal.append_alone(b"lost", 5, 0)
    assert [b"0"] == read(made(disk, seed=2))
    assert 1 == append(journal, b"1")
    assert [b"0", b"1"] == read(journal) == read(made(disk, seed=3))


def test_an_interrupt_leaves_nothing_locked(disk, monkeypatch):
    """Also one that comes in the moment in which the tail was locked: others go on."""
    mine, other = made(disk), made(disk, seed=2)
    append(mine, b"0")
    lock = mine._tail_file.try_lock

    def interrupted():
        assert lock()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mine._tail_file, "try_lock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.append_alone(b"1", 5, 0)
    assert other._tail().try_lock()


def test_a_journal_that_is_closed_in_the_middle_writes_to_no_other_file(tmp_path, monkeypatch):
    """As a signal handler may do: numbers of files are used again, and somebody else appends."""
    folder, opened = str(tmp_path), []
    mine, other = (
        Journal(folder, Disk(), HandClock(), SeededEntropy(seed), extent_bytes=1 << 16)
        for seed in (1, 2)
    )
    for place, journal in enumerate((mine, other, mine)):
        append(journal, b"%d" % place)
    whole = mine._extent.file.sync

    def handled():
        whole()
        mine.close()
        opened.extend((tmp_path / str(name)).open("w+b") for name in range(3))
        append(other, b"other")

    monkeypatch.setattr(mine._extent.file, "sync", handled)
    with pytest.raises(OSError, match="file"):
        mine.append_alone(b"lost", 5, 0)
    assert [0] * 3 == [os.fstat(file.fileno()).st_size for file in opened]
    assert [b"0", b"1", b"2", b"other"] == read(other) == read(mine)
    for file in (*opened, mine, other):
        file.close()


def test_who_deletes_finds_nothing_out(disk):
    """To let everybody look is one write; none where nobody has a lane."""
    append(made(disk), b"0")
    steps = disk.steps
    with (other := made(disk, seed=2)).alone():
        other.unsettle()
        assert steps + 1 == disk.steps
        other.give_up(other.newest())
        steps = disk.steps
        other.unsettle()
    assert steps == disk.steps


def test_who_deletes_lets_everybody_look(disk):
    """However short ago they looked: what is acknowledged is not in a folder that is gone."""
    mine, other = made(disk), made(disk, seed=2)
    append(mine, b"0")
    assert 1 == mine.append_alone(b"1", 5, 0)
    with other.alone():
        other.unsettle()
        disk.rename(FOLDER, "/gone")
        disk.mkdir(FOLDER)
    assert mine.append_alone(b"2", 5, 0) is None
    with pytest.raises(NotFoundError), mine.turn():
        pass


@pytest.mark.parametrize("passed_us", [LOOK_US, -1])
def test_a_folder_that_was_deleted_by_hand_is_noticed(disk, passed_us):
    """As soon as it is looked again, also by a clock that was turned back."""
    mine = made(disk)
    append(mine, b"0")
    assert 1 == mine.append_alone(b"1", 5, 1_000_000)
    disk.rename(FOLDER, "/gone")
    assert 2 == mine.append_alone(b"2", 5, 1_000_000 + LOOK_US - 1)
    with pytest.raises((NotFoundError, FileNotFoundError)):
        mine.append_alone(b"3", 5, 1_000_000 + passed_us)
