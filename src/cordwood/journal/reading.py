"""Reading a journal, from any number on, while others append to it and old extents go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from cordwood.base.errors import CollectedError, CorruptionError
from cordwood.journal.extent import END, Extent, RecycledError, missing_extent, open_extent
from cordwood.journal.frames import Frame, Tail, behind, damage
from cordwood.journal.journal import Journal
from cordwood.journal.mark import Mark

READ_BYTES = 4 << 20


class Reading:
    """A place in a journal; one thread uses it."""

    def __init__(self, journal: Journal, number: int = 0) -> None:
        """No I/O."""
        self._journal = journal
        self._extent: Extent | None = None
        self._tail: Tail | None = None
        self.number = number
        """Of the entry that comes next."""

    def take(self, max_bytes: int = READ_BYTES) -> list[Frame]:
        """The entries that come next, about this many bytes of them; none at the end.

        The first may have begun with a lower number than was asked for: an entry has several.

        Raises:
            CollectedError: they are gone.
            CorruptionError: they are damaged; `skip` goes on behind them.
        """
        mark = self._journal.newest()
        with self._journal.told("read"):
            while self.number < mark.synced_number:
                try:
                    found = self._taken(mark, max_bytes)
                except (RecycledError, FileNotFoundError):
                    self._journal.check_there()
                    self._leave()  # Deleted meanwhile: look at what is there now.
                    continue
                if found:
                    self.number = found[-1].number + found[-1].span
                    return found
        return []

    def seek(self, number: int) -> None:
        """Go on from another number."""
        self._leave()
        self.number = number

    def skip(self) -> int:
        """Go on behind what cannot be read; the number that comes next."""
        mark, bases = self._journal.newest(), self._journal.bases()
        if self._extent is not None and self._tail is not None:
            extent, place = self._extent, self._tail.end + 1
            is_newest = extent.head.salt == mark.salt
            limit = mark.synced_end if is_newest else extent.file.stat().size_bytes
            found = extent.next_whole(place, limit)
            # Behind another extent's base its entries are void.
            later = bisect_right(bases, extent.head.base)
            if found is not None and (later == len(bases) or found.number < bases[later]):
                self._tail = found
                self.number = max(self.number, found.number)
                return self.number
        later = bisect_right(bases, self.number)
        self.seek(bases[later] if later < len(bases) else mark.synced_number)
        return self.number

    def close(self) -> None:
        """Let go of the file."""
        self._leave()

    def _taken(self, mark: Mark, max_bytes: int) -> list[Frame]:
        """Entries of one extent; none if it has no more."""
        extent, tail = self._entered(mark)
        is_newest = extent.head.salt == mark.salt
        limit = None if is_newest else self._next_base(extent, mark)
        found: list[Frame] = []
        size = 0
        frames = extent.frames_from(tail, mark.synced_end) if is_newest else extent.whole_from(tail)
        for frame in _before_damage(frames, found):
            if frame.kind == END or (limit is not None and frame.number >= limit):
                self._check_dense(extent, frame, limit or 0, found)
                break
            tail = behind(extent.head.salt, frame)
            if frame.number + frame.span > self.number:
                found.append(frame)
                size += frame.end - frame.begin
            if size >= max_bytes:
                break
        else:
            if limit is not None and not found and tail.number < limit:
                extent.check_same()
                raise damage(extent.path, tail.end, f"entries before {limit} are missing")
        self._tail = tail
        if not found and limit is None:
            raise damage(extent.path, tail.end, f"entries before {mark.synced_number} are missing")
        if not found and limit is not None:
            self._leave()
            self.number = max(self.number, limit)
        return found

    def _entered(self, mark: Mark) -> tuple[Extent, Tail]:
        if self._extent is None or self._tail is None:
            bases = self._journal.bases()
            place = bisect_right(bases, self.number) - 1
            if place < 0:
                raise CollectedError(
                    f"{self._journal.folder} begins with {bases[0] if bases else mark.number}: "
                    f"{self.number} is gone",
                    hint="go on from the oldest that is there",
                )
            extent = open_extent(self._journal.disk, self._journal.folder, bases[place])
            is_newest = extent.head.salt == mark.salt
            limit = mark.synced_end if is_newest else extent.file.stat().size_bytes
            self._extent, self._tail = extent, extent.tail_at(self.number, limit)
        return self._extent, self._tail

    def _next_base(self, extent: Extent, mark: Mark) -> int:
        """Where the extent behind this one begins: entries from there on are void here."""
        bases = self._journal.bases()
        later = bisect_right(bases, extent.head.base)
        if later < len(bases):
            return bases[later]
        self._journal.check_there()
        raise missing_extent(self._journal.folder, mark.base)

    def _check_dense(self, extent: Extent, last: Frame, limit: int, found: list[Frame]) -> None:
        """Make sure that the next extent goes on where one that is closed ends.

        Raises:
            CorruptionError: what was between them is gone.
            FileNotFoundError: this one was deleted, and perhaps others.
            RecycledError: it was compacted.
        """
        if last.number < limit and not found:
            # Extents are deleted from the oldest on: if this one is there, so are those behind it.
            # A compaction may have put another in its place, which goes further.
            self.number = max(self.number, last.number)
            if self._journal.disk.inode(extent.path) != extent.file.stat().inode:
                raise RecycledError
            raise damage(extent.path, last.end, f"entries {last.number} to {limit - 1} are missing")

    def _leave(self) -> None:
        if self._extent is not None:
            self._extent.close()
        self._extent = self._tail = None


def _before_damage(frames: Iterator[Frame], found: list[Frame]) -> Iterator[Frame]:
    """The frames up to damage, which is told when there is nothing else to give."""
    try:
        yield from frames
    except CorruptionError:
        if not found:
            raise
