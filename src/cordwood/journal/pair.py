"""A pair: two files of frames that take turns, so that one can be emptied while the other grows.

::

    0   magic            16  u64 sequence       40  u64 XXH3 of the above
    8   u32 page size    24  u64 salt           48  zeros
    12  u32 zeros        32  u64 first          64  frames (frames.py)

Uses of the two files are counted: `sequence` is even for `wal0.wal`, odd for `wal1.wal`. The file
with the higher one is *active*, and is appended to; the other is *idle*. `first` is the number of
the first entry that the use may hold. The salt of a use is the checksum of the last frame of the
use before it: so which of two files follows which, and that nothing is missing between them, can be
told from the files alone.

Whoever keeps a pair says how many uses are *drained*: what they held is safe elsewhere. A file is
used again only when its use before is drained. The order of a switch:

1.  The head of the idle file is written over and synced: a use without frames.
2.  Memory says that it is the active one. Until then frames may still go to the other one.

A crash between the two leaves a head whose salt is not that of the other file's last frame, or that
is torn. Neither has a frame behind it, and neither counts. What else does not fit is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import xxhash

from cordwood.base.errors import InvalidInputError, UnsupportedError
from cordwood.journal import frames
from cordwood.journal.extent import ahead_bytes, write_zeros
from cordwood.journal.frames import Frame, Tail, damage
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File

MAGIC = b"CWWAL\x01\r\n"
_HEAD = struct.Struct("<8sIIQQQ")
_SUM = struct.Struct("<Q")
FRAMES_AT = 64

Visit = Callable[["Head", Frame], None]


class Head(NamedTuple):
    """What a use of a file begins with."""

    page_bytes: int
    sequence: int
    salt: int
    first: int

    @property
    def start(self) -> Tail:
        """Where its first frame goes."""
        return frames.first(self.salt, FRAMES_AT)._replace(number=self.first)


class Recovered(NamedTuple):
    """What two files hold."""

    active: Head
    tail: Tail
    """Of the active file."""
    idle: Head | None
    """Of the other, unless it is drained."""
    idle_tail: Tail | None


def name_of(sequence: int) -> str:
    """The file of a use."""
    return f"wal{sequence & 1}.wal"


def head_bytes(head: Head) -> bytes:
    """The first bytes of a file."""
    data = _HEAD.pack(MAGIC, head.page_bytes, 0, head.sequence, head.salt, head.first)
    return (data + _SUM.pack(xxhash.xxh3_64_intdigest(data))).ljust(FRAMES_AT, b"\0")


def head_of(data: Buffer, name: str) -> Head | None:
    """The head of a file; None if it is not whole.

    Raises:
        UnsupportedError: something newer wrote it.
    """
    read = bytes(data)
    if len(read) < FRAMES_AT or any(read[_HEAD.size + _SUM.size :]):
        return None
    magic, page_bytes, _, sequence, salt, first = _HEAD.unpack_from(read)
    if xxhash.xxh3_64_intdigest(read[: _HEAD.size]) != _SUM.unpack_from(read, _HEAD.size)[0]:
        return None
    if magic != MAGIC:
        raise UnsupportedError(f"{name} is of another version", hint="update cordwood")
    return Head(page_bytes, sequence, salt, first)


class Pair:
    """Two files that are open. Who writes to them holds a lock that keeps others from it."""

    def __init__(self, disk: Disk, folder: str, page_bytes: int) -> None:
        """Open both, which `recover` found, or `make` made."""
        self._disk = disk
        self._page_bytes = page_bytes
        self.paths = [f"{folder}/{name_of(number)}" for number in (0, 1)]
        self.files: list[File] = [disk.open(path) for path in self.paths]
        self._written = [file.stat().size_bytes for file in self.files]
        """So far the files have blocks that were written before, if only with zeros."""

    def put(self, sequence: int, parts: Sequence[Buffer], at: int, end: int) -> None:
        """Write a frame, and zeros behind it, if the blocks of the next ones were never written."""
        index = sequence & 1
        if end > self._written[index]:
            self._written[index] = self.files[index].stat().size_bytes
        self.files[index].write(parts, at)
        if end > self._written[index]:
            self._written[index] = end + ahead_bytes(end - at)
            write_zeros(self.files[index], end, self._written[index])

    def sync(self, sequence: int) -> None:
        """Bring a file to stable storage."""
        self.files[sequence & 1].sync()

    def cut(self, sequence: int, end: int) -> None:
        """Take back what follows a place of a file, on stable storage: nobody was told of it."""
        self._disk.truncate(self.paths[sequence & 1], end)
        self._written[sequence & 1] = end

    def begin(self, sequence: int, salt: int, first: int, keep_bytes: int) -> Head:
        """Use a file again, without frames; it keeps so much of its room. Not yet synced."""
        head = Head(self._page_bytes, sequence, salt, first)
        index = sequence & 1
        file = self.files[index]
        if file.stat().size_bytes > keep_bytes:
            self._disk.truncate(self.paths[index], keep_bytes)
        file.write([head_bytes(head)], 0)
        self._written[index] = file.stat().size_bytes
        return head

    def close(self) -> None:
        """Close both files."""
        for file in self.files:
            file.close()


def make(disk: Disk, folder: str, head: Head) -> None:
    """The first use of a pair, and an empty file beside it, their names on stable storage.

    The file gets its name when it has its head: one without a head has lost it.
    """
    for number in (head.sequence + 1, head.sequence):
        aside = f"{folder}/{name_of(number)}.new"
        with suppress(FileNotFoundError):
            disk.unlink(aside)
        disk.write(aside, head_bytes(head) if number == head.sequence else b"", 0)
        disk.rename(aside, f"{folder}/{name_of(number)}")
        disk.fsync_dir(folder)


def recover(
    disk: Disk, folder: str, page_bytes: int, drained: int, visit: Visit, *, suspect: bool = False
) -> Recovered | None:
    """Read what the files hold; None if there are none.

    `visit` is called for each frame that counts and is not drained, in their order. All of them are
    on stable storage when this returns. `suspect` says that a sync failed since the machine
    started: then the last frame, or the head of a file without frames, is written once more, since
    what is in memory may not be on the disk, and count as if it were. Nobody was told of that one;
    without need nothing is written over.

    Raises:
        CorruptionError: something is missing or damaged; nothing was changed.
        InvalidInputError: they are for pages of another size.
    """
    paths = [f"{folder}/{name_of(number)}" for number in (0, 1)]
    files: list[File | None] = [None, None]
    try:
        for number, path in enumerate(paths):
            with suppress(FileNotFoundError):
                files[number] = disk.open(path)
        return _Reading(files, paths, visit, suspect).recover(page_bytes, drained)
    finally:
        for file in files:
            if file is not None:
                file.close()


class _Reading:
    """One recovery."""

    def __init__(
        self, files: list[File | None], paths: list[str], visit: Visit, suspect: bool
    ) -> None:
        self._files = files
        self._paths = paths
        self._visit = visit
        self._suspect = suspect

    def recover(self, page_bytes: int, drained: int) -> Recovered | None:
        heads = [
            None if file is None else head_of(file.read(0, FRAMES_AT), path)
            for file, path in zip(self._files, self._paths, strict=True)
        ]
        known = sorted((head for head in heads if head is not None), key=lambda one: one.sequence)
        if not known:
            self._check_new()
            return None
        for head in known:
            if head.page_bytes != page_bytes:
                raise InvalidInputError(
                    f"{_folder_of(self._paths)} keeps pages of {head.page_bytes} bytes, "
                    f"not of {page_bytes}"
                )
            if heads[head.sequence & 1] is not head:
                raise damage(self._paths[~head.sequence & 1], 16, "its head is the other file's")
        newest = known[-1]
        _check_drained(newest, known, self._paths, drained)
        if len(known) == 2 and drained < newest.sequence:
            return self._follow(known[0], newest)
        other = ~newest.sequence & 1
        beside = self._files[other]
        if beside is None:
            raise damage(self._paths[other], 0, "it is missing")
        tail = self._settled(newest, *self._read(newest, self._visit))
        if len(known) == 1:
            _check_unused(beside, self._paths[other], tail)
        return Recovered(newest, tail, None, None)

    def _check_new(self) -> None:
        """Make sure that files without a head never had one: their names came later."""
        for file, path in zip(self._files, self._paths, strict=True):
            if file is not None and file.stat().size_bytes:
                raise damage(path, 0, "its head is not whole, nor is that of the other file")

    def _follow(self, older: Head, newer: Head) -> Recovered:
        """Read both files, if the newer one follows the older; else it was not yet in use."""
        passed = older.start.checksum == newer.salt

        def look(head: Head, frame: Frame) -> None:
            nonlocal passed
            passed = passed or frame.checksum == newer.salt
            self._visit(head, frame)

        idle_tail, begin = self._read(older, look)
        if idle_tail.checksum == newer.salt:
            tail = self._settled(newer, *self._read(newer, self._visit))
            return Recovered(newer, tail, older, idle_tail)
        is_used = next(frames.whole_from(self._file(newer), newer.start), None) is not None
        if is_used or not passed:
            why = "what the other file follows is not there"
            raise damage(self._paths[older.sequence & 1], idle_tail.end, why)
        return Recovered(older, self._settled(older, idle_tail, begin), None, None)

    def _file(self, head: Head) -> File:
        file = self._files[head.sequence & 1]
        assert file is not None
        return file

    def _read(self, head: Head, visit: Visit) -> tuple[Tail, int]:
        """Read a file; its tail, and where its last frame begins, or else its head."""
        tail, begin = head.start, 0
        for frame in frames.whole_from(self._file(head), tail):
            visit(head, frame)
            tail, begin = frames.behind(head.salt, frame), frame.begin
        return tail, begin

    def _settled(self, head: Head, tail: Tail, begin: int) -> Tail:
        """Make sure that what follows may be written over; bring the rest to stable storage."""
        file = self._file(head)
        # All of it: a transaction may be larger than any part that one would look at.
        for frame in frames.whole_after(file, tail):
            if frame.synced > tail.end:
                why = f"the frame at {frame.begin} says that it was synced"
                raise damage(self._paths[head.sequence & 1], tail.end, why)
        if self._suspect:
            file.write([file.read(begin, tail.end - begin)], begin)
        file.sync()
        return tail


def _folder_of(paths: list[str]) -> str:
    """Where the files are."""
    return paths[0].rpartition("/")[0]


def _check_drained(newest: Head, known: list[Head], paths: list[str], drained: int) -> None:
    """Make sure that what is drained, and what the two files are, fits together."""
    other = paths[~newest.sequence & 1]
    if drained > newest.sequence:
        raise damage(other, 0, f"it should be in use: {drained} uses are drained")
    if len(known) == 1 and drained < newest.sequence:
        raise damage(other, 0, "its head is not whole, and what it holds is not drained")
    if len(known) == 2 and known[0].sequence + 1 != newest.sequence:
        raise damage(other, 16, f"it is use {known[0].sequence}, beside {newest.sequence}")
    if drained + 1 < newest.sequence:
        raise damage(_folder_of(paths), 0, f"only {drained} uses before {newest.sequence} drained")


def _check_unused(file: File, path: str, tail: Tail) -> None:
    """Make sure that no frame follows a head that is not whole.

    A head is torn by a crash within a switch, and then no frame is behind it. The salt that it had
    is known: the last checksum of the other file.
    """
    for frame in frames.whole_after(file, Tail(tail.checksum, FRAMES_AT, 0, 0)):
        raise damage(path, 0, f"its head is not whole, but the frame at {frame.begin} is")
