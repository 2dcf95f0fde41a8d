"""A transaction: pages written and cut off in memory, then committed locally, all or none.

It reads what it wrote, over the snapshot it began upon. One at a time writes to a directory: who
comes second waits for a while, then is refused.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from cordwood.base.errors import Code, InvalidInputError, StateError
from cordwood.store.api import Buffer
from cordwood.volume import writing
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.pagesets import PAGE_MAX


class Draft:
    """What a transaction means to write; plain and blocking."""

    def __init__(self, desk: Desk, sight: Sight, turn: writing.Transaction) -> None:
        """Made by `begin`, which holds the right to write."""
        self._desk = desk
        self._sight = sight
        self._turn = turn
        self._pages: dict[int, bytes] = {}
        self._zeros = bytes(desk.page_size)
        self._cut = sight.num_pages
        """Pages behind this are no longer the snapshot's."""
        self.num_pages = sight.num_pages
        self.is_open = True

    @property
    def sight(self) -> Sight:
        """What it began upon."""
        return self._sight

    def write(self, page: int, data: Buffer) -> None:
        """Let a page have these bytes; behind the end the volume grows.

        Raises:
            InvalidInputError: there is no such page, or it is of another size.
        """
        self._check()
        _check_number(page, 1, "page")
        self._pages[page] = _checked_page(page, data, self._desk.page_size)
        self.num_pages = max(self.num_pages, page)

    def truncate(self, num_pages: int) -> None:
        """Let the volume have so many pages; what is behind them is gone, new ones are zeros.

        Raises:
            InvalidInputError: it cannot have so many.
        """
        self._check()
        _check_number(num_pages, 0, "number of pages")
        if num_pages < self.num_pages:
            self._cut = min(self._cut, num_pages)
            for page in [page for page in self._pages if page > num_pages]:
                del self._pages[page]
        self.num_pages = num_pages

    def peek(self, page: int) -> Buffer | None:
        """A page as the transaction sees it; None if the store must be asked."""
        self._check()
        found = self._pages.get(page)
        if found is not None:
            return found
        if page > self._cut:
            return self._zeros
        return self._sight.peek(page)

    async def read(self, page: int) -> Buffer:
        """As `peek`, from the store if need be."""
        found = self.peek(page)
        return await self._sight.read(page) if found is None else found

    def commit(self) -> int:
        """Commit locally, durably; the entry up to which the volume now goes.

        Raises:
            StoreError: the disk failed or is full; nothing was committed.
        """
        self._check()
        try:
            cut = self._cut if self._cut < self._sight.num_pages else None
            # A database in these pages may have an older counter of changes than before.
            return self._turn.commit(self._pages, self.num_pages, cut, anew=True)
        finally:
            self.rollback()

    async def finish(self) -> int:
        """Commit in a thread, for who must not wait for a disk.

        A commit that is under way is waited for, also by who is cancelled: until it is over nobody
        else may write.
        """
        self._check()
        if self._desk.history.disk.inline:
            return self.commit()
        work = asyncio.ensure_future(asyncio.to_thread(self.commit))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            work.exception()
            raise

    def rollback(self) -> None:
        """Forget everything; after a commit, or twice, it does nothing."""
        if self.is_open:
            self.is_open = False
            self._turn.rollback()
            self._sight.close()

    def _check(self) -> None:
        if not self.is_open:
            raise StateError("the transaction is over", code=Code.CLOSED)


def begin(desk: Desk) -> Draft:
    """Begin to write upon what is there now.

    Raises:
        ContendedError: another transaction writes: try again when it is done.
        Absent: what the published version is made of is not here.
    """
    sight = desk.sight()
    assert sight.view is not None
    try:
        return Draft(desk, sight, desk.local.begin(sight.view))
    except BaseException:
        sight.close()
        raise


def _check_number(value: object, least: int, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= PAGE_MAX:
        raise InvalidInputError(
            f"{what} {value!r}", hint=f"it is a whole number from {least} to {PAGE_MAX}"
        )


def _checked_page(page: int, data: object, page_size: int) -> bytes:
    """The bytes of a page, copied: who handed them in may change them later."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidInputError(f"page {page} is {type(data).__name__}", hint="hand in bytes")
    copied = bytes(data)
    if len(copied) != page_size:
        raise InvalidInputError(f"page {page} has {len(copied)} bytes, not {page_size}")
    return copied
