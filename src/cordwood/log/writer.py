"""The writer: what a user holds to append to a log.

It checks what is given, puts it into the queue (log/batch.py), and hands back a future; the
pipeline (log/pipeline.py) does the rest. `append` is a plain function: nothing is awaited, and no
task is made, per record. Records of streams pass a gate (log/gate.py) on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from copy import copy
from enum import Enum
from functools import partial
from typing import Any, Self

import pyarrow as pa

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import Code, CordwoodError, StateError
from cordwood.base.limits import RECORD_BYTES_MAX
from cordwood.log.batch import FullRow, Queue
from cordwood.log.chain.pipeline import ChainPipeline
from cordwood.log.gate import Gate
from cordwood.log.objects import LogObjects
from cordwood.log.options import Options
from cordwood.log.pipeline import Pipeline
from cordwood.log.records import (
    Content,
    Headers,
    check_batch,
    check_record,
    content_of_arrow,
    content_of_bodies,
    in_stream,
    stream_names,
)
from cordwood.log.recovery import BeforeNaming
from cordwood.log.watch import RollWatch

ROW_BYTES = 16
"""What a record costs beside its body (offset, timestamp): bounds batches of empty records."""


class _Life(Enum):
    NEW = "not open"
    OPENING = "being opened"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Writer:
    """Appends to one log. Made by `Log.writer()`; opened by `async with`.

    Any number of writers may be open on a log, in any number of processes: nothing acknowledged is
    lost or doubled. One at a time is fastest.
    """

    def __init__(
        self,
        objects: LogObjects,
        options: Options,
        clock: Clock,
        entropy: Entropy,
        prepare: Callable[[], Coroutine[Any, Any, None]],
        watch: RollWatch,
        before_naming: BeforeNaming | None = None,
    ) -> None:
        """Not open yet. `prepare` runs first when it is opened (it may create the log)."""
        self._gate = Gate(watch)
        self._prepare = prepare
        self._life = _Life.NEW
        self._why: StateError | None = None
        """Why it ended by itself, if a seal ended it."""
        self._loop: asyncio.AbstractEventLoop
        self._queue = Queue(options.batch_bytes, options.queue_bytes)
        self._objects = objects
        self._given = (objects, options, clock, entropy, self._queue, self._end, before_naming)
        is_chain = objects.chain is not None
        self._pipeline = ChainPipeline(*self._given) if is_chain else Pipeline(*self._given)

    # Life.

    async def open(self) -> Self:
        """Open, recover, adopt. Two GETs on a log at rest.

        Raises:
            NotFoundError: there is no such log (unless opened with `create=True`).
            StateError: it was opened before, or the log is sealed.
        """
        if self._life is not _Life.NEW:
            raise StateError(f"this writer is {self._life.value}", hint="make a new one")
        self._loop = asyncio.get_running_loop()
        self._life = _Life.OPENING
        try:
            await self._prepare()
            await self._pipeline.start()
            if self._objects.chain is not None and type(self._pipeline) is Pipeline:
                # Of which kind the log is, is known once it was looked at.
                self._pipeline = ChainPipeline(*self._given)
                await self._pipeline.start()
        except BaseException:
            self._life = _Life.NEW
            raise
        if self._life is not _Life.OPENING:
            await self._pipeline.stop()
            raise StateError("this writer was closed while it was being opened", code=Code.CLOSED)
        self._life = _Life.OPEN
        return self

    @property
    def is_open(self) -> bool:
        """Whether it takes records: opened, not closed, and not ended by a failure."""
        return self._life is _Life.OPEN

    async def close(self) -> None:
        """Wait until everything appended is durable or has failed; then no more is taken."""
        if self._life in {_Life.OPEN, _Life.CLOSING}:
            self._life = _Life.CLOSING
            await self._gate.flush()
            await self._pipeline.drain()
        self._life = _Life.CLOSED
        await self._gate.stop(self._not_open())
        await self._pipeline.stop()

    async def flush(self) -> None:
        """Wait until everything appended so far is durable or has failed."""
        await self._gate.flush()
        await self._pipeline.flush()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        raise StateError(
            "a writer cannot be pickled", hint="pickle the Log and open a writer where it is used"
        )

    # Appending.

    def append(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        stream: str | None = None,
    ) -> asyncio.Future[int]:
        """Append one record; await the result for its offset.

        The record counts as taken when this returns, and as durable when the future is done: then
        every reader that starts sees it. Records of one writer keep the order of the calls.
        Cancelling the future gives up the answer, not the record.

        Raises:
            LimitError: the record is too large, or too much waits already.
            InvalidInputError: the body is not bytes.
            StateError: the writer is not open, or found the log sealed.

        The future raises StoreError if the record was certainly not written, StateError if it was
        not because the log is sealed or the stream is not open, and UncertainError if nobody can
        know.
        """
        if self._life is not _Life.OPEN:
            raise self._not_open()
        queue = self._queue
        is_plain = key is None and headers is None and stream is None
        if is_plain and type(body) is bytes and len(body) <= RECORD_BYTES_MAX:
            num_bytes = len(body) + ROW_BYTES
        else:
            num_bytes = check_record(body, key, headers, stream) + ROW_BYTES
            body = bytes(body)
        queue.admit(num_bytes)
        future: asyncio.Future[int] = self._loop.create_future()
        gate = self._gate
        if stream is not None or gate.line:
            names = () if stream is None else (stream,)
            if not gate.passes(names):
                row = (body, key, None if headers is None else dict(headers), stream)
                self._wait(
                    names, future, num_bytes, partial(self._take_row, row, num_bytes, future)
                )
                return future
        if is_plain:
            queue.open.add_row(body, num_bytes, future)
        else:
            copied = None if headers is None else dict(headers)
            queue.open.add_full_row((body, key, copied, stream), num_bytes, future)
        if queue.close_if_full():
            self._pipeline.arm_now()
        elif self._pipeline.timer is None:
            self._pipeline.arm()
        return future

    def append_many(
        self, bodies: Sequence[bytes], *, stream: str | None = None
    ) -> asyncio.Future[int]:
        """Append records as one atomic batch; await the result for the first one's offset.

        All of them are in one fragment: readers see all or none. As `append` otherwise.
        """
        if stream is None:
            return self._append_block(lambda: content_of_bodies(bodies))
        check_record(b"", stream=stream)
        return self._append_block(lambda: in_stream(content_of_bodies(bodies), stream))

    def append_arrow(self, data: pa.Table | pa.RecordBatch) -> asyncio.Future[int]:
        """Append Arrow data as one atomic batch; await the result for the first record's offset.

        Columns: `body` (binary), and optionally `key` (binary), `headers`
        (list<struct<name: string, value: binary>>) and `stream` (string). As `append` otherwise,
        but the data is not copied: memory it was made of stays as it is until the result is there.
        """
        return self._append_block(lambda: content_of_arrow(data))

    def _append_block(self, columns: Callable[[], Content]) -> asyncio.Future[int]:
        if self._life is not _Life.OPEN:
            raise self._not_open()
        content = columns()
        content.num_bytes += ROW_BYTES * len(content)
        check_batch(len(content), content.num_bytes)
        self._queue.admit(content.num_bytes)
        future: asyncio.Future[int] = self._loop.create_future()
        names = stream_names(content)
        if self._gate.passes(names):
            self._take_block(content, future)
        else:
            enter = partial(self._take_block, content, future)
            self._wait(names, future, content.num_bytes, enter)
        return future

    def _take_row(self, row: FullRow, num_bytes: int, future: asyncio.Future[int]) -> None:
        """A record that waited at the gate."""
        if row[1:] == (None, None, None):
            self._queue.open.add_row(row[0], num_bytes, future)
        else:
            self._queue.open.add_full_row(row, num_bytes, future)
        if self._queue.close_if_full():
            self._pipeline.arm_now()
        elif self._pipeline.timer is None:
            self._pipeline.arm()

    def _take_block(self, content: Content, future: asyncio.Future[int]) -> None:
        self._queue.open_for_block(content.num_bytes).add_block(content, future)
        self._queue.close_if_full()
        if self._queue.has_full:
            self._pipeline.arm_now()
        else:
            self._pipeline.arm()

    def _wait(
        self,
        names: Collection[str],
        future: asyncio.Future[int],
        num_bytes: int,
        enter: Callable[[], None],
    ) -> None:
        """Have it wait at the gate. Its bytes count already."""

        def refuse(error: BaseException) -> None:
            self._queue.release(num_bytes)
            if not future.done():
                future.set_exception(error)

        def take() -> None:
            if self._life in {_Life.OPEN, _Life.CLOSING}:
                enter()
            else:
                refuse(self._not_open())

        self._gate.wait(names, take, refuse)

    def _end(self, why: StateError | None) -> None:
        """The pipeline broke down or found the log sealed; everybody who waits is told."""
        self._life = _Life.CLOSED
        self._why = why

    def _not_open(self) -> CordwoodError:
        if self._life in {_Life.NEW, _Life.OPENING}:
            return StateError("this writer is not open", hint="use it in an `async with` block")
        if self._why is not None:
            return copy(self._why)
        return StateError(
            f"this writer is {self._life.value}", code=Code.CLOSED, hint="open a new one"
        )
