"""Collection of many logs: a unit is one log. See log/collect.py for what a collection does.

Each is by itself: a log that cannot be collected is reported, and does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from cordwood.base.errors import Code, CordwoodError, NotFoundError
from cordwood.base.given import given_all
from cordwood.log.collect import FRAGMENTS_MAX
from cordwood.log.cut import plan_cut
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
    dry_run: bool = False
    """Only say what would be taken out."""


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
        settings = self.settings
        try:
            if settings.dry_run:
                return await _foreseen(log)
            report = await log.collect(wait_s=settings.wait_s, max_share=settings.max_share)
        except CordwoodError as error:
            return Collected(unit.log, again=_may_pass(error), error=error.message)
        return Collected(
            log=unit.log,
            records=report.records,
            bytes=report.bytes,
            deleted=report.deleted,
            oldest_offset=report.oldest_offset,
            due_s=report.due_s,
            held=tuple(report.held),
            again=report.due_s > 0 or report.gave_up or bool(report.held or report.skipped),
            error="the log changed under every try" if report.gave_up else report.skipped,
        )

    async def finish(self, results: Sequence[Collected]) -> list[Collected]:
        """As they are."""
        return list(results)


async def _foreseen(log: Log) -> Collected:
    """What a collection would take out of the log now. A few GETs, nothing is changed."""
    positions = [witness.offset for witness in (await log.cursors.list()).values()]
    manifest = await log.manifest()
    oldest = manifest.oldest_offset
    if not positions:
        return Collected(log.name, oldest_offset=oldest, error="it has no cursor")
    cut = await plan_cut(log.objects, manifest, min(positions), manifest.writer, FRAGMENTS_MAX)
    if cut is None:
        return Collected(log.name, oldest_offset=oldest)
    return Collected(
        log.name,
        records=cut.first_to_keep - oldest,
        bytes=sum(pointer.num_bytes for pointer in cut.dropped),
        oldest_offset=cut.first_to_keep,
    )


def _may_pass(error: CordwoodError) -> bool:
    """Whether a later collection may succeed where this one failed.

    Where no log is, or no cursor, there is nothing to collect before the next compaction.
    """
    return not isinstance(error, NotFoundError) and error.code is not Code.NO_CURSOR


async def collect_logs(
    store: Store | str,
    logs: Sequence[str],
    *,
    wait_s: float = 0.0,
    max_share: float = 1.0,
    dry_run: bool = False,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> list[Collected]:
    """Free what lies before every cursor of these logs, each by itself. See `Log.collect`.

    Args:
        store: where the logs lie.
        logs: their names.
        wait_s: wait so long for a log's grace interval; else a later collection deletes.
        max_share: refuse to free more than this share of a log's bytes.
        dry_run: only say what would be taken out.
        engine: `local`, `spark`.
        progress: called with logs done and logs there are.
    """
    lies_in = store if isinstance(store, Store) else Store(store)
    names = tuple(dict.fromkeys(given_all(logs, str, "a log's name")))
    settings = CollectSettings(lies_in.url, names, wait_s, max_share, dry_run)
    return await run(Collect(settings, [lies_in]), engine, progress)
