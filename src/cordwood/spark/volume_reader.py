"""A volume as rows: its versions, what changed between two of them, or its pages.

::

    option("volume", "app").load(store)                       a row for each version
    … .option("view", "diff").option("from", 3)               a row for each page that differs
    … .option("view", "pages").option("at", "1 hour ago")     a row for each page that is not zeros

A version is an LSN, an ISO time, or a text such as `5 minutes ago`; times become LSNs once, when
the plan is made. Versions never change, so every task reads the same; each keeps what it fetched
in a directory of its own, and takes that away when it is done.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import InvalidInputError
from cordwood.spark.options import choice, name_of, number, refuse_unknown
from cordwood.spark.schema import check
from cordwood.spark.task import settle
from cordwood.store.location import parse_location
from cordwood.store.url import Store
from cordwood.volume.desk import Desk, open_desk
from cordwood.volume.pagesets import PageArray
from cordwood.volume.reader import PageReader
from cordwood.volume.snapshot import changed_pages
from cordwood.volume.versions import Version, differs, lines_of, resolve_moment

T = TypeVar("T")

SPLIT_BYTES = 64 * 2**20
SPLIT_VERSIONS = 1_000
BATCH_ROWS = 512
_KNOWN = frozenset({"path", "volume", "view", "from", "to", "at", "splitPages"})

HISTORY = StructType(
    [
        StructField("lsn", LongType(), False),
        StructField("log", StringType(), False),
        StructField("hash", StringType(), False),
        StructField("parent_hash", StringType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("message", StringType(), False),
        StructField("client", StringType(), False),
        StructField("num_pages", LongType(), False),
        StructField("pages_changed", LongType(), False),
        StructField("bytes", LongType(), False),
    ]
)
DIFF = StructType(
    [
        StructField("page", LongType(), False),
        StructField("before", BinaryType()),
        StructField("after", BinaryType()),
    ]
)
PAGES = StructType([StructField("page", LongType(), False), StructField("data", BinaryType())])
_SCHEMAS = {"history": HISTORY, "diff": DIFF, "pages": PAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOptions:
    """The options of a read, checked."""

    path: str
    volume: str
    view: str = "history"
    first: str | None = None
    last: str | None = None
    at: str | None = None
    split_pages: int | None = None

    @property
    def schema(self) -> StructType:
        """The columns of what is asked for."""
        return _SCHEMAS[self.view]


@dataclass(frozen=True, slots=True)
class Versions(InputPartition):
    """Versions of one log of the history."""

    log: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Pages(InputPartition):
    """Pages of one version, or of two that are compared."""

    before: int | None
    after: int
    begin: int
    end: int


def parse(options: Mapping[str, str]) -> VolumeOptions:
    """The options that Spark hands over.

    Raises:
        InvalidInputError: one is unknown, or is not what it should be.
    """
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(given, _KNOWN, "a read of a volume, instead")
    if "path" not in given:
        raise InvalidInputError(
            "a volume is in a store", hint='write option("volume", "app").load("s3://bucket/x")'
        )
    if parse_location(given["path"]).scheme == "memory":
        raise InvalidInputError(
            f"{given['path']}: Spark's workers are other processes and do not see this one's "
            "memory",
            hint="use a directory or a remote store",
        )
    view = choice(given, "view", "history", "diff", "pages") or "history"
    fits = {"history": {"from", "to"}, "diff": {"from", "to"}, "pages": {"at"}}[view]
    wrong = {"from", "to", "at"} & set(given) - fits
    if wrong or (view == "diff" and "from" not in given):
        named = min(wrong) if wrong else "from"
        raise InvalidInputError(
            f"view {view!r} and option {named!r}",
            hint="history takes from and to, diff needs from, pages takes at",
        )
    return VolumeOptions(
        path=given["path"],
        volume=name_of(given, "volume") or "",
        view=view,
        first=given.get("from"),
        last=given.get("to"),
        at=given.get("at"),
        split_pages=number(given, "splitPages", least=1),
    )


class VolumeReader(DataSourceReader):
    """Reads a volume's versions or pages."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        """No I/O: it is pickled, and sent to every task."""
        self._options = parse(options)
        check(schema, self._options.schema.fields)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """What there is now."""
        return _with_desk(self._options, self._plan)

    async def _plan(self, desk: Desk) -> Sequence[InputPartition]:
        chosen = self._options
        newest = (await desk.published()).snapshot.lsn
        last = newest if chosen.last is None else await resolve_moment(desk, chosen.last, newest)
        if chosen.view == "history":
            least = 1 if chosen.first is None else await resolve_moment(desk, chosen.first, newest)
            return await _ranges(desk, least, min(last, newest))
        if chosen.view == "pages":
            at = newest if chosen.at is None else await resolve_moment(desk, chosen.at, newest)
            return self._cut(desk, None, at, (await desk.published(at)).snapshot.page_count)
        assert chosen.first is not None
        first = await resolve_moment(desk, chosen.first, newest)
        counts = [(await desk.published(lsn)).snapshot.page_count for lsn in (first, last)]
        return self._cut(desk, first, last, max(counts))

    def _cut(
        self, desk: Desk, before: int | None, after: int, page_count: int
    ) -> list[InputPartition]:
        step = self._options.split_pages or max(1, SPLIT_BYTES // desk.page_size)
        return [
            Pages(before, after, at, min(at + step, page_count + 1))
            for at in range(1, page_count + 1, step)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, in a task."""
        settle()
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(partition, Versions):
            yield from _with_desk(self._options, _history(partition, wanted))
        elif isinstance(partition, Pages):
            yield from _with_desk(self._options, _pages(partition, wanted))


async def _ranges(desk: Desk, least: int, newest: int) -> list[InputPartition]:
    """The versions from `least` to `newest`, log by log."""
    found: list[InputPartition] = []
    high = newest
    for log, first, kept in await lines_of(desk):
        low = max(first, kept, least, 1)
        found += [
            Versions(log, max(low, at - SPLIT_VERSIONS + 1), at)
            for at in range(high, low - 1, -SPLIT_VERSIONS)
        ]
        high = min(high, first - 1)
    return found


def _history(
    chosen: Versions, wanted: pa.Schema
) -> Callable[[Desk], Awaitable[list[pa.RecordBatch]]]:
    async def work(desk: Desk) -> list[pa.RecordBatch]:
        rows = [
            Version.of(await desk.commit(chosen.log, lsn))
            for lsn in range(chosen.high, chosen.low - 1, -1)
        ]
        columns = {name: [getattr(row, name) for row in rows] for name in _ATTRIBUTES}
        columns["timestamp"] = [row.timestamp_us for row in rows]
        arrays = [_column(columns[field.name], field) for field in wanted]
        return [pa.RecordBatch.from_arrays(arrays, schema=wanted)]

    return work


_ATTRIBUTES = [field.name for field in HISTORY.fields if field.name != "timestamp"]


def _column(values: list[object], field: pa.Field) -> pa.Array:
    if pa.types.is_timestamp(field.type):
        return pa.array(values, pa.timestamp("us", "UTC")).cast(field.type)
    return pa.array(values, field.type)


def _pages(chosen: Pages, wanted: pa.Schema) -> Callable[[Desk], Awaitable[list[pa.RecordBatch]]]:
    async def work(desk: Desk) -> list[pa.RecordBatch]:
        after = await desk.published(chosen.after)
        if chosen.before is None:
            return [batch async for batch in _plain(after, chosen, wanted)]
        before = await desk.published(chosen.before)
        return [batch async for batch in _changed(before, after, chosen, wanted)]

    return work


async def _plain(
    reader: PageReader, chosen: Pages, wanted: pa.Schema
) -> AsyncIterator[pa.RecordBatch]:
    """The pages of a version that are not zeros."""
    version = await reader.resolve()
    inside = (version.pages >= chosen.begin) & (version.pages < chosen.end)
    async for numbers, data in reader.batches(version, version.pages[inside]):
        for at in range(0, len(numbers), BATCH_ROWS):
            some = numbers[at : at + BATCH_ROWS]
            size = reader.page_size
            rows = [data[(at + i) * size : (at + i + 1) * size] for i in range(len(some))]
            yield _batch({"page": some.tolist(), "data": rows}, wanted)


async def _changed(
    before: PageReader, after: PageReader, chosen: Pages, wanted: pa.Schema
) -> AsyncIterator[pa.RecordBatch]:
    """The pages whose bytes differ, with both; null where a version has no such page."""
    old, new = await before.resolve(), await after.resolve()
    low, high = sorted((old.page_count, new.page_count))
    found: PageArray = np.union1d(
        changed_pages(old, new), np.arange(low + 1, high + 1, dtype=np.uint32)
    )
    pages = found[(found >= chosen.begin) & (found < chosen.end)].astype(np.uint32)
    size = before.page_size
    for at in range(0, len(pages), BATCH_ROWS):
        some = pages[at : at + BATCH_ROWS]
        left, right = await before.read_many(some), await after.read_many(some)
        # Pages that only one of them has differ even if they are zeros.
        kept = np.flatnonzero(differs(left, right, len(some)) | (some > low)).tolist()
        rows = [
            (
                page := int(some[i]),
                left[i * size : (i + 1) * size] if page <= old.page_count else None,
                right[i * size : (i + 1) * size] if page <= new.page_count else None,
            )
            for i in kept
        ]
        if rows:
            numbers, lefts, rights = zip(*rows, strict=True)
            yield _batch({"page": numbers, "before": lefts, "after": rights}, wanted)


def _batch(columns: Mapping[str, Sequence[object]], wanted: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(columns[field.name], field.type) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _with_desk(options: VolumeOptions, work: Callable[[Desk], Awaitable[T]]) -> T:
    """Do something with the volume, open in a directory that is gone afterwards."""

    async def run(directory: str) -> T:
        desk = await open_desk(
            Store(options.path),
            options.volume,
            directory,
            clock=SYSTEM_CLOCK,
            entropy=SYSTEM_ENTROPY,
        )
        try:
            return await work(desk)
        finally:
            desk.close()

    with tempfile.TemporaryDirectory(prefix="cordwood-") as directory:
        return asyncio.run(run(directory))
