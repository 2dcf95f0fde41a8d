"""What a task does: fetch the fragments of a split, prove them, hand out batches.

A worker process of Spark runs one task after the other. What is worth keeping between them is kept:
the store's client, and the freezing of what was imported, without which Python's collector looks
through all of it after every task (25 ms each).

A directory is read by the task's own thread. From a remote store fragments are fetched ahead, on
the background loop. Bodies that nobody asked for are not read at all (log/columns.py).

What is proved: with `verify` `true`, every fragment whose bodies are read, by its checksum and its
setsum; of another one, that it is the object its pointer means. With `full` every fragment is read
whole and proved. With `false` nothing but what the Parquet decoder notices.
"""

from __future__ import annotations

import gc
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from cordwood.base import portal
from cordwood.base.errors import (
    Code,
    CollectedError,
    CorruptionError,
    NotFoundError,
    StoreError,
)
from cordwood.log import fragment as fragments
from cordwood.log.columns import fetch_columns
from cordwood.log.format import Fragment, NodePointer
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.sieve import Sieve
from cordwood.spark.options import ReadOptions
from cordwood.spark.pins import Renewal
from cordwood.spark.schema import STREAM, Projection
from cordwood.spark.splits import Split, Work
from cordwood.store.api import Buffer
from cordwood.store.url import Store

T = TypeVar("T")

AHEAD_BYTES = 32 * 2**20
AHEAD_FILES = 8
"""How far a task fetches ahead of itself from a remote store."""

BATCH_ROWS_MAX = 8_192

_stores: dict[str, Store] = {}


def settle() -> None:
    """Once in a worker process: keep Python's collector away from what was imported."""
    if not gc.get_freeze_count():
        gc.freeze()


def open_store(url: str) -> Store:
    """This process's store of that URL; its client lives as long as the process."""
    if url not in _stores:
        _stores[url] = Store(url)
    return _stores[url]


def read_split(
    partition: InputPartition, schema: StructType, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The records of a split, as the schema has them."""
    settle()
    if not isinstance(partition, Split):
        return  # Spark's own, in place of none: there is nothing to read.
    projection = Projection(schema)
    for work in partition.works:
        reader = WorkReader(work, projection, options)
        with explained(work, reader.objects):
            yield from reader.batches()


def fragments_of(work: Work, stream: str | None = None) -> Iterator[Fragment]:
    """The fragments of a part of a log, in order. One GET for each node above them.

    With `stream`, without those that cannot hold it, where that can be told.
    """
    objects = work.objects(open_store(work.store))
    sieve = Sieve(objects, stream) if stream is not None and work.is_sifted else None

    async def walk(pointer: NodePointer) -> list[Fragment]:
        found = objects.walk([pointer], work.begin, work.end)
        if sieve is not None:
            found = sieve.sift([pointer], {}, work.begin, work.end)
        return [fragment async for fragment in found]

    with explained(work, objects):
        for pointer in work.pointers:
            if isinstance(pointer, Fragment):
                yield pointer
            else:
                yield from portal.current().run(walk(pointer))


class WorkReader:
    """Reads a part of one log."""

    def __init__(self, work: Work, projection: Projection, options: ReadOptions) -> None:
        """No I/O."""
        self.work = work
        self._projection = projection
        self._verify = options.verify
        self._stream = options.stream
        self._batch_bytes = options.batch_bytes
        self._columns = projection.stored(() if options.stream is None else (STREAM.name,))
        store = open_store(work.store)
        self.objects = work.objects(store)
        self._renewal = None
        if work.hold is not None and work.hold.by_tasks:
            self._renewal = Renewal(Log(store, work.log), work.hold)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records, as the schema has them."""
        for fragment, pieces in self._pieces():
            limit = fragment.start
            for piece in pieces:
                start, limit = limit, limit + piece.num_rows
                if self.work.begin < limit and start < self.work.end:
                    batch = self._shown(piece, start, fragment)
                    if batch.num_rows:
                        yield batch

    # Below.

    def _pieces(self) -> Iterator[tuple[Fragment, Iterable[pa.RecordBatch]]]:
        """Each fragment, with batches that have the columns needed, and perhaps others."""
        if not self._projection.needs_body and self._verify != "full":
            for fragment, table in self._ahead(self._fetch_columns):
                yield fragment, table.to_batches(max_chunksize=self._rows(fragment))
        elif self.objects.is_local:
            for fragment in self._fragments():
                yield fragment, self._decode(self.objects.read_fragment_now(fragment), fragment)
        else:
            for fragment, data in self._ahead(self.objects.get_fragment):
                yield fragment, self._decode(data, fragment)

    def _decode(self, data: Buffer, fragment: Fragment) -> Iterator[pa.RecordBatch]:
        rows = self._rows(fragment)
        with self.objects.located(fragment):
            if self._verify == "false":
                yield from fragments.decode_batches(data, fragment, self._columns, rows)
            else:
                yield from fragments.decode(data, fragment).to_batches(max_chunksize=rows)

    async def _fetch_columns(self, fragment: Fragment) -> pa.Table:
        # With the offsets, so that there is a column also where no other is wanted.
        columns = ["offset", *self._columns]
        return await fetch_columns(self.objects, fragment, columns, verify=self._verify != "false")

    def _rows(self, fragment: Fragment) -> int:
        """How many records of a fragment make a batch."""
        rows = self._batch_bytes * fragment.num_records // max(1, fragment.num_bytes)
        return max(1, min(BATCH_ROWS_MAX, rows))

    def _shown(self, piece: pa.RecordBatch, start: int, fragment: Fragment) -> pa.RecordBatch:
        """The rows of a piece, which begins at `start`, that were asked for."""
        limit = start + piece.num_rows
        begin, end = max(self.work.begin, start), min(self.work.end, limit)
        if (begin, end) != (start, limit):
            piece = piece.slice(begin - start, end - begin)
        offsets = pa.array(np.arange(begin, end, dtype=np.int64))
        if self._stream is not None:
            chosen = self._in_stream(piece)
            piece, offsets = piece.filter(chosen), offsets.filter(chosen)
        constants = {"log": self.work.log, "fragment": fragment.path}
        return self._projection.apply(piece, offsets, constants)

    def _in_stream(self, piece: pa.RecordBatch) -> pa.Array:
        if STREAM.name not in piece.schema.names:
            return pa.repeat(pa.scalar(False), piece.num_rows)
        return pc.equal(piece.column(STREAM.name), self._stream)

    def _ahead(
        self, fetch: Callable[[Fragment], Coroutine[Any, Any, T]]
    ) -> Iterator[tuple[Fragment, T]]:
        """What `fetch` gives for each fragment, begun before it is wanted."""
        home = portal.current()
        waiting: deque[tuple[Fragment, Future[T]]] = deque()
        num_bytes = 0
        try:
            for fragment in self._fragments():
                waiting.append((fragment, home.start(fetch(fragment))))
                num_bytes += fragment.num_bytes
                while len(waiting) >= AHEAD_FILES or num_bytes >= AHEAD_BYTES:
                    num_bytes -= waiting[0][0].num_bytes
                    oldest, answer = waiting.popleft()
                    yield oldest, answer.result()
            for oldest, answer in waiting:
                yield oldest, answer.result()
        finally:
            for _, answer in waiting:
                answer.cancel()

    def _fragments(self) -> Iterator[Fragment]:
        for fragment in fragments_of(self.work, self._stream):
            if self._renewal is not None:
                portal.current().run(self._renewal.renew_if_due())
            yield fragment


@contextmanager
def explained(work: Work, objects: LogObjects) -> Iterator[None]:
    """Say of a failure what a task knows and the driver does not.

    Raises:
        CollectedError: what is missing has been collected since the read was planned.
        StoreError: the store refused, with the name of the machine that it refused.
    """
    try:
        yield
    except CorruptionError as error:
        if not portal.current().run(_was_collected(work, objects, error)):
            raise
        raise CollectedError(
            f"log {work.log!r}: records from {work.begin} on have been collected since this read "
            "was planned",
            hint="load it again; cordwood.spark.read_log pins what it reads while the driver lives",
        ) from error
    except StoreError as error:
        if error.code is not Code.STORE_DENIED:
            raise
        raise refused(work.store, error) from error


def refused(store: str, error: StoreError) -> StoreError:
    """The error of a store that refused this machine: which one it is, and what to set there."""
    return StoreError(
        f"{store} refused the worker on {socket.gethostname()}: {error.message}",
        code=error.code,
        hint="the environment of every executor must hold the credentials, not only the "
        f"driver's: {error.hint}",
    )


async def _was_collected(work: Work, objects: LogObjects, error: CorruptionError) -> bool:
    """Whether something is missing because a collection took it, and not by damage."""
    if not await objects.has_passed(work.begin, error):
        return False
    if work.hold is None:
        return True
    try:
        await Log(open_store(work.store), work.log).pinned(work.hold.name)
    except (CollectedError, NotFoundError):
        return True
    return False
