"""The keys of a partition: the indexes of all its extents, and a view of them at one moment."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.base.clock import Entropy
from cordwood.base.errors import Code, CordwoodError, StoreError
from cordwood.base.forks import starts_over
from cordwood.journal.extent import Extent, RecycledError, missing_extent, open_whatever
from cordwood.journal.frames import Tail
from cordwood.journal.journal import Journal
from cordwood.journal.locks import Locks
from cordwood.journal.mark import Mark
from cordwood.topics.indexing import Indexing
from cordwood.topics.keyindex import KeyIndex, Known
from cordwood.topics.keytable import ENTRY_BYTES, TABLE_BYTES, Entries, KeyTable

LOCK = "keys"
LOOKS_MAX = 1000
LEFT_BYTES = 4 << 20
"""Who leaves a partition writes down what its table covers only if that is more."""


@dataclass(frozen=True, slots=True)
class Source:
    """An extent of a view, and what is known of its keys."""

    extent: Extent
    index: KeyIndex
    table: KeyTable
    limit: int
    """Records from this offset on do not belong to it."""
    is_whole: bool
    """Whether all its records could be read."""

    @property
    def base(self) -> int:
        """Its first offset."""
        return self.extent.head.base

    @property
    def records(self) -> int:
        """How many it holds, also those that later ones have replaced."""
        return self.index.known.records + self.table.records

    @property
    def entries_bytes(self) -> int:
        """What all its entries take in memory."""
        parts = self.index.known.parts
        sizes = (ENTRY_BYTES * part.entries + part.key_bytes for part in parts)
        return self.table.size_bytes + sum(sizes)

    def find(self, hashed: int, key: bytes) -> Entries:
        """The last record of a key in it: one, or none."""
        found = self.table.find(hashed, key)
        return found if len(found) else self.index.find(hashed, key)

    def between(self, low: int, high: int) -> list[Entries]:
        """Entries of a range of hashes, `high` included: at least the last of each key."""
        return [*self.index.between(low, high), self.table.sorted().between(low, high)]


class View(NamedTuple):
    """A partition as it was at one moment, whatever is appended, deleted or compacted since."""

    sources: list[Source]
    """Its extents, in order."""
    mark: Mark


class Keys:
    """The key indexes of a partition. Any number of threads use them."""

    def __init__(
        self, journal: Journal, entropy: Entropy, *, table_bytes: int = TABLE_BYTES
    ) -> None:
        """No I/O."""
        self._journal = journal
        self._table_bytes = table_bytes
        self._lock = Locks(journal.disk, entropy), f"{journal.folder}/{LOCK}"
        self.start_over()
        starts_over(self)

    def start_over(self) -> None:
        """Know nothing."""
        self._mutex = threading.RLock()
        self._rolling: Indexing | None = None
        self._known: dict[int, tuple[int, Known]] = {}
        """What indexes tell, by the salts of their extents; and the inodes of their files."""
        self._complete: dict[int, tuple[int, Tail, int]] = {}
        """Which of them cover all of an extent that is closed; how much that is, and its limit."""

    def is_behind(self, mark: Mark, size_bytes: int) -> bool:
        """Whether the table lacks so much of the newest extent, or is another's."""
        one = self._rolling
        if one is None or one.extent.head.salt != mark.salt:
            return True
        return mark.synced_end - one.tail.end >= size_bytes

    def roll(self, mark: Mark, *, wait: bool = True) -> bool:
        """Follow what was appended; whether an extent was closed meanwhile.

        Without `wait`, not if somebody else is at work on the indexes.

        Raises:
            OSError: a part of an index cannot be written.
            RecycledError: the extent is not there any more.
        """
        if not self._mutex.acquire(blocking=wait):
            return False
        try:
            is_closed = self._leave(mark)
            if self._rolling is None:
                extent, _ = open_whatever(self._journal.disk, self._journal.folder, mark.base)
                self._rolling = self._indexing(extent)
            if self._rolling.extent.head.salt == mark.salt:  # Else there is a newer one by now.
                self._rolling.follow(end=mark.synced_end)
        except RecycledError:
            one, self._rolling = self._rolling, None
            if one is not None:
                one.close()
            raise
        else:
            return is_closed
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Write down what the table holds, if that is much, and let go of the files."""
        with self._mutex:
            one, self._rolling = self._rolling, None
            self._known.clear()
            self._complete.clear()
        if one is not None:
            with suppress(OSError, CordwoodError, RecycledError):
                if one.uncovered_bytes >= LEFT_BYTES:
                    one.flush()
            one.close()

    @contextmanager
    def view(self) -> Iterator[View]:
        """All extents, and what is known of their keys, as they are now."""
        with ExitStack() as opened:
            view = None
            while view is None:
                # What was just there may be deleted or replaced by now: look again.
                with ExitStack() as trying, suppress(RecycledError, FileNotFoundError):
                    view = self._viewed(trying)
                    opened.push(trying.pop_all())
            yield view

    def _viewed(self, opened: ExitStack) -> View:
        extents, mark = self._opened(opened)
        if not extents:
            return View([], mark)
        limits = [extent.head.base for extent in extents[1:]]
        with self._mutex:
            sources = [
                self._closed(extent, limit, opened)
                for extent, limit in zip(extents, limits, strict=False)
            ]
            sources.append(self._newest(extents[-1], mark, opened))
            salts = {source.extent.head.salt for source in sources}
            self._known = {salt: one for salt, one in self._known.items() if salt in salts}
            self._complete = {s: one for s, one in self._complete.items() if s in salts}
        return View(sources, mark)

    def _opened(self, opened: ExitStack) -> tuple[list[Extent], Mark]:
        """All extents that there are at one moment, and how far the newest goes then.

        A compaction may replace them while they are opened, one after the other: with some from
        before it and some from behind it, a record that was deleted could come back. So they are
        looked at again, until all that were opened are still those that are there.
        """
        disk, folder = self._journal.disk, self._journal.folder
        for _ in range(LOOKS_MAX):
            with ExitStack() as trying:
                mark = self._journal.newest()
                bases = [base for base in self._journal.bases() if base <= mark.base]
                if mark.salt and mark.base not in bases:
                    self._journal.check_there()
                    raise missing_extent(folder, mark.base)
                with suppress(FileNotFoundError):
                    extents = [open_whatever(disk, folder, base)[0] for base in bases]
                    for extent in extents:
                        trying.callback(extent.close)
                    mark = self._journal.newest()
                    is_same = all(
                        disk.stat(extent.path).inode == extent.file.stat().inode
                        for extent in extents
                    )
                    salt = extents[-1].head.salt if extents else 0
                    if is_same and salt == mark.salt:
                        opened.push(trying.pop_all())
                        return extents, mark
        raise StoreError(
            f"the extents of {folder} were replaced again and again while they were opened",
            code=Code.STORE_FAILED,
            transient=True,
            operation="read",
            key=folder,
            hint="try again",
        )

    def _closed(self, extent: Extent, limit: int, opened: ExitStack) -> Source:
        one = self._indexing(extent)
        opened.callback(one.close)
        salt = extent.head.salt
        if self._complete.get(salt) == (one.index.inode, one.tail, limit):
            return Source(extent, one.index, one.table, limit, is_whole=True)
        is_whole, tail = one.follow(number=limit), None
        while tail != one.tail:  # Somebody else may have written less of it meanwhile.
            tail = one.tail
            with suppress(OSError):  # It can be done without, here.
                one.flush()
            is_whole = one.follow(number=limit)
        if not is_whole:
            extent.check_same()
        last = extent.last()
        if last is not None and last.number < limit:
            is_whole = False  # What came behind it is not there any more.
        self._known[salt] = one.index.inode, one.index.known
        if is_whole and not one.uncovered_bytes:
            self._complete[salt] = one.index.inode, one.tail, limit
        return Source(extent, one.index, one.table, max(limit, one.tail.number), is_whole)

    def _newest(self, extent: Extent, mark: Mark, opened: ExitStack) -> Source:
        self.roll(mark)
        rolling = self._rolling
        if rolling is None or rolling.extent.head.salt != mark.salt:
            return self._closed(extent, mark.synced_number, opened)
        before = rolling.index.inode, rolling.index.known
        index = KeyIndex(self._journal.disk, extent, before=before)
        opened.callback(index.close)
        # Somebody else may have followed it further: what an index covers is there.
        limit = max(rolling.tail.number, index.known.covered.number)
        return Source(extent, index, rolling.table.copy(), limit, rolling.is_whole)

    def _indexing(self, extent: Extent) -> Indexing:
        return Indexing(
            self._journal.disk,
            extent,
            before=self._known.get(extent.head.salt),
            table_bytes=self._table_bytes,
            lock=self._lock,
        )

    def _leave(self, mark: Mark) -> bool:
        """Complete the index of an extent that is not the newest any more; whether it was one."""
        one = self._rolling
        if one is None or one.extent.head.salt == mark.salt or one.extent.head.base > mark.base:
            return False
        self._rolling = None
        try:
            bases = self._journal.bases()
            later = bisect_right(bases, one.extent.head.base)
            if later < len(bases):
                with suppress(RecycledError):  # It was deleted, or compacted, and has an index.
                    one.follow(number=bases[later])
                    one.flush()
        finally:
            one.close()
        return True
