"""Compaction: what is new in some logs becomes rows of a table, exactly once.

::

    plan    look at the table, at the logs and their cursors ─▶ the range of each log
            pin the ranges ─▶ for an upsert: ask which rows lose (pipeline/keys.py)
            ─▶ units: neighbouring fragments; files of the table that lose rows
    work    read fragments or a file, verified; leave out what loses; write files
    finish  prove it ─▶ commit files and positions in one step ─▶ move the cursors ─▶ unpin

Bodies are read once and written once, by whoever does the unit; they never pass through here.

Exactly once: the commit holds the rows and how far they go, so that neither is without the other.

* Crash before the commit: files that nobody names, swept by age; a pin, which expires.
* Crash between commit and cursor: the next compaction begins at the table's position, and moves
  the cursor up.
* Answer of the commit lost: the table is asked (pipeline/table.py).
* Two of us: one commits; the other finds that the position has moved, and drops its work. It may
  find it out late, after what it was reading was collected or swept: that is no damage.
* A unit done twice: two files, of which one result comes back and is named.

Proof: every fragment is recomputed and compared with its pointer when it is read; the rows made of
it are summed anew, those kept and those left out, and compared with its records (rewrite.py).
`finish` checks the same for all units together: that the setsums of what they read add up to those
of the pointers, that every record of the range was read once, and that what was kept and what was
left out are what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import (
    Code,
    CollectedError,
    CordwoodError,
    InternalError,
    InvalidInputError,
)
from cordwood.base.given import given_all
from cordwood.base.setsum import Setsum
from cordwood.fleet.dirty import COMPACTION
from cordwood.log.format import Fragment
from cordwood.log.log import Log
from cordwood.log.pins import Pin, keep_pin, under_free_name
from cordwood.pipeline.divide import UNIT_BYTES, divide
from cordwood.pipeline.each import each
from cordwood.pipeline.engine import AUTO, Drops, Engine, Progress, run
from cordwood.pipeline.job import Job
from cordwood.pipeline.keys import Keys, KeysSettings
from cordwood.pipeline.ranges import Range, fragments_of, move_up, range_of
from cordwood.pipeline.rewrite import Place, RewriteUnit, Rewritten, rewrite
from cordwood.pipeline.target import Change, Seen, Target
from cordwood.pipeline.units import new_units, old_units, questions
from cordwood.store.url import Store

PIN_S = 3_600
"""How long the pin of a compaction that died stays; one that lives renews it."""

LOOKS_AT_ONCE = 50
"""Logs looked at together."""


class CompactSettings(Struct, frozen=True, kw_only=True):
    """From which logs into which table."""

    store: str
    logs: tuple[str, ...]
    table_store: str
    table: str
    cursor: str = COMPACTION
    compression: str = "zstd"
    unit_bytes: int = UNIT_BYTES
    max_bytes: int | None = None
    """Of fragments, taken of each log at most; the next compaction goes on."""
    tells_in_names: bool = False
    """As the table has it (pipeline/target.py)."""


class CompactReport(Struct, frozen=True, kw_only=True):
    """What a compaction did."""

    table: str
    ranges: tuple[Range, ...] = ()
    """What was new in each log."""
    records: int = 0
    """Read from the logs."""
    kept: int = 0
    """Of these, rows of the table now."""
    tombstones: int = 0
    """Of these, only deletions."""
    replaced: int = 0
    """Rows that were in the table, and are not any more."""
    files: int = 0
    """Written."""
    dropped: int = 0
    """Files of the table that were replaced."""
    bytes: int = 0
    """Written."""
    setsum: str = ""
    """Of what was read: the sum over the pointers of the logs, and over the records."""
    kept_setsum: str = ""
    left_setsum: str = ""
    committed: bool = False
    """False: there was nothing new, or somebody else was faster, or nothing was to be changed."""
    superseded: bool = False
    """Whether somebody else was faster."""


class Compact(Job[CompactSettings, RewriteUnit, Rewritten, CompactReport]):
    """Compacts logs into a table. See the module."""

    name = "compact"
    settings_type = CompactSettings
    unit_type = RewriteUnit
    result_type = Rewritten

    def __init__(
        self,
        settings: CompactSettings,
        stores: Iterable[Store] = (),
        target: Target | None = None,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """No I/O. Who plans and finishes has the target; who works needs only its place."""
        super().__init__(settings, stores)
        self._target = target
        self._entropy = entropy
        self._pins: dict[str, Pin] = {}
        """By log."""
        self._keeping: list[asyncio.Task[None]] = []
        self._seen: Seen | None = None
        self._wanted: list[Range] = []
        """What is new; `_ranges` is what of it is taken."""
        self._ranges: list[Range] = []
        self._fragments: list[tuple[Range, Fragment]] = []

    @property
    def target(self) -> Target:
        """What it writes into."""
        assert self._target is not None, "only who made the job plans and finishes it"
        return self._target

    # Before.

    async def survey(self) -> tuple[Seen, list[Range]]:
        """What is new in each log. One GET for the table, two for each log; nothing is changed."""
        logs = [self._log(name) for name in self.settings.logs]
        cursor, before = self.settings.cursor, None
        while True:
            seen = await self.target.look()
            look = partial(range_of, seen=seen, cursor=cursor)
            try:
                return seen, await each(logs, look, LOOKS_AT_ONCE)
            except CollectedError:
                # Somebody may have compacted it after we looked, and somebody collected it.
                if before == seen.version:
                    raise
                before = seen.version

    async def weigh(self) -> int:
        """What is new, and for an upsert the table's files, whose keys are read."""
        seen, ranges = await self.survey()
        of_table = sum(file.bytes for file in seen.files) if seen.mode == "upsert" else 0
        return of_table + sum(ranged.num_bytes for ranged in ranges)

    async def plan(self, engine: Engine) -> list[RewriteUnit]:
        """Find the ranges, hold them, and cut the work into units."""
        seen, ranges = await self.survey()
        wanted = [ranged for ranged in ranges if ranged.num_records]
        self._seen, self._wanted = seen, wanted
        await self.target.sync()
        # Left behind by one that died; or the first: from now on it holds back collection.
        await each(ranges, lambda ranged: self._move_up(ranged, ranged.start), LOOKS_AT_ONCE)
        if not wanted:
            return []
        await each(wanted, self._pin, LOOKS_AT_ONCE)
        self._since_us = await self.target.begin()
        for ranged, found in zip(
            wanted, await each(wanted, self._find, LOOKS_AT_ONCE), strict=True
        ):
            taken = replace(ranged, limit=found[-1].limit)
            self._ranges.append(taken)
            self._fragments += [(taken, fragment) for fragment in found]
        drops: Drops = {}
        if seen.mode == "upsert":
            drops = await self._losers(engine, seen)
        unit_bytes = self.settings.unit_bytes
        return [
            *new_units(self._fragments, seen, drops, unit_bytes),
            *old_units(len(self._fragments), seen, drops, unit_bytes),
        ]

    async def _find(self, ranged: Range) -> Sequence[Fragment]:
        """The fragments of a range, as many as this compaction takes."""
        found = await fragments_of(self._log(ranged.log), ranged, self._pins[ranged.log].name)
        most = self.settings.max_bytes
        if most is None:
            return found
        return next(divide(found, lambda fragment: fragment.num_bytes, most))

    async def _losers(self, engine: Engine, seen: Seen) -> Drops:
        """Ask which rows a newer one replaces."""
        settings = self.settings
        question = KeysSettings(
            settings.store,
            tuple(ranged.log for ranged in self._ranges),
            settings.table_store,
            settings.table,
            seen.keyless,
        )
        fresh, old = questions(self._fragments, seen, settings.unit_bytes)
        return await engine.losers(Keys(question, self.stores), fresh, old)

    # Anywhere.

    async def work(self, unit: RewriteUnit) -> Rewritten:
        """Read, leave out, write."""
        settings = self.settings
        place = Place(
            self.store(settings.table_store),
            settings.table,
            settings.compression,
            settings.unit_bytes,
            settings.tells_in_names,
        )
        return await rewrite(unit, self.store(settings.store), place)

    # After.

    async def finish(self, results: Sequence[Rewritten]) -> CompactReport:
        """Prove, commit, move the cursors."""
        if self._seen is None or not self._ranges:
            return CompactReport(table=self.target.url)
        read = self._prove(results)
        change = Change(
            positions={ranged.incarnation: ranged.position for ranged in self._ranges},
            begins={ranged.incarnation: ranged.start for ranged in self._ranges},
            adds=tuple(file for result in results for file in result.files),
            drops=tuple(path for result in results for path in result.drops),
            since_us=self._since_us,
        )
        committed = await self.target.commit(self._seen, change)
        if committed:
            await self.target.sync()
            await each(
                self._ranges, lambda ranged: self._move_up(ranged, ranged.limit), LOOKS_AT_ONCE
            )
        return CompactReport(
            table=self.target.url,
            ranges=tuple(self._ranges),
            records=sum(result.records for result in results),
            kept=sum(result.kept for result in results),
            tombstones=sum(result.tombstones for result in results),
            replaced=sum(result.replaced for result in results),
            files=len(change.adds),
            dropped=len(change.drops),
            bytes=sum(file.bytes for file in change.adds),
            setsum=read.hexdigest(),
            kept_setsum=Setsum.sum(result.kept_sum for result in results).hexdigest(),
            left_setsum=Setsum.sum(result.left_sum for result in results).hexdigest(),
            committed=committed,
            superseded=not committed,
        )

    def _prove(self, results: Sequence[Rewritten]) -> Setsum:
        """The sum of what was read, if it is what the logs say was there."""
        read = Setsum.sum(result.read for result in results)
        named = Setsum.sum(fragment.setsum_hex for _, fragment in self._fragments)
        records = sum(result.records for result in results)
        expected = sum(ranged.num_records for ranged in self._ranges)
        if (read, records) != (named, expected):
            raise InternalError(
                f"the compaction read {records} records, setsum {read}; the logs have {expected}, "
                f"setsum {named}",
                hint="nothing was changed; please report it",
            )
        full = Setsum.sum(result.full for result in results)
        kept = Setsum.sum(result.kept_sum for result in results)
        left = Setsum.sum(result.left_sum for result in results)
        if kept + left != full:
            raise InternalError(
                f"the compaction read records with the setsum {full}, kept {kept} and left out "
                f"{left}, which do not add up",
                hint="nothing was changed; please report it",
            )
        return read

    async def overtaken(self, error: CordwoodError) -> CompactReport | None:
        """What is to be reported, if it failed only because somebody else was faster. One GET.

        Then the table has what this one was about to bring; so the log may have been collected, and
        files that were replaced may be swept.
        """
        is_gone = isinstance(error, CollectedError) or error.code is Code.MISSING_OBJECT
        if not is_gone or self._seen is None:
            return None
        now = await self.target.look()
        swept = {file.path for file in self._seen.files} - {file.path for file in now.files}
        if not any(_has_passed(now, ranged) for ranged in self._wanted) and not any(
            path in error.message for path in swept
        ):
            return None
        return CompactReport(table=self.target.url, ranges=tuple(self._wanted), superseded=True)

    # The pins.

    async def _pin(self, ranged: Range) -> None:
        log = self._log(ranged.log)
        pin = await under_free_name(
            "compact",
            lambda name: log.pin(name, ranged.start, ranged.limit, ttl_s=PIN_S),
            self._entropy,
        )
        self._pins[ranged.log] = pin
        self._keeping.append(asyncio.ensure_future(keep_pin(pin)))

    async def close(self) -> None:
        """Release the pins. One PUT each; should it fail, they expire."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        pins, self._pins = list(self._pins.values()), {}

        async def release(pin: Pin) -> None:
            with suppress(CordwoodError):
                await pin.release()

        await each(pins, release, LOOKS_AT_ONCE)

    async def _move_up(self, ranged: Range, offset: int) -> None:
        await move_up(self._log(ranged.log), self.settings.cursor, offset)

    def _log(self, name: str) -> Log:
        return Log(self.store(self.settings.store), name, entropy=self._entropy)


def _has_passed(seen: Seen, ranged: Range) -> bool:
    """Whether the table has records of a range that was new to it."""
    there = seen.position(ranged.incarnation)
    return there is not None and there.limit > ranged.start


async def compact(
    logs: Log | Sequence[Log],
    table: Target,
    *,
    cursor: str = COMPACTION,
    compression: str = "zstd",
    max_bytes: int | None = None,
    dry_run: bool = False,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> CompactReport:
    """Bring what is new in some logs of one store into a table, exactly once. See the module.

    Args:
        logs: a log or several; all of one store.
        table: where to; it must exist.
        cursor: the cursor that says, in each log, what was compacted.
        compression: of the files written: none, snappy, lz4 or zstd.
        max_bytes: take about so much of each log at most.
        dry_run: only say what is new.
        engine: `auto`, `local`, `spark`.
        progress: called with bytes done and bytes to do.

    Raises:
        NotFoundError: there is no such log, or no such table.
        StateError, CollectedError: the table and the log do not fit together.
        InvalidInputError: a record has no key, where there must be one.
        CorruptionError: a fragment is damaged; nothing was changed.
    """
    chosen = [logs] if isinstance(logs, Log) else given_all(logs, Log, "a log")
    if not chosen or any(not log.store.is_same_as(chosen[0].store) for log in chosen):
        raise InvalidInputError("a compaction takes one log at least, and all of one store")
    if compression not in {"none", "snappy", "lz4", "zstd"}:
        raise InvalidInputError(
            f"there is no compression {compression!r}", hint="use none, snappy, lz4 or zstd"
        )
    if max_bytes is not None and max_bytes < 1:
        raise InvalidInputError(f"max_bytes is a number of at least 1, not {max_bytes!r}")
    settings = CompactSettings(
        store=chosen[0].store.url,
        logs=tuple(dict.fromkeys(log.name for log in chosen)),
        table_store=table.store.url,
        table=table.name,
        cursor=cursor,
        compression=compression,
        max_bytes=max_bytes,
        tells_in_names=table.tells_in_names,
    )
    job = Compact(settings, [chosen[0].store, table.store], table)
    if dry_run:
        _, ranges = await job.survey()
        return CompactReport(table=table.url, ranges=tuple(r for r in ranges if r.num_records))
    try:
        return await run(job, engine, progress)
    except CordwoodError as error:
        if (report := await job.overtaken(error)) is not None:
            return report
        raise
