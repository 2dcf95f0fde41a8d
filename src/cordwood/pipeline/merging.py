"""Merges of an index on a store, in units: every group of segments becomes one, wherever that is.

The driver takes permission for all groups (StartMerge), which is bound to the handle it keeps open;
units read the segments of a group, leave out what was deleted by then, and upload the new segment
with its idmap. The driver then ends each merge in a transaction of its own, which carries over what
was deleted meanwhile. A driver that dies leaves merges that its lease does not keep up: the next
one cancels them.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct
from pyroaring import BitMap

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import ConflictError, UncertainError
from cordwood.base.workers import in_worker
from cordwood.index.cache import SegmentCache
from cordwood.index.draft import Draft, Ended
from cordwood.index.engine import Engine as IndexEngine
from cordwood.index.home import Files
from cordwood.index.ledger import EndMerge
from cordwood.index.merge import merge
from cordwood.index.policy import Sized, worth_merging
from cordwood.index.segment import Segment, View
from cordwood.index.shelf import Shelf
from cordwood.pipeline.each import each
from cordwood.pipeline.engine import AUTO, Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.store.url import Store


class MergeSettings(Struct, frozen=True):
    """Which index."""

    store: str
    index: str
    tiered: bool = True


class Source(Struct, frozen=True):
    """A segment that is merged."""

    segment: int
    deleted: str
    """The documents to leave out: a Roaring set, in base 64."""


class MergeUnit(Unit, frozen=True, kw_only=True):
    """Segments that become one."""

    started: int
    sources: tuple[Source, ...]

    @property
    def title(self) -> str:
        """For people: which segments."""
        return f"segments {', '.join(str(source.segment) for source in self.sources)}"


class Merged(Struct, frozen=True):
    """The segment that they became."""

    started: int
    segment: int
    documents: int
    size_bytes: int


class MergeReport(Struct, frozen=True):
    """What was merged."""

    merges: int
    segments_before: int
    segments_after: int


class MergeIndex(Job[MergeSettings, MergeUnit, Merged, MergeReport]):
    """Merges what is worth it, or all."""

    name = "merge"
    settings_type = MergeSettings
    unit_type = MergeUnit
    result_type = Merged

    _engine: IndexEngine | None = None
    _open: AbstractContextManager[Any] | None = None
    _visit: Any = None
    _before = 0
    _began_s = 0.0

    def __init__(self, settings: MergeSettings, stores: Iterable[Store] = ()) -> None:
        """No I/O."""
        super().__init__(settings, stores)
        self._units: list[MergeUnit] = []
        self._ended: set[int] = set()

    async def weigh(self) -> int:
        """The bytes of all segments: an upper bound."""
        return (await asyncio.to_thread(self._index().state)).size_bytes

    async def plan(self, engine: Engine) -> list[MergeUnit]:
        """Take permission for groups of segments."""
        await asyncio.to_thread(self._begin)
        return list(self._units)

    def _begin(self) -> None:
        self._began_s = SYSTEM_CLOCK.monotonic_s()
        index = self._index()
        index.home.cancel_dead_merges()
        self._open = index.visiting()
        self._visit, snapshot = self._open.__enter__()
        busy = self._visit.state.merging()
        views = {v.segment.number: v for v in snapshot.views if v.segment.number not in busy}
        self._before = len(snapshot.views)
        while views:
            chosen = self._choose(list(views.values()))
            if not chosen:
                break
            group = [views.pop(number) for number in sorted(chosen)]
            numbers = tuple(view.segment.number for view in group)
            try:
                started = index.home.commit(self._visit, Draft(start=numbers), Files({}, {}))
            except UncertainError:
                raise
            except ConflictError:
                continue  # Somebody else began to merge one of them: then that is done.
            self._units.append(
                MergeUnit(
                    started=started,
                    sources=tuple(_source(view) for view in group),
                    num_bytes=sum(view.segment.size_bytes for view in group),
                )
            )

    def _choose(self, views: list[View]) -> set[int]:
        if self.settings.tiered:
            sized = [Sized(v.segment.number, v.documents, len(v.deleted)) for v in views]
            return worth_merging(sized)
        if len(views) == 1 and not views[0].deleted:
            return set()
        return {view.segment.number for view in views}

    async def work(self, unit: MergeUnit) -> Merged:
        """Merge one group. A GET for each segment that is not in this machine's cache, two PUTs."""
        store = self.store(self.settings.store)
        cache = SegmentCache(None, f"{self.settings.store}/{self.settings.index}")

        async def view(source: Source) -> View:
            key = self._key(source.segment, "idx")
            opened = cache.find(source.segment)
            if opened is None:
                opened = cache.keep(source.segment, (await store.get(key)).data)
            gone = BitMap.deserialize(base64.b64decode(source.deleted))
            return View(Segment(source.segment, opened, key), gone)

        views = await each(unit.sources, view, 2)
        number = int(SYSTEM_ENTROPY.token()[:15], 16) + 1
        with tempfile.TemporaryDirectory(prefix="cordwood-merge-") as folder:
            documents = await in_worker(_merge, views, Path(folder))
            size_bytes = await self._upload(store, number, Path(folder))
        return Merged(unit.started, number, documents, size_bytes)

    async def _upload(self, store: Store, number: int, folder: Path) -> int:
        idmap = await asyncio.to_thread((folder / "idmap").read_bytes)
        await store.put(self._key(number, "idmap"), idmap, "create")
        data = await asyncio.to_thread((folder / "segment").read_bytes)
        await store.put(self._key(number, "idx"), data, "create")
        return len(data)

    async def finish(self, results: Sequence[Merged]) -> MergeReport:
        """End each merge."""
        gone = await asyncio.to_thread(self._end, results)
        return MergeReport(len(self._ended), self._before, self._before - gone)

    def _end(self, results: Sequence[Merged]) -> int:
        gone = 0
        for unit, result in zip(self._units, results, strict=True):
            numbers = tuple(source.segment for source in unit.sources)
            entry = EndMerge(
                unit.started, result.segment, result.documents, result.size_bytes, numbers
            )
            seen = {
                source.segment: BitMap.deserialize(base64.b64decode(source.deleted))
                for source in unit.sources
            }
            try:
                draft = Draft(ended=Ended(entry, seen))
                self._index().home.commit(self._visit, draft, Files({}, {}, self._began_s))
            except UncertainError:
                raise
            except ConflictError:
                continue  # It was taken for dead and cancelled: its uploads go by age.
            self._ended.add(unit.started)
            gone += len(numbers) - 1
        return gone

    async def close(self) -> None:
        """Cancel what was not ended, and let go of the handle."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            left = tuple(unit.started for unit in self._units if unit.started not in self._ended)
            for started in left:
                try:
                    engine.home.commit(self._visit, Draft(cancel=(started,)), Files({}, {}))
                except ConflictError:
                    continue
        finally:
            if self._open is not None:
                self._open.__exit__(None, None, None)
            engine.close()

    def _index(self) -> IndexEngine:
        if self._engine is None:
            self._engine = IndexEngine(Shelf(self.store(self.settings.store), self.settings.index))
        return self._engine

    def _key(self, number: int, kind: str) -> str:
        return f"{self.settings.index}/segment.{number}.{kind}"


def _source(view: View) -> Source:
    return Source(view.segment.number, base64.b64encode(view.deleted.serialize()).decode())


def _merge(views: Sequence[View], folder: Path) -> int:
    waiting = folder / "waiting"
    waiting.mkdir()
    with (folder / "segment").open("wb") as sink:
        return merge(views, sink, folder / "idmap", waiting).documents


async def merge_index(
    store: Store | str,
    index: str,
    *,
    tiered: bool = True,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge segments of an index on a store, on any engine.

    Args:
        store: where it is.
        index: its name there.
        tiered: only what is worth it; without, all into one.
        engine: `local`, `spark` or `auto`.
        progress: called with bytes done and bytes in all.
    """
    held = store if isinstance(store, Store) else Store(store)
    settings = MergeSettings(held.url, index, tiered)
    return await run(MergeIndex(settings, [held]), engine, progress)
