"""The versions of a volume: listing them, finding one by time, comparing two.

A history is one line: the log's own commits, then those of its parent up to the branch point, and
so on. LSNs go on from parent to branch, so along it each names one version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.base.errors import CorruptionError, NotFoundError
from cordwood.volume.desk import Desk
from cordwood.volume.format import Commit
from cordwood.volume.moments import Moment, lsn_or_time, newest_at
from cordwood.volume.pagesets import PageArray
from cordwood.volume.reader import BATCH_BYTES, PageReader
from cordwood.volume.snapshot import DEPTH_MAX, Absent, changed_pages


@dataclass(frozen=True, slots=True)
class Version:
    """A published commit, for people."""

    lsn: int
    log: str
    hash: str
    parent_hash: str
    timestamp_us: int
    message: str
    client: str
    num_pages: int
    pages_changed: int
    bytes: int
    """What its packs take in the store."""
    is_branch_point: bool = False
    """Whether the next older one is the parent log's."""

    @staticmethod
    def of(commit: Commit, *, is_branch_point: bool = False) -> Version:
        """What a commit says."""
        return Version(
            commit.lsn,
            commit.log,
            commit.hash.hex(),
            commit.parent_hash.hex(),
            commit.timestamp_us,
            commit.message,
            commit.provenance.client,
            commit.page_count,
            len(commit.pages),
            sum(int(pack.starts[-1]) for pack in commit.packs),
            is_branch_point,
        )


async def versions(desk: Desk, newest: int) -> AsyncIterator[Version]:
    """The history from an LSN down, to the oldest version that is kept."""
    lsn = newest
    for log, first, oldest in await lines_of(desk):
        while lsn >= max(first, oldest, 1):
            commit = await desk.commit(log, lsn)
            yield Version.of(commit, is_branch_point=lsn == first and first > 1)
            lsn -= 1


async def resolve_moment(desk: Desk, at: Moment, newest: int) -> int:
    """The LSN that is meant.

    Raises:
        NotFoundError: there is none like that.
        InvalidInputError: nothing is meant by it.
    """
    lsn, time_us = lsn_or_time(at, desk.remote.clock.now_us())
    if lsn is not None:
        return lsn
    assert time_us is not None
    lines = await lines_of(desk)
    if not newest:
        raise NotFoundError(f"volume {desk.name!r} has no version yet", hint="push one")
    oldest = max(1, *lines[-1][1:])

    async def commit_at(lsn: int) -> Commit:
        return await desk.commit(next(log for log, first, _ in lines if lsn >= first), lsn)

    return await newest_at(time_us, oldest, newest, commit_at)


async def diff(before: PageReader, after: PageReader) -> PageArray:
    """The pages that differ between two versions, in order: bytes are compared, not histories."""
    old, new = await before.resolve(), await after.resolve()
    candidates = changed_pages(old, new)
    # Pages that only one of them has differ even if they are zeros.
    low, high = sorted((old.page_count, new.page_count))
    differing = [np.arange(low + 1, high + 1, dtype=np.uint32)]
    step = max(1, BATCH_BYTES // before.page_size)
    for start in range(0, len(candidates), step):
        some = candidates[start : start + step]
        differing.append(
            some[differs(await before.read_many(some), await after.read_many(some), len(some))]
        )
    return np.unique(np.concatenate(differing))


def differs(left: bytes, right: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Which of so many pages are not the same."""
    shape = (count, -1)
    one = np.frombuffer(left, np.uint8).reshape(shape)
    two = np.frombuffer(right, np.uint8).reshape(shape)
    found: npt.NDArray[np.bool_] = (one != two).any(axis=1)
    return found


async def lines_of(desk: Desk) -> list[tuple[str, int, int]]:
    """Each log of the history: its id, its first LSN, the oldest that is kept. Newest log first."""
    lines: list[tuple[str, int, int]] = []
    log = desk.log
    while len(lines) <= DEPTH_MAX:
        try:
            manifest = desk.history.manifest(log)
        except Absent as absent:
            await desk.history.fetch_absent(absent)
            continue
        lines.append((log, manifest.first, manifest.collected))
        if manifest.parent is None or manifest.collected:
            # A branch that was collected needs nothing of its parent, which may be gone.
            return lines
        log = manifest.parent.log
    raise CorruptionError(f"log {desk.log}: its parents never end", where=desk.log)
