"""A volume as the one file that SQLite sees: its locks are snapshots, its syncs are commits.

======================  ===========================================================================
SQLite asks for         and gets
======================  ===========================================================================
SHARED                  a snapshot, which stays as it is until SQLite lets go
RESERVED                the right to write upon it; BUSY if another writes, or has written since
writes, cuts            nothing but memory changes
a sync of the file      a local commit, durable: all pages or none
unlocking, no sync      what was written is forgotten
======================  ===========================================================================

SQLite syncs its file at the end of every transaction, whatever its journal is, and an error there
still rolls the transaction back. So that is where it is committed, and no journal is ever needed to
recover: a process that dies leaves a commit or nothing.

SQLite keeps pages in memory as long as bytes 24 to 39 of page 1 stay the same: a counter of changes
and the page count. So it keeps what it knows of tables as long as the version of the schema does. A
pull, a reset, a restore or a checkout may bring other pages and other tables with the same numbers.
So what SQLite reads as these is moved by a number that changes with each of them, and moved back
when page 1 is written: within a line of local commits they go up by one, as SQLite expects.

Page counts: SQLite cuts its file off after the commit. That would be too late: the count is taken
from page 1 as it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from cordwood.base import portal
from cordwood.base.errors import (
    Code,
    ContendedError,
    InvalidInputError,
    StateError,
    UnsupportedError,
)
from cordwood.store.api import Buffer
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.reader import PageReader
from cordwood.volume.snapshot import Absent
from cordwood.volume.volume import Volume
from cordwood.volume.writing import TRANSACTION_BYTES_MAX, Transaction, too_large

T = TypeVar("T")

MEMO_BYTES = 4 * 2**20
"""Pages that a connection remembers, besides SQLite's own cache."""
NONE, SHARED, RESERVED = 0, 1, 2
"""SQLite's locks that mean something here; what is above RESERVED adds nothing to it."""
_PAGE_SIZE = slice(16, 18)
_COUNTER = slice(24, 28)
_COUNT = slice(28, 32)
_SCHEMA = slice(40, 44)
_VERSIONS, _WITH_WAL = slice(18, 20), b"\2\2"
_VALID_FOR = slice(92, 96)
_WORD = 0xFFFFFFFF
_EPOCH_STEP, _CHECKOUT_STEP = 0x9E3779B1, 0x85EBCA77
"""Two large odd numbers, so that no few changes of one kind look like those of another."""


class ReadOnlyVolumeError(StateError):
    """A write to a version that was published."""


class Database:
    """One connection's view of a volume. The method names are those that SQLite's layer calls."""

    __slots__ = (
        "_checkouts",
        "_committed",
        "_cut",
        "_desk",
        "_first",
        "_fixed",
        "_head",
        "_is_failed",
        "_last",
        "_learned",
        "_memo",
        "_memo_max",
        "_pages",
        "_portal",
        "_shift",
        "_sight",
        "_size",
        "_told",
        "_turn",
        "num_pages",
        "volume",
    )

    def __init__(
        self,
        volume: Volume,
        desk: Desk,
        fixed: PageReader | None,
        told: Callable[[Exception], Exception],
    ) -> None:
        """A volume that is open.

        Args:
            volume: what is read and written.
            desk: the same, open; closed with this.
            fixed: a published version, to be read and not written; None for what is there.
            told: makes an error that SQLite understands.
        """
        self.volume = volume
        self._desk = desk
        self._fixed = fixed
        self._told = told
        self._portal = portal.current()
        self._size = desk.page_size
        self._sight: Sight | None = None
        """What is held while SQLite holds a lock."""
        self._last: Sight | None = None
        """What was held before: where nothing was written since, it is held again."""
        self._memo: dict[int, Buffer] = {}
        """Pages of `_sight`, or of `_last`: the top of a tree is read again and again."""
        self._learned: tuple[int, bytes] | None = None
        """The last entry of the snapshot that `_memo` fits next, and page 1 as SQLite saw it."""
        self._memo_max = MEMO_BYTES // desk.page_size
        self._turn: Transaction | None = None
        """The right to write, until it is used or given up."""
        self._pages: dict[int, bytes] = {}
        """Pages over the snapshot: of the transaction, or of one that is committed already."""
        self._first = b""
        """Page 1 as SQLite wrote it last."""
        self._cut = 0
        """Pages behind this are no longer the snapshot's."""
        self._committed: int | None = None
        """The entry of the commit that `_pages` are of, if SQLite goes on reading after it."""
        self._is_failed = False
        """Whether a commit failed: what SQLite writes to undo it is there already."""
        self._shift = 0
        """What is added to the counter of changes, and to the version of the schema."""
        self._checkouts = 0
        self._head: tuple[object, bytes] | None = None
        """Page 1 as SQLite saw it last, and of which state."""
        self.num_pages = 0

    # What SQLite calls all the time.

    def xLock(self, level: int) -> None:  # noqa: N802
        """Take a snapshot, or the right to write upon it."""
        try:
            if level == SHARED:
                if self._sight is None:
                    self._hold()
            elif self._turn is None:
                self._begin()
        except Exception as error:
            raise self._told(error) from error

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Let go; what was written and not committed is forgotten."""
        turn = self._turn
        if turn is not None:
            self._turn = None
            turn.rollback()
            self._forget()
        if level == NONE:
            sight = self._sight
            if sight is not None:
                self._sight = None
                if self._committed is not None:
                    self._learn(sight)
                    self._committed = None
                self._is_failed = False
                if self._pages:
                    self._pages = {}
                sight.close()
                self._last = sight
        elif self._is_failed:
            self._is_failed = False

    def xRead(self, amount: int, offset: int) -> Buffer:  # noqa: N802
        """Bytes of the file; fewer behind its end."""
        try:
            sight = self._sight
            if sight is None:
                return self._read_unlocked(amount, offset)
            size = self._size
            page = offset // size + 1
            if page > self.num_pages:
                return b""
            data: Buffer | None
            if page == 1:
                data = self._page_1(sight)
            else:
                data = self._pages.get(page)
                if data is None:
                    if page > self._cut:
                        return bytes(amount)
                    data = self._memo.get(page)
                    if data is None:
                        data = self._fetched(sight, page)
            if amount == size:
                return data
            within = offset % size
            return data[within : within + amount]
        except Exception as error:
            raise self._told(error) from error

    def _fetched(self, sight: Sight, page: int) -> Buffer:
        """A page of the snapshot; remembered for as long as the snapshot is the newest."""
        view = sight.view
        data = None if view is None else view.read(page)
        if data is None:
            data = sight.published.peek(page)
            if data is None:
                data = self.run(sight.read(page))
        memo = self._memo
        if len(memo) >= self._memo_max:
            memo.clear()
        memo[page] = data
        return data

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        """Let a page have these bytes, once the transaction is committed."""
        if self._is_failed:
            return
        size = self._size
        page = offset // size + 1
        if self._turn is None and self._committed is not None:
            self._undo()
        if self._turn is None or len(data) != size or offset % size:
            raise self._told(self._misplaced(len(data), offset))
        if len(self._pages) * size >= TRANSACTION_BYTES_MAX and page not in self._pages:
            raise self._told(too_large(len(self._pages) + 1, size))
        if page == 1:
            self._first = data
            data = _moved(data, -self._shift)
        self._pages[page] = data
        self.num_pages = max(self.num_pages, page)

    def xTruncate(self, num_bytes: int) -> None:  # noqa: N802
        """Cut the file off, in a transaction; after one it is done already."""
        count = -(-num_bytes // self._size)
        if self._turn is None and self._committed is not None and count != self.num_pages:
            self._undo()
        if self._turn is None or self._is_failed:
            return
        if count < self.num_pages:
            self._cut = min(self._cut, count)
            self._pages = {page: data for page, data in self._pages.items() if page <= count}
        self.num_pages = count

    def xFileSize(self) -> int:  # noqa: N802
        """How long the file is."""
        if self._sight is None:
            try:
                with _Held(self):
                    return self.num_pages * self._size
            except Exception as error:
                raise self._told(error) from error
        return self.num_pages * self._size

    def sync(self) -> None:
        """Commit the transaction locally, durably."""
        turn = self._turn
        if turn is None:
            return
        try:
            sight = self._sight
            assert sight is not None
            self._check_size()
            count, pages = self._count(), self._pages
            if count < self.num_pages:
                pages = {page: data for page, data in pages.items() if page <= count}
            step = self._step(sight)
            if not step:
                pages = self._changed(sight, pages)
            is_mended = 1 in pages and pages[1][_VERSIONS] == _WITH_WAL
            if is_mended:
                pages = pages | {1: _without_wal(pages[1])}
            self._turn = None
            self._committed = turn.commit(pages, count, self._cut, anew=step > 1 or is_mended)
            self._pages = pages
            self._cut = min(self._cut, count)
            self.num_pages = count
        except BaseException as error:
            self._turn = None
            turn.rollback()
            self._forget()
            self._is_failed = True
            if not isinstance(error, Exception):
                raise
            raise self._told(error) from error

    def close(self) -> None:
        """Let everything go; twice is no error."""
        self.xUnlock(NONE)
        with suppress(OSError):  # the process ends, and files were closed before
            self._desk.close()

    # What pragmas use.

    @property
    def is_writing(self) -> bool:
        """Whether a transaction holds the right to write."""
        return self._turn is not None

    @property
    def is_reading(self) -> bool:
        """Whether SQLite holds a snapshot."""
        return self._sight is not None

    @property
    def fixed_lsn(self) -> int | None:
        """The published version that is read; None if it is what is there."""
        return None if self._fixed is None else self._fixed.snapshot.lsn

    @property
    def desk(self) -> Desk:
        """The volume, open."""
        return self._desk

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return self._size

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what asks the store.

        Raises:
            StateError: the connection is that of the process that forked this one.
        """
        try:
            home = portal.check_same(self._portal, "the connection")
        except StateError:
            work.close()
            raise
        return home.run(work)

    def check_out(self, volume: Volume, desk: Desk, fixed: PageReader | None) -> None:
        """Go on with another volume or version. The desk is closed with this one.

        Raises:
            StateError: SQLite is in a transaction.
            UnsupportedError: its pages are of another size.
        """
        if self._sight is not None:
            raise StateError("a transaction is open", hint="commit it or roll it back first")
        if desk.page_size != self._size:
            raise UnsupportedError(
                f"{volume.name!r} has pages of {desk.page_size} bytes, this one of {self._size}",
                hint="open a connection of its own for it",
            )
        if desk is not self._desk:
            self._desk.close()
        self.volume, self._desk, self._fixed = volume, desk, fixed
        self._checkouts += 1
        self._head = self._last = self._learned = None

    # Inside.

    def _hold(self) -> None:
        """Take a snapshot."""
        sight, learned = self._last, self._learned
        if sight is None or not sight.reopen():
            self._learned = None
            if sight is not None and learned is not None and sight.advance(learned[0]):
                assert sight.view is not None
                self._head = sight.view.state, learned[1]
            else:
                self._memo = {}
                sight = self._newest() if self._fixed is None else Sight(None, self._fixed)
                epoch = 0 if sight.view is None else sight.view.epoch
                shift = (epoch * _EPOCH_STEP + self._checkouts * _CHECKOUT_STEP) & _WORD
                shift = shift if sight.num_pages else 0  # the first numbers are SQLite's own
                if shift != self._shift:
                    self._shift, self._head = shift, None
        self._sight = sight
        self.num_pages = self._cut = sight.num_pages

    def _newest(self) -> Sight:
        try:
            return self._desk.sight()
        except Absent:
            return self.run(self._desk.fetch_sight())

    def _begin(self) -> None:
        """Take the right to write upon the snapshot that is held."""
        sight = self._sight
        if sight is None or sight.view is None:
            raise ReadOnlyVolumeError(
                f"volume {self.volume.name!r} is read at version {self.fixed_lsn}",
                hint="open it without `at`, or a branch of it, to write",
            )
        if self._committed is not None:
            sight = self._follow(sight)
        view = sight.view
        assert view is not None
        self._turn = self._desk.local.begin(view)
        self._cut = self.num_pages

    def _follow(self, sight: Sight) -> Sight:
        """The snapshot after a commit of ours, if SQLite has been reading on since.

        Raises:
            ContendedError: somebody committed since: what SQLite read is no longer the newest.
        """
        newer, view = self._newest(), sight.view
        assert newer.view is not None
        assert view is not None
        if (newer.view.entry, newer.view.epoch) != (self._committed, view.epoch):
            newer.close()
            raise ContendedError("the volume has changed since the snapshot")
        self._sight = newer
        self._committed = None
        self._pages, self._memo = {}, {}
        self.num_pages = self._cut = newer.num_pages
        sight.close()
        return newer

    def _learn(self, sight: Sight) -> None:
        """Remember what was committed: unless others commit too, the next snapshot is just that."""
        pages, memo = self._pages, self._memo
        assert self._committed is not None
        self._learned = None
        # From the first commit of all on, numbers are moved: that one is not followed.
        if sight.num_pages and 1 in pages and len(memo) + len(pages) <= self._memo_max:
            memo.update(pages)
            self._learned = self._committed, self._first

    def _forget(self) -> None:
        """Be as the snapshot is."""
        sight = self._sight
        assert sight is not None
        self._pages = {}
        self.num_pages = self._cut = sight.num_pages

    def _page_1(self, sight: Sight) -> bytes:
        """Page 1 with its counter moved. It is read for every statement, and kept."""
        view = sight.view
        kept = self._head
        state: object = None if view is None else view.state
        if kept is not None and kept[0] is state and not self._pages:
            return kept[1]
        data = self._original_1(sight) if 1 not in self._pages else self._pages[1]
        data = _moved(data, self._shift)
        if not self._pages:
            self._head = state, data
        return data

    def _original_1(self, sight: Sight) -> bytes:
        found = sight.peek(1)
        return bytes(self.run(sight.read(1)) if found is None else found)

    def _count(self) -> int:
        """How many pages there are once the transaction is committed."""
        first = self._pages.get(1)
        if first is None or first[_COUNTER] != first[_VALID_FOR]:
            return self.num_pages
        return int.from_bytes(first[_COUNT]) or self.num_pages

    def _step(self, sight: Sight) -> int:
        """How far the transaction moved the counter of changes.

        By one; by none if it is the rollback of one that was spilled. Anything else is a counter
        that others may have seen with other pages.
        """
        first = self._pages.get(1)
        if not sight.num_pages:
            return 1
        if first is None:
            return 0
        counter, kept = int.from_bytes(first[_COUNTER]), self._head
        if kept is not None and sight.view is not None and kept[0] is sight.view.state:
            return (counter + self._shift - int.from_bytes(kept[1][_COUNTER])) & _WORD
        return (counter - int.from_bytes(self._original_1(sight)[_COUNTER])) & _WORD

    def _check_size(self) -> None:
        """Raise if SQLite is about to commit a database of other pages: a copy of one."""
        first = self._pages.get(1)
        if first is not None:
            found = int.from_bytes(first[_PAGE_SIZE])
            found = 65536 if found == 1 else found
            if found != self._size:
                raise InvalidInputError(
                    f"a database with pages of {found} bytes, in a volume with {self._size}",
                    hint="copy it to a volume with pages of that size, or vacuum it to others",
                )

    def _undo(self) -> None:
        """Take the right to write again: SQLite rolls back what it had us commit.

        It does so if another database of the transaction could not be committed.
        """
        try:
            self._begin()
        except Exception as error:
            raise self._told(error) from error

    def _changed(self, sight: Sight, pages: dict[int, bytes]) -> dict[int, bytes]:
        """The pages that are not as they were, or not known to be."""
        limit = min(self._cut, sight.num_pages)
        return {
            page: data for page, data in pages.items() if page > limit or sight.peek(page) != data
        }

    def _read_unlocked(self, amount: int, offset: int) -> Buffer:
        """What SQLite reads when it opens the file, before it locks anything."""
        with _Held(self):
            return self.xRead(amount, offset)

    def _misplaced(self, length: int, offset: int) -> Exception:
        if self._turn is None:
            return StateError("a write without the right to write", code=Code.INTERNAL)
        return InvalidInputError(
            f"a write of {length} bytes at {offset}: the volume has pages of {self._size}",
            hint=f"use pragma page_size = {self._size}",
        )


class _Held:
    """A snapshot for a moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.xLock(SHARED)

    def __exit__(self, *_: object) -> None:
        self._database.xUnlock(NONE)


def _moved(page: bytes, shift: int) -> bytes:
    """Page 1 with both of its counters of changes, and the version of the schema, moved."""
    if not shift:
        return page
    moved = bytearray(page)
    for place in (_COUNTER, _SCHEMA, _VALID_FOR):
        moved[place] = ((int.from_bytes(moved[place]) + shift) & _WORD).to_bytes(4)
    return bytes(moved)


def _without_wal(page: bytes) -> bytes:
    """Page 1 of a copy of a database that has a WAL, and would not be opened here with one."""
    return b"".join((page[:18], b"\1\1", page[20:]))
