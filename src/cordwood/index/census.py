"""A census: a tree and its index as they were side by side, in one file that is quick to compare.

::

    magic ‖ u64 XXH3 of the rest ‖ u64 length of the head ‖ head ‖ zeros to a multiple of 8 ‖ body

The head is JSON: what the census is of, and where in the body things are. The body has, for each
thousand rows, their paths, each ended by a NUL, and their six words as columns (stamps.py); then
what each row is, a byte each; then for each segment of the index the row of each document, as u32.

A row is a folder, a file, or a file of rules of what to leave out. The first `vouched` rows say how
they were, in the order of their paths, and hold if they are still so: a folder that is the same has
the same names in it, since each name that comes or goes changes the folder's times; a file that is
the same has the same trigrams. Of the rows behind them nothing is known but that they were there.

A census is a shortcut and nothing else. It holds for one state of the index, which the file of the
ledger tells; it is written aside and put in place; one that is damaged, or of another state, is as
good as none. Nobody waits for it to reach the disk.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from bisect import bisect_left
from contextlib import suppress
from typing import Any, NamedTuple

import xxhash

from cordwood.index import stamps
from cordwood.index.walk import STAMP

FILE = "census"
LEDGER = "transaction.log"
MAGIC = b"CWCENS\x02\n"
"""With another number when what is left out of a tree is decided in another way."""

HEAD = struct.Struct("<8sQQ")
SUMMED_AT = 16
LEDGER_HEAD_BYTES = 64

A_FILE, A_FOLDER, A_RULE = 0, 1, 2
"""What a row is; a file of rules that is searched as well has two."""

NO_ROW = 0xFFFFFFFF
"""Of a document that was deleted, or whose file was gone."""


class About(NamedTuple):
    """What a census is of."""

    root: str
    """The tree, as its real path."""
    ignore: bool
    ledger: list[Any]
    """What tells the state of the index."""


class Part(NamedTuple):
    """Some rows in a row."""

    first: int
    paths: list[bytes]
    columns: memoryview


class Census:
    """One that was taken, open."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        """Over all bytes of the file, mapped or read.

        Raises:
            ValueError: it is damaged, or of another version.
        """
        if len(data) < HEAD.size:
            raise ValueError("it is too short")
        magic, digest, length = HEAD.unpack_from(data)
        view = memoryview(data)
        if magic != MAGIC or xxhash.xxh3_64_intdigest(view[SUMMED_AT:]) != digest:
            raise ValueError("it is damaged, or another version's")
        head = json.loads(data[HEAD.size : HEAD.size + length])
        start = HEAD.size + length
        self._body = view[start + -start % 8 :]
        self.about = About(**head["about"])
        self.vouched: int = head["vouched"]
        self.segments: list[tuple[int, int]] = [(number, at) for number, at in head["segments"]]
        """Those of the index, by number, and where the rows of their documents are."""
        self._parts: list[list[int]] = head["parts"]
        self._kinds_at: int = head["kinds"]
        self._opened: dict[int, Part] = {}

    def __len__(self) -> int:
        """How many rows."""
        first, _, _, count = self._parts[-1] if self._parts else (0, 0, 0, 0)
        return first + count

    def part(self, place: int) -> Part:
        """Some of the rows."""
        if place not in self._opened:
            first, at, length, count = self._parts[place]
            paths = bytes(self._body[at : at + length]).split(b"\0")
            at += length + -length % 8
            columns = self._body[at : at + 8 * len(stamps.WORDS) * count].cast("Q")
            self._opened[place] = Part(first, paths[:count], columns)
        return self._opened[place]

    @property
    def part_count(self) -> int:
        """How many parts there are; none has rows that are vouched for and others."""
        return len(self._parts)

    def kind(self, row: int) -> int:
        """What a row is."""
        return self._body[self._kinds_at + row]

    def path(self, row: int) -> bytes:
        """The path of a row from the root; the root's own is empty."""
        part, place = self._at(row)
        return part.paths[place]

    def name(self, row: int) -> bytes:
        """The name of a file as it was (walk.py)."""
        part, place = self._at(row)
        inode, size, *times = part.columns[place :: len(part.paths)]
        changed_ns, written_ns = (
            (second - (second >> 63 << 64)) * stamps.SECOND_NS + ns
            for second, ns in (times[:2], times[2:])
        )
        return part.paths[place] + b"\0" + STAMP.pack(size, written_ns, changed_ns, inode)

    def rows_of(self, at: int, documents: int) -> memoryview:
        """The row of each document of a segment: that of document d is at d."""
        return self._body[at : at + 4 * (documents + 1)].cast("I")

    def below(self, path: bytes) -> list[set[bytes]]:
        """The paths of what was in a folder, by what it was, and perhaps of more."""
        found: list[set[bytes]] = [set(), set(), set()]
        low, high = (path + b"/", path + b"0") if path else (b"", b"")
        for place in range(len(self._parts)):
            first, paths, _ = self.part(place)
            start, limit = 0, len(paths)
            if high and first < self.vouched:  # Others are few, and in an order of their own.
                start, limit = bisect_left(paths, low), bisect_left(paths, high)
            for row in range(start, limit):
                found[self.kind(first + row)].add(paths[row])
        return found

    def unlike(self, folder: int, place: int) -> list[int]:
        """The rows of a part that are not as they were, or that nothing was known of.

        `folder` is a descriptor of the root.
        """
        first, paths, columns = self.part(place)
        if first >= self.vouched:
            return list(range(first, first + len(paths)))
        if not paths[0]:
            paths = [b".", *paths[1:]]  # The root, which comes first, as the system calls it.
        if stamps.same(folder, paths, columns):
            return []
        return [first + row for row in stamps.unlike(folder, paths, columns)]

    def _at(self, row: int) -> tuple[Part, int]:
        place = bisect_left(self._parts, [row + 1]) - 1
        part = self.part(place)
        return part, row - part.first


def opened(place: str, root: bytes, *, ignore: bool) -> Census | None:
    """The census of a tree in the folder of its index, if it is of the index as it is now."""
    try:
        with open(os.path.join(place, FILE), "rb") as file:
            census = Census(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        wanted = About(os.fsdecode(os.path.realpath(root)), ignore, ledger_of(place))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return census if census.about == wanted else None


def ledger_of(place: str) -> list[Any]:
    """What tells one state of an index from all others: how its ledger's file looks.

    Whatever is committed makes the file longer; who shortens it puts another in its place, whose
    head has another salt.
    """
    with open(os.path.join(place, LEDGER), "rb") as file:
        it = os.stat(file.fileno())
        head = file.read(LEDGER_HEAD_BYTES)
    return [it.st_ino, it.st_size, it.st_mtime_ns, it.st_ctime_ns, head.hex()]


def drop(place: str) -> None:
    """Remove a census that is of no use; who cannot leaves it."""
    with suppress(OSError):
        os.unlink(os.path.join(place, FILE))


def put(place: str, data: bytes, token: str) -> None:
    """Put a census in its place, or leave things as they are if that cannot be done.

    What somebody left who was stopped in the middle goes first. If it is somebody's who is just
    writing, his census is lost, and ours, or the next one, does as well.
    """
    with suppress(OSError):
        for name in os.listdir(place):
            if name.startswith(f"{FILE}.") and name.endswith(".new"):
                os.unlink(os.path.join(place, name))
        aside = os.path.join(place, f"{FILE}.{token[:16]}.new")
        try:
            with open(aside, "xb") as file:
                file.write(data)
            os.rename(aside, os.path.join(place, FILE))
        except OSError:
            os.unlink(aside)
