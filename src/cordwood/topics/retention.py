"""What of a topic is deleted because it is old, or because there is too much of it.

Whole extents go, the oldest first, and never the newest one of a partition. What decides is the
time of an extent's newest record, not when the file was written: recycling and compaction change
that. Times come from producers, and from clocks that may be wrong, so:

*  A record with an old time is old as soon as it is appended.
*  A record from the future cannot have been appended later than its extent was full: then counts
   when the next extent was made, as long as its own time has not come. In the newest extent of a
   partition it counts as it is, so a topic is not given up before that time.
*  A clock that jumps back makes everything younger: nothing goes before its time. When an extent
   was made while it was back counts for nothing.
*  One that stays behind another's extent ends the search: what is behind a young extent stays, so
   that a partition never has holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cordwood.journal.extent import END, Extent, name_of, open_whatever
from cordwood.journal.journal import SPARE, TAIL, Journal
from cordwood.journal.mark import Mark, seen_mark
from cordwood.store.disk import Disk
from cordwood.topics.config import TopicConfig

FOREVER_US = 1 << 63


class Piece(NamedTuple):
    """An extent, as retention sees it."""

    base: int
    size_bytes: int
    newest_us: int
    """The time of its newest record; 0 if it has none."""
    damage: str = ""
    """What is wrong with its head, if that is damaged. It is as old as the one behind it."""


class Retained(msgspec.Struct, frozen=True):
    """What was deleted of a partition."""

    partition: int
    extents: int = 0
    bytes: int = 0
    records: int = 0
    """Offsets that are gone."""
    damaged: list[str] = []
    """What is wrong with extents that were left."""


class RetentionReport(msgspec.Struct, frozen=True):
    """What was deleted of a topic."""

    partitions: list[Retained]
    is_deleted: bool
    """Whether nothing was left to keep, and the topic itself is gone."""


def expired(
    pieces: Sequence[Piece], *, now_us: int, retention_s: float | None, retention_bytes: int | None
) -> int:
    """How many of these extents go, from the oldest on; the last one is the newest, and stays."""
    total = sum(piece.size_bytes for piece in pieces)
    for count, piece in enumerate(pieces[:-1]):
        is_old = retention_s is not None and is_past(piece.newest_us, retention_s, now_us)
        if not is_old and (retention_bytes is None or total <= retention_bytes):
            return count
        total -= piece.size_bytes
    return max(0, len(pieces) - 1)


def is_past(time_us: int, period_s: float, now_us: int) -> bool:
    """Whether a period has passed since a time."""
    return time_us + period_s * 1e6 < now_us


def pieces_of(journal: Journal, mark: Mark, now_us: int) -> list[Piece]:
    """The extents of a journal, in order; one from the future is as old as the one behind it."""
    found: list[Piece] = []
    behind_us: int | None = None
    for base in reversed([base for base in journal.bases() if base <= mark.base]):
        with suppress(FileNotFoundError):  # Somebody else deleted it.
            extent, damage = open_whatever(journal.disk, journal.folder, base)
            try:
                size, newest_us = mark.end, mark.newest_us
                if base != mark.base:
                    size = extent.file.stat().size_bytes
                    newest_us = _newest_us(extent) if damage is None else FOREVER_US
            finally:
                extent.close()
            # One that was made before this one was made while the clock was back: it says nothing.
            is_future = newest_us > now_us
            if is_future and behind_us is not None and behind_us >= extent.head.created_us:
                newest_us = min(newest_us, behind_us)
            if damage is None:
                behind_us = extent.head.created_us
            found.append(Piece(base, size, newest_us, str(damage) if damage else ""))
    return found[::-1]


def retain(journal: Journal, config: TopicConfig, number: int, now_us: int) -> Retained:
    """Delete what a partition does not keep."""
    mark = journal.newest()
    with journal.told("retain"):
        pieces = pieces_of(journal, mark, now_us)
        count = expired(
            pieces,
            now_us=now_us,
            retention_s=config.retention_s,
            retention_bytes=config.retention_bytes,
        )
        gone = [piece for piece in pieces[:count] if _deleted(journal, piece.base)]
    records = pieces[count].base - pieces[0].base if gone else 0
    damaged = [piece.damage for piece in pieces[count:] if piece.damage]
    return Retained(number, len(gone), sum(piece.size_bytes for piece in gone), records, damaged)


def has_expired(journal: Journal, config: TopicConfig, now_us: int) -> bool:
    """Whether nothing of a partition is worth keeping; by who is alone, and has retained it."""
    if config.retention_s is None or not is_past(config.created_us, config.retention_s, now_us):
        return False
    with journal.told("retain"):
        mark = seen_mark(journal.disk, f"{journal.folder}/{TAIL}")
        if mark is None or len(journal.bases()) > 1:
            return False
    return is_past(mark.newest_us, config.retention_s, now_us)


def _newest_us(extent: Extent) -> int:
    """The time of its newest record; looked for, if it was not closed as it should have been."""
    found = extent.newest_us()
    if found is None:
        times = (frame.time_us for frame in extent.whole_from(extent.start) if frame.kind != END)
        found = max(times, default=0)
    return found


def _deleted(journal: Journal, base: int) -> bool:
    """Delete an extent; False if somebody did before. Whoever appends waits only for this.

    Each is gone for good before the next one goes: after a power cut there is no hole.
    """
    disk, path = journal.disk, f"{journal.folder}/{name_of(base)}"
    with journal.alone():
        journal.check_there()
        try:
            if _is_there(disk, f"{journal.folder}/{SPARE}"):
                disk.unlink(path)
            else:
                disk.rename(path, f"{journal.folder}/{SPARE}")
        except FileNotFoundError:
            return False
        with suppress(FileNotFoundError):
            disk.unlink(f"{path}.index")
        disk.fsync_dir(journal.folder)
    return True


def _is_there(disk: Disk, path: str) -> bool:
    try:
        disk.stat(path)
    except FileNotFoundError:
        return False
    return True
