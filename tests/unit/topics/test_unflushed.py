"""Records that are acknowledged before they are flushed: what is lost, who sent it is told."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import StoreError
from cordwood.testing.crashdisk import CrashDisk
from cordwood.topics.batch import Columns, Producer, iter_topic_records
from cordwood.topics.config import TopicConfig
from cordwood.topics.folder import Folder

CONFIG = TopicConfig(
    namespace="shop", topic="clicks", ack="flush", flush_period_s=3600, extent_bytes=4096
)


@pytest.fixture
def disk():
    """A disk with a topic."""
    made = CrashDisk("posix")
    made.mkdir("/wood")
    made.fsync_dir("/")
    home(made, 1).create([CONFIG])
    return made


def home(disk, seed):
    """The topics as another process has them."""
    return Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(seed))


def partition(disk, seed):
    """The partition as another process has it."""
    return home(disk, seed).partition("shop", "clicks", 0)


def send(part, text, sequence=None):
    """One record; its offset."""
    producer = None if sequence is None else Producer(7, sequence)
    return int(part.append(Columns(pa.array([text], pa.binary())), producer)[0])


def texts(part):
    """All records."""
    scan, found = part.scan(0), []
    while batches := scan.take():
        found += [one.value for batch in batches for one in iter_topic_records(0, batch)]
    return found


def test_a_record_with_a_number_that_is_lost_can_be_sent_again(disk):
    """It is not taken for one that is there."""
    part = partition(disk, 2)
    send(part, b"0", 0)
    part.flush()
    assert 1 == send(part, b"1", 1)
    disk.fail(1, errno.EIO)
    part._flush_now()
    with pytest.raises(StoreError, match="since the last flush is lost"):
        send(part, b"2", 2)
    assert [1, 2] == [send(part, b"1", 1), send(part, b"2", 2)]
    part.close()
    assert [b"0", b"1", b"2"] == texts(part)


@pytest.mark.parametrize("flushed", [0, 1])
def test_whoever_failed_to_flush_it_who_sent_it_is_told(disk, flushed):
    """Also if others have sent so much since that its offsets are used again."""
    part, other = partition(disk, 2), partition(disk, 3)
    for number in range(flushed):
        send(part, b"%d" % number)
    part.flush()
    other.flush()
    assert flushed == send(part, b"lost")
    disk.fail(1, errno.EIO)
    with pytest.raises(StoreError):
        other.flush()
    for _ in range(8):
        send(other, b"other" + bytes(900))
    with pytest.raises(StoreError, match="since the last flush is lost"):
        send(part, b"this")
    assert flushed + 8 == send(part, b"that")
    part.close()
    assert b"lost" not in texts(part)
    assert b"that" == texts(part)[-1]


def test_who_closes_is_told_as_well(disk):
    """Nobody else would be."""
    part, other = partition(disk, 2), partition(disk, 3)
    other.flush()
    send(part, b"lost")
    disk.fail(1, errno.EIO)
    with pytest.raises(StoreError):
        other.flush()
    with pytest.raises(StoreError, match="since the last flush is lost"):
        part.close()


def test_one_who_comes_to_it_and_cannot_sync_it_takes_nothing_for_durable(disk):
    """What it found is in memory only, and the system says so once."""
    part = partition(disk, 2)
    send(part, b"kept")
    part.flush()
    send(part, b"lost")
    late = partition(disk, 3)
    disk.fail(2, errno.EIO)
    with pytest.raises(StoreError):
        late.flush()
    assert [b"kept"] == texts(late)
    with pytest.raises(StoreError, match="since the last flush is lost"):
        send(part, b"more")
    assert 1 == send(late, b"next")
    late.close()
    part.close()
    found = partition(disk.power_cut(SeededEntropy(4)), 5)
    assert [b"kept", b"next"] == texts(found)


def test_one_that_only_had_to_wait_is_flushed_later(disk, monkeypatch):
    """Nothing is lost, and nobody is told so."""
    part = partition(disk, 2)
    send(part, b"0")

    def held():
        raise StoreError("held by another process", transient=True)

    with monkeypatch.context() as patched:
        patched.setattr(part, "flush", held)
        with part._mutex:
            part._flushing.cancel()
        part._flush_now()
    assert part._flushing is not None
    assert 1 == send(part, b"1")
    part.close()
    assert [b"0", b"1"] == texts(part)


def test_full_extents_are_no_loss(disk):
    """Nor are records that fill several before they are flushed."""
    part = partition(disk, 2)
    for number in range(20):
        assert number == send(part, b"%d" % number + bytes(900), number)
    part.close()
    assert 20 == len(texts(part))
