"""Many volumes tended at once: checkpoints made, pages brought here. A unit is one volume.

Each is by itself: one that fails is reported, and does not hold up the others. To do a unit twice
is to do it once: a checkpoint that is there is found, a page that is here is not fetched again.

Collection looks at all volumes of a store together: pipeline/forest.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import CordwoodError, InvalidInputError
from cordwood.pipeline.engine import Engine, Progress, run
from cordwood.pipeline.forest import collect_forest
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store
from cordwood.volume.collect import KEEP_S
from cordwood.volume.remote import Remote
from cordwood.volume.volume import Volume

Action = Literal["checkpoint", "hydrate", "collect"]


class TendSettings(Struct, frozen=True):
    """Which volumes, and what is to be done."""

    store: str
    action: Action
    volumes: tuple[str, ...] = ()
    directory: str | None = None
    """Where pages are brought to; a checkpoint needs none."""


class TendUnit(Unit, frozen=True, kw_only=True):
    """One volume."""

    volume: str

    @property
    def title(self) -> str:
        """For people: its name."""
        return self.volume


class Tended(Struct, frozen=True):
    """What was done for one volume."""

    volume: str
    lsn: int = 0
    """The version that it was done for."""
    bytes: int = 0
    """Written by a checkpoint, or fetched."""
    deleted: int = 0
    """Objects, by a collection."""
    due_s: float = 0.0
    """How long until what a collection marked may be deleted."""
    error: str = ""


class TendVolumes(Job[TendSettings, TendUnit, Tended, list[Tended]]):
    """Does one thing for many volumes."""

    name = "volumes"
    settings_type = TendSettings
    unit_type = TendUnit
    result_type = Tended

    async def plan(self, engine: Engine) -> list[TendUnit]:
        """A unit for each volume."""
        return [TendUnit(volume=name, num_bytes=1) for name in self.settings.volumes]

    async def work(self, unit: TendUnit) -> Tended:
        """Do it for one."""
        settings = self.settings
        store = self.store(settings.store)
        try:
            if settings.action == "hydrate":
                return await _hydrate(store, unit.volume, settings.directory or "")
            return await _checkpoint(store, unit.volume)
        except CordwoodError as error:
            return Tended(unit.volume, error=error.message)

    async def finish(self, results: Sequence[Tended]) -> list[Tended]:
        """As they are."""
        return list(results)


async def tend_volumes(
    store: Store | str,
    action: Action,
    volumes: Sequence[str] = (),
    *,
    directory: str | os.PathLike[str] | None = None,
    keep_s: float = KEEP_S,
    grace_s: float | None = None,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> list[Tended]:
    """Make checkpoints of volumes, bring their pages here, or collect all of a store.

    Args:
        store: where the volumes are.
        action: `checkpoint`, `hydrate` or `collect`.
        volumes: their names; all of the store by default.
        directory: where pages are brought to, on whichever machine does the work.
        keep_s: how far back a collection keeps every version.
        grace_s: a longer grace for a collection.
        engine: `local`, `spark`.
        progress: called with volumes done and volumes there are.

    Raises:
        InvalidInputError: there is no such action, or a directory is missing.
    """
    lies_in = store if isinstance(store, Store) else Store(store)
    if action not in {"checkpoint", "hydrate", "collect"}:
        raise InvalidInputError(f"action {action!r}", hint="checkpoint, hydrate or collect")
    if action == "hydrate" and directory is None:
        raise InvalidInputError("pages are brought to a directory", hint="pass directory=…")
    if action == "collect":
        report = await collect_forest(lies_in, keep_s, grace_s, engine, progress)
        done = Tended("", deleted=report.deleted, due_s=report.due_s, error=report.skipped)
        return [done]
    names = tuple(dict.fromkeys(volumes))
    if not names:
        names = tuple(sorted(await Remote(lies_in, SYSTEM_CLOCK, SYSTEM_ENTROPY).list_tags()))
    place = None if directory is None else os.fspath(directory)
    settings = TendSettings(lies_in.url, action, names, place)
    return await run(TendVolumes(settings, [lies_in]), engine, progress)


async def _hydrate(store: Store, name: str, directory: str) -> Tended:
    async with Volume(store, name, directory=directory) as volume:
        fetched = await volume.hydrate()
        return Tended(name, lsn=(await volume.status(offline=True)).lsn, bytes=fetched)


async def _checkpoint(store: Store, name: str) -> Tended:
    """Needs what the version is made of, and no longer than it takes."""
    with tempfile.TemporaryDirectory(prefix="cordwood-") as directory:
        async with Volume(store, name, directory=directory) as volume:
            made = await volume.checkpoint()
            return Tended(name, lsn=made.checkpoint.lsn, bytes=made.bytes_written)
