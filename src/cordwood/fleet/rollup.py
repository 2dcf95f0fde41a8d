"""The roll-up: read a dirty log, keep what is still dirty, take away the rest. See fleet/dirty.py.

It costs a few requests for each log that was marked: two GETs to look at it, and one PUT to fence
it if its mark goes. What stays is appended again at the end, in one batch, with the time of its
first mark and one more reinsertion, so that everything before can be collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cordwood.base.errors import ConflictError, CordwoodError, FormatError, NotFoundError
from cordwood.fleet.dirty import COMPACTION, MARKS_MAX, STABLE_PREFIX, DirtyLog
from cordwood.fleet.marks import Mark, Said, again, gather, still
from cordwood.fleet.select import Dirty
from cordwood.log import tree
from cordwood.log.log import Log
from cordwood.log.objects import Loaded
from cordwood.log.recovery import fence

QUIET_S = 60.0
"""A mark of less age stays although nothing needs compaction: its writer would lose a swap."""

QUIET_REINSERTS = 10
"""After so many roll-ups it goes in any case: ages are a matter of clocks."""

LOOKS_AT_ONCE = 200
"""Logs looked at together: hides the requests' time, and is kind to the store."""


class Look(NamedTuple):
    """How a log stands."""

    seen: Loaded | None
    """Its manifest; None if there is no such log."""
    start: int = 0
    """The first record that no compaction has seen."""

    @property
    def limit(self) -> int:
        """Its next offset."""
        return self.seen.manifest.next_offset if self.seen else 0

    @property
    def num_bytes(self) -> int:
        """About how much is to be compacted: what the root says of it."""
        roots = tree.roots(self.seen.manifest) if self.seen else ()
        return sum(pointer.num_bytes for pointer in roots if pointer.limit > self.start)


@dataclass(slots=True)
class RollUpReport:
    """What a roll-up found and did."""

    member: str
    marks: int = 0
    """Marks and purges read."""
    start: int = 0
    """Where the cursor was."""
    limit: int = 0
    """Where it is now."""
    dirty: list[Dirty] = field(default_factory=list)
    """Logs with something to compact, oldest first."""
    dropped: list[str] = field(default_factory=list)
    """Logs whose marks were taken away."""
    errors: dict[str, str] = field(default_factory=dict)
    """Logs that could not be looked at, and why; their marks stay."""
    damage: str = ""
    """Why it stopped before the end: what of the dirty log cannot be read."""


async def look_at(log: Log, said: Said) -> Look:
    """How a log stands. Two GETs."""
    witness = None
    try:
        witness = await log.cursors.load(COMPACTION)
    except NotFoundError:
        pass
    except FormatError:
        # A log that was purged may be one that nobody can compact any more.
        if not said.purged_to:
            raise
    try:
        seen = await log.objects.load()
    except NotFoundError:
        return Look(None)
    oldest = seen.manifest.oldest_offset
    return Look(seen, oldest if witness is None else max(oldest, witness.offset))


def dirty_of(name: str, said: Said, look: Look, member: str, now_us: int) -> Dirty | None:
    """What is to be compacted of a log; None if nothing."""
    start = max(look.start, said.purged_to)
    if look.limit <= start:
        return None
    mark = again(name, said, start, now_us)
    return Dirty(
        log=name,
        start=start,
        limit=look.limit,
        num_bytes=look.num_bytes,
        first_us=mark.first_us,
        reinserts=max(0, mark.reinserts - 1),
        members=(member,),
    )


async def roll_up(
    dirty_log: DirtyLog, *, quiet_s: float = QUIET_S, max_marks: int = MARKS_MAX
) -> RollUpReport:
    """Roll a dirty log up. Repeat it as often as the answer is wanted.

    Raises:
        NotFoundError: the member has no dirty log.
        ContendedError: another roll-up was faster; nothing is lost.
    """
    witness = await dirty_log.begin()
    reading = await dirty_log.read(witness.offset, max_marks=max_marks)
    report = RollUpReport(
        member=dirty_log.member,
        marks=len(reading.marks),
        start=witness.offset,
        limit=witness.offset,
        damage=str(reading.damage or ""),
    )
    said = gather(reading.marks)
    keep = await _judge_all(dirty_log, said, quiet_s, report)
    only_beyond = {n: s for n, s in gather(reading.beyond).items() if n not in said}
    await _judge_all(dirty_log, only_beyond, float("inf"), report)
    report.dirty.sort(key=lambda one: (one.first_us, one.log))
    if keep:
        await dirty_log.append(keep)
    if reading.limit > witness.offset:
        await dirty_log.log.cursors.save(STABLE_PREFIX, reading.limit, witness)
        report.limit = reading.limit
    return report


async def _judge_all(
    dirty_log: DirtyLog, said: Mapping[str, Said], quiet_s: float, report: RollUpReport
) -> list[Mark]:
    """The marks to keep: a few logs are looked at together."""
    kept: list[Mark] = []

    async def work(names: Iterator[str]) -> None:
        for name in names:
            mark = await _judge(dirty_log, name, said[name], quiet_s, report)
            if mark is not None:
                kept.append(mark)

    names = iter(said)
    await asyncio.gather(*(work(names) for _ in range(min(LOOKS_AT_ONCE, len(said)))))
    return kept


async def _judge(
    dirty_log: DirtyLog, name: str, said: Said, quiet_s: float, report: RollUpReport
) -> Mark | None:
    """The mark to keep of a log, or None if it may go."""
    log = Log(dirty_log.store, name, clock=dirty_log.clock, entropy=dirty_log.entropy)
    now_us = dirty_log.clock.now_us()
    is_quiet = now_us - said.first_us >= quiet_s * 1_000_000 or said.reinserts >= QUIET_REINSERTS
    try:
        look = await look_at(log, said)
        dirty = dirty_of(name, said, look, dirty_log.member, now_us)
        if dirty is not None:
            report.dirty.append(dirty)
            return again(name, said, dirty.start, now_us)
        if is_quiet or said.purged_to:
            if look.seen is not None and look.seen.manifest.seal is None:
                await fence(log.objects, dirty_log.entropy, look.seen)
            report.dropped.append(name)
            return None
    except ConflictError:
        # It is being written: its mark stays.
        return still(name, said)
    except CordwoodError as error:
        if said.purged_to and isinstance(error, FormatError):
            # The manifest that its writers stand on is gone, so there is nobody to fence.
            report.dropped.append(name)
            return None
        report.errors[name] = error.message
    return still(name, said)
