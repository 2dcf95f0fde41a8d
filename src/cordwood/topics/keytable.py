"""Which record of each key is the last: columns of hashes, offsets, places and keys.

All is done with whole columns. To find the last record of each key, entries are sorted by hash and
offset; where neighbours have the same hash, their keys are compared. Two keys with one hash are
told apart, so neither hides the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.topics.names import key_hashes

TABLE_BYTES = 32 << 20
"""What a table takes at most: an eighth for its entries, the rest to sort and to write them."""
ENTRY_BYTES = 32
"""What an entry takes, besides its key."""
PENDING_MAX = 64
"""Additions that are not yet sorted in."""
DELETED_S_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Entries:
    """Records, by their keys."""

    hashes: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Where the frame of each begins in its extent."""
    deleted_s: npt.NDArray[np.uint32]
    """Of one that says that its key is deleted, its time in seconds, rounded up; else 0."""
    keys: pa.Array

    def __len__(self) -> int:
        """How many."""
        return len(self.hashes)

    @property
    def size_bytes(self) -> int:
        """What they take."""
        return ENTRY_BYTES * len(self) + key_bytes(self.keys)

    def take(self, rows: npt.NDArray[Any]) -> Entries:
        """Some of them, in this order."""
        return Entries(
            self.hashes[rows],
            self.offsets[rows],
            self.places[rows],
            self.deleted_s[rows],
            self.keys.take(pa.array(rows)),
        )

    def between(self, low: int, high: int) -> Entries:
        """Those of a range of hashes, `high` included; they are sorted by hash."""
        begin = int(np.searchsorted(self.hashes, np.uint64(low), "left"))
        end = int(np.searchsorted(self.hashes, np.uint64(high), "right"))
        return Entries(
            self.hashes[begin:end],
            self.offsets[begin:end],
            self.places[begin:end],
            self.deleted_s[begin:end],
            self.keys.slice(begin, end - begin),
        )

    def of_key(self, hashed: int, key: bytes) -> Entries:
        """Those of one key, sorted or not."""
        rows = np.flatnonzero(self.hashes == np.uint64(hashed))
        if not len(rows):
            return NONE
        is_same = pc.equal(self.keys.take(pa.array(rows)), pa.scalar(key, pa.binary()))
        return self.take(rows[is_same.to_numpy(zero_copy_only=False)])


NONE = Entries(
    np.zeros(0, np.uint64),
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros(0, np.uint32),
    pa.nulls(0, pa.binary()),  # pa.array would load pandas first.
)


def key_bytes(keys: pa.Array) -> int:
    """How long all keys are together."""
    if not len(keys):
        return 0
    ends = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
    return int(ends[-1]) - int(ends[0])


def entries_of(batches: Sequence[pa.RecordBatch], places: Sequence[int]) -> Entries:
    """The records of batches whose frames begin at these places; copied. Keyless ones are not."""
    table = pa.Table.from_batches([*batches, *batches[:0]])
    counts = [batch.num_rows for batch in batches]
    # Behind one more array, of nothing, so that they are copied, and no buffer of a file is kept.
    keys = pa.concat_arrays([*table.column("key").chunks, NONE.keys])
    times_s = -(-table.column("timestamp_us").to_numpy() // 1_000_000)
    is_deleted = table.column("value").is_null().to_numpy()
    found = Entries(
        np.zeros(len(keys), np.uint64),
        table.column("offset").to_numpy().astype(np.int64),
        np.repeat(np.array(places, np.int64), counts),
        np.where(is_deleted, np.clip(times_s, 1, DELETED_S_MAX), 0).astype(np.uint32),
        keys,
    )
    if keys.null_count:
        found = found.take(np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False)))
    found.hashes[:] = key_hashes(found.keys.to_pylist(), len(found))
    return found


def joined(parts: Sequence[Entries]) -> Entries:
    """All of them, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Entries(
        np.concatenate([NONE.hashes, *(part.hashes for part in parts)]),
        np.concatenate([NONE.offsets, *(part.offsets for part in parts)]),
        np.concatenate([NONE.places, *(part.places for part in parts)]),
        np.concatenate([NONE.deleted_s, *(part.deleted_s for part in parts)]),
        pa.concat_arrays([NONE.keys, *(part.keys for part in parts)]),
    )


def ranked(entries: Entries) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """An order in which those of one key are together, by offset; and whether the next is another.

    In other words: which entry comes at each place, and whether it is the last of its key.
    """
    order = np.lexsort((entries.offsets, entries.hashes))
    hashes = entries.hashes[order]
    is_same = hashes[1:] == hashes[:-1]
    at = np.flatnonzero(is_same)
    if len(at):
        one = entries.keys.take(pa.array(order[at]))
        other = entries.keys.take(pa.array(order[at + 1]))
        if not pc.all(pc.equal(one, other)).as_py():
            # Two keys have one hash: a number for each key, to sort by.
            codes = entries.keys.dictionary_encode().indices.to_numpy()
            order = np.lexsort((entries.offsets, codes, entries.hashes))
            codes = codes[order]
            is_same &= codes[1:] == codes[:-1]
    return order, np.append(~is_same, np.ones(min(1, len(order)), np.bool_))


def newest(entries: Entries) -> Entries:
    """The last of each key, sorted by hash."""
    order, is_last = ranked(entries)
    return entries.take(order[is_last])


class KeyTable:
    """The last record of each key of what was appended of late; bounded."""

    def __init__(self, limit_bytes: int = TABLE_BYTES) -> None:
        """Empty."""
        self._limit_bytes = limit_bytes
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._sorted = NONE
        self._pending: list[Entries] = []
        self._size_bytes = 0
        self.records = 0
        """How many were added, also those that later ones have replaced."""

    def copy(self) -> KeyTable:
        """The same, not changed by what is added to this one."""
        found = KeyTable(self._limit_bytes)
        found._sorted, found._pending = self._sorted, list(self._pending)
        found._size_bytes, found.records = self._size_bytes, self.records
        return found

    @property
    def size_bytes(self) -> int:
        """What its entries take."""
        return self._size_bytes

    @property
    def is_full(self) -> bool:
        """Whether it should be written down: what is in it does not get much smaller."""
        return self._size_bytes > self._limit_bytes // 16 and not self._pending

    def add(self, entries: Entries) -> None:
        """Add records; their offsets are higher than all before."""
        self._pending.append(entries)
        self._size_bytes += entries.size_bytes
        self.records += len(entries)
        if self._size_bytes > self._limit_bytes // 8 or len(self._pending) > PENDING_MAX:
            self.sorted()

    def sorted(self) -> Entries:
        """The last record of each key, sorted by hash."""
        if self._pending:
            parts, self._pending, self._sorted = [self._sorted, *self._pending], [], NONE
            self._sorted = newest(joined(parts))
            self._size_bytes = self._sorted.size_bytes
        return self._sorted

    def find(self, hashed: int, key: bytes) -> Entries:
        """The last record of a key: one, or none."""
        for part in reversed(self._pending):
            found = part.of_key(hashed, key)
            if len(found):
                return found.take(np.array([len(found) - 1]))
        return self._sorted.between(hashed, hashed).of_key(hashed, key)
