"""What the runs of a pipeline did, kept in the store: one small JSON object for each run.

::

    pipeline/runs/<when it began, microseconds>-<id>.json

A run writes its report before it changes anything and again after every step. So whoever finds one
that has no end knows what a run that died had taken in hand, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from cordwood.base.errors import CorruptionError, NotFoundError
from cordwood.fleet.select import Reason
from cordwood.pipeline.collect import Collected
from cordwood.pipeline.compact import CompactReport
from cordwood.store.streams import as_generator
from cordwood.store.url import Store

PREFIX = "pipeline/runs/"

KEPT = 100
"""Reports that stay."""


class Chosen(Struct, frozen=True):
    """A log that was to be compacted, and why."""

    log: str
    records: int
    num_bytes: int
    reasons: tuple[Reason, ...]


class Scrubbed(Struct, frozen=True):
    """What a scrub of one log found."""

    log: str
    ok: bool
    records: int = 0
    errors: tuple[str, ...] = ()


class RunReport(Struct, frozen=True, kw_only=True):
    """What one run of a pipeline did."""

    format: int = 1
    id: str
    begun_us: int
    ended_us: int = 0
    """0: it goes on, or it died."""
    dry_run: bool = False
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


async def last_runs(store: Store, count: int) -> list[RunReport]:
    """The last reports, the newest first. One LIST, one GET each.

    Raises:
        CorruptionError: there is something among them that is none.
    """
    found = []
    for key in reversed((await _keys(store))[-count:] if count else []):
        try:
            data, _ = await store.get(key)
        except NotFoundError:
            continue
        try:
            found.append(msgspec.json.decode(data, type=RunReport))
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"{key} is not the report of a run: {error}",
                where=key,
                hint="delete it: it only says what was done",
            ) from error
    return found


async def prune(store: Store, kept: int = KEPT) -> None:
    """Delete old reports. One LIST, one DELETE."""
    keys = await _keys(store)
    if len(keys) > kept:
        await store.delete(keys[:-kept])


def left_behind(runs: Sequence[RunReport]) -> list[str]:
    """Logs that are still to be collected, said by runs, the newest first.

    The newest that came to its end says what it left; those after it may have died.
    """
    found: dict[str, None] = {}
    for run in runs:
        found.update(dict.fromkeys(run.waiting))
        if run.is_done:
            break
        found.update(dict.fromkeys(one.log for one in run.chosen))
    return sorted(found)


def left_unswept(runs: Sequence[RunReport]) -> list[str]:
    """Tables with files that are still to be deleted. As `left_behind`."""
    found: dict[str, None] = {}
    for run in runs:
        found.update(dict.fromkeys(run.unswept))
        if run.is_done:
            break
    return sorted(found)


async def _keys(store: Store) -> list[str]:
    async with aclosing(as_generator(store.list(PREFIX))) as metas:
        return [meta.key async for meta in metas]
