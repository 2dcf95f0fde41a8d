"""From a log into an index: what is new becomes segments, in units, and joins in one transaction.

The index's mark `log:{name}` says how far the log was read. A run reads from there to the log's
end; every unit settles the operations of its records (index/operations.py) and uploads a segment
and the ids it replaces. One transaction then adds all segments, deletes what later operations
replaced, and moves the mark; it counts only if the mark was still where the run began. So a run
that died is made again without harm, and of two at once one counts. The cursor follows, and lets
collection free the log. What a run reads is pinned: another may be quicker, and what both read be
collected.

Crash anywhere: before the commit there are uploads that nobody names, which go by age, and a pin,
which expires; between commit and cursor, the next run moves the cursor.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyroaring import BitMap

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    CordwoodError,
    StateError,
    UncertainError,
)
from cordwood.base.workers import in_worker
from cordwood.index import operations
from cordwood.index.build import Builder
from cordwood.index.draft import Draft
from cordwood.index.engine import Engine as IndexEngine
from cordwood.index.home import Files
from cordwood.index.ledger import AddSegment
from cordwood.index.operations import Op
from cordwood.index.segment import Segment, View
from cordwood.index.shelf import Shelf
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import as_texts, tokenizer
from cordwood.log.fetch import fetch_table
from cordwood.log.format import Ancestor, Fragment
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.pins import Pin, keep_pin, under_free_name
from cordwood.log.reader import Limits
from cordwood.pipeline.divide import divide
from cordwood.pipeline.engine import AUTO, Engine, Progress, run
from cordwood.pipeline.job import Job, Unit
from cordwood.pipeline.ranges import move_up

UNIT_BYTES = 64 << 20
"""A unit reads about so much: its segment takes some six times that in memory."""

PIN_S = 3_600
"""How long the pin of a run that died stays; one that lives renews it."""

TRIES_MAX = 10
"""How often a run begins again because another was quicker, and what it took in was collected."""

CURSOR = "index"


class IndexSettings(Struct, frozen=True, kw_only=True):
    """Which log into which index."""

    store: str
    log: str
    index: str
    """Its name in the same store."""
    tokenizer: str
    frequencies: bool
    op: Op | None = None
    """What a record without a header does; None: it is an error."""
    cursor: str = CURSOR
    is_whole: bool = False
    """Whether the index is worth nothing without the log's first record."""


class IndexUnit(Unit, frozen=True, kw_only=True):
    """Neighbouring fragments of the log."""

    fragments: tuple[Fragment, ...]
    ancestors: tuple[Ancestor, ...]
    start: int
    limit: int

    @property
    def title(self) -> str:
        """For people: which records."""
        return f"offsets [{self.start}, {self.limit})"


class Indexed(Struct, frozen=True):
    """What a unit uploaded."""

    records: int
    segment: int
    documents: int
    size_bytes: int
    replaced: int
    """How many ids; they are in an object of their own."""


class IndexReport(Struct, frozen=True, kw_only=True):
    """What a run did."""

    log: str
    start: int
    limit: int
    records: int
    documents: int
    """Joined."""
    deleted: int
    """Are gone."""
    segments: int
    transaction: int | None = None
    superseded: bool = False
    """Somebody else did it meanwhile."""


class IndexLog(Job[IndexSettings, IndexUnit, Indexed, IndexReport]):
    """Brings an index up to its log."""

    name = "index"
    settings_type = IndexSettings
    unit_type = IndexUnit
    result_type = Indexed

    _start = _limit = 0
    _began_s = 0.0
    _ancestors: tuple[Ancestor, ...] = ()
    _engine: IndexEngine | None = None
    _pin: Pin | None = None
    _keeping: asyncio.Task[None] | None = None

    @property
    def mark(self) -> str:
        """The mark of the index that says how far the log was read."""
        return f"log:{self.settings.log}"

    async def weigh(self) -> int:
        """The bytes that are new."""
        log = self._log()
        await self._look(log)
        with suppress(CollectedError):  # Another run has just taken it in.
            async with log.reader() as reader:
                found = await reader.scan(self._start) if self._start < self._limit else []
            return sum(fragment.num_bytes for fragment in found)
        return 0

    async def plan(self, engine: Engine) -> list[IndexUnit]:
        """What came since the mark."""
        self._began_s = SYSTEM_CLOCK.monotonic_s()
        return [
            IndexUnit(
                fragments=group,
                ancestors=self._ancestors,
                start=max(self._start, group[0].start),
                limit=min(self._limit, group[-1].limit),
                num_bytes=sum(fragment.num_bytes for fragment in group),
            )
            for group in divide(
                await self._pinned(), lambda fragment: fragment.num_bytes, UNIT_BYTES
            )
        ]

    async def _pinned(self) -> list[Fragment]:
        """The fragments that are new, which stay until this run is over."""
        log = self._log()
        for _ in range(TRIES_MAX):
            await self._look(log)
            if self._start >= self._limit:
                return []
            try:
                # The cursor keeps what no run has read yet; where there is none it is made.
                with suppress(AlreadyExistsError):
                    await log.cursors.init(self.settings.cursor, self._start)
                self._pin = await under_free_name(
                    "index",
                    lambda name: log.pin(name, self._start, self._limit, ttl_s=PIN_S),
                    SYSTEM_ENTROPY,
                )
            except CollectedError:
                continue  # Another run has just taken it in.
            self._keeping = asyncio.ensure_future(keep_pin(self._pin))
            limits = Limits(limit_offset=self._limit)
            return await log.reader(pin=self._pin.name).scan(self._start, limits)
        raise ConflictError(
            f"the log {self.settings.log!r} is collected faster than it is read",
            hint="let collection wait longer: create it with a larger grace_s",
        )

    async def _look(self, log: Log) -> None:
        """Which records are new: from the index's mark to the log's end."""
        before = None
        while True:
            snapshot = await asyncio.to_thread(self._index().newest)
            manifest = await log.manifest()
            raw = snapshot.marks.get(self.mark)
            first = 1 if self.settings.is_whole else manifest.oldest_offset
            self._start = first if raw is None else int(raw)
            self._limit = manifest.next_offset
            self._ancestors = manifest.ancestors
            if self._start >= manifest.oldest_offset:
                return
            if self._start == before:  # Else another run may have moved it just now.
                raise lost(self.settings.log, manifest.oldest_offset, self._start)
            before = self._start

    async def work(self, unit: IndexUnit) -> Indexed:
        """Read records, settle them, build a segment. A GET for each fragment, two PUTs."""
        objects = LogObjects(self.store(self.settings.store), self.settings.log, unit.ancestors)
        parts = []
        for fragment in unit.fragments:
            table = await fetch_table(objects, fragment, verify=True)
            first = max(0, unit.start - fragment.start)
            parts.append(table.slice(first, unit.limit - fragment.start - first))
        read = await in_worker(self._read, parts)
        settled = await in_worker(operations.settle, read)
        number = int(SYSTEM_ENTROPY.token()[:15], 16) + 1
        data = await in_worker(self._build, settled)
        store = self.store(self.settings.store)
        await store.put(self._key(number, "replaced"), _ipc(settled.replaced), "create")
        documents = len(settled.ids)
        if documents:
            await store.put(self._key(number, "idx"), data, "create")
        return Indexed(len(read.ids), number, documents, len(data), len(settled.replaced))

    def _read(self, parts: list[pa.Table]) -> operations.Operations:
        return operations.joined([operations.read(part, self.settings.op) for part in parts])

    def _build(self, settled: operations.Settled) -> bytes:
        cutter = tokenizer(self.settings.tokenizer)
        builder = Builder(cutter, frequencies=self.settings.frequencies)
        builder.add(settled.ids, as_texts(settled.texts, takes_bytes=cutter.takes_bytes))
        sink = io.BytesIO()
        builder.write(sink)
        return sink.getvalue()

    async def finish(self, results: Sequence[Indexed]) -> IndexReport:
        """One transaction; then the cursor."""
        report = IndexReport(
            log=self.settings.log,
            start=self._start,
            limit=self._limit,
            records=sum(result.records for result in results),
            documents=sum(result.documents for result in results),
            deleted=0,
            segments=sum(result.documents > 0 for result in results),
        )
        if results:
            report = await self._commit(results, report)
        if not report.superseded:
            await move_up(self._log(), self.settings.cursor, self._limit)
        return report

    async def _commit(self, results: Sequence[Indexed], report: IndexReport) -> IndexReport:
        store = self.store(self.settings.store)
        replaced = []
        for result in results:
            key = self._key(result.segment, "replaced")
            replaced.append(_from_ipc((await store.get(key)).data) if result.replaced else None)
        try:
            number, deleted = await asyncio.to_thread(self._join, results, replaced)
        except UncertainError:
            raise
        except ConflictError:
            snapshot = await asyncio.to_thread(self._index().newest)
            if int(snapshot.marks.get(self.mark, b"0")) <= self._start:
                raise
            return replace(report, records=0, documents=0, segments=0, superseded=True)
        await store.delete([self._key(result.segment, "replaced") for result in results])
        return replace(report, deleted=deleted, transaction=number)

    def _join(
        self, results: Sequence[Indexed], replaced: Sequence[pa.Array | None]
    ) -> tuple[int, int]:
        """Commit: segments join; what later operations replaced is gone. Blocks."""
        engine = self._index()
        with engine.visiting() as (visit, snapshot):
            before = [snapshot]
            gone: dict[int, BitMap] = {}
            added = []
            for result, ids in zip(results, replaced, strict=True):
                if ids is not None:
                    for earlier in before:
                        for segment, docs in earlier.documents_of(ids).items():
                            gone[segment] = gone.get(segment, BitMap()) | docs
                if result.documents:
                    added.append(AddSegment(result.segment, result.documents, result.size_bytes))
                    before.append(self._alone(engine, result.segment))
            raw = snapshot.marks.get(self.mark)
            draft = Draft(
                added=tuple(added),
                deleted=gone,
                marks={self.mark: str(self._limit).encode()},
                expected={self.mark: None if raw is None else str(self._start).encode()},
            )
            number = engine.home.commit(visit, draft, Files({}, {}, self._began_s))
        return number, sum(map(len, gone.values()))

    def _alone(self, engine: IndexEngine, number: int) -> Snapshot:
        data = engine.home.open_segment(number)
        view = View(Segment(number, data, f"segment.{number}.idx"), BitMap())
        return Snapshot([view], engine.cutter, 0, {})

    async def close(self) -> None:
        """Release the pin, and close the index's handle. Should it fail, the pin expires."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        pin, self._pin = self._pin, None
        if pin is not None:
            with suppress(CordwoodError):
                await pin.release()
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.close)

    def _index(self) -> IndexEngine:
        if self._engine is None:
            home = Shelf(self.store(self.settings.store), self.settings.index)
            self._engine = IndexEngine(home)
        return self._engine

    def _log(self) -> Log:
        return Log(self.store(self.settings.store), self.settings.log)

    def _key(self, number: int, kind: str) -> str:
        return f"{self.settings.index}/segment.{number}.{kind}"


def lost(log: str, oldest: int, start: int) -> StateError:
    """Records are gone that the index never had."""
    return StateError(
        f"log {log!r} begins at {oldest}, and the index has read up to {start}: what lies between "
        "was collected",
        hint="build the index anew from the documents themselves",
    )


def _ipc(ids: pa.LargeBinaryArray) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"id": ids})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_ipc(data: bytes) -> pa.Array:
    return pa.ipc.open_stream(data).read_all()["id"].combine_chunks()


async def index_log(
    log: Log,
    index: str,
    *,
    tokenizer: str,
    frequencies: bool = True,
    op: Op | None = None,
    cursor: str = CURSOR,
    is_whole: bool = False,
    engine: str | Engine = AUTO,
    progress: Progress | None = None,
) -> IndexReport:
    """Bring the index of this name, in the log's store, up to the log. It must have been created.

    Args:
        log: records with keys: the ids; their bodies are the texts.
        index: its name.
        tokenizer: the index's own.
        frequencies: as the index was created.
        op: what a record without the header `op` does.
        cursor: the cursor that follows, and keeps collection from what was not read yet.
        is_whole: an index that has read nothing yet begins with the first record there ever was,
            and not with the oldest that is left.
        engine: `local`, `spark` or `auto`.
        progress: called with bytes done and bytes in all.
    """
    settings = IndexSettings(
        store=log.store.url,
        log=log.name,
        index=index,
        tokenizer=tokenizer,
        frequencies=frequencies,
        op=op,
        cursor=cursor,
        is_whole=is_whole,
    )
    return await run(IndexLog(settings, [log.store]), engine, progress)
