"""Which version of a page counts: paths over logs, one page at a time, and all pages at once.

A version is named by a log and an LSN. Its path says which commits decide, from the newest down:
ranges of LSNs in the log, in its parent up to the branch point, in that one's parent, until a
checkpoint ends it or the first commit of all::

    branch   ■ 9 ■ 8
    parent             7 ■ 6 ■ 5 ■ [4]     a checkpoint: nothing below it is asked

Nothing here waits or reads: what is not at hand is asked of a `Source`, which raises if it has not
got it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from cordwood.base.errors import CollectedError, CorruptionError, InvalidInputError
from cordwood.volume.filters import RANGE, Filter, range_start
from cordwood.volume.format import Commit, Manifest
from cordwood.volume.pack import PackIndex
from cordwood.volume.pagesets import PageArray, array_of, up_to

DEPTH_MAX = 10_000
"""Branches of branches."""
MEMO_MAX = 1_000_000
"""Pages whose place a snapshot remembers, about a hundred bytes each."""


class Span(NamedTuple):
    """Commits of one log that are on a path: `low` to `high`, both of them; none if low > high."""

    log: str
    low: int
    high: int


class Path(NamedTuple):
    """Which commits decide about a version, the newest first."""

    spans: tuple[Span, ...]
    checkpoint: tuple[str, int] | None
    """Log and LSN of what ends it; None if it goes back to the first commit."""

    @property
    def lsn(self) -> int:
        """The version."""
        highs = [span.high for span in self.spans if span.low <= span.high]
        return highs[0] if highs else self.checkpoint[1] if self.checkpoint else 0


def path_of(manifest_of: Callable[[str], Manifest], log: str, lsn: int) -> Path:
    """The path of a version. Manifests are asked for as the walk comes to them.

    Raises:
        CollectedError: the version is gone.
        CorruptionError: the parents run in a circle, or there are far too many.
    """
    spans: list[Span] = []
    visited: set[str] = set()
    if lsn == 0 and manifest_of(log).parent is None:
        return Path((), None)
    while True:
        manifest = manifest_of(log)
        if log in visited or len(visited) > DEPTH_MAX:
            raise CorruptionError(f"log {log}: its parents never end", where=log)
        visited.add(log)
        if lsn < manifest.collected or manifest.swept:
            raise CollectedError(
                f"LSN {lsn} of log {log} was collected",
                hint=f"the oldest version that is kept is {manifest.collected}",
            )
        below = [kept for kept in manifest.checkpoints if kept <= lsn]
        if below:
            spans.append(Span(log, below[-1] + 1, lsn))
            return Path(tuple(spans), (log, below[-1]))
        if lsn >= manifest.first:
            spans.append(Span(log, manifest.first, lsn))
        if manifest.parent is None:
            return Path(tuple(spans), None)
        log, lsn = manifest.parent.log, min(lsn, manifest.parent.lsn)


class Absent(Exception):  # noqa: N818 - nobody is told: it is fetched
    """What a source has not got, and a fetch would bring."""

    def __init__(self, kind: str, log: str, lsn: int = 0) -> None:
        """A manifest, commit or checkpoint of a log."""
        super().__init__(f"{kind} {lsn} of log {log} is not at hand")
        self.kind = kind
        self.log = log
        self.lsn = lsn


class Source(Protocol):
    """Where a snapshot finds commits; blocking, from memory or from a local file.

    Raises:
        Absent: it is not at hand.
    """

    def commit(self, log: str, lsn: int) -> Commit:
        """A commit."""
        ...

    def checkpoint(self, log: str, lsn: int) -> Commit:
        """A checkpoint."""
        ...

    def filter(self, log: str, start: int) -> Filter | None:
        """The filter of the range that starts there, if there is one."""
        ...


class Place(NamedTuple):
    """Where a page is: the pack, the frame, and which page of the frame."""

    pack: PackIndex
    frame: int
    position: int


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where every page of a version is that is not zeros, in the order of their numbers."""

    page_count: int
    packs: tuple[PackIndex, ...]
    pages: PageArray
    pack: npt.NDArray[np.int64]
    """Which of `packs` each page is in."""
    frame: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]


class Snapshot:
    """One published version, to be asked for its pages."""

    def __init__(self, source: Source, path: Path) -> None:
        """The version that a path ends at; everything on the path is at hand."""
        self._source = source
        self.path = path
        self.lsn = path.lsn
        newest = next(self._commits(), None)
        self.newest = newest
        """The commit, or checkpoint, that the version ends at; None of the one without pages."""
        self.page_count = newest.page_count if newest else 0
        self.hash = newest.commit_hash if newest else b""
        self.timestamp_us = newest.timestamp_us if newest else 0
        self._memo: dict[int, Place | None] = {}

    def find(self, page: int) -> Place | None:
        """Where a page is; None if it is zeros. About a microsecond for one that was found before.

        Raises:
            InvalidInputError: pages are numbered from 1.
        """
        memo = self._memo
        if page in memo:
            return memo[page]
        if page < 1:
            raise InvalidInputError(f"page {page}", hint="pages are numbered from 1")
        if len(memo) >= MEMO_MAX:
            memo.clear()
        place = memo[page] = self._walk(page) if page <= self.page_count else None
        return place

    def _walk(self, page: int) -> Place | None:
        for commit in self._commits(page):
            for pack in commit.packs:
                if page in pack.live:
                    return Place(pack, *pack.locate(page))
            if page > commit.cut:
                return None
        return None

    def _commits(self, page: int | None = None) -> Iterator[Commit]:
        """The commits of the path from the newest down; only those that may decide about a page."""
        source = self._source
        for log, low, high in self.path.spans:
            lsn = high
            while lsn >= low:
                start = range_start(lsn)
                is_end = lsn == start + RANGE - 1 and start >= low
                filtered = source.filter(log, start) if page is not None and is_end else None
                if filtered is not None and page is not None and not filtered.may_decide(page):
                    lsn = start - 1
                    continue
                yield source.commit(log, lsn)
                lsn -= 1
        if self.path.checkpoint is not None:
            yield source.checkpoint(*self.path.checkpoint)

    def resolve(self) -> Resolution:
        """Where all pages are. The work is by packs and arrays, never by pages."""
        seen = BitMap()
        limit = self.page_count
        packs: list[PackIndex] = []
        parts: list[tuple[PageArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for commit in self._commits():
            for pack in commit.packs:
                fresh = array_of(up_to(pack.live, limit) - seen)
                if len(fresh):
                    parts.append((fresh, *pack.locate_many(fresh)))
                    packs.append(pack)
            seen |= commit.pages
            limit = min(limit, commit.cut)
            if not limit:
                break
        if not parts:
            none = np.zeros(0, np.int64)
            return Resolution(self.page_count, (), np.zeros(0, np.uint32), none, none, none)
        pages = np.concatenate([part[0] for part in parts])
        owner = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        order = np.argsort(pages, kind="stable")
        return Resolution(
            self.page_count,
            tuple(packs),
            pages[order],
            owner[order],
            np.concatenate([part[1] for part in parts])[order],
            np.concatenate([part[2] for part in parts])[order],
        )


def changed_pages(before: Resolution, after: Resolution) -> PageArray:
    """The pages that may differ between two versions, in order.

    None that differs is left out. One that was written again with the same bytes, or moved when a
    checkpoint was made, is among them: who wants to know compares the bytes.
    """
    common, left, right = np.intersect1d(
        before.pages, after.pages, assume_unique=True, return_indices=True
    )
    numbers: dict[str, int] = {}

    def named(version: Resolution, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The packs of these rows, by numbers that both versions share."""
        known = [numbers.setdefault(pack.id, len(numbers)) for pack in version.packs]
        return np.array(known, np.int64)[version.pack[rows]]

    same = named(before, left) == named(after, right)
    same &= before.frame[left] == after.frame[right]
    same &= before.position[left] == after.position[right]
    only_one = np.setxor1d(before.pages, after.pages, assume_unique=True)
    return np.union1d(common[~same], only_one)
