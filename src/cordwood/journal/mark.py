"""How far a journal goes: a small file beside its extents, `tail`, for all processes that use it.

Two slots of 96 bytes, written in turn, so that one is whole whatever happens to a write::

    0   u64 how often it was written        48  u64 where its last synced frame ends
    8   u64 salt of the newest extent       56  u64 the number of the entry behind that
    16  u64 its base                        64  u64 checksum of the last synced frame
    24  u64 where its last frame ends       72  u64 the newest time of an entry, microseconds
    32  u64 the number of the next entry    80  u64 1 if no frame may follow
    40  u64 checksum of its last frame      88  u64 XXH3 of the above

The slot that was written last counts. It is not synced itself: who reads it knows what is durable,
and no more. After a power cut it may be old, or gone. That is why whoever comes first reads on from
what was synced.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from cordwood.journal.frames import SUM, Tail
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File

MARK = struct.Struct("<11Q")
SLOT_BYTES = MARK.size + SUM.size
READS_MAX = 100


class Mark(NamedTuple):
    """How far a journal goes."""

    turn: int
    """How often it was written."""
    salt: int
    base: int
    end: int
    number: int
    checksum: int
    synced_end: int
    synced_number: int
    synced_checksum: int
    newest_us: int
    is_closed: bool = False
    """Whether no frame may follow: the next entry begins another extent."""

    @property
    def tail(self) -> Tail:
        """Where the next frame goes."""
        return Tail(self.salt, self.end, self.number, self.checksum)

    @property
    def synced_tail(self) -> Tail:
        """What comes before it is durable."""
        return Tail(self.salt, self.synced_end, self.synced_number, self.synced_checksum)

    def moved(self, tail: Tail, time_us: int = 0) -> Mark:
        """With frames as far as this, not yet synced."""
        _, end, number, checksum = tail
        newest_us = max(self.newest_us, time_us)
        synced = self.synced_end, self.synced_number, self.synced_checksum
        at = self.turn, self.salt, self.base, end, number, checksum
        return Mark(*at, *synced, newest_us, self.is_closed)

    def synced(self) -> Mark:
        """With all of them synced."""
        return Mark(*self[:6], *self[3:6], *self[9:])

    def said(self) -> Mark:
        """As it is written the next time."""
        return Mark(self.turn + 1, *self[1:])


def encoded(mark: Mark) -> bytes:
    """Its bytes."""
    data = MARK.pack(*mark)
    return data + SUM.pack(xxhash.xxh3_64_intdigest(data))


def write_mark(file: File, turn: int, data: bytes) -> None:
    """Say it, in the slot that says less."""
    file.write([data], turn % 2 * SLOT_BYTES)


def read_mark(file: File) -> Mark | None:
    """What the file says, also while somebody writes it; None if it says nothing."""
    data = b""
    for _ in range(READS_MAX):
        before, data = data, bytes(file.read(0, 2 * SLOT_BYTES))
        found = [_decoded(data[:SLOT_BYTES]), _decoded(data[SLOT_BYTES:])]
        # Of two that are whole the newer one; of one that is being written, not yet the older.
        if all(found) or data == before:
            return max((mark for mark in found if mark is not None), default=None)
    return None


def seen_mark(disk: Disk, path: str) -> Mark | None:
    """The same by who has not opened the file, and may only read."""
    file = disk.open(path, write=False)
    try:
        return read_mark(file)
    finally:
        file.close()


def _decoded(data: Buffer) -> Mark | None:
    read = bytes(data)
    if len(read) < SLOT_BYTES:
        return None
    (expected,) = SUM.unpack_from(read, MARK.size)
    if xxhash.xxh3_64_intdigest(read[: MARK.size]) != expected:
        return None
    *numbers, is_closed = MARK.unpack_from(read)
    return Mark(*numbers)._replace(is_closed=bool(is_closed))
