"""A turn: what one who is alone with a journal appends, makes durable, and takes back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cordwood.base.errors import LimitError
from cordwood.journal import frames
from cordwood.journal.extent import END, END_BYTES, FRAMES_AT, Extent, Head
from cordwood.journal.mark import Mark
from cordwood.store.api import Buffer

if TYPE_CHECKING:
    from cordwood.journal.journal import Journal


class Turn:
    """The right to append. Entries are there when `sync` returns; if it fails, see `durable`."""

    def __init__(self, journal: Journal, extent: Extent, mark: Mark) -> None:
        """Made by `Journal.turn`."""
        self._journal = journal
        self._extent = extent
        self._said = mark
        self._mark = mark
        self._is_ahead = False
        """Whether frames may have been written that nobody was told of."""

    @property
    def number(self) -> int:
        """Of the next entry."""
        return self._mark.number

    @property
    def durable(self) -> int:
        """All entries of lower numbers are durable, whatever became of the others."""
        return self._said.synced_number

    @property
    def written(self) -> int:
        """All entries of lower numbers are there, unless the power fails before a sync."""
        return self._said.number

    @property
    def head(self) -> Head:
        """Of the extent that the next entry goes to, unless that one is full."""
        return self._extent.head

    @property
    def mark(self) -> Mark:
        """How far the journal goes, with what was appended in this turn."""
        return self._mark

    def append(self, payload: Sequence[Buffer], *, span: int = 1, time_us: int = 0) -> int:
        """Write an entry that has this many numbers; the first of them. Not yet durable.

        Raises:
            LimitError: it does not fit into an extent.
        """
        size = frames.frame_bytes(sum(map(len, payload)))
        room = self._journal.extent_bytes - FRAMES_AT - END_BYTES
        if size > room:
            raise LimitError(
                f"an entry of {size} bytes does not fit into an extent of {room}",
                hint="append less at once, or use larger extents",
            )
        if self._mark.end + size + END_BYTES > self._journal.extent_bytes:
            self._close_extent()
        number = self._mark.number
        self._write(payload, number, span, time_us)
        return number

    def sync(self) -> None:
        """Make all that was appended durable, by whomever, and say so."""
        if self._mark.synced_end == self._mark.end and self._mark == self._said:
            return
        try:
            self._extent.file.sync()
        except OSError:
            self.give_up()
            raise
        self._mark = self._mark.synced()
        self.say()

    def give_up(self) -> None:
        """A sync failed. What is on the disk is not known, and not to be found out (journal.py)."""
        self._mark = self._said
        self._mark = self._said = self._journal.give_up(self._said)

    def void(self) -> None:
        """The same; and if that cannot be said either, nobody is to find what was written."""
        try:
            self.give_up()
        except OSError:
            self.take_back()

    def say(self) -> None:
        """Let all know what was appended, durable or not."""
        self._mark = self._said = self._journal.publish(self._mark)
        self._is_ahead = False

    def undo(self) -> None:
        """Take back what was written since it was last said how far it goes, if there is any."""
        if self._is_ahead and not self._said.is_closed:  # What is behind a closed one is void.
            self.take_back()

    def take_back(self) -> None:
        """Nobody will know of what was written; make sure that nobody finds it, now or later."""
        try:
            self._extent.file.write([bytes(frames.HEAD_BYTES)], self._said.end)
            self._extent.file.sync()
        except OSError:
            with suppress(OSError):  # Why it is taken back is told, not that this failed as well.
                self.give_up()

    def _write(
        self, payload: Sequence[Buffer], number: int, span: int, time_us: int, kind: int = 0
    ) -> None:
        mark = self._mark
        parts, tail = frames.framed(
            mark.tail,
            payload,
            number=number,
            span=span,
            kind=kind,
            synced=mark.synced_end,
            time_us=time_us,
        )
        self._is_ahead = True
        self._extent.put(parts, mark.end, tail.end, self._journal.extent_bytes)
        self._mark = mark.moved(tail, time_us)

    def _close_extent(self) -> None:
        """End the extent, which is full, and begin the next."""
        self._write([], self._mark.number, 0, self._mark.newest_us, END)
        self._mark = self._mark._replace(is_closed=True)
        self.sync()
        with suppress(OSError):  # The last frame is found at the end; else it is looked for.
            self._journal.disk.truncate(self._extent.path, self._mark.end)
        self._extent, self._mark = self._journal.begin_extent(self._mark)
        self._said = self._mark
