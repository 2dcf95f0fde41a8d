"""The key index of an extent: which records are the last of their keys, found by hash.

::

    0   magic                          32  u64 1 if a compaction wrote the extent
    8   u64 salt of the extent         40  u64 XXH3 of the above
    16  u64 its base                   48  zeros
    24  u64 0                          64  frames (journal/frames.py)

    frame    number: where what it covers begins in the extent; number + span: where that ends
    payload  u64 entries ‖ u64 records covered ‖ u64 bytes of keys
             ‖ u64 the offset behind what it covers ‖ u64 checksum of the last frame it covers
             ‖ u64 hashes, rising ‖ u64 offsets ‖ u64 places ‖ u32 deleted ‖ u32 where each key
             begins and the last one ends ‖ keys

It tells nothing that is not in the extent. So it is never synced, one of another salt is ignored,
and of a damaged one what is whole: whoever needs the rest reads the extent from there on.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from cordwood.journal import frames
from cordwood.journal.extent import Extent, Head
from cordwood.journal.frames import Frame, Tail
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File
from cordwood.topics.keytable import NONE, Entries, key_bytes

MAGIC = b"CWKEY\x01\r\n"
_HEAD = struct.Struct("<8sQQQQ")
_SUM = struct.Struct("<Q")
_PART = struct.Struct("<5Q")
HEAD_BYTES = 64
FENCE_ENTRIES = 512
"""Of so many hashes one is kept in memory."""
SUFFIX = ".index"


class Part(NamedTuple):
    """One frame of an index, as it is remembered."""

    at: int
    """Where its columns begin in the file."""
    entries: int
    key_bytes: int
    fences: npt.NDArray[np.uint64]
    """Every so many-th of its hashes."""


class Known(NamedTuple):
    """What is known of an index file, once it was read."""

    parts: tuple[Part, ...]
    covered: Tail
    """The tail of the extent behind what is covered."""
    end: Tail
    """The tail of the index file."""
    records: int
    """How many it covers, also those that later ones have replaced."""
    is_compacted: bool


def head_bytes(head: Head, *, is_compacted: bool) -> bytes:
    """The first bytes of an index."""
    data = _HEAD.pack(MAGIC, head.salt, head.base, 0, is_compacted)
    return (data + _SUM.pack(xxhash.xxh3_64_intdigest(data))).ljust(HEAD_BYTES, b"\0")


def nothing(extent: Extent) -> Known:
    """What an index tells that is still empty."""
    return Known((), extent.start, frames.first(extent.head.salt, HEAD_BYTES), 0, False)


class KeyIndex:
    """The index of one extent, open for reading."""

    def __init__(
        self, disk: Disk, extent: Extent, *, before: tuple[int, Known] | None = None
    ) -> None:
        """Read what is whole of it; nothing, if there is none, or it is another extent's.

        `before` is what was known of the file of an inode, and is not read again.
        """
        self._file: File | None = None
        self.known = nothing(extent)
        self.inode = 0
        """Of its file; 0 if there is none that can be appended to."""
        try:
            self._file = disk.open(extent.path + SUFFIX, write=False)
        except FileNotFoundError:
            return
        inode = self._file.stat().inode
        head = bytes(self._file.read(0, HEAD_BYTES))
        for is_compacted in (False, True):
            if head == head_bytes(extent.head, is_compacted=is_compacted):
                self.inode = inode
                self.known = self.known._replace(is_compacted=is_compacted)
        if before is not None and self.inode == before[0]:
            self.known = before[1]._replace(is_compacted=self.known.is_compacted)
        while self.inode and self._read_part():
            pass

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def between(self, low: int, high: int) -> list[Entries]:
        """Entries of a range of hashes, `high` included: of each part, the oldest first."""
        return [self._slice(part, low, high) for part in self.known.parts]

    def find(self, hashed: int, key: bytes) -> Entries:
        """The last record of a key: one, or none."""
        for part in reversed(self.known.parts):
            found = self._slice(part, hashed, hashed).of_key(hashed, key)
            if len(found):
                return found
        return NONE

    def _read_part(self) -> bool:
        """The next part; False if there is none, or it is not whole."""
        assert self._file is not None
        end = self.known.end
        head = self._file.read(end.end, frames.HEAD_BYTES)
        size = frames.needed_bytes(head, end)
        if size is None or size > self._file.stat().size_bytes - end.end:
            return False
        found = frames.scan(self._file.read(end.end, size), end)
        if not found.frames or found.frames[0].number != self.known.covered.end:
            return False
        self._note(found.frames[0], found.tail)
        return True

    def _note(self, frame: Frame, end: Tail) -> None:
        entries, records, length, number, checksum = _PART.unpack_from(frame.payload)
        at = frame.begin + frames.HEAD_BYTES + _PART.size
        hashes = np.frombuffer(frame.payload, "<u8", entries, _PART.size)
        part = Part(at, entries, length, hashes[::FENCE_ENTRIES].astype(np.uint64))
        known = self.known
        self.known = known._replace(
            parts=(*known.parts, part),
            covered=Tail(known.covered.salt, frame.number + frame.span, number, checksum),
            end=end,
            records=known.records + records,
        )

    def _slice(self, part: Part, low: int, high: int) -> Entries:
        begin = self._place(part, low, "left")
        return self._rows(part, begin, self._place(part, high, "right"))

    def _place(self, part: Part, hashed: int, side: str) -> int:
        """Where a hash belongs, before its equals or behind them."""
        wanted = np.uint64(hashed)
        fence = int(np.searchsorted(part.fences, wanted, side))  # type: ignore[call-overload]
        if not fence:
            return 0
        begin = (fence - 1) * FENCE_ENTRIES
        count = min(FENCE_ENTRIES, part.entries - begin)
        near = self._column(part.at, "<u8", begin, count)
        return begin + int(np.searchsorted(near, wanted, side))  # type: ignore[call-overload]

    def _rows(self, part: Part, begin: int, end: int) -> Entries:
        count, all_ = end - begin, part.entries
        if count <= 0:
            return NONE
        deleted_at = part.at + 24 * all_
        ends_at = deleted_at + 4 * all_
        ends = self._column(ends_at, "<u4", begin, count + 1)
        keys_at = ends_at + 4 * (all_ + 1)
        assert self._file is not None
        data = self._file.read(keys_at + int(ends[0]), int(ends[-1]) - int(ends[0]))
        shifted = pa.py_buffer((ends - ends[0]).astype(np.int32).tobytes())
        return Entries(
            self._column(part.at, "<u8", begin, count),
            self._column(part.at + 8 * all_, "<i8", begin, count),
            self._column(part.at + 16 * all_, "<i8", begin, count),
            self._column(deleted_at, "<u4", begin, count),
            pa.Array.from_buffers(pa.binary(), count, [None, shifted, pa.py_buffer(data)]),
        )

    def _column(self, at: int, kind: str, begin: int, count: int) -> npt.NDArray[Any]:
        assert self._file is not None
        size = np.dtype(kind).itemsize
        return np.frombuffer(self._file.read(at + size * begin, size * count), kind, count)


def part_frame(
    known: Known, entries: Entries, records: int, covered: Tail
) -> tuple[list[Buffer], Tail]:
    """The frame that adds to an index what the extent holds up to a tail; and the tail behind."""
    keys = entries.keys
    begins = np.zeros(1, np.int32)
    if len(keys):
        begins = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
    length = key_bytes(keys)
    payload: list[Buffer] = [
        _PART.pack(len(entries), records, length, covered.number, covered.checksum),
        entries.hashes.astype("<u8").tobytes(),
        entries.offsets.astype("<i8").tobytes(),
        entries.places.astype("<i8").tobytes(),
        entries.deleted_s.astype("<u4").tobytes(),
        (begins - begins[0]).astype("<u4").tobytes(),
    ]
    if length:
        payload.append(memoryview(keys.buffers()[2])[begins[0] : begins[0] + length])
    begin = known.covered.end
    return frames.framed(known.end, payload, number=begin, span=covered.end - begin)
