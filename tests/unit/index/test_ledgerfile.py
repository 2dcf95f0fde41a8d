"""A ledger's file: reading goes on where it stopped; a crash leaves nothing; damage is refused."""

from __future__ import annotations

import errno

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import CorruptionError, UncertainError, UnsupportedError
from cordwood.index.ledger import AddSegment, StartMerge, Transaction, compacted
from cordwood.index.ledgerfile import FRAMES_AT, LedgerFile, Position, Reader
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.ledgerplay import LedgerPlay

PATH = "/transaction.log"


class Kept:
    """A ledger file on a disk in memory."""

    def __init__(self, model="posix", *, durable=True):
        self.disk = CrashDisk(model)
        self.file = LedgerFile(PATH, self.disk, SeededEntropy(1), durable=durable)
        self.disk.write(PATH, self.file.fresh([], 0), 0)
        self.disk.fsync_dir("/")

    def append(self, transaction):
        """As a commit does: read on, then write."""
        return self.file.append(self.file.read(Position()).position, transaction)

    def replace(self, transactions, last):
        """As a compaction does."""
        self.disk.write(f"{PATH}.new", self.file.fresh(transactions, last), 0)
        self.disk.rename(f"{PATH}.new", PATH)

    def data(self):
        """The bytes."""
        return bytes(self.disk.read(PATH)[1])

    def put(self, data):
        """Other bytes."""
        self.disk.unlink(PATH)
        self.disk.write(PATH, data, 0)

    def numbers(self):
        """The transactions that are there."""
        return [one.id for one in self.file.read(Position()).transactions]


def added(number):
    """A transaction."""
    return Transaction(number, 0, (AddSegment(number, 5, 1),), {"a": b"%d" % number})


def three():
    """A file with three."""
    kept = Kept()
    for number in (1, 2, 3):
        kept.append(added(number))
    return kept


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_readers_of_the_file_agree(seed):
    """One who reads on after every step, through compactions, and one who reads all of it."""
    play, kept = LedgerPlay(np.random.default_rng(seed)), Kept()
    follower, written = Reader(), 0
    for _ in range(40):
        play.step()
        if play.transactions and play.transactions[-1].id == play.state.id > written:
            kept.append(play.transactions[-1])
        elif play.state.id == written:
            kept.replace(play.transactions, play.state.id)
        written = play.state.id
        follower.catch_up(kept.file)
        whole = Reader()
        whole.catch_up(kept.file)
        assert follower.state.id == whole.state.id == play.state.id
        assert follower.state.live.keys() == whole.state.live.keys() == play.state.live.keys()
        assert follower.state.marks == whole.state.marks
        assert follower.position == whole.position


def test_ids_go_on_after_a_compaction_dropped_the_newest():
    """The file's head remembers the highest."""
    kept = three()
    plan = compacted(kept.file.read(Position()).transactions[:1], 3, 3)
    kept.replace(plan.kept, plan.last)
    reader = Reader()
    reader.catch_up(kept.file)
    assert (3, [1]) == (reader.state.id, kept.numbers())


@pytest.mark.parametrize("size", range(200))
def test_a_tail_torn_at_every_byte(size):
    """Is not read, and the next commit takes its place."""
    kept = three()
    kept.put(kept.data() + kept.data()[FRAMES_AT : FRAMES_AT + size])
    assert [1, 2, 3] == kept.numbers()
    assert (size > 0) == kept.file.read(Position()).position.is_torn
    kept.append(added(4))
    assert [1, 2, 3, 4] == kept.numbers()
    assert not kept.file.read(Position()).position.is_torn


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_damage_at_every_byte(flip):
    """Is refused, or changes nothing: never is a commit missing."""
    # EVIDENCE-OF: G-84
    whole = three().data()
    harmless = []
    for place in range(len(whole)):
        kept = three()
        damaged = bytearray(whole)
        damaged[place] ^= flip
        kept.put(bytes(damaged))
        try:
            assert [1, 2, 3] == kept.numbers()
            harmless.append(place)
        except CorruptionError:
            pass
    # How much was synced is a hint, and behind it the head is empty.
    assert list(range(32, FRAMES_AT)) == harmless


@pytest.mark.parametrize("durable", [False, True])
def test_truncation_at_every_byte(durable):
    """A file cut short by somebody else is refused."""
    whole = three().data()
    for size in range(len(whole)):
        kept = three()
        kept.file = LedgerFile(PATH, kept.disk, SeededEntropy(1), durable=durable)
        kept.put(whole[:size])
        with pytest.raises(CorruptionError):
            kept.numbers()


def test_a_reader_notices_that_what_it_read_is_gone():
    """Also if how much was synced cannot be read any more."""
    kept = three()
    reader = Reader()
    reader.catch_up(kept.file)
    data = bytearray(kept.data())
    data[40] ^= 1
    kept.put(bytes(data[:-1]))
    with pytest.raises(CorruptionError, match="had been read"):
        reader.catch_up(kept.file)


def test_a_transaction_that_does_not_fit_is_damage():
    """Whoever wrote it had checked it."""
    kept = three()
    kept.append(Transaction(4, 0, (StartMerge((77,)),)))
    with pytest.raises(CorruptionError, match="transaction 4 does not fit"):
        Reader().catch_up(kept.file)


def test_something_newer_is_not_guessed_at():
    """Another magic, or a transaction of another shape."""
    kept, later = three(), three()
    head = b"CWLEDG\x03\n" + later.data()[8:24]
    later.put(head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + later.data()[32:])
    with pytest.raises(UnsupportedError, match="another version"):
        later.numbers()

    class Other(msgspec.Struct):
        id: str

    kept.append(Other("x"))
    with pytest.raises(UnsupportedError, match="update"):
        kept.numbers()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", [1, 2])
def test_a_failed_append_leaves_nothing(step, number):
    """Neither a failed write nor a failed sync."""
    kept = three()
    kept.disk.fail(step, number)
    with pytest.raises(OSError):
        kept.append(added(4))
    assert [1, 2, 3] == kept.numbers()
    kept.append(added(4))
    assert [1, 2, 3, 4] == kept.numbers()


def test_a_failed_append_that_cannot_be_taken_back_is_uncertain():
    """And says so; what is there afterwards is whole or nothing."""
    kept = three()
    kept.disk.fail(2, errno.EIO)
    kept.disk.fail(3, errno.EIO)
    with pytest.raises(UncertainError, match="nor set back"):
        kept.append(added(4))
    assert [1, 2, 3, 4] == kept.numbers()
    kept.append(added(5))
    assert [1, 2, 3, 4, 5] == kept.numbers()


def test_a_hint_that_cannot_be_written_fails_no_commit():
    """The third step is how much was synced."""
    kept = three()
    kept.disk.fail(3, errno.EIO)
    kept.append(added(4))
    assert [1, 2, 3, 4] == kept.numbers()


@pytest.mark.parametrize("model", ["posix", "ext4"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_power_cut_leaves_a_beginning(model, durable):
    """All commits, or, where they did not wait for the disk, the first so many of them."""
    least = 5
    for seed in range(60):
        kept = Kept(model, durable=durable)
        for number in range(1, 6):
            kept.append(added(number))
        found = kept.disk.power_cut(SeededEntropy(seed))
        kept.file = LedgerFile(PATH, found, SeededEntropy(2), durable=durable)
        numbers = kept.numbers()
        assert list(range(1, len(numbers) + 1)) == numbers
        least = min(least, len(numbers))
        kept.append(added(9))
        assert [*numbers, 9] == kept.numbers()
    assert durable == (least == 5)
