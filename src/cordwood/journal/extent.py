"""An extent: one file of a journal.

::

    0   magic            24  u64 created, microseconds      64  frames (frames.py)
    8   u64 salt         32  u64 XXH3 of the above              kind 0  an entry
    16  u64 base         40  zeros                              kind 1  the end: nothing follows

`base` is the number of its first entry, and its name: `{base}.wal`. Room for it is set aside when
it is made, and what lies behind its last frame means nothing: zeros, or frames of an earlier use of
the same file, whose salt was another.

The last frame of one that is full says so; its time is the newest of all entries, its number that
of the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import xxhash

from cordwood.base.errors import CorruptionError, UnsupportedError
from cordwood.journal import frames
from cordwood.journal.frames import Frame, Tail, damage
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File

MAGIC = b"CWEXT\x01\r\n"
_HEAD = struct.Struct("<8sQQQ")
_SUM = struct.Struct("<Q")
FRAMES_AT = 64
ENTRY, END = 0, 1
UNKNOWN = 0
"""The salt of an extent whose head is damaged; no other has it."""
END_BYTES = frames.frame_bytes(0)

WINDOW_BYTES = frames.WINDOW_BYTES

AHEAD_FRAMES = 128
AHEAD_BYTES_MIN = 1 << 18
AHEAD_BYTES_MAX = 1 << 24
"""So many frames' worth of zeros is written at once ahead of them, within these limits.

A sync of a block that was set aside, and never written, has to bring the file system's own journal
to the disk as well: 2 ms instead of 0.1 in one sync of seventeen with frames of 240 bytes, and in
every sync with large ones (3.8 ms instead of 0.7 for a thousand records).
"""
_PIECE_BYTES = 1 << 16
"""So many of them with one call: the system keeps in one piece what comes in one, and a sync has to
look through all of a piece for the part that has changed (120 us instead of 97, with 8 kB in
pieces of megabytes)."""
_ZEROS = bytes(_PIECE_BYTES)


def ahead_bytes(size_bytes: int) -> int:
    """How many zeros go ahead of frames of this size."""
    return min(max(AHEAD_FRAMES * size_bytes, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)


def write_zeros(file: File, start: int, limit: int) -> None:
    """Zeros from one place of a file to another."""
    for at in range(start, limit, _PIECE_BYTES):
        file.write([_ZEROS[: limit - at]], at)


class Head(NamedTuple):
    """What an extent begins with."""

    salt: int
    base: int
    created_us: int


class RecycledError(Exception):
    """The file was put to another use while it was read."""


def name_of(base: int) -> str:
    """The file name of an extent."""
    return f"{base}.wal"


def base_of(name: str) -> int | None:
    """The extent that a file name is of; None for any other name."""
    stem, dot, suffix = name.partition(".")
    is_one = dot and suffix == "wal" and stem.isdecimal() and stem.isascii()
    return int(stem) if is_one and stem == str(int(stem)) else None


def head_bytes(head: Head) -> bytes:
    """The first bytes of a file."""
    data = _HEAD.pack(MAGIC, *head)
    return (data + _SUM.pack(xxhash.xxh3_64_intdigest(data))).ljust(FRAMES_AT, b"\0")


def head_of(data: Buffer, name: str, base: int) -> Head:
    """The head of the extent that is to be this one.

    Raises:
        CorruptionError: it is damaged, or another's.
        UnsupportedError: something newer wrote it.
    """
    read = bytes(data)
    if len(read) < FRAMES_AT:
        raise damage(name, len(read), "it ends within its head")
    magic, *found = _HEAD.unpack_from(read)
    (expected,) = _SUM.unpack_from(read, _HEAD.size)
    if xxhash.xxh3_64_intdigest(read[: _HEAD.size]) != expected or any(read[40:]):
        raise damage(name, 0, "its head does not match its checksum")
    if magic != MAGIC:
        raise UnsupportedError(f"{name} is of another version", hint="update cordwood")
    if found[1] != base:
        raise damage(name, 16, f"it says that it begins with {found[1]}")
    return Head(*found)


class Extent:
    """One that is open, for reading or for writing."""

    def __init__(self, file: File, path: str, head: Head) -> None:
        """Made by `open_extent`."""
        self.file = file
        self.path = path
        self.head = head
        self.written_bytes = 0
        """So far the file has blocks that were written before, if only with zeros."""

    @property
    def start(self) -> Tail:
        """Where its first frame goes."""
        return frames.first(self.head.salt, FRAMES_AT)._replace(number=self.head.base)

    def put(self, parts: Sequence[Buffer], at: int, end: int, size_bytes: int) -> None:
        """Write a frame, and zeros behind it, if the blocks of the next ones were never written."""
        self.file.write(parts, at)
        if end > self.written_bytes:
            self.written_bytes = max(end, min(end + ahead_bytes(end - at), size_bytes))
            write_zeros(self.file, end, self.written_bytes)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def whole_from(self, tail: Tail) -> Iterator[Frame]:
        """The frames that follow a tail, one upon the other, as far as they are whole."""
        return frames.whole_from(self.file, tail)

    def frames_from(self, tail: Tail, limit: int) -> Iterator[Frame]:
        """The frames between a tail and a place that is known to be a frame's end.

        Raises:
            CorruptionError: one of them is not whole.
            RecycledError: the file has been put to another use.
        """
        at = tail.end
        for frame in self.whole_from(tail):
            if frame.begin >= limit:
                return
            yield frame
            at = frame.end
            if frame.kind == END:
                return
        if at < limit:
            self.check_same()
            raise damage(self.path, at, "a frame is not whole, and what follows it was in use")

    def tail_at(self, number: int, limit: int) -> Tail:
        """The tail before the frame that an entry is in, by bisection, also behind damage.

        Frames can be found from anywhere, by the mark that they begin with.
        """
        best = self.start
        low, high = FRAMES_AT, limit
        while high - low > WINDOW_BYTES:
            middle = (low + high) // 2
            found = self.next_whole(middle, high)
            if found is not None and found.number <= number:
                best, low = found, found.end
            else:
                high = middle
        while True:
            for frame in self.whole_from(best):
                is_behind = frame.begin >= limit or frame.number + frame.span > number
                if is_behind or frame.kind == END:
                    return best
                best = frames.behind(self.head.salt, frame)
            found = self.next_whole(best.end + 1, limit)
            if found is None or found.number > number:
                return best
            best = found

    def frame_at(self, place: int) -> Frame:
        """The frame that begins at a place.

        Raises:
            CorruptionError: it is not whole.
            RecycledError: the file has been put to another use.
        """
        tail = Tail(self.head.salt, place, 0, 0)
        size = frames.needed_bytes(self.file.read(place, frames.HEAD_BYTES), tail)
        if size is not None and size <= self.file.stat().size_bytes - place:
            for frame in frames.whole_behind(self.file.read(place, size), tail):
                if frame.begin == place:
                    return frame
        self.check_same()
        raise damage(self.path, place, "a frame is not whole, and what is in it was in use")

    def newest_us(self) -> int | None:
        """When its newest entry was made, by its last frame; None unless it is there."""
        last = self.last()
        return None if last is None else last.time_us

    def last(self) -> Frame | None:
        """The frame that says that nothing follows, if it is at the end of the file."""
        at = self.file.stat().size_bytes - END_BYTES
        if at < FRAMES_AT:
            return None
        data = self.file.read(at, END_BYTES)
        for frame in frames.whole_behind(data, Tail(self.head.salt, at, 0, 0)):
            return frame if frame.kind == END else None
        return None

    def check_same(self) -> None:
        """Make sure that the file is still this extent.

        Raises:
            RecycledError: it is another.
            CorruptionError: its head is damaged.
        """
        data = bytes(self.file.read(0, FRAMES_AT))
        if self.head.salt != UNKNOWN and data != head_bytes(self.head):
            if data[:8] == MAGIC and _HEAD.unpack_from(data)[1] != self.head.salt:
                raise RecycledError
            raise damage(self.path, 0, "its head has changed")

    def next_whole(self, place: int, limit: int) -> Tail | None:
        """The tail before the first whole frame between two places, whatever lies before it."""
        window = WINDOW_BYTES
        while True:
            data = self.file.read(place, min(window, limit - place))
            for frame in frames.whole_behind(data, Tail(self.head.salt, place, 0, 0)):
                return Tail(self.head.salt, frame.begin, frame.number, frame.link)
            if len(data) < window or window >= limit - place:
                return None
            window *= 4


def open_extent(disk: Disk, folder: str, base: int, *, write: bool = False) -> Extent:
    """Open the extent that begins with an entry.

    Raises:
        FileNotFoundError: there is none.
        CorruptionError: its head is damaged.
    """
    path = f"{folder}/{name_of(base)}"
    file = disk.open(path, write=write)
    try:
        return Extent(file, path, head_of(file.read(0, FRAMES_AT), path, base))
    except BaseException:
        file.close()
        raise


def open_whatever(disk: Disk, folder: str, base: int) -> tuple[Extent, CorruptionError | None]:
    """The same for reading, also with a damaged head, which is told: nothing is found in that one.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        return open_extent(disk, folder, base), None
    except CorruptionError as error:
        path = f"{folder}/{name_of(base)}"
        return Extent(disk.open(path, write=False), path, Head(UNKNOWN, base, 0)), error


def missing_extent(folder: str, base: int) -> CorruptionError:
    """The error for an extent that has to be there, and is not."""
    return damage(f"{folder}/{name_of(base)}", 0, "it is missing")


def make_extent(disk: Disk, folder: str, head: Head, size_bytes: int, *, spare: str) -> Extent:
    """A new extent, empty, its name on stable storage; from the file `spare`, if that is there."""
    path = f"{folder}/{name_of(head.base)}"
    aside = f"{path}.new"
    with suppress(FileNotFoundError):
        disk.rename(f"{folder}/{spare}", aside)
    file = disk.open(aside, create=True)
    try:
        used_bytes = file.stat().size_bytes
        if used_bytes:
            # Who made it spare, or took the spare one, may have died before its old name was gone
            # for good.
            disk.fsync_dir(folder)
        file.allocate(size_bytes)
        # An earlier use of the file must not look like a frame of this one, and with another salt
        # it does not.
        file.write([head_bytes(head)], 0)
        file.sync()
        disk.rename(aside, path)
        disk.fsync_dir(folder)
    except BaseException:
        file.close()
        raise
    made = Extent(file, path, head)
    made.written_bytes = used_bytes
    return made
