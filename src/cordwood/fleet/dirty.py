"""Dirty logs: which logs have changed, found at the cost of those that have.

To ask every log whether it has something new costs a request for each log there is. So each member
of a fleet (a process with a name, which writes) keeps a dirty log, `fleet/<member>/dirty`: an
ordinary log in which it says of a log that it is about to be written. Who compacts reads these.

The promise: **at all times, every log with records behind its `compaction` cursor has a mark in
some member's dirty log, at or behind the `stable_prefix` cursor there.** No clock is part of it.

A writer marks::

    load the log's manifest ─▶ append a mark to the dirty log, durable ─▶ put fragments, swap, …
                               fails: nothing was written, and the append fails

The mark stands for every record that the writer names as long as it replaces only its own
manifests. When it loses a swap it has to load the manifest again, and marks again. So a mark is
written once for each time a log is opened or changes hands, at most once for each fragment, and
not at all while one stands. It comes before the first slot is put, not beside it, so that a
failure is a plain one; the marks of many logs share a fragment of the dirty log. Who adopts a
fragment that another left unnamed marks as well, between load and swap (log/recovery.py, rule 6).

A roll-up takes a mark away only like this::

    read the marks ─▶ load the log's cursor and manifest: nothing to compact
                   ─▶ **fence**: swap that manifest for an equal one ─▶ append the other marks again
                   ─▶ move `stable_prefix` behind what was read

Why no record is ever without a mark: the writer loaded its manifest before it marked, so before the
roll-up read that mark, so before the fence. If the writer's swap comes first, the fence fails and
the mark stays. If the fence comes first, the writer's swap fails, and it marks again, behind what
the roll-up has read. A writer that sleeps in between, for however long, is in one of these cases.

Crash here: before the marks were appended again nothing has changed; before the cursor moved there
are more marks than needed. Answer lost: the same. Two of us: one cursor save is refused; its marks
are in the dirty log twice.

All writers of a log must be a fleet's: a plain `Log.writer()` marks nothing. Nor does
`Log.find_write`, which adopts; a fleet has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CordwoodError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StoreError,
)
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.fleet.marks import Mark, decode, encode
from cordwood.fleet.pool import Pool
from cordwood.log import paths
from cordwood.log.cursors import Witness
from cordwood.log.format import Fragment
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.reader import Limits, Reader
from cordwood.store.url import Store

PREFIX = "fleet/"
"""Logs of this prefix belong to the fleet itself."""

STABLE_PREFIX = "stable_prefix"
"""The cursor of a dirty log: what lies before it has been rolled up."""

COMPACTION = "compaction"
"""The cursor of a log that a compaction moves: what lies behind it is new."""

MARK_INTERVAL_S = 0.05
"""How long a mark waits for marks of other logs while the dirty log is busy."""

MARKS_MAX = 1_000_000
"""Marks that one roll-up reads, about: what it holds in memory is bounded."""

FETCHES_AT_ONCE = 64

EVERYTHING = OFFSET_LIMIT - 1


def dirty_name(member: str) -> str:
    """The name of a member's dirty log."""
    if not paths.is_log_name(member) or "/" in member:
        raise InvalidInputError(
            f"{member!r} cannot name a member of a fleet",
            hint="use letters, digits and . _ = + @ -",
        )
    return f"{PREFIX}{member}/dirty"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a dirty log says behind its cursor."""

    marks: list[Mark]
    """In their order, up to what cannot be read."""
    limit: int
    """The first offset that was not read."""
    beyond: list[Mark]
    """Behind what cannot be read: good to know, but the cursor does not pass it."""
    damage: CorruptionError | None
    """Why the reading ended at `limit`, if not because there was no more."""


class DirtyLog:
    """One member's dirty log. Any process may read it and roll it up."""

    def __init__(
        self,
        store: Store | str,
        member: str,
        *,
        mark_interval_s: float = MARK_INTERVAL_S,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name it; no I/O."""
        self.log = Log(store, dirty_name(member), clock=clock, entropy=entropy)
        self.member = member
        self.clock = clock
        self.entropy = entropy
        options = Options(batch_interval_s=mark_interval_s)
        self._writers = Pool(
            lambda _: self.log.writer(create=True, options=options),
            max_open=1,
            idle_s=float("inf"),
            clock=clock,
        )

    @property
    def store(self) -> Store:
        """Where it and the logs that it marks lie."""
        return self.log.store

    async def close(self) -> None:
        """Wait until everything appended is durable or has failed; then no more is taken."""
        await self._writers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Writing.

    async def append(self, marks: Sequence[Mark]) -> None:
        """Append marks as one atomic batch; durable when this returns."""
        async with self._writers.use(self.log.name) as writer:
            await writer.append_many([encode(mark) for mark in marks])

    async def mark(self, log_name: str, offset: int) -> None:
        """Say that a log is about to be written at this offset; durable when this returns.

        Raises:
            StoreError: it could not be said, so the log must not be written.
        """
        mark = Mark(log_name, offset, self.clock.now_us())
        try:
            # Not as a batch of its own: marks of other logs may share the fragment.
            async with self._writers.use(self.log.name) as writer:
                await writer.append(encode(mark))
        except CordwoodError as error:
            raise StoreError(
                f"log {log_name!r} could not be marked in {self.log.name!r}: {error.message}",
                code=error.code,
                hint=error.hint,
                transient=True,
            ) from error

    async def purge(self, log_name: str) -> None:
        """Say that nothing in a log needs compaction, up to where it ends now.

        The next roll-up then drops the marks that came before, unless the log was written since.
        For a log whose manifest cannot be read any more, this is how to end its marks.
        """
        objects = Log(self.store, log_name).objects
        try:
            offset = (await objects.load()).manifest.next_offset
        except (NotFoundError, FormatError):
            offset = EVERYTHING
        await self.append([Mark(log_name, offset, self.clock.now_us(), is_purge=True)])

    # Reading.

    async def exists(self) -> bool:
        """Whether the member has ever marked anything. One HEAD."""
        return await self.log.objects.exists()

    async def cursor(self) -> Witness | None:
        """Where the last roll-up ended; None before the first."""
        try:
            return await self.log.cursors.load(STABLE_PREFIX)
        except NotFoundError:
            return None

    async def begin(self) -> Witness:
        """The cursor; made, before everything, if there is none. Nothing is collected without."""
        witness = await self.cursor()
        while witness is None:
            oldest = (await self.log.manifest()).oldest_offset
            try:
                witness = await self.log.cursors.init(STABLE_PREFIX, oldest)
            except AlreadyExistsError:
                witness = await self.cursor()
        return witness

    async def read(self, start: int | None, *, max_marks: int = MARKS_MAX) -> Reading:
        """What it says from `start` on. One GET per fragment, some at a time."""
        reader = self.log.reader()
        fragments = await reader.scan(start, Limits(max_records=max_marks))
        first = fragments[0].start if fragments else 0
        begin = first if start is None else start
        marks: list[Mark] = []
        beyond: list[Mark] = []
        limit, damage = begin, None
        for at in range(0, len(fragments), FETCHES_AT_ONCE):
            group = fragments[at : at + FETCHES_AT_ONCE]
            found = await asyncio.gather(*(_marks_of(reader, f, begin) for f in group))
            for fragment, said in zip(group, found, strict=True):
                if isinstance(said, CorruptionError):
                    damage = damage or said
                elif damage is not None:
                    beyond += said
                else:
                    marks += said
                    limit = fragment.limit
        return Reading(marks, limit, beyond, damage)


async def _marks_of(reader: Reader, fragment: Fragment, begin: int) -> list[Mark] | CorruptionError:
    """The marks in a fragment, from `begin` on; or what is wrong with it."""
    try:
        table = await reader.fetch(fragment)
        skipped = max(0, begin - fragment.start)
        bodies = table.column("body").to_pylist()[skipped:]
        return [decode(body, fragment.path) for body in bodies]
    except CorruptionError as error:
        return error
