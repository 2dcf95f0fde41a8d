"""Compaction: of the records of a key, all but the last one go.

Only extents that are closed are rewritten, one after the other, from the oldest on. Appending goes
on meanwhile; so does reading, in the old file or in the new one. Records keep their offsets, their
order and their times; an extent keeps its name, and gets another salt.

A record that says that its key is deleted is kept for a while (`tombstone_s`), so that whoever
follows the topic learns of it; and as long as an older record of its key is there, which would come
back without it.

The new extent and its index are written aside and synced, and then take the place of the old ones
while nobody appends. A crash leaves the old or the new extent; an index of the other is ignored.
One compacts a partition at a time, by the lock `compacting`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import numpy as np
import numpy.typing as npt

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import CorruptionError
from cordwood.journal import frames
from cordwood.journal.extent import (
    END,
    END_BYTES,
    FRAMES_AT,
    Extent,
    Head,
    RecycledError,
    name_of,
    open_extent,
    open_whatever,
)
from cordwood.journal.extent import head_bytes as extent_head
from cordwood.journal.frames import Frame, damage
from cordwood.journal.journal import Journal
from cordwood.journal.locks import Locks
from cordwood.topics.alive import MEMORY_BYTES, Bits, Keep, alive, groups
from cordwood.topics.config import TopicConfig
from cordwood.topics.indexing import Indexing
from cordwood.topics.keyindex import SUFFIX
from cordwood.topics.keyindex import head_bytes as index_head
from cordwood.topics.keys import Keys, Source, View
from cordwood.topics.keytable import Entries
from cordwood.topics.latest import frames_of
from cordwood.topics.rewriting import Rewriting
from cordwood.topics.sequences import SEARCHED_RECORDS

LOCK = "compacting"
ASIDE = ".compact"
DIRTY_SHARE = 0.5
"""A partition is compacted by itself when more than this share of its extents never was."""

SHARE = 0.5
"""One that runs by itself works for this share of the time, and rests for the other."""
WORK_S = 0.02
"""It rests after so much work."""

CompactProgress = Callable[[int, int], None]
"""Called with how many bytes of extents were looked at, and how many there are."""


class Compacted(msgspec.Struct, frozen=True):
    """What became of a partition."""

    partition: int
    extents: int
    """Rewritten, or gone."""
    records: int
    """Gone."""
    bytes: int
    """By how much it is smaller."""
    damaged: list[str]
    """Extents that cannot be read, and were left as they are."""


class CompactionReport(msgspec.Struct, frozen=True):
    """What became of a topic."""

    partitions: list[Compacted]


class StoppedError(Exception):
    """A compaction was told to stop."""


class Throttle:
    """How fast a compaction may read and write; and whether it is to go on."""

    def __init__(
        self,
        clock: Clock,
        rate_bytes_s: float | None,
        stop: threading.Event | None = None,
        share: float = 1.0,
    ) -> None:
        """From now on, so many bytes a second, and at work for this share of the time."""
        self._clock = clock
        self._rate = rate_bytes_s
        self._stop = stop or threading.Event()
        self._share = share
        self._began_s = self._rested_s = clock.monotonic_s()
        self._done = 0

    def spend(self, size_bytes: int) -> None:
        """Wait until these bytes are due.

        Raises:
            StoppedError: nobody wants it any more.
        """
        self._done += size_bytes
        now_s = self._clock.monotonic_s()
        ahead_s = 0.0
        if self._rate is not None:
            ahead_s = self._began_s + self._done / self._rate - now_s
        busy_s = now_s - self._rested_s
        if self._share < 1 and busy_s > WORK_S:
            ahead_s = max(ahead_s, busy_s * (1 - self._share) / self._share)
        if self._stop.wait(ahead_s) if ahead_s > 0 else self._stop.is_set():
            raise StoppedError
        if ahead_s > 0:
            self._rested_s = self._clock.monotonic_s()


class Compactor:
    """Compacts one partition."""

    def __init__(
        self,
        journal: Journal,
        keys: Keys,
        config: TopicConfig,
        clock: Clock,
        entropy: Entropy,
        *,
        pace: Throttle,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """No I/O."""
        self._journal = journal
        self._keys = keys
        self._config = config
        self._clock = clock
        self._entropy = entropy
        self._pace = pace
        self._memory_bytes = memory_bytes
        self._locks = Locks(journal.disk, entropy)
        self._lock = f"{journal.folder}/{LOCK}"

    def compact(self, partition: int, progress: CompactProgress | None = None) -> Compacted:
        """Rewrite what has records that later ones have replaced; wait for who is at it already."""
        self._journal.newest()  # Which says, if the topic is gone.
        with self._journal.told("compact"), self._locks.exclusive(self._lock):
            return self._compact(partition, progress)

    def compact_dirty(self, partition: int) -> Compacted | None:
        """The same if it is worth it; not if somebody else is at it already."""
        self._journal.newest()
        with self._journal.told("compact"):
            held = self._locks.try_hold(self._lock)
            if held is None:
                return None
            try:
                with self._keys.view() as view:
                    share = dirty_share(view)
                return self._compact(partition, None) if share > DIRTY_SHARE else None
            finally:
                held.release()

    def _compact(self, partition: int, progress: CompactProgress | None) -> Compacted:
        self._clear()
        extents = records = saved = done = 0
        with self._keys.view() as view:
            closed = view.sources[:-1]
            damaged = [one.extent.path for one in closed if not one.is_whole]
            total = sum(source.extent.file.stat().size_bytes for source in closed)
            keep = self._keep(view)
            for group in groups([one for one in closed if one.is_whole], self._memory_bytes):
                found = alive(view, group, keep, memory_bytes=self._memory_bytes)
                for source, bits in zip(group, found, strict=True):
                    dead = source.records - bits.count()
                    done += source.extent.file.stat().size_bytes
                    if dead or source.extent.newest_us() is None:
                        try:
                            less = self._replaced(source, bits, view)
                        except CorruptionError:
                            damaged.append(source.extent.path)  # Its index did not know.
                            less = None
                        if less is not None:
                            extents, records, saved = extents + 1, records + dead, saved + less
                    else:
                        self._note_clean(source)
                    if progress is not None:
                        progress(done, total)
        try:
            self._merge_empty()
        except OSError:
            with suppress(OSError):
                self._clear()  # The disk may be full.
            raise
        return Compacted(partition, extents, records, saved, damaged)

    def _keep(self, view: View) -> Keep:
        """Which records, each the last of its key, stay."""
        limit_s = self._clock.now_us() / 1e6 - self._config.tombstone_s
        unread = [source.base for source in view.sources if not source.is_whole]
        readable = unread[0] if unread else view.mark.number

        def keep(last: Entries, is_only: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
            self._pace.spend(0)
            is_over = (last.deleted_s > 0) & (last.deleted_s < limit_s)
            # Behind what cannot be read, an older record may be where nobody can look.
            kept: npt.NDArray[np.bool_] = ~(is_over & is_only & (last.offsets < readable))
            return kept

        return keep

    def _replaced(self, source: Source, bits: Bits, view: View) -> int | None:
        """Put a smaller extent in the place of one; by how much, or None if that one is gone."""
        disk, path = self._journal.disk, source.extent.path + ASIDE
        salt = int(self._entropy.token()[:16], 16) or 1
        head = Head(salt, source.base, source.extent.head.created_us)
        extent = Extent(disk.open(path, create=True), path, head)
        try:
            asked_from = view.mark.number - SEARCHED_RECORDS
            writing = Rewriting(extent, bits, self._pace.spend, producers_from=asked_from)
            writing.copy(frames_of(source))
            if writing.keyed != bits.count():
                source.extent.check_same()
                raise damage(source.extent.path, 0, "it changed while it was compacted")
            writing.end(source.limit, source.extent.newest_us() or 0)
            self._index(extent)
            size = extent.file.stat().size_bytes if self._swapped(source, writing.frames) else None
        except RecycledError:
            size = None
        except (OSError, StoppedError, CorruptionError):
            with suppress(OSError):
                self._clear()  # The disk may be full.
            raise
        finally:
            extent.close()
        if size is None:
            self._clear()  # Retention deleted it meanwhile.
            return None
        return source.extent.file.stat().size_bytes - size

    def _note_clean(self, source: Source) -> None:
        """Say that an extent has nothing to drop, if that is not said yet."""
        if source.index.inode and not source.index.known.is_compacted:
            head = index_head(source.extent.head, is_compacted=True)
            with suppress(FileNotFoundError):
                self._journal.disk.overwrite(source.extent.path + SUFFIX, head, 0, sync=False)

    def _index(self, extent: Extent) -> None:
        """Write the index of an extent, and sync it."""
        disk = self._journal.disk
        indexing = Indexing(disk, extent, is_compacted=True)
        try:
            indexing.follow()
            indexing.flush()
        finally:
            indexing.index.close()
        with suppress(FileNotFoundError):  # It has no records.
            file = disk.open(extent.path + SUFFIX)
            try:
                file.sync()
            finally:
                file.close()

    def _swapped(self, source: Source, count: int) -> bool:
        """Let what was written aside take the place of an extent; False if that is gone."""
        disk, folder, path = self._journal.disk, self._journal.folder, source.extent.path
        with self._journal.alone():
            self._journal.check_there()
            try:
                there = open_extent(disk, folder, source.base)
            except FileNotFoundError:
                return False
            there.close()
            if there.head.salt != source.extent.head.salt:
                return False
            # It stays, be it empty: else nobody could tell that it is not lost.
            with suppress(FileNotFoundError):
                disk.rename(path + ASIDE + SUFFIX, path + SUFFIX)
            disk.rename(path + ASIDE, path)
            if not count:
                with suppress(FileNotFoundError):
                    disk.unlink(path + SUFFIX)
            disk.fsync_dir(folder)
        return True

    def _merge_empty(self) -> None:
        """Let one extent stand for several in a row of which nothing is left."""
        first: int | None = None
        for base in self._journal.bases()[:-1]:
            if self._end_of_empty(base) is None:
                first = None
            elif first is None:
                first = base
            else:
                self._absorb(first, base)

    def _absorb(self, first: int, base: int) -> None:
        """Let an empty extent go as far as the next one, which is empty too, and goes."""
        disk, folder = self._journal.disk, self._journal.folder
        with self._journal.alone():
            self._journal.check_there()
            before, end = self._end_of_empty(first), self._end_of_empty(base)
            if before is None or end is None:
                return  # Retention deleted one of them.
            extent = open_extent(disk, folder, first)
            extent.close()
            salt = int(self._entropy.token()[:16], 16) or 1
            head = Head(salt, first, extent.head.created_us)
            path = f"{extent.path}{ASIDE}"
            made = Extent(disk.open(path, create=True), path, head)
            # It has no records: retention may take it as soon as it could take the first.
            parts, _ = frames.framed(
                made.start, [], number=end.number, span=0, kind=END, time_us=before.time_us
            )
            try:
                made.file.write([extent_head(head), *parts], 0)
                made.file.sync()
            finally:
                made.close()
            disk.rename(path, extent.path)
            disk.fsync_dir(folder)
            disk.unlink(f"{folder}/{name_of(base)}")
            disk.fsync_dir(folder)

    def _end_of_empty(self, base: int) -> Frame | None:
        """The last frame of an extent that has no other; None if it has, or is not there."""
        try:
            extent, _ = open_whatever(self._journal.disk, self._journal.folder, base)
        except FileNotFoundError:
            return None
        try:
            is_empty = extent.file.stat().size_bytes == FRAMES_AT + END_BYTES
            return extent.last() if is_empty else None
        finally:
            extent.close()

    def _clear(self) -> None:
        """Remove what one who died left aside."""
        folder = self._journal.folder
        for name, _ in self._journal.disk.scan(folder):
            if f".wal{ASIDE}" in name:
                self._journal.disk.unlink(f"{folder}/{name}")


def dirty_share(view: View) -> float:
    """How much of what is closed was never compacted, by its size."""
    sizes = [source.extent.file.stat().size_bytes for source in view.sources[:-1]]
    clean = [one.index.known.is_compacted or not one.records for one in view.sources[:-1]]
    dirty = sum(size for size, is_clean in zip(sizes, clean, strict=True) if not is_clean)
    return dirty / sum(sizes) if sizes else 0.0
