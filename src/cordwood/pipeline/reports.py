"""What the runs of a pipeline did, kept in the store: one small JSON object for each run.

::

    pipeline/runs/<when it began, microseconds>-<id>.json

A run writes its report before it changes anything and again after every step. So whoever finds one
that has no end knows what a run that died had taken in hand, and goes on from there.

Reports only say what was done and what is left to tidy up. One that cannot be read, or something
else that lies among them, is told with a warning and holds up nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from cordwood.base.errors import CordwoodWarning, NotFoundError
from cordwood.fleet.select import Reason
from cordwood.pipeline.collect import Collected
from cordwood.pipeline.compact import CompactReport
from cordwood.pipeline.each import each
from cordwood.pipeline.scrub import Scrubbed
from cordwood.store.streams import as_generator
from cordwood.store.url import Store

PREFIX = "pipeline/runs/"

KEPT = 100
"""Reports that stay."""

READS_AT_ONCE = 10

DEAD_US = 86_400 * 1_000_000
"""A run that began so long ago and has no end is dead: no compaction of its time can commit now."""

_NAME = re.compile(re.escape(PREFIX) + r"[0-9]{20}-[0-9a-f]+\.json")


class Chosen(Struct, frozen=True):
    """A log that was to be compacted, and why."""

    log: str
    records: int
    num_bytes: int
    reasons: tuple[Reason, ...]


class RunReport(Struct, frozen=True, kw_only=True):
    """What one run of a pipeline did."""

    format: int = 1
    id: str
    begun_us: int
    ended_us: int = 0
    """0: it goes on, or it died."""
    dry_run: bool = False
    engine: str = ""
    """What did the work."""
    tables: str = ""
    """The URL of the store that its tables lie in."""
    marks: int = 0
    """Read by the roll-up."""
    dirty: int = 0
    """Logs with something to compact."""
    chosen: tuple[Chosen, ...] = ()
    compacted: tuple[CompactReport, ...] = ()
    collected: tuple[Collected, ...] = ()
    scrubbed: tuple[Scrubbed, ...] = ()
    swept: int = 0
    """Files of tables deleted."""
    waiting: tuple[str, ...] = ()
    """Logs that a later run has to collect again."""
    unswept: tuple[str, ...] = ()
    """Tables in which a later run has files to delete; while it goes on, also those it writes."""
    errors: dict[str, str] = {}
    """What went wrong, by log, member or table; nothing of it held up the rest."""

    @property
    def is_done(self) -> bool:
        """Whether it came to its end."""
        return self.ended_us > 0

    @property
    def records(self) -> int:
        """How many records were compacted."""
        return sum(one.records for one in self.compacted if one.committed)

    @property
    def key(self) -> str:
        """Where it is kept."""
        return f"{PREFIX}{self.begun_us:020d}-{self.id}.json"


async def save(store: Store, report: RunReport) -> None:
    """Write a report, in place of the one before. One PUT; nobody else writes it."""
    await store.put(report.key, msgspec.json.encode(report), "overwrite")


async def last_runs(store: Store, count: int | None = None) -> list[RunReport]:
    """The last reports, or all, the newest first. One LIST, one GET each."""
    keys = await _keys(store)
    found = await each(
        reversed(keys if count is None else keys[max(0, len(keys) - count) :]),
        lambda key: _read(store, key),
        READS_AT_ONCE,
    )
    return [report for report in found if report is not None]


async def _read(store: Store, key: str) -> RunReport | None:
    """A report, if it is one. One GET."""
    try:
        return msgspec.json.decode((await store.get(key)).data, type=RunReport)
    except NotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _warn(f"{key} is not the report of a run, and is left out: {error}; it may be deleted")
        return None


async def prune(store: Store, kept: int = KEPT, spared: Collection[str] = ()) -> None:
    """Delete old reports, but for those spared. One LIST, one DELETE."""
    old = [key for key in (await _keys(store))[:-kept] if key not in spared]
    if old:
        await store.delete(old)


def open_runs(runs: Sequence[RunReport]) -> list[RunReport]:
    """Of all runs, the newest first, those that say what is still to be tidied up.

    That is the newest that came to its end; whatever ended after that one had begun, of which it
    cannot have known; and every one without an end, until it is surely dead and was followed by one
    that came to its end: it may have died, or be at work.
    """
    begun_us = next((run.begun_us for run in runs if run.is_done), 0)
    return [
        run
        for run in runs
        if (run.ended_us >= begun_us if run.is_done else run.begun_us + DEAD_US > begun_us)
    ]


def left_behind(runs: Sequence[RunReport]) -> list[str]:
    """Logs that are still to be collected, said by runs, the newest first."""
    found: set[str] = set()
    for run in open_runs(runs):
        found |= {*run.waiting}
        if not run.is_done:
            found |= {one.log for one in run.chosen}
    return sorted(found)


def left_unswept(runs: Sequence[RunReport], tables: str) -> list[str]:
    """Tables of the store at this URL with files that are still to be deleted."""
    alike = [run for run in runs if run.tables == tables]
    return sorted({name for run in open_runs(alike) for name in run.unswept})


async def _keys(store: Store) -> list[str]:
    """Where the reports are, the oldest first; what else lies there is not touched."""
    async with aclosing(as_generator(store.list(PREFIX))) as metas:
        found = [meta.key async for meta in metas]
    for key in found:
        if not _NAME.fullmatch(key):
            _warn(f"{key} lies among the reports of runs and is none: it is left alone")
    return [key for key in found if _NAME.fullmatch(key)]


def _warn(message: str) -> None:
    warnings.warn(message, CordwoodWarning, stacklevel=2)
