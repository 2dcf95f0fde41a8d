"""The pipeline: roll up, compact, collect, scrub, over a whole fleet, once or again and again.

::

    roll up   which logs changed; which are worth a compaction, by size, age and patience
    compact   what is new in them becomes rows of tables
    collect   what no cursor needs is freed; also of logs that earlier runs left waiting
    scrub     samples of what is left, or all of it, is proved
    sweep     files of the tables that nobody reads any more are deleted

Every step is safe by itself, at any moment, beside any other run: a run killed anywhere is resumed
by the next one. A log that cannot be worked on is reported and holds nothing up, also where several
share a table. The report is written before the first compaction and after every step
(pipeline/reports.py). Who does the work is decided once, by how much waits (pipeline/engine.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import CordwoodError, InvalidInputError, NotFoundError, StateError
from cordwood.fleet.rollup import QUIET_S
from cordwood.fleet.select import DEFAULT_POLICY, Dirty, Policy, Reason, Selected, reasons, select
from cordwood.fleet.survey import survey
from cordwood.log.log import Log
from cordwood.pipeline import reports
from cordwood.pipeline.collect import collect_logs
from cordwood.pipeline.compact import CompactReport, compact
from cordwood.pipeline.delta import Delta
from cordwood.pipeline.each import by_halves, each
from cordwood.pipeline.engine import AUTO, Engine, Progress, choose
from cordwood.pipeline.engine import engine as find_engine
from cordwood.pipeline.reports import Chosen, RunReport
from cordwood.pipeline.rollup import FleetRolledUp, roll_up_fleet
from cordwood.pipeline.scrub import scrub_logs
from cordwood.pipeline.table import Table
from cordwood.pipeline.tabledoc import Keyless, Mode
from cordwood.store.url import Store

AT_ONCE = 4
"""Tables written together."""

SAMPLE = 8
"""Fragments that a scrub by samples reads of each log."""

ScrubMode = Literal["off", "sample", "deep"]
TableFormat = Literal["parquet", "delta"]

StepProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and how much there is."""


class Status(Struct, frozen=True):
    """What waits, and what the last runs did."""

    waiting: tuple[Dirty, ...]
    """Logs with something to compact, oldest first."""
    due: dict[str, tuple[Reason, ...]]
    """Those of them that the next run takes, and why."""
    to_collect: tuple[str, ...]
    errors: dict[str, str]
    runs: tuple[RunReport, ...]
    """The newest first."""


class Pipeline:
    """Looks after the logs of a fleet. Holds no state: everything is in the store."""

    def __init__(
        self,
        store: Store | str,
        *,
        tables: Store | str | None = None,
        table: str = "tables/{log}",
        table_format: TableFormat = "parquet",
        mode: Mode = "append",
        keyless: Keyless = "refuse",
        policy: Policy = DEFAULT_POLICY,
        quiet_s: float = QUIET_S,
        scrub: ScrubMode = "sample",
        engine: str = AUTO,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Nothing is done yet; no I/O.

        Args:
            store: where the fleet's logs lie: a Store or its URL.
            tables: where the tables lie; by default in the same store.
            table: the name of a log's table, with `{log}` for the log's name; without it all logs
                go into one.
            table_format: `parquet`, with a manifest of our own; or `delta`.
            mode: of tables that are made: `append` or `upsert`.
            keyless: what an upsert does with records without a key.
            policy: which logs are worth a compaction.
            quiet_s: a mark younger than this stays although its log needs no compaction.
            scrub: after a compaction, prove nothing, samples, or every record.
            engine: `auto`, `local`, `spark`.
            clock: what time it is.
            entropy: where ids come from.
        """
        self.store = store if isinstance(store, Store) else Store(store)
        self.tables = (
            self.store if tables is None else tables if isinstance(tables, Store) else Store(tables)
        )
        if scrub not in {"off", "sample", "deep"} or table_format not in {"parquet", "delta"}:
            raise InvalidInputError(f"no pipeline has scrub {scrub!r}, format {table_format!r}")
        self._table = table
        self._format = table_format
        self._mode: Mode = mode
        self._keyless: Keyless = keyless
        self._policy = policy
        self._quiet_s = quiet_s
        self._scrub = scrub
        self._engine = engine
        self._clock = clock
        self._entropy = entropy
        self.table_of("log")  # It says now if the name cannot be one.

    def table_of(self, log: str) -> Table | Delta:
        """The table that a log's records go to."""
        name = self._table.replace("{log}", log)
        if self._format == "delta":
            return Delta(self.tables, name, entropy=self._entropy)
        return Table(self.tables, name, entropy=self._entropy)

    async def run(
        self, *, dry_run: bool = False, progress: StepProgress | None = None
    ) -> RunReport:
        """Do everything once. What goes wrong with one log is in the report.

        Args:
            dry_run: only say what would be compacted; nothing is changed, no report is kept.
            progress: called as each step goes on.

        Raises:
            NotFoundError: there is no fleet in the store.
            StateError: the engine cannot run here.
            StoreError: the store itself failed.
        """
        before = await reports.last_runs(self.store)
        # Behind the last one, whatever the clock says: the order of reports is that of runs.
        begun_us = max([self._clock.now_us(), *(run.begun_us + 1 for run in before[:1])])
        report = RunReport(
            id=self._entropy.token(),
            begun_us=begun_us,
            dry_run=dry_run,
            tables=self.tables.url,
        )
        if dry_run:
            return await self._dry(report, before)
        self._check_engine()
        rolled = await self._roll_up(before, progress)
        num_bytes = sum(one.dirty.num_bytes for one in rolled.selected)
        engine = await choose(self._engine, num_bytes, [self.store, self.tables])
        if rolled.selected:
            await engine.start()
        report = replace(
            report,
            engine=engine.name,
            marks=sum(member.marks for member in rolled.members),
            dirty=len(rolled.dirty),
            chosen=tuple(map(_chosen, rolled.selected)),
            waiting=tuple(reports.left_behind(before)),
            unswept=self._unswept(before, rolled.selected),
            errors=rolled.errors,
        )
        await reports.save(self.store, report)
        report = await self._compact(report, engine, progress)
        await reports.save(self.store, report)
        report = await self._collect(report, engine, progress)
        await reports.save(self.store, report)
        report = await self._prove(report, engine, progress)
        report = await self._sweep(report)
        report = replace(report, ended_us=max(self._clock.now_us(), report.begun_us))
        await reports.save(self.store, report)
        await reports.prune(
            self.store, spared={run.key for run in reports.open_runs([report, *before])}
        )
        return report

    async def every(
        self, interval_s: float, *, progress: StepProgress | None = None
    ) -> AsyncGenerator[RunReport, None]:
        """Run for ever, `interval_s` seconds from one end to the next begin; a report each time.

        A run that fails has an error and no end, and does not end the loop: the next one may find
        the store well.
        """
        if not interval_s > 0:
            raise InvalidInputError(f"an interval is more than 0 seconds, not {interval_s!r}")
        self._check_engine()
        while True:
            try:
                report = await self.run(progress=progress)
            except CordwoodError as error:
                report = RunReport(
                    id=self._entropy.token(),
                    begun_us=self._clock.now_us(),
                    tables=self.tables.url,
                    errors={self.store.url: str(error)},
                )
            yield report
            await asyncio.sleep(interval_s)

    async def status(self, *, runs: int = 5) -> Status:
        """What waits, and what the last runs did. Nothing is changed."""
        past = await reports.last_runs(self.store)
        found = await survey(self.store, clock=self._clock)
        now_us = self._clock.now_us()
        due = {one.log: why for one in found.dirty if (why := reasons(one, self._policy, now_us))}
        errors = {name: why for member in found.members for name, why in member.errors.items()}
        errors |= {member.member: member.damage for member in found.members if member.damage}
        return Status(
            tuple(found.dirty), due, tuple(reports.left_behind(past)), errors, tuple(past[:runs])
        )

    def _check_engine(self) -> None:
        """Raise if an engine that was named cannot run here, before anything is changed."""
        if self._engine == AUTO:
            return
        if reason := find_engine(self._engine).refuses([self.store, self.tables]):
            raise StateError(reason, hint="use the engine local")

    # The steps.

    async def _dry(self, report: RunReport, before: Sequence[RunReport]) -> RunReport:
        found = await survey(self.store, clock=self._clock)
        if not found.members and not before:
            raise self._no_fleet()
        selected = select(found.dirty, self._clock.now_us(), self._policy)
        return replace(
            report,
            dirty=len(found.dirty),
            chosen=tuple(map(_chosen, selected)),
            waiting=tuple(reports.left_behind(before)),
        )

    async def _roll_up(
        self, before: Sequence[RunReport], progress: StepProgress | None
    ) -> FleetRolledUp:
        """Which logs changed, and which of them are worth it. Here: it is a few small requests."""
        step = _Step(progress, "roll up", 1)
        rolled = await roll_up_fleet(
            self.store, policy=self._policy, quiet_s=self._quiet_s, clock=self._clock
        )
        if not rolled.members and not before:
            raise self._no_fleet()
        step.done()
        return rolled

    def _no_fleet(self) -> NotFoundError:
        return NotFoundError(
            f"there is no fleet in {self.store.url}: no member has marked a log there",
            hint="check the URL; logs are marked by who writes through cordwood.Fleet",
        )

    async def _compact(
        self, report: RunReport, engine: Engine, progress: StepProgress | None
    ) -> RunReport:
        """Each table by itself; a table that several logs share gets them in one commit.

        If that fails, the logs that can be compacted are, without the others.
        """
        by_table: dict[str, list[str]] = {}
        for one in report.chosen:
            by_table.setdefault(self.table_of(one.log).name, []).append(one.log)
        step = _Step(progress, "compact", len(by_table))
        errors = dict(report.errors)

        async def work(name: str) -> list[CompactReport]:
            table, logs = self.table_of(by_table[name][0]), by_table[name]
            failed: dict[str, str] = {}

            async def together(names: Sequence[str]) -> CompactReport:
                some = [Log(self.store, log, entropy=self._entropy) for log in names]
                return await compact(some, table, engine=engine)

            def spoils(log: str, error: CordwoodError) -> None:
                failed[log] = error.message

            try:
                await table.create(mode=self._mode, keyless=self._keyless, exist_ok=True)
                await table.look()
                return await by_halves(logs, together, spoils)
            except CordwoodError as error:
                failed[name] = error.message
                return []
            finally:
                # What is wrong with all of several logs alike is wrong with their table.
                alike = set(failed.values()) if len(failed) == len(logs) > 1 else set()
                errors.update({name: alike.pop()} if len(alike) == 1 else failed)
                step.done()

        done = await each(list(by_table), work, AT_ONCE)
        compacted = tuple(one for of_table in done for one in of_table)
        return replace(report, compacted=compacted, errors=errors)

    async def _collect(
        self, report: RunReport, engine: Engine, progress: StepProgress | None
    ) -> RunReport:
        """What was to be compacted now, and what earlier runs left.

        Also what could not be: an earlier run may have compacted it and died.
        """
        logs = sorted({*report.waiting, *(one.log for one in report.chosen)})
        try:
            done = await collect_logs(
                self.store, logs, engine=engine, progress=_told(progress, "collect")
            )
        except CordwoodError as error:
            # Of a unit that nobody could do; each is to be collected again.
            errors = report.errors | {self.store.url: error.message}
            return replace(report, waiting=tuple(logs), errors=errors)
        # That a log which was never compacted cannot be collected either says nothing new.
        wrong = {one.log: one.error for one in done if one.error and one.again}
        return replace(
            report,
            collected=tuple(done),
            waiting=tuple(one.log for one in done if one.again),
            errors=wrong | report.errors,
        )

    async def _prove(
        self, report: RunReport, engine: Engine, progress: StepProgress | None
    ) -> RunReport:
        if self._scrub == "off":
            return report
        logs = [Log(self.store, name, entropy=self._entropy) for name in _logs_of(report.compacted)]
        done = await scrub_logs(
            logs,
            sample=SAMPLE if self._scrub == "sample" else None,
            engine=engine,
            progress=_told(progress, "scrub"),
        )
        errors = {one.log: one.errors[0] for one in done if not one.ok}
        return replace(report, scrubbed=tuple(done), errors=report.errors | errors)

    def _unswept(
        self, before: Sequence[RunReport], selected: Sequence[Selected]
    ) -> tuple[str, ...]:
        """The tables to be swept; of Delta its own tools look after that."""
        if self._format == "delta":
            return ()
        chosen = (self.table_of(one.dirty.log).name for one in selected)
        return tuple(sorted({*reports.left_unswept(before, self.tables.url), *chosen}))

    async def _sweep(self, report: RunReport) -> RunReport:
        """Tables that were written now, and those in which files still waited to be deleted."""
        swept, waiting = 0, []
        errors = dict(report.errors)
        for name in report.unswept:
            try:
                found = await Table(self.tables, name, entropy=self._entropy).sweep()
            except NotFoundError:
                continue  # Its first compaction failed, or somebody deleted it.
            except CordwoodError as error:
                errors.setdefault(name, error.message)
                waiting.append(name)
                continue
            swept += found.dropped + found.orphans
            if found.waiting or found.young:
                waiting.append(name)
        return replace(report, swept=swept, unswept=tuple(waiting), errors=errors)


def _chosen(one: Selected) -> Chosen:
    dirty = one.dirty
    return Chosen(dirty.log, dirty.num_records, dirty.num_bytes, one.reasons)


def _logs_of(compacted: Sequence[CompactReport]) -> list[str]:
    return sorted({ranged.log for one in compacted for ranged in one.ranges})


def _told(progress: StepProgress | None, step: str) -> Progress | None:
    """The progress of a job as that of a step."""
    return None if progress is None else lambda done, total: progress(step, done, total)


class _Step:
    """Tells how far a step is."""

    def __init__(self, progress: StepProgress | None, name: str, total: int) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._count = -1
        self.done()

    def done(self) -> None:
        """One more is done."""
        self._count += 1
        if self._progress is not None:
            self._progress(self._name, self._count, self._total)
