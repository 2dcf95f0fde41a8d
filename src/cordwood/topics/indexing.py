"""Keeping key indexes up with their extents.

Whoever appends, or needs an index, reads what the extent holds behind what the index covers, also
what other processes appended, and keeps the last record of each key in a table (keytable.py). The
table becomes a part of the index when it is full, when it covers 64 MiB of the extent, and when the
extent is closed. So a process that dies takes nothing with it, and several that follow one extent
do not disturb each other: the first one writes the part, the others find it there.
"""

from __future__ import annotations

from cordwood.journal.extent import END, Extent, RecycledError
from cordwood.journal.frames import Frame, behind
from cordwood.journal.locks import Locks
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk
from cordwood.topics.batch import decoded
from cordwood.topics.keyindex import SUFFIX, KeyIndex, Known, head_bytes, part_frame
from cordwood.topics.keytable import TABLE_BYTES, KeyTable, entries_of

PART_COVERS_BYTES = 64 << 20
"""Of an extent, by one part of its index, about."""
STEP_BYTES = 1 << 20
"""Of an extent, read at once."""


class Indexing:
    """An extent, its index, and a table of what the index does not cover yet. One thread uses it.

    What is known of the index: `index.known`. What the table covers begins there.
    """

    def __init__(
        self,
        disk: Disk,
        extent: Extent,
        *,
        before: tuple[int, Known] | None = None,
        table_bytes: int = TABLE_BYTES,
        lock: tuple[Locks, str] | None = None,
        is_compacted: bool = False,
    ) -> None:
        """Read the index, if there is one. `lock` is held by who writes to it."""
        self.extent = extent
        self.table = KeyTable(table_bytes)
        self._disk = disk
        self._lock = lock
        self._is_compacted = is_compacted
        self.index = KeyIndex(disk, extent, before=before)
        self.tail = self.index.known.covered
        """Of the extent: what comes before it is in the index or in the table."""
        self.is_whole = True
        """Whether all was there that was to be followed."""

    @property
    def records(self) -> int:
        """How many records there are up to here, also those that later ones have replaced."""
        return self.index.known.records + self.table.records

    @property
    def uncovered_bytes(self) -> int:
        """How much of the extent only the table covers."""
        return self.tail.end - self.index.known.covered.end

    def follow(self, *, end: int | None = None, number: int | None = None) -> bool:
        """Read on to a place, or to the end; what has this number or a higher one is void.

        Returns:
            Whether all is there: up to the place, or the number, or the frame that ends the extent.

        Raises:
            OSError: a part of the index cannot be written.
        """
        while True:
            is_there = end is not None and self.tail.end >= end
            some, is_end = ([], True) if is_there else self._some(end, number)
            if some:
                batches = [decoded(frame.payload, frame.number, frame.time_us) for frame in some]
                self.table.add(entries_of(batches, [frame.begin for frame in some]))
                self.tail = behind(self.extent.head.salt, some[-1])
                if self.table.is_full or self.uncovered_bytes >= PART_COVERS_BYTES:
                    self.flush()
            else:
                is_last = number is not None and self.tail.number >= number
                self.is_whole = is_end or is_last
                return self.is_whole

    def flush(self) -> None:
        """Make what the table holds a part of the index, unless somebody else did.

        Raises:
            RecycledError: the extent was deleted or compacted; the index is that of another.
        """
        if not self.uncovered_bytes:
            return
        if self._lock is None:
            self._write()
            return
        locks, path = self._lock
        with locks.exclusive(path):
            self._write()

    def close(self) -> None:
        """Close the files."""
        self.index.close()
        self.extent.close()

    def _some(self, end: int | None, number: int | None) -> tuple[list[Frame], bool]:
        """About so many bytes of frames that come next; and whether that is all there is."""
        some: list[Frame] = []
        for frame in self.extent.whole_from(self.tail):
            is_void = number is not None and frame.number >= number
            if frame.kind == END or is_void or (end is not None and frame.begin >= end):
                return some, True
            some.append(frame)
            if frame.end - some[0].begin >= STEP_BYTES:
                return some, False
        return some, False

    def _write(self) -> None:
        covered = self.index.known.covered
        try:
            inode = self._disk.stat(self.extent.path).inode
        except FileNotFoundError:
            raise RecycledError from None
        if inode != self.extent.file.stat().inode:
            raise RecycledError
        self._look_again()
        if self.index.known.covered == covered:
            known = self.index.known
            parts, _ = part_frame(known, self.table.sorted(), self.table.records, self.tail)
            path = self.extent.path + SUFFIX
            if self.index.inode:
                self._put(path, parts, known.end.end)
            else:
                # Whoever reads what has this name now, as another extent's, goes on reading that.
                head = head_bytes(self.extent.head, is_compacted=self._is_compacted)
                self._put(f"{path}.new", [head, *parts], 0)
                self._disk.rename(f"{path}.new", path)
            self._look_again()
        # It is there by now, by ourselves or by somebody else; or what was there is gone.
        self.table.clear()
        self.tail = self.index.known.covered

    def _look_again(self) -> None:
        before = self.index
        self.index = KeyIndex(self._disk, self.extent, before=(before.inode, before.known))
        before.close()

    def _put(self, path: str, parts: list[Buffer], place: int) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.write(parts, place)
        finally:
            file.close()
