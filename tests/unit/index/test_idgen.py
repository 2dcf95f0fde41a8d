"""Numbers that are handed out once: whatever fails, stops, forks or rots."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY, SeededEntropy
from cordwood.base.errors import CorruptionError, StoreError
from cordwood.index.idgen import IdGenerator, fresh
from cordwood.index.storeids import StoreIds
from cordwood.journal.locks import Locks
from cordwood.store.disk import Disk
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut

PATH = "/ids/numbers"


def generator(disk, *, block=3, is_made=False, path=PATH):
    """A new process's."""
    locks = Locks(disk, SeededEntropy(1))
    return IdGenerator(path, disk, locks, block=block, is_made=is_made)


def new_disk(model="posix"):
    """With a folder."""
    disk = CrashDisk(model)
    disk.mkdir("/ids")
    disk.fsync_dir("/")
    return disk


def file_of(*words):
    """A file with these words."""
    return struct.pack("<4Q", *words)


def disk_with(data):
    """A disk where the file has these bytes."""
    disk = new_disk()
    disk.write(PATH, data, 0)
    disk.fsync_dir("/ids")
    return disk


def test_numbers_rise_and_blocks_are_passed_over():
    """One generator hands out all of its block; a second one begins behind it."""
    disk = new_disk()
    first, second = generator(disk), generator(disk)
    assert [1, 2] == [first.next(), first.next()]
    assert [4, 5, 6, 7] == [second.next() for _ in range(4)]
    assert [3, 10] == [first.next(), first.next()]


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_a_power_cut_after_every_step(model):
    """No number twice, whichever step was the last, of the first block or of a later one."""
    # EVIDENCE-OF: G-83
    for before in (0, 4):
        for step in range(40):
            for seed in range(8):
                disk = new_disk(model)
                had = [generator(disk).next() for _ in range(before)]
                disk.cut_after(step)
                with suppress(PowerCut):
                    process = generator(disk)
                    had += [process.next() for _ in range(7)]
                found = disk.power_cut(SeededEntropy(f"{step} {seed}"))
                process = generator(found)
                had += [process.next() for _ in range(5)]
                assert len(had) == len(set(had)), (model, before, step, seed)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step(number):
    """The call fails and the next one goes on, in the same process and in another."""
    # EVIDENCE-OF: G-83
    for step in range(1, 14):
        disk = new_disk()
        process, had = generator(disk), []
        disk.fail(step, number)
        for _ in range(7):
            with suppress(StoreError):
                had.append(process.next())
        had += [generator(disk).next(), process.next()]
        assert len(had) == len(set(had))
        assert len(had) >= 8


def test_the_higher_whole_pair_is_right():
    """A crash between the pairs leaves the first one ahead: then the block was not handed out."""
    assert 7 == generator(disk_with(file_of(7, 7, 4, 4))).next()
    assert 7 == generator(disk_with(file_of(4, 4, 7, 7))).next()


def test_a_pair_that_is_not_whole_does_not_count():
    """Torn while it was written, or rotten since: the other one stands, and nothing goes back."""
    assert 4 == generator(disk_with(file_of(7, 4, 4, 4))).next()
    assert 7 == generator(disk_with(file_of(7, 7, 7, 4))).next()
    assert 7 == generator(disk_with(file_of(0, 0, 7, 7))).next()
    with pytest.raises(CorruptionError, match="neither"):
        generator(disk_with(file_of(7, 4, 7, 4))).next()
    with pytest.raises(CorruptionError, match="neither"):
        generator(disk_with(bytes(32))).next()


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_every_byte_flipped(flip):
    """No number comes back."""
    # EVIDENCE-OF: G-83, G-84
    for place in range(32):
        data = bytearray(file_of(7, 7, 7, 7))
        data[place] ^= flip
        assert 7 == generator(disk_with(bytes(data))).next()


def test_a_file_cut_short_does_not_begin_anew():
    """It is made whole, so one that is shorter is damaged: also an empty one."""
    # EVIDENCE-OF: G-83, G-84
    for size in range(32):
        with pytest.raises(CorruptionError, match="bytes"):
            generator(disk_with(file_of(7, 7, 7, 7)[:size])).next()


def test_a_file_that_has_to_be_there():
    """A missing one is damage; a fresh one begins with 1."""
    with pytest.raises(CorruptionError, match="missing"):
        generator(new_disk(), is_made=True).next()
    made = generator(disk_with(fresh()), is_made=True)
    made.check()
    assert [1, 2] == [made.next(), made.next()]


def test_threads_share_a_generator(tmp_path):
    """And each number is somebody's, once."""
    process = generator(Disk(), path=f"{tmp_path}/numbers")
    had = []
    threads = [
        threading.Thread(target=lambda: had.extend(process.next() for _ in range(200)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(1, 1_601)) == sorted(had)


FORKING = """
import os, sys
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.index.idgen import IdGenerator
from cordwood.journal.locks import Locks
from cordwood.store.disk import Disk

numbers = IdGenerator(sys.argv[1], Disk(), Locks(Disk(), SYSTEM_ENTROPY))
numbers.next()
for _ in range(3):
    os.fork()
print(" ".join(str(numbers.next()) for _ in range(100)), flush=True)
"""


def test_forked_processes_have_numbers_of_their_own(tmp_path):
    """A child does not hand out what is left of its parent's block."""
    # EVIDENCE-OF: G-83
    command = [sys.executable, "-c", FORKING, f"{tmp_path}/numbers"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        had = [int(word) for word in parent.stdout.read().split()]
    assert 800 == len(had) == len(set(had))


def test_a_stopped_holder_is_waited_for_and_then_named(tmp_path):
    """Who holds the lock of the file is not passed by."""
    disk = Disk()
    path = f"{tmp_path}/numbers"
    waiting = IdGenerator(path, disk, Locks(disk, SYSTEM_ENTROPY, wait_s=0.01))
    held = disk.hold(f"{path}.lock")
    with pytest.raises(StoreError, match="held by another process"):
        waiting.next()
    held.release()
    assert 1 == waiting.next()


def test_numbers_of_a_store():
    """The same from an object: two machines never get the same, and damage is found."""
    # EVIDENCE-OF: G-83, G-84
    store = Store("memory:~ids")
    first, second = (StoreIds(store, "ids/n", SYSTEM_ENTROPY, block=2) for _ in range(2))
    had = [one.next() for _ in range(4) for one in (first, second)]
    assert list(range(1, 9)) == sorted(had)
    backend = store._store()
    whole = backend._objects["ids/n"]
    for place in range(len(whole.data)):
        for flip in (0x01, 0xFF):
            data = bytearray(whole.data)
            data[place] ^= flip
            backend._objects["ids/n"] = whole._replace(data=bytes(data))
            with pytest.raises(CorruptionError):
                StoreIds(store, "ids/n", SYSTEM_ENTROPY).next()
    for size in range(len(whole.data)):
        backend._objects["ids/n"] = whole._replace(data=whole.data[:size])
        with pytest.raises(CorruptionError):
            StoreIds(store, "ids/n", SYSTEM_ENTROPY).next()
