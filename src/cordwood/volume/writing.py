"""Commits to the WAL: one frame for a transaction, one sync, and then everybody sees it.

Whoever writes holds WRITE. The steps of a commit:

1.  Room in the tables is made: memory without room on the disk would kill the process.
2.  `writing` says that a turn is under way.
3.  The frame is written behind the last one, and synced. From here on it survives.
4.  Entries and table are filled in. Readers skip them.
5.  The state is published: the commit is there, for all, at once.

A writer that dies before the last step leaves a frame that nobody was told of. The next one cuts it
off before it does anything: had the head moved meanwhile, the frame would come back at the next
recovery, over a version that it was not made on. A write that fails is cut off at once. A sync that
fails tells nothing of what is on the disk, and trying again tells less: nobody writes any more
until all have closed the directory, and one opened it alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from cordwood.base.errors import (
    Code,
    CordwoodError,
    InvalidInputError,
    LimitError,
    StateError,
    UncertainError,
)
from cordwood.journal import frames, pair
from cordwood.journal.failures import error_of, told
from cordwood.journal.frames import Tail
from cordwood.volume import change
from cordwood.volume.control import State
from cordwood.volume.locks import WRITE, need
from cordwood.volume.recovery import Head
from cordwood.volume.tables import needed

if TYPE_CHECKING:
    from cordwood.volume.local import Local

PAGE_MAX = (1 << 32) - 1
TRANSACTION_BYTES_MAX = 1 << 30
_CUTS_MIN = 64


class Transaction:
    """The right to commit once, on top of the newest state."""

    def __init__(self, local: Local, state: State) -> None:
        """Made by `Local.begin`, which holds WRITE."""
        self._local = local
        self._state = state
        self._is_open = True

    def commit(
        self,
        pages: dict[int, bytes],
        page_count: int,
        cut: int | None = None,
        *,
        anew: bool = False,
    ) -> int:
        """Commit pages, durably, all or none; the entry up to which the volume now goes.

        `cut` is the smallest page count that the transaction had, if it made the volume shorter at
        some time. `anew` says that the pages do not tell by themselves that they have changed:
        whoever keeps some in memory (database.py) is told by the epoch.

        Raises:
            InvalidInputError: a page is not of the right size, or behind the end.
            LimitError: it is too large.
            StateError: it is over, or nobody may write any more.
            StoreError: the disk failed or is full: nothing was committed, nothing has changed.
            UncertainError: the sync failed: it shows when all have closed the volume.
        """
        if not self._is_open:
            raise StateError("the transaction is over", code=Code.CLOSED)
        try:
            # A handle that is being closed by another thread waits, and then refuses.
            with self._local.busy:
                return self._commit(pages, page_count, cut, anew)
        finally:
            self.rollback()

    def _commit(self, pages: dict[int, bytes], page_count: int, cut: int | None, anew: bool) -> int:
        local = self._local
        local.check()
        cut = _checked(pages, page_count, cut, self._state, local.page_bytes)
        if not pages and cut is None and page_count == self._state.page_count:
            return self._state.entry
        state = append(local, self._state, pages, page_count, cut, anew=anew)
        # The commit is made. What comes now saves room, and who asks for it is told of errors.
        with suppress(OSError, CordwoodError):
            switch(local, state)
        return state.entry

    def rollback(self) -> None:
        """Let the next one write; after a commit, or twice, it does nothing."""
        if self._is_open:
            self._is_open = False
            self._local.locks.let_go(WRITE)

    def __del__(self) -> None:
        self.rollback()


def writable(local: Local) -> State:
    """What to build upon, with WRITE held: nothing is left of a writer that died.

    Raises:
        StateError: a sync failed.
    """
    control = local.control
    if control.is_poisoned:
        raise StateError(
            f"{local.folder}: a sync failed, so nobody may write",
            hint="see to the disk, then close the volume everywhere and open it again",
        )
    state = control.read()
    if control.is_unfinished:
        with told("take back an unfinished commit", local.folder):
            withdraw(local, state)
    control.end_writing()
    return state


def append(
    local: Local,
    state: State,
    pages: dict[int, bytes],
    page_count: int,
    cut: int | None,
    *,
    anew: bool = False,
) -> State:
    """Write one transaction; what the state is then."""
    numbers = sorted(pages)
    payload, sums = change.encoded(page_count, cut, numbers, [pages[page] for page in numbers])
    first, span = state.entry + 1, max(1, len(numbers))
    tail = Tail(state.salt, state.end, first, state.checksum)
    parts, after = frames.framed(
        tail,
        payload,
        number=first,
        span=span,
        synced=state.end,
        time_us=local.clock.now_us(),
    )
    table = local.tables[state.sequence & 1]
    last = after.number - state.first
    control = local.control
    try:
        for each in local.tables:
            each.cover_pages(page_count)
        table.reserve(numbers, last, page_count)
        if cut is not None:
            local.cuts.reserve(state.cuts_limit, 2 * state.cuts_limit - state.cuts_start + 1)
        control.begin_writing(state)
        local.pair.put(state.sequence, parts, state.end, after.end)
    except OSError as error:
        if control.is_unfinished:
            with told("take back a commit to", local.folder):
                withdraw(local, state)
            control.end_writing()
        raise error_of("commit to", local.folder, error) from error
    _sync(local, state.sequence, "the commit")
    table.add(last, numbers, change.place_of(state.end, len(numbers)), local.page_bytes, sums)
    new = state._replace(
        entry=after.number - 1,
        end=after.end,
        checksum=after.checksum,
        page_count=page_count,
        epoch=state.epoch + anew,
    )
    if cut is not None:
        new = _with_cut(local, new, first, cut)
    new = control.publish(new)
    control.end_writing()
    return new


def withdraw(local: Local, state: State) -> None:
    """Take back what lies behind a state, a frame or another head: nobody was told of it.

    Raises:
        OSError: it cannot be; then nobody may write.
    """
    try:
        local.pair.cut(state.sequence, state.end)
        kept, expected = local.load_head(), head_of(local, state)
        if (kept.lsn, kept.hash, kept.watermark) != (state.lsn, expected.hash, state.watermark):
            local.save_head(expected)
    except OSError:
        local.control.poison()
        raise
    local.tables[state.sequence & 1].undo(state.entry - state.first + 1)


def head_of(local: Local, state: State) -> Head:
    """The document that says of a state what lies below it."""
    return Head(
        log=local.folder.rpartition("/")[2],
        lsn=state.lsn,
        hash=state.hash.hex(),
        watermark=state.watermark,
        published_count=state.published_count,
        entry=state.entry,
        page_count=state.page_count,
    )


def switch(local: Local, state: State) -> None:
    """Go on in the other file, if this one is long, the other is drained and nobody needs it.

    Else the next frames follow here. Who reads is never waited for.
    """
    if state.end < local.switch_bytes:
        return
    if local.control.drained < state.sequence and not local.drain():
        return
    active = state.sequence & 1
    with local.locks.alone(need(active, full=True)) as is_free:
        if not is_free:
            return
        head = local.pair.begin(
            state.sequence + 1, state.checksum, state.entry + 1, 2 * local.switch_bytes
        )
        _sync(local, head.sequence, "the next commits")
        local.tables[1 - active].clear(state.idle_entry - state.idle_first + 1)
        local.control.publish(
            state._replace(
                sequence=head.sequence,
                first=head.first,
                end=pair.FRAMES_AT,
                checksum=head.start.checksum,
                salt=head.salt,
                idle_first=state.first,
                idle_entry=state.entry,
                idle_end=state.end,
                idle_count=state.page_count,
            )
        )


def _sync(local: Local, sequence: int, what: str) -> None:
    """Bring a file to stable storage; if that fails, nobody writes any more."""
    try:
        local.pair.sync(sequence)
    except OSError as error:
        local.control.poison()
        raise UncertainError(
            f"{error_of('sync', local.folder, error)}: {what} may or may not be durable",
            hint="see to the disk, close the volume everywhere, open it again, and look",
        ) from error


def _with_cut(local: Local, state: State, entry: int, count: int) -> State:
    """Note a cut behind the others; now and then only those that still matter."""
    start, limit = state.cuts_start, state.cuts_limit
    row = np.array([[entry, count]], np.uint64)
    length = limit - start
    if length >= _CUTS_MIN and length & (length - 1) == 0:
        all_of_them = np.concatenate([local.cuts.read(start, limit), row])
        row = needed(all_of_them, state.watermark, state.entry)
        start = limit
    local.cuts.put(limit, row)
    return state._replace(cuts_start=start, cuts_limit=limit + len(row))


def _checked(
    pages: dict[int, bytes], page_count: int, cut: int | None, state: State, page_bytes: int
) -> int | None:
    """The cut that a transaction makes, if it may be committed."""
    if not 0 <= page_count <= PAGE_MAX:
        raise InvalidInputError(f"{page_count} pages are too many: the limit is {PAGE_MAX}")
    if pages and not (min(pages) > 0 and max(pages) <= page_count):
        raise InvalidInputError(
            f"pages {min(pages)} to {max(pages)} are not among the {page_count} of the volume"
        )
    if not {page_bytes}.issuperset(map(len, pages.values())):
        wrong = next(number for number, page in pages.items() if len(page) != page_bytes)
        raise InvalidInputError(
            f"page {wrong} has {len(pages[wrong])} bytes; those of the volume have {page_bytes}"
        )
    if len(pages) * page_bytes > TRANSACTION_BYTES_MAX:
        raise too_large(len(pages), page_bytes)
    smallest = page_count if cut is None else min(cut, page_count)
    if smallest < 0:
        raise InvalidInputError(f"a volume cannot have {smallest} pages")
    return smallest if smallest < state.page_count else None


def too_large(num_pages: int, page_bytes: int) -> LimitError:
    """The error for a transaction of more pages than are kept in memory."""
    return LimitError(
        f"a transaction of {num_pages} pages is too large",
        hint=f"commit after at most {TRANSACTION_BYTES_MAX // page_bytes} pages",
    )
