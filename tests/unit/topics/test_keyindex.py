"""Key tables, key indexes and compaction on a disk that fails, loses power, or is damaged."""

from __future__ import annotations

import errno
import tracemalloc
from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import StoreError
from cordwood.journal.extent import open_extent
from cordwood.journal.journal import Journal
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.topics.alive import groups
from cordwood.topics.batch import Columns, decoded, encoded
from cordwood.topics.compaction import Compactor, Throttle, dirty_share
from cordwood.topics.config import TopicConfig
from cordwood.topics.indexing import Indexing
from cordwood.topics.keyindex import KeyIndex
from cordwood.topics.keys import Keys
from cordwood.topics.keytable import Entries, KeyTable, entries_of, newest
from cordwood.topics.latest import latest, latest_batches
from cordwood.topics.names import key_hashes

FOLDER = "/p"
CONFIG = TopicConfig(namespace="n", topic="t", compaction=True, tombstone_s=0)
EXTENT = 900


def entries(keys, hashes=None, first=0):
    """Records of these keys, in order."""
    count = len(keys)
    return Entries(
        key_hashes(keys) if hashes is None else np.array(hashes, np.uint64),
        np.arange(first, first + count),
        np.arange(count) * 8,
        np.zeros(count, np.uint32),
        pa.array(keys, pa.binary()),
    )


@given(st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 2)), max_size=60))
def test_the_last_of_each_key_by_a_plain_dict(drawn):
    """With hashes that many keys share, all at once or one by one in a table."""
    keys = [key for key, _ in drawn]
    hashes = [len(key) for key in keys]
    expected = {key: offset for offset, key in enumerate(keys)}
    found = newest(entries(keys, hashes))
    assert expected == dict(zip(found.keys.to_pylist(), found.offsets.tolist(), strict=True))
    assert sorted(found.hashes.tolist()) == found.hashes.tolist()
    table = KeyTable(900)
    for offset, (key, hashed) in enumerate(zip(keys, hashes, strict=True)):
        table.add(entries([key], [hashed], offset))
    for key, offset in expected.items():
        assert [offset] == table.find(len(key), key).offsets.tolist()
    assert 0 == len(table.find(7, b"none"))
    assert len(keys) == table.records
    assert expected.keys() == set(table.sorted().keys.to_pylist())


def test_a_table_is_bounded():
    """Whatever is added: it is full before that, or it has room for what comes again."""
    table = KeyTable(1 << 20)
    tracemalloc.start()
    for number in range(200):
        table.add(
            entries([b"%d" % (key % 1500) for key in range(number * 500, number * 500 + 500)])
        )
        assert not table.is_full
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert 1500 == len(table.sorted())
    for number in range(200):
        table.add(entries([b"new %d" % key for key in range(number * 500, number * 500 + 500)]))
        if table.is_full:
            break
    assert table.is_full
    assert table.size_bytes <= (1 << 17) + 500 * 50


def test_entries_are_copied_out_of_what_was_read():
    """So that no file buffer is kept for a few keys; a record without a key has no entry."""
    columns = Columns(
        pa.array([b"v", None, b"w"], pa.binary()),
        pa.array([b"k", b"deleted", None], pa.binary()),
        times_us=np.array([1, 2_000_001, 3]),
    )
    data = bytearray(b"".join(bytes(part) for part in encoded(columns)))
    batch = decoded(data, 10, 0)
    found = entries_of([batch, batch], [64, 128])
    del batch
    data[:] = bytes(len(data))
    assert [b"k", b"deleted", b"k", b"deleted"] == found.keys.to_pylist()
    assert [10, 11, 10, 11] == found.offsets.tolist()
    assert [64, 64, 128, 128] == found.places.tolist()
    assert [0, 3, 0, 3] == found.deleted_s.tolist()
    assert key_hashes([b"k", b"deleted"]).tolist() * 2 == found.hashes.tolist()


def test_bits_have_room_in_memory():
    """Some extents at a time, each in one group."""
    sources = [SimpleNamespace(base=base, limit=base + 800) for base in range(0, 8000, 800)]
    found = list(groups(sources, 500))
    assert [2, 2, 2, 2, 2] == [len(group) for group in found]
    assert sources == [one for group in found for one in group]
    assert 10 == len(list(groups(sources, 1)))


# A partition on a model of a disk.


def made(disk, seed=1):
    """A journal as a process has it that comes to it, and its keys."""
    journal = Journal(FOLDER, disk, SYSTEM_CLOCK, SeededEntropy(seed), extent_bytes=EXTENT)
    return journal, Keys(journal, SeededEntropy(f"keys {seed}"), table_bytes=2000)


def append(journal, records, time_us=5):
    """Records as one batch."""
    keys, values = zip(*records, strict=True)
    columns = Columns(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    with journal.turn() as turn:
        turn.append(encoded(columns), span=len(records), time_us=time_us)
        turn.sync()


def filled(model="posix"):
    """A partition of several extents, as one has it who comes to it; and its newest state."""
    disk, state = filled_once(model)
    disk = deepcopy(disk)
    return disk, *made(disk), state


@cache
def filled_once(model):
    """A disk with such a partition."""
    disk = CrashDisk(model)
    disk.mkdir(FOLDER)
    disk.fsync_dir("/")
    journal, _ = made(disk, seed=77)
    state = {}
    generator = np.random.default_rng(3)
    for number in range(24):
        picked = [int(key) for key in generator.integers(0, 8, 4)]
        records = [
            (b"k%d" % key, None if place == 3 and number % 4 == 0 else b"%d.%d" % (number, place))
            for place, key in enumerate(picked)
        ]
        append(journal, records)
        state |= dict(records)
    assert len(journal.bases()) >= 3
    journal.close()
    return disk, {key: value for key, value in state.items() if value is not None}


def state_of(journal, keys):
    """The newest state: by all, and one by one."""
    found = {}
    for batch in latest_batches(journal, keys, memory_bytes=5000):
        found |= dict(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    for number in range(9):
        key = b"k%d" % number
        one = latest(journal, keys, 0, key)
        assert (None if one is None else one.value) == found.get(key)
    return found


def compact(journal, keys, seed=1):
    """Compact it; what was done."""
    pace = Throttle(SYSTEM_CLOCK, None)
    entropy = SeededEntropy(f"compact {seed}")
    return Compactor(journal, keys, CONFIG, SYSTEM_CLOCK, entropy, pace=pace).compact(0)


def records_of(journal):
    """How many records there are."""
    found = 0
    for base in journal.bases():
        extent = open_extent(journal.disk, FOLDER, base)
        for frame in extent.whole_from(extent.start):
            found += decoded(frame.payload, frame.number, 0).num_rows if frame.kind == 0 else 0
    return found


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_a_power_cut_at_every_step_of_a_compaction(model):
    """Leaves each extent as it was or as it was to be; the next compaction does the rest."""
    disk, journal, keys, state = filled(model)
    before = disk.steps
    assert compact(journal, keys).extents >= 2
    assert state == state_of(journal, keys)
    left = records_of(journal)
    assert left < 40
    for cut in range(disk.steps - before):
        disk, journal, keys, state = filled(model)
        disk.cut_after(cut)
        with pytest.raises(PowerCut):
            compact(journal, keys)
        journal, keys = made(disk.power_cut(SeededEntropy(cut)), seed=cut + 2)
        assert state == state_of(journal, keys)
        compact(journal, keys, seed=cut + 2)
        assert state == state_of(journal, keys)
        assert records_of(journal) <= left
        assert not [name for name, _ in journal.disk.scan(FOLDER) if "compact." in name]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step_of_a_compaction(number):
    """Is told, or overcome; a disk that is full is not left fuller."""
    disk, journal, keys, state = filled()
    before = disk.steps
    compact(journal, keys)
    steps = disk.steps - before
    for step in range(1, steps + 1):
        disk, journal, keys, state = filled()
        disk.fail(step, number)
        try:
            compact(journal, keys)
        except StoreError:
            assert state == state_of(journal, keys)
            assert not [name for name, _ in disk.scan(FOLDER) if name.endswith(".wal.compact")]
            compact(journal, keys, seed=2)
        assert state == state_of(journal, keys) == state_of(*made(disk, seed=5))
        append(journal, [(b"k1", b"more")])
        assert state | {b"k1": b"more"} == state_of(journal, keys)


def test_a_process_that_dies_at_every_step_leaves_it_to_the_next():
    """Its locks are free, what it left aside is removed."""
    disk, journal, keys, state = filled()
    before = disk.steps
    compact(journal, keys)
    for cut in range(disk.steps - before):
        disk, journal, keys, state = filled()
        disk.cut_after(cut)
        with pytest.raises(PowerCut):
            compact(journal, keys)
        disk.revive()
        journal, keys = made(disk, seed=cut + 2)
        assert state == state_of(journal, keys)
        compact(journal, keys, seed=cut + 2)
        assert state == state_of(journal, keys)
        assert not [name for name, _ in disk.scan(FOLDER) if ".wal.compact" in name]


def test_an_index_damaged_at_every_byte_is_not_believed():
    """What is wrong with it is read from the extent instead; it is never taken for another's."""
    disk, journal, keys, state = filled()
    assert state == state_of(journal, keys)
    path = f"{FOLDER}/0.wal.index"
    whole = bytes(disk.read(path)[1])
    for place in range(len(whole)):
        disk.overwrite(path, bytes([whole[place] ^ 0xFF]), place)
        assert state == state_of(*made(disk, seed=place))
        disk.unlink(path)
        disk.write(path, whole, 0)
    other = bytes(disk.read(f"{FOLDER}/{journal.bases()[1]}.wal.index")[1])
    for wrong in (b"", whole[:63], whole[:100], whole[:-1], whole + b"more", other):
        disk.unlink(path)
        disk.write(path, wrong, 0)
        assert state == state_of(*made(disk, seed=len(wrong)))


def test_several_that_follow_one_extent_write_each_part_once():
    """Whoever comes second finds it there; who lost its table reads the extent again."""
    disk, journal, keys, state = filled()
    other = made(disk, seed=2)
    assert state == state_of(journal, keys) == state_of(*other)
    extent = open_extent(disk, FOLDER, 0)
    assert journal.bases()[1] == KeyIndex(disk, extent).known.records
    one, two = Indexing(disk, extent), Indexing(disk, extent)
    disk.unlink(f"{FOLDER}/0.wal.index")
    three = Indexing(disk, extent)
    for indexing in (one, two, three):
        indexing.follow()
        indexing.flush()
        indexing.follow()
        indexing.flush()
    known = KeyIndex(disk, extent).known
    assert journal.bases()[1] == known.records
    assert 1 == len(known.parts)


def test_what_was_compacted_is_not_dirty():
    """An extent that has nothing to drop neither."""
    disk, journal, keys, _ = filled()
    with keys.view() as view:
        assert 1.0 == dirty_share(view)
    compact(journal, keys)
    with made(disk, seed=2)[1].view() as view:
        assert 0.0 == dirty_share(view)
    for number in range(30):
        append(journal, [(b"only %d" % number, bytes(50))])
    with keys.view() as view:
        assert dirty_share(view) > 0.5
    compact(journal, keys, seed=2)
    with keys.view() as view:
        assert 0.0 == dirty_share(view)


def test_where_nothing_may_be_written_the_newest_state_is_read_all_the_same(monkeypatch):
    """The indexes are done without."""
    disk, journal, _, state = filled()
    journal.newest()

    def refused(path, **_):
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(disk, "hold", refused)
    bases = journal.bases()
    big = Keys(journal, SeededEntropy(8))
    assert state == state_of(journal, big)
    assert [] == [name for name, _ in disk.scan(FOLDER) if name.endswith(".index")]
    assert bases == journal.bases()


def test_an_index_that_somebody_took_further_hides_nothing(monkeypatch):
    """What it covers more than was known when it was opened is read too."""
    disk, journal, keys, state = filled()
    other_journal, other = made(disk, seed=2)
    while journal.newest().end > 300:  # So that there is room for more in the newest extent.
        append(journal, [(b"k1", b"before")])
    base, roll = journal.newest().base, keys.roll

    def then_more(mark, **how):
        is_closed = roll(mark, **how)
        append(other_journal, [(b"k1", b"later")])
        other.roll(other_journal.newest())
        other._rolling.flush()
        return is_closed

    monkeypatch.setattr(keys, "roll", then_more)
    found = {}
    for batch in latest_batches(journal, keys):
        found |= dict(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    assert base == journal.newest().base
    assert state | {b"k1": b"later"} == found
