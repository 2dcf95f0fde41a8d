"""A snapshot of what is local: the pages of commits that are not published, over a version that is.

A snapshot is (L, W, n): the published version L, and over it the *overlay*, the entries in (W, n].
Every entry up to the watermark W is in L, or was discarded. So to publish moves L and W together,
and nothing is copied, moved or taken out of a table. The rule for a page p:

1.  p is behind the page count: zeros.
2.  e is the newest entry of p up to n: in the table of the active WAL file, else in that of the
    idle one, else in the base. Files follow each other, so the first found is the newest.
3.  A cut s in (W, n], with s > e (or without an e), made the volume shorter than p: zeros. It was
    made longer again since, and what was there before is gone.
4.  e > W: the page is that entry's. Else it is the page of L.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import numpy as np
import xxhash

from cordwood.base.errors import Code, InvalidInputError, StateError
from cordwood.journal.frames import damage
from cordwood.store.api import Buffer
from cordwood.volume.control import State
from cordwood.volume.tables import Found, Numbers, Pages

if TYPE_CHECKING:
    from cordwood.volume.local import Local


_BASE = 2


class View:
    """A snapshot. Nothing that it needs is reused while it is open."""

    __slots__ = (
        "_active",
        "_cut_counts",
        "_cut_entries",
        "_far",
        "_idle",
        "_idle_far",
        "_idle_last",
        "_last",
        "_local",
        "_lock",
        "_map",
        "_need",
        "_times",
        "entry",
        "epoch",
        "page_count",
        "state",
        "watermark",
    )

    def __init__(
        self,
        local: Local,
        state: State,
        lock: str,
        *,
        has_idle: bool,
        base: memoryview,
        cuts: tuple[list[int], list[int]],
    ) -> None:
        """Made by `Local.snapshot`, which holds the lock."""
        self._local = local
        self._lock: str | None = lock
        self.state = state
        self.entry = state.entry
        self.watermark = state.watermark
        self.page_count = state.page_count
        self.epoch = state.epoch
        active = state.sequence & 1
        self._active = local.tables[active]
        self._last = state.entry - state.first + 1
        self._idle = local.tables[1 - active] if has_idle else None
        self._idle_last = state.idle_entry - state.idle_first + 1
        self._far: dict[int, Found] = {}
        self._idle_far: dict[int, Found] = {}
        self._map = base
        self._need = lock
        # Of the state that this is: the newest may have gone on since.
        self._times = (state.turn, *local.control.times[1:])
        self._cut_entries, self._cut_counts = cuts

    @property
    def lsn(self) -> int:
        """The published version below."""
        return self.state.lsn

    @property
    def hash(self) -> bytes:
        """Of the commit of the published version."""
        return self.state.hash

    @property
    def published_count(self) -> int:
        """How many pages the published version has."""
        return self.state.published_count

    @property
    def unpushed(self) -> int:
        """How many entries are not published."""
        return self.entry - self.watermark

    @property
    def cut(self) -> int | None:
        """The smallest page count since the published version; None if it never shrank."""
        return self._cut_counts[0] if self._cut_counts else None

    def read(self, page: int) -> Buffer | None:
        """A page; None if it is that of the published version.

        Raises:
            CorruptionError: it does not match its checksum.
            InvalidInputError: there is no such page.
            StateError: the snapshot is closed.
        """
        local = self._local
        if self._lock is None or not local.locks.is_open:
            raise self._closed()
        if not 0 < page <= self.page_count:
            if page < 1:
                raise InvalidInputError(f"there is no page {page}: they are counted from 1")
            return local.zeros
        if self.entry == self.watermark:
            return None
        entry, index, place, checksum = self._newest(page)
        if self._cut_entries:
            later = bisect_right(self._cut_entries, entry)
            if later < len(self._cut_counts) and self._cut_counts[later] < page:
                return local.zeros
        if entry <= self.watermark:
            return None
        file = local.base.file if index == _BASE else local.pair.files[index]
        data = file.read(place, local.page_bytes)
        if xxhash.xxh3_64_intdigest(data) != checksum:
            path = local.base.path if index == _BASE else local.pair.paths[index]
            raise damage(path, place, f"page {page} does not match its checksum")
        return data

    def _newest(self, page: int) -> tuple[int, int, int, int]:
        """The newest entry of a page, 0 if there is none; its file, its place there, its XXH3."""
        state = self.state
        found = self._far.get(page) or self._active.find(page, self._last, self._far)
        if found is not None:
            return state.first + found.entry - 1, state.sequence & 1, found.place, found.sum
        if self._idle is not None:
            found = self._idle.find(page, self._idle_last, self._idle_far)
            if found is not None:
                return state.idle_first + found.entry - 1, ~state.sequence & 1, *found[1:]
        at = 2 * page - 2
        if at >= len(self._map):
            return 0, _BASE, 0, 0
        return self._map[at], _BASE, (page - 1) * self._local.page_bytes, self._map[at + 1]

    def overlay(self) -> tuple[Pages, Numbers]:
        """The pages that are not published, in their order, and the entry of each."""
        if self._lock is None or not self._local.locks.is_open:
            raise self._closed()
        drained, last = self._local.base.newer(self._map, self.watermark)
        pages, entries = [drained], [last]
        if self._idle is not None:
            found, numbers = self._idle.newest(self._idle_last)
            pages.append(found)
            entries.append(numbers + np.uint64(self.state.idle_first - 1))
        found, numbers = self._active.newest(self._last)
        pages.append(found)
        entries.append(numbers + np.uint64(self.state.first - 1))
        every, which = np.concatenate(pages), np.concatenate(entries)
        # Of what is in several places, the last: they are in the order of their entries.
        kept, index = np.unique(every[::-1], return_index=True)
        newest = which[::-1][index]
        alive = (newest > self.watermark) & (kept <= self.page_count) & ~self._cut_off(kept, newest)
        return kept[alive], newest[alive].astype(np.uint64)

    def close(self) -> None:
        """Let go what the snapshot held; twice is no error."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._local.locks.let_go(lock)

    def reopen(self) -> bool:
        """Open it once more, as it was, if nothing has changed since; False if something has.

        For who takes a snapshot for each of many statements: it would be the same one again.
        """
        local, need, times = self._local, self._need, self._times
        is_at, locks = local.control.is_at, local.locks
        if not locks.is_open or not is_at(times) or not locks.try_share(need):
            return False
        if not is_at(times):
            locks.let_go(need)
            return False
        self._lock = need
        return True

    def advance(self, entry: int) -> bool:
        """Open it once more, as it is after a commit up to an entry; False if there was more.

        For who commits again and again: another one would be made of the same parts.
        """
        local, old = self._local, self.state
        state = local.control.read()
        is_next = (state.turn, state.entry, state.epoch) == (old.turn + 1, entry, old.epoch)
        if not is_next or state.sequence != old.sequence or state.cuts_limit != old.cuts_limit:
            return False
        times = self._times
        self._times = (state.turn, *times[1:])
        if not self.reopen():
            self._times = times
            return False
        self.state, self.entry, self.page_count = state, entry, state.page_count
        self._last = entry - state.first + 1
        self._far = {}
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(OSError):  # the process ends, and files were closed before
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be read from."""
        return self._lock is not None and self._local.locks.is_open

    def _cut_off(
        self, pages: Pages, entries: Numbers
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which pages were behind the end of the volume at some time after their entry."""
        if not self._cut_entries:
            return np.zeros(len(pages), bool)
        later = np.searchsorted(np.array(self._cut_entries, np.uint64), entries, side="right")
        counts = np.array([*self._cut_counts, 1 << 32], np.uint64)
        return counts[later] < pages

    def _closed(self) -> StateError:
        if self._local.locks.is_forked:
            return StateError(
                "the snapshot was taken before this process was forked",
                code=Code.FORKED,
                hint="open the volume once more in the child",
            )
        return StateError("the snapshot is closed", code=Code.CLOSED)
