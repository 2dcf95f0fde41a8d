"""Which records of a log a compaction takes, and the cursor that follows it.

The table itself says how much of a log it holds; the cursor says the same to everybody else, to
collection above all. The table's commit comes first, the cursor moves after it. So::

    cursor behind the table     a compaction died in between: the cursor is moved up
    cursor ahead of the table   another table, or somebody, moved it: the table goes on where it
                                ends, if that is still there; else it is told what is missing
    log not in the table        begin at the oldest record, wherever the cursor stands
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ContendedError,
    InternalError,
    NotFoundError,
    StateError,
)
from cordwood.log import tree
from cordwood.log.cursors import Witness
from cordwood.log.format import Ancestor, Fragment, Manifest
from cordwood.log.log import Log
from cordwood.log.reader import Limits
from cordwood.pipeline.tabledoc import Position
from cordwood.pipeline.target import Seen


class Range(Struct, frozen=True, kw_only=True):
    """The records `[start, limit)` of a log, still to be compacted."""

    log: str
    incarnation: str
    first: int
    """The first record of the log that the table has, or will have."""
    start: int
    limit: int
    num_bytes: int
    """About how much it is, as stored."""
    ancestors: tuple[Ancestor, ...] = ()

    @property
    def num_records(self) -> int:
        """How many there are."""
        return self.limit - self.start

    @property
    def position(self) -> Position:
        """What the table says of the log afterwards."""
        return Position(self.log, self.first, self.limit)


async def range_of(log: Log, seen: Seen, cursor: str) -> Range:
    """What is to be compacted of a log. One GET.

    Raises:
        NotFoundError: there is no such log.
        StateError: the log or its name does not fit to what the table holds.
        CollectedError: what the table needs next has been collected.
    """
    manifest = await log.manifest()
    incarnation = manifest.incarnation
    if not incarnation:
        raise StateError(
            f"log {log.name!r} was last written by another program, and has no identity",
            hint="append to it once with Cordwood",
        )
    if seen.has_other(log.name, incarnation):
        raise StateError(
            f"the table holds records of another log that was named {log.name!r}",
            hint="compact this one into a table of its own",
        )
    position = seen.position(incarnation)
    start = begin_of(log.name, manifest, position, cursor)
    return Range(
        log=log.name,
        incarnation=incarnation,
        first=start if position is None else position.first,
        start=start,
        limit=manifest.next_offset,
        num_bytes=sum(p.num_bytes for p in tree.roots(manifest) if p.limit > start),
        ancestors=manifest.ancestors,
    )


def begin_of(name: str, manifest: Manifest, position: Position | None, cursor: str) -> int:
    """Where to begin in a log. See the module."""
    oldest, end = manifest.oldest_offset, manifest.next_offset
    if position is None:
        return oldest
    if position.limit > end:
        raise StateError(
            f"the table holds the log {name!r} up to {position.limit}, and the log ends at {end}",
            hint="the log was restored from an older state: compact it into a new table",
        )
    if position.limit < oldest:
        raise CollectedError(
            f"the table holds the log {name!r} up to {position.limit}, and the log's oldest record "
            f"is {oldest}: those between were collected",
            hint="compact into a new table. The cursor holds collection back: was "
            f"{cursor!r} moved by hand, or by another table? Give each table a cursor of its own",
        )
    return position.limit


async def find(log: Log, cursor: str) -> Witness | None:
    """The cursor, if there is one. One GET."""
    try:
        return await log.cursors.load(cursor)
    except NotFoundError:
        return None


async def move_up(log: Log, cursor: str, offset: int) -> None:
    """Have the cursor at `offset` or further. Two requests; it may be repeated.

    Raises:
        CollectedError: there is no cursor, and the offset has been collected.
    """
    while True:
        witness = await find(log, cursor)
        if witness is not None and witness.offset >= offset:
            return
        with suppress(ContendedError, AlreadyExistsError):
            if witness is None:
                await log.cursors.init(cursor, offset)
            else:
                await log.cursors.save(cursor, offset, witness)
            return


async def fragments_of(log: Log, ranged: Range, pin: str) -> list[Fragment]:
    """The fragments that hold the range, oldest first, found through the pin that holds them.

    The manifest may have gone on past them. A GET for each node; every one was compared with what
    its parent says of it, so fragments without a gap have the setsum that the manifest gave to
    their range.

    Raises:
        CollectedError: the pin has ended.
    """
    limits = Limits(limit_offset=ranged.limit)
    found = await log.reader(pin=pin).scan(ranged.start, limits)
    ends = [ranged.start, *(fragment.limit for fragment in found)]
    starts = [max(ranged.start, fragment.start) for fragment in found]
    if starts != ends[:-1] or ends[-1] < ranged.limit:
        raise InternalError(
            f"log {log.name!r}: its pin {pin!r} does not hold all of "
            f"[{ranged.start}, {ranged.limit})",
            hint="nothing was changed; please report it",
        )
    return found
