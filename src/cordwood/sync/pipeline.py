"""Tables, jobs and the pipeline, blocking: each is its async twin on the background loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.given import given, given_all
from cordwood.fleet.dirty import COMPACTION
from cordwood.fleet.rollup import QUIET_S
from cordwood.fleet.select import DEFAULT_POLICY, Policy
from cordwood.log import log as async_log
from cordwood.log.format import GRACE_S_DEFAULT
from cordwood.log.scrub import ScrubReport
from cordwood.pipeline import collect as async_collect
from cordwood.pipeline import compact as async_compact
from cordwood.pipeline import delta as async_delta
from cordwood.pipeline import rollup as async_rollup
from cordwood.pipeline import run as async_run
from cordwood.pipeline import scrub as async_scrub
from cordwood.pipeline import table as async_table
from cordwood.pipeline.collect import Collected
from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.compact import CompactReport
from cordwood.pipeline.engine import AUTO, Engine, Progress
from cordwood.pipeline.reports import RunReport
from cordwood.pipeline.rollup import FleetRolledUp
from cordwood.pipeline.run import ScrubMode, Status, StepProgress, TableFormat
from cordwood.pipeline.scrub import Scrubbed
from cordwood.pipeline.table import ORPHAN_S, SweepReport
from cordwood.pipeline.tabledoc import Keyless, Mode, TableDoc
from cordwood.store.url import Store
from cordwood.sync.iterate import blocking
from cordwood.sync.log import Log


class Table:
    """A table in a store. See `cordwood.Table`."""

    def __init__(self, store: Store | str, name: str, *, entropy: Entropy = SYSTEM_ENTROPY) -> None:
        """Name a table; no I/O."""
        self.twin = async_table.Table(store, name, entropy=entropy)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The table that a single URL names."""
        named = async_table.Table.from_url(url, **options)
        return cls(named.store, named.name)

    @property
    def store(self) -> Store:
        """The store it lies in."""
        return self.twin.store

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.twin.name

    @property
    def url(self) -> str:
        """The URL that `from_url` takes."""
        return self.twin.url

    def __repr__(self) -> str:
        return f"sync.{self.twin!r}"

    def create(
        self,
        *,
        mode: Mode = "append",
        keyless: Keyless = "refuse",
        grace_s: int = GRACE_S_DEFAULT,
        orphan_s: int = ORPHAN_S,
        exist_ok: bool = False,
    ) -> None:
        """Create the table, empty."""
        work = self.twin.create(
            mode=mode, keyless=keyless, grace_s=grace_s, orphan_s=orphan_s, exist_ok=exist_ok
        )
        portal.current().run(work)

    def state(self) -> TableDoc:
        """Everything the table says of itself."""
        return portal.current().run(self.twin.state())

    def files(self) -> list[DataFile]:
        """The files that hold the rows."""
        return portal.current().run(self.twin.files())

    def scan(
        self, columns: Sequence[str] | None = None, *, verify: bool = True
    ) -> Iterator[pa.Table]:
        """The rows as they are now, a file at a time."""
        with blocking(self.twin.scan(columns, verify=verify)) as parts:
            yield from parts

    def to_arrow(self, columns: Sequence[str] | None = None, *, verify: bool = True) -> pa.Table:
        """All rows at once."""
        return portal.current().run(self.twin.to_arrow(columns, verify=verify))

    def scrub(self, progress: Progress | None = None) -> list[str]:
        """Read every file and compare it with its checksum and its setsum: what is wrong."""
        return portal.current().run(self.twin.scrub(progress))

    def sweep(self) -> SweepReport:
        """Delete files that nobody needs any more."""
        return portal.current().run(self.twin.sweep())


class Delta:
    """A Delta table in a store. See `cordwood.Delta`."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a table; no I/O."""
        self.twin = async_delta.Delta(store, name, clock=clock, entropy=entropy)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The table that a single URL names."""
        named = async_delta.Delta.from_url(url, **options)
        return cls(named.store, named.name)

    @property
    def store(self) -> Store:
        """The store it lies in."""
        return self.twin.store

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.twin.name

    @property
    def url(self) -> str:
        """Where it is."""
        return self.twin.url

    def __repr__(self) -> str:
        return f"sync.{self.twin!r}"

    def create(
        self, *, mode: Mode = "append", keyless: Keyless = "refuse", exist_ok: bool = False
    ) -> None:
        """Create the table, empty."""
        portal.current().run(self.twin.create(mode=mode, keyless=keyless, exist_ok=exist_ok))

    def files(self) -> list[DataFile]:
        """The files that hold the rows."""
        return portal.current().run(self.twin.files())

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows at once."""
        return portal.current().run(self.twin.to_arrow(columns))


class Pipeline:
    """Looks after the logs of a fleet. See `cordwood.Pipeline`."""

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
        """Nothing is done yet; no I/O."""
        self._pipeline = async_run.Pipeline(
            store,
            tables=tables,
            table=table,
            table_format=table_format,
            mode=mode,
            keyless=keyless,
            policy=policy,
            quiet_s=quiet_s,
            scrub=scrub,
            engine=engine,
            clock=clock,
            entropy=entropy,
        )

    @property
    def store(self) -> Store:
        """Where the fleet's logs lie."""
        return self._pipeline.store

    @property
    def tables(self) -> Store:
        """Where the tables lie."""
        return self._pipeline.tables

    def table_of(self, log: str) -> Table | Delta:
        """The table that a log's records go to."""
        named = self._pipeline.table_of(log)
        kind = Table if isinstance(named, async_table.Table) else Delta
        return kind(named.store, named.name)

    def run(self, *, dry_run: bool = False, progress: StepProgress | None = None) -> RunReport:
        """Do everything once."""
        return portal.current().run(self._pipeline.run(dry_run=dry_run, progress=progress))

    def every(
        self, interval_s: float, *, progress: StepProgress | None = None
    ) -> Iterator[RunReport]:
        """Run for ever, a report each time."""
        with blocking(self._pipeline.every(interval_s, progress=progress)) as reports:
            yield from reports

    def status(self, *, runs: int = 5) -> Status:
        """What waits, and what the last runs did."""
        return portal.current().run(self._pipeline.status(runs=runs))


def compact(
    logs: Log | Sequence[Log],
    table: Table | Delta,
    *,
    cursor: str = COMPACTION,
    compression: str = "zstd",
    max_bytes: int | None = None,
    dry_run: bool = False,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> CompactReport:
    """Bring what is new in some logs of one store into a table, exactly once."""
    chosen = [logs] if isinstance(logs, Log) else given_all(logs, Log, "a log")
    work = async_compact.compact(
        [_twin(log) for log in chosen],
        table.twin,
        cursor=cursor,
        compression=compression,
        max_bytes=max_bytes,
        dry_run=dry_run,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)


def scrub_log(
    log: Log,
    *,
    sample: int | None = None,
    resume: Path | str | None = None,
    entropy: Entropy = SYSTEM_ENTROPY,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> ScrubReport:
    """Check every record of a log, on the engine of this name."""
    work = async_scrub.scrub_log(
        _twin(log),
        sample=sample,
        resume=resume,
        entropy=entropy,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)


def scrub_logs(
    logs: Sequence[Log],
    *,
    sample: int | None = None,
    dry_run: bool = False,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> list[Scrubbed]:
    """Check every record of some logs of one store, or samples of them; each is by itself."""
    work = async_scrub.scrub_logs(
        [_twin(log) for log in given_all(logs, Log, "a log")],
        sample=sample,
        dry_run=dry_run,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)


def collect_logs(
    store: Store | str,
    logs: Sequence[str],
    *,
    wait_s: float = 0.0,
    max_share: float = 1.0,
    dry_run: bool = False,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> list[Collected]:
    """Free what lies before every cursor of these logs, each by itself."""
    work = async_collect.collect_logs(
        store,
        logs,
        wait_s=wait_s,
        max_share=max_share,
        dry_run=dry_run,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)


def roll_up_fleet(
    store: Store | str,
    *,
    policy: Policy = DEFAULT_POLICY,
    quiet_s: float = QUIET_S,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> FleetRolledUp:
    """Roll up all dirty logs of a store, and select what is worth a compaction."""
    work = async_rollup.roll_up_fleet(
        store,
        policy=policy,
        quiet_s=quiet_s,
        dry_run=dry_run,
        clock=clock,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)


def _twin(log: Log) -> async_log.Log:
    return async_log.Log(given(log, Log, "a log").store, log.name)
