"""The base: the newest pages of WAL files that were drained, in one sparse file.

::

    base       page p at (p - 1) * page size; holes where there is none
    base.map   for each page: u64 entry ‖ u64 XXH3; zeros if there is none
    drained    a document: how many uses of the WAL files are in it, up to which entry, cuts

To drain is to write pages in place, then their lines of the map, each synced, and then the
document. Until that is durable the WAL file keeps everything, and what is in it goes before the
base; so it does not matter what a crash left in those places, and it is only those that were
written to: a line of another page is not touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from cordwood.journal import document
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File
from cordwood.volume.tables import Numbers, Pages

_LINE_BYTES = 16
_RUN_PAGES_MAX = 256
_LOOK_LINES = 1 << 18


class Drained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document."""

    uses: int = 0
    """How many uses of the WAL files are in the base."""
    entry: int = 0
    """The last entry of those."""
    page_count: int = 0
    """After it."""
    cuts: tuple[tuple[int, int], ...] = ()
    """Entry and page count of those that were not yet published."""
    format: int = document.FORMAT


class Base:
    """The files, as one handle sees them."""

    def __init__(self, disk: Disk, folder: str, page_bytes: int) -> None:
        """Open them; they are made if they are not there."""
        self._disk = disk
        self._page_bytes = page_bytes
        self.path = f"{folder}/base"
        self.map_path = f"{folder}/base.map"
        self.file: File = disk.open(self.path, create=True)
        self._map_file: File = disk.open(self.map_path, create=True)
        self._seen = -1
        self._map = memoryview(b"").cast("Q")

    def map(self, version: int) -> memoryview:
        """The map as it is at a version of the base, as words: two for each page."""
        if version != self._seen:
            data = memoryview(self._disk.map(self.map_path))
            self._map = data[: len(data) // _LINE_BYTES * _LINE_BYTES].cast("Q")
            self._seen = version
        return self._map

    def newer(self, lines: memoryview, watermark: int) -> tuple[Pages, Numbers]:
        """The pages of a map whose entries are higher, in their order, and these.

        Holes are passed over: one page of a high number makes the map as long as all before it.
        """
        words = np.frombuffer(lines, np.uint64)[::2]
        pages: list[Pages] = [np.zeros(0, np.uint32)]
        entries: list[Numbers] = [np.zeros(0, np.uint64)]
        start = 0
        while (at := self._map_file.written_from(start)) is not None:
            first = at // _LINE_BYTES
            some = words[first : first + _LOOK_LINES]
            found = np.flatnonzero(some > watermark)
            pages.append((found + (first + 1)).astype(np.uint32))
            entries.append(some[found])
            start = (first + _LOOK_LINES) * _LINE_BYTES
        return np.concatenate(pages), np.concatenate(entries)

    def put(
        self, pages: Pages, entries: Numbers, sums: Numbers, page_of: Callable[[int], Buffer]
    ) -> None:
        """Bring pages to stable storage; `page_of` gives the one with an index.

        Raises:
            OSError: the disk failed or is full; what goes before the base still does.
        """
        lines = np.stack([entries, sums], axis=1).astype(np.uint64)
        for start, limit in _runs(pages):
            at = int(pages[start]) - 1
            self.file.write([page_of(i) for i in range(start, limit)], at * self._page_bytes)
        self.file.sync()
        for start, limit in _runs(pages):
            at = int(pages[start]) - 1
            self._map_file.write([lines[start:limit].tobytes()], at * _LINE_BYTES)
        self._map_file.sync()

    def reclaim(self) -> int:
        """Give the room back, on stable storage; how many bytes the files had.

        Nobody may look at the map meanwhile, nor later before it asks for it again.
        """
        freed = self.file.stat().size_bytes + self._map_file.stat().size_bytes
        self._map, self._seen = memoryview(b"").cast("Q"), -1
        if freed:
            self._disk.truncate(self.path, 0)
            self._disk.truncate(self.map_path, 0)
        return freed

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        self._map_file.close()


def load(disk: Disk, path: str, name: str, kind: type[document.T]) -> document.T | None:
    """A document of the directory; None if there is none.

    Raises:
        CorruptionError: it is damaged.
    """
    with suppress(FileNotFoundError):
        return document.decoded(name, kind, bytes(disk.read(path)[1]), path)
    return None


def save(disk: Disk, path: str, name: str, value: msgspec.Struct) -> None:
    """Replace a document, atomically and on stable storage; who does that holds a lock."""
    aside = f"{path}.new"
    with suppress(FileNotFoundError):
        disk.unlink(aside)
    disk.write(aside, document.encoded(name, value), 0)
    disk.rename(aside, path)
    disk.fsync_dir(path.rpartition("/")[0])


def _runs(pages: Pages) -> Iterator[tuple[int, int]]:
    """Where neighbours begin and end, so that they are written together."""
    if not len(pages):
        return
    breaks = np.flatnonzero(np.diff(pages.astype(np.int64)) != 1) + 1
    bounds = [0, *breaks.tolist(), len(pages)]
    for start, limit in itertools.pairwise(bounds):
        for at in range(start, limit, _RUN_PAGES_MAX):
            yield at, min(at + _RUN_PAGES_MAX, limit)
