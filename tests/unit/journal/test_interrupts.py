"""An interrupt at any step of an append: the journal is nobody's afterwards, and goes on."""

from __future__ import annotations

import sys
import threading
from itertools import count

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.journal.journal import Journal
from cordwood.journal.reading import Reading
from cordwood.testing.crashdisk import CrashDisk, _Open
from cordwood.testing.handclock import HandClock

FOLDER = "/j"


def made(disk, seed=1):
    """A journal as a process has it that comes to it."""
    return Journal(FOLDER, disk, HandClock(), SeededEntropy(seed), extent_bytes=4096)


def in_a_turn(journal):
    """Append, sync."""
    with journal.turn() as turn:
        turn.append([b"new"], time_us=5)
        turn.sync()


def shortly(journal):
    """The same in the lane."""
    assert journal.append_alone(b"new", 5, 0) is not None


def alone(journal):
    """Keep others from appending, twice."""
    with journal.alone(), journal.alone():
        journal.newest()


def at_first(journal):
    """Somebody else looks how far it goes, and has to find that out."""
    journal.close()
    journal.newest()


def interrupted(step, call):
    """Call, with an interrupt at a step; whether there were so many.

    Where Python lets one come: when a function begins, and when one of the system's has returned.
    To unlock a file is one of the system's. Python itself loses an interrupt in `__del__`.
    """
    left = step

    def watch(frame, event, argument):
        nonlocal left
        code = frame.f_code
        if event not in {"call", "c_return"} or "/cordwood/" not in code.co_filename:
            return
        if code.co_name == "__del__" or code is _Open.unlock.__code__:
            return
        left -= 1
        if left < 0:  # There is one: what it left is tidied up in peace.
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("way", [in_a_turn, shortly, alone, at_first])
def test_an_interrupt_leaves_nothing_locked(way):
    """Wherever it comes: others append, in this process and elsewhere, and nothing is lost."""
    for step in count():
        disk = CrashDisk()
        disk.mkdir(FOLDER)
        journal = made(disk)
        with journal.turn() as turn:
            turn.append([b"old"], time_us=5)
            turn.sync()
        was_interrupted = interrupted(step, lambda: way(journal))  # noqa: B023 - called at once
        assert not any(disk.locked_by.values()), step
        thread = threading.Thread(target=in_a_turn, args=[journal], daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), step
        reading, found = Reading(made(disk, seed=2), 0), []
        while frames := reading.take(10):
            found += [bytes(frame.payload) for frame in frames]
        assert found[0] == b"old"
        assert set(found[1:]) == {b"new"}
        assert len(found) in {2, 3}
        if not was_interrupted:
            break
    assert step > 10
