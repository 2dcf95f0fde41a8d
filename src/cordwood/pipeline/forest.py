"""Collection of all volumes of a store, as a job: what is heavy is to read every commit.

::

    plan    what is due is deleted but packs; packs that may go; everything that may name one
    work    some commits and checkpoints ─▶ the packs that they name
    finish  packs that none of them names are deleted; then what can go is marked

See volume/collect.py for why nothing that is needed can go, in whatever order this is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import FormatError, InternalError
from cordwood.pipeline.engine import Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store
from cordwood.volume.collect import Collector, CollectReport, Key, Swept, packs_named
from cordwood.volume.remote import Remote

UNIT_KEYS = 1_000


class ForestSettings(Struct, frozen=True):
    """Which store, and how much is kept."""

    store: str
    keep_s: float
    grace_s: float | None = None


class NamingUnit(Unit, frozen=True, kw_only=True):
    """Some commits and checkpoints."""

    keys: tuple[Key, ...]

    @property
    def title(self) -> str:
        """For people: how many."""
        return f"{len(self.keys)} commits"


class Named(Struct, frozen=True):
    """The packs that they name."""

    packs: tuple[str, ...] = ()
    error: str = ""
    """What is damaged: then nobody knows what it names."""


class CollectForest(Job[ForestSettings, NamingUnit, Named, CollectReport]):
    """Collects all volumes of a store."""

    name = "forest"
    settings_type = ForestSettings
    unit_type = NamingUnit
    result_type = Named

    _swept: Swept | None = None

    def _remote(self) -> Remote:
        return Remote(self.store(self.settings.store), SYSTEM_CLOCK, SYSTEM_ENTROPY)

    def _collector(self) -> Collector:
        kept = self.settings
        return Collector(self._remote(), keep_s=kept.keep_s, grace_s=kept.grace_s)

    async def plan(self, engine: Engine) -> list[NamingUnit]:
        """Delete what is due but packs; who may name one."""
        self._swept = await self._collector().begin_sweep()
        keys = self._swept.keys
        return [
            NamingUnit(keys=tuple(keys[at : at + UNIT_KEYS]), num_bytes=1)
            for at in range(0, len(keys), UNIT_KEYS)
        ]

    async def work(self, unit: NamingUnit) -> Named:
        """Read some."""
        try:
            return Named(tuple(sorted(await packs_named(self._remote(), unit.keys))))
        except FormatError as error:
            return Named(error=error.message)

    async def finish(self, results: Sequence[Named]) -> CollectReport:
        """Delete packs that nobody names, and mark what can go."""
        if self._swept is None:
            raise InternalError("a collection was finished before it was planned")
        collector = self._collector()
        damaged = next((result.error for result in results if result.error), "")
        report = self._swept.report
        if damaged:
            report.skipped = f"packs were left alone: {damaged}"
        else:
            named = {pack for result in results for pack in result.packs}
            await collector.end_sweep(self._swept, named)
        return await collector.mark_after(report)


async def collect_forest(
    store: Store,
    keep_s: float,
    grace_s: float | None,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> CollectReport:
    """Remove old versions and what nothing needs, of all volumes of a store."""
    settings = ForestSettings(store.url, keep_s, grace_s)
    return await run(CollectForest(settings, [store]), engine, progress)
