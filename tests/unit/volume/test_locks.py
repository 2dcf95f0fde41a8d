"""The named locks of a handle: shared or alone, among handles and within one."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import StoreError
from cordwood.store.disk import Disk
from cordwood.testing.crashdisk import CrashDisk
from cordwood.volume.locks import NAMES, READERS, RECOVERY, WRITE, Locks, need


@pytest.fixture(params=["real", "model"])
def handles(request, tmp_path):
    """Two handles on one folder."""
    if request.param == "real":
        disk, folder = Disk(), str(tmp_path)
    else:
        disk, folder = CrashDisk(), "/locks"
        disk.mkdir(folder)
    made = [Locks(disk, folder, SYSTEM_ENTROPY, wait_s=0.01) for _ in range(2)]
    yield made
    for locks in made:
        locks.close()


def test_the_seven_and_one_more():
    """Four of readers, and one each for who writes, drains, recovers, and reaches the store."""
    assert 8 == len(set(NAMES))
    assert set(READERS) == {need(k, full=full) for k in (0, 1) for full in (False, True)}


def test_many_share_and_one_is_alone(handles):
    """Among handles as within one."""
    one, two = handles
    assert one.try_share(WRITE)
    assert one.try_share(WRITE)
    assert two.try_share(WRITE)
    assert not two.try_alone(WRITE)
    two.let_go(WRITE)
    assert not one.try_alone(WRITE)
    assert not two.try_alone(WRITE)
    one.let_go(WRITE)
    assert not two.try_alone(WRITE)
    one.let_go(WRITE)
    assert two.try_alone(WRITE)
    assert not two.try_alone(WRITE)
    assert not two.try_share(WRITE)
    assert not one.try_share(WRITE)
    two.let_go(WRITE)
    assert one.try_alone(WRITE)


def test_all_or_none(handles):
    """Several locks are held together, or none of them is kept."""
    one, two = handles
    assert one.try_share(READERS[2])
    with two.alone(*READERS) as is_free:
        assert not is_free
    assert one.try_alone(READERS[0])
    one.let_go(READERS[0])
    one.let_go(READERS[2])
    with two.alone(*READERS) as is_free:
        assert is_free
        assert not one.try_share(READERS[1])
    assert one.try_share(READERS[1])


def test_waiting_ends(handles):
    """With an error that says what to look for."""
    one, two = handles
    with (
        one.waited(RECOVERY),
        pytest.raises(StoreError, match="may have been stopped"),
        two.waited(RECOVERY),
    ):
        pass
    with two.waited(RECOVERY):
        assert not one.try_share(RECOVERY)


def test_a_handle_that_closes_lets_go(handles):
    """Whatever it held."""
    one, two = handles
    assert one.try_alone(WRITE)
    assert one.try_share(RECOVERY)
    one.close()
    assert two.try_alone(WRITE)
    assert two.try_alone(RECOVERY)


def test_a_child_keeps_no_lock_that_its_parent_dies_with(tmp_path):
    """The parent is killed while a child that it forked lives on."""
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        held = Locks(Disk(), str(tmp_path), SYSTEM_ENTROPY, wait_s=1)
        held.try_alone(WRITE)
        child = os.fork()
        if not child:
            os.write(writing, b"%8d" % os.getpid())
            signal.pause()
        signal.pause()
    child = int(os.read(reading, 8))
    try:
        locks = Locks(Disk(), str(tmp_path), SYSTEM_ENTROPY, wait_s=1)
        assert not locks.try_alone(WRITE)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert locks.try_alone(WRITE)
        locks.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_a_snapshot_thrown_away_in_the_middle_of_locking(handles):
    """The memory of one that nobody holds may be taken back at any moment, in any thread."""
    locks = handles[0]
    assert locks.try_share(READERS[0])
    file = locks._files[WRITE]
    try_lock = file.try_lock

    def collecting(**how):
        locks.let_go(READERS[0])
        return try_lock(**how)

    file.try_lock = collecting
    thread = threading.Thread(target=locks.try_alone, args=(WRITE,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert handles[1].try_alone(READERS[0])
    assert not handles[1].try_alone(WRITE)
