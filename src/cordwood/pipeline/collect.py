"""Collection of many logs: a unit is one log. See log/collect.py for what a collection does.

Each is by itself: a log that cannot be collected is reported, and does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from cordwood.base.errors import CordwoodError
from cordwood.log.log import Log
from cordwood.pipeline.engine import Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store


class CollectSettings(Struct, frozen=True):
    """Which logs, and how."""

    store: str
    logs: tuple[str, ...]
    wait_s: float = 0.0
    """How long to wait for a log's grace interval; else a later collection deletes."""
    max_share: float = 1.0


class CollectUnit(Unit, frozen=True, kw_only=True):
    """One log."""

    log: str

    @property
    def title(self) -> str:
        """For people: its name."""
        return self.log


class Collected(Struct, frozen=True):
    """What the collection of one log did."""

    log: str
    records: int = 0
    """Taken out of the log."""
    bytes: int = 0
    deleted: int = 0
    """Objects."""
    oldest_offset: int = 0
    due_s: float = 0.0
    """How long until what was unlinked may be deleted; it needs another collection then."""
    held: tuple[str, ...] = ()
    """Which pins and forks kept something from being deleted."""
    again: bool = False
    """Whether a later collection has more to do."""
    error: str = ""
    """Why it could not be collected."""


class Collect(Job[CollectSettings, CollectUnit, Collected, list[Collected]]):
    """Collects many logs."""

    name = "collect"
    settings_type = CollectSettings
    unit_type = CollectUnit
    result_type = Collected

    async def plan(self, engine: Engine) -> list[CollectUnit]:
        """A unit for each log."""
        return [CollectUnit(log=name, num_bytes=1) for name in self.settings.logs]

    async def work(self, unit: CollectUnit) -> Collected:
        """Collect one log; to do it twice is to do it once."""
        log = Log(self.store(self.settings.store), unit.log)
        try:
            report = await log.collect(
                wait_s=self.settings.wait_s, max_share=self.settings.max_share
            )
        except CordwoodError as error:
            return Collected(unit.log, error=error.message)
        return Collected(
            log=unit.log,
            records=report.records,
            bytes=report.bytes,
            deleted=report.deleted,
            oldest_offset=report.oldest_offset,
            due_s=report.due_s,
            held=tuple(report.held),
            again=report.due_s > 0 or report.gave_up,
            error="the log changed under every try" if report.gave_up else "",
        )

    async def finish(self, results: Sequence[Collected]) -> list[Collected]:
        """As they are."""
        return list(results)


async def collect_logs(
    store: Store | str,
    logs: Sequence[str],
    *,
    wait_s: float = 0.0,
    max_share: float = 1.0,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> list[Collected]:
    """Free what lies before every cursor of these logs, each by itself. See `Log.collect`."""
    lies_in = Store(store) if isinstance(store, str) else store
    settings = CollectSettings(lies_in.url, tuple(logs), wait_s, max_share)
    return await run(Collect(settings, [lies_in]), engine, progress)
