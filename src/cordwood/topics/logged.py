"""A partition on a store: a log. A record's offset is that of the log, less one.

One writer of the log per process takes what all threads and tasks append, on the loop of the
portal: what comes at once goes out at once. Whoever writes on top of what others wrote looks first
(`_look`, which the log calls before it takes a place, and again if it meets records that a dead
writer left):

* whether the topic is still the one that was opened: a log made anew under the name gets nothing
  that was meant for the old one;
* whether a record with a sequence number that waits to be written is there already (numbered.py).
  Then nothing that waits is written; who sent that one is told where it is, the others are sent
  again.

Places in a log are taken once. So a write whose answer was lost is found by whoever looks, or can
never arrive: sent again with its number, a record is there once, whoever sent it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from cordwood.base import portal
from cordwood.base.clock import Clock
from cordwood.base.errors import (
    Code,
    CollectedError,
    ConflictError,
    CordwoodError,
    LimitError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.journal.reading import READ_BYTES
from cordwood.log.log import Log
from cordwood.log.reader import Limits
from cordwood.log.writer import Writer
from cordwood.topics.batch import Columns, Producer, Row
from cordwood.topics.config import TopicConfig
from cordwood.topics.home import Bounds, Offsets, missing_topic
from cordwood.topics.numbered import TRIES_MAX, Numbered, OvertakenError
from cordwood.topics.partition import content_bytes
from cordwood.topics.reserved import shown, stored, stored_row

SEARCHED_RECORDS = 100_000
"""So far back a producer is looked for, where nothing is known yet: all that has to be fetched."""
RETENTION = "retention"
"""The cursor of the log that says what may go."""

T = TypeVar("T")
Content: TypeAlias = pa.RecordBatch | tuple[bytes, bytes | None, dict[str, bytes] | None]
"""Records as the log takes them, or body, key and headers of one."""
CheckThere = Callable[[], Awaitable[None]]


class _Work:
    """What one process has open; used on its portal's loop alone."""

    def __init__(self, where: portal.Portal, numbered: Numbered) -> None:
        """Nothing yet."""
        self.portal = where
        self.opening = asyncio.Lock()
        self.learning = asyncio.Lock()
        self.writer: Writer | None = None
        self.numbered = numbered


class LoggedPartition:
    """One partition. Any number of threads, tasks and processes append to it and read it."""

    def __init__(
        self, log: Log, config: TopicConfig, clock: Clock, check_there: CheckThere
    ) -> None:
        """No I/O. `check_there` raises if the topic is gone."""
        self.config = config
        self.log = log
        self._clock = clock
        self.check_there = check_there
        self._work: _Work | None = None

    def append(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`: all in one part."""
        return _run(self._append(columns, producer)) + np.arange(len(columns))

    def append_one(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        return _run(self._append(row, producer))

    async def append_async(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`."""
        first = await asyncio.wrap_future(portal.current().start(self._append(columns, producer)))
        return first + np.arange(len(columns))

    async def append_one_async(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        return await asyncio.wrap_future(portal.current().start(self._append(row, producer)))

    def bounds(self) -> Bounds:
        """See `Partition`."""
        return _run(self.bounds_async())

    async def bounds_async(self) -> Bounds:
        """Which records there are. One GET."""
        manifest = await self.told(self.log.manifest())
        return Bounds(manifest.oldest_offset - 1, manifest.next_offset - 1)

    def scan(self, offset: int) -> LoggedScanning:
        """See `Partition`."""
        return LoggedScanning(self, offset)

    def not_uploaded(self) -> int:
        """See `Partition`: there is nothing to upload."""
        return 0

    def retain(self) -> int:
        """Let go of what is too old or too much; how many records went."""
        return _run(self.told(self._retain()))

    def close(self) -> None:
        """See `Partition`: what was acknowledged is durable."""
        work, self._work = self._work, None
        if work is not None and work.portal is portal.current() and work.writer is not None:
            _run(work.writer.close())

    # Appending, on the portal's loop.

    async def _append(self, rows: Columns | Row, producer: Producer | None) -> int:
        self.check_own()
        if producer is None:
            return await self._send(_content(rows), again=True)
        await self._writer()
        return await self._works().numbered.append(rows, *_sizes(rows), producer)

    def check_own(self) -> None:
        """Make sure that its records come from nowhere else.

        Raises:
            StateError: it is the tier of a topic in a directory, and has that one's offsets.
        """
        if self.config.tier is not None:
            raise StateError(
                f"the records of {self.log.name} are uploaded from a directory: nothing was "
                "written",
                hint="send to the topic in the directory",
            )

    async def _send_block(self, block: pa.RecordBatch) -> int:
        """Send numbered records; whether they are there is found out by who numbered them."""
        return await self._send(block, again=False)

    async def _send(self, content: Content, *, again: bool) -> int:
        """Append, and once more where it was certainly not written. Where it is.

        Raises:
            UncertainError: nobody can know; with `again`, the log was asked.
        """
        tries = 0
        while True:
            writer = await self._writer()
            try:
                return await _handed(writer, content) - 1
            except UncertainError as error:
                found = await self._found(error) if again else _raise(error)
                if found is not None:
                    return found - 1
            except StoreError as error:
                if isinstance(error.__cause__, NotFoundError):
                    raise error.__cause__ from error
                if not isinstance(error.__cause__, OvertakenError):
                    raise
                if not again:
                    raise error.__cause__ from error
            except StateError as error:
                if error.code is not Code.CLOSED:
                    raise await self._gone(error) from error
            except LimitError as error:
                if error.code is not Code.QUEUE_FULL:
                    raise
                await writer.flush()
                continue
            tries += 1
            if tries == TRIES_MAX:
                raise ConflictError(
                    f"an append to {self.log.name} was overtaken {tries} times",
                    hint="try again when fewer append",
                )

    async def _found(self, lost: UncertainError) -> int | None:
        """Where an append is whose answer was lost; None if it never will be anywhere."""
        try:
            return await self.log.find_write(lost)
        except (UncertainError, StoreError) as error:
            raise UncertainError(
                f"a record may or may not be in {self.log.name}: {lost.message}",
                write_id=lost.write_id,
                chain=lost.chain,
                hint="look for it before you send it again; a producer with a name, which gives "
                "its records sequence numbers, may just send it again",
            ) from error

    async def _writer(self) -> Writer:
        """The writer of this process."""
        work = self._works()
        async with work.opening:
            if work.writer is None or not work.writer.is_open:
                await self.check_there()
                opened = self.log.writer(before_naming=self._look)
                work.writer = await self.told(opened.open())
            return work.writer

    async def _look(self, next_offset: int) -> None:
        """Before we write on top of what others wrote."""
        await self.check_there()
        numbered = self._works().numbered
        if numbered.are_flying:
            await self._learn(next_offset - 1)
            numbered.check()

    async def _learn(self, end: int = 0) -> None:
        """Find out what producers appended, at least as far as `end`."""
        work = self._works()
        async with work.learning:
            sequences = work.numbered.sequences
            if end and sequences.seen is not None and sequences.seen >= end:
                return
            bounds = await self.bounds_async()
            first = sequences.seen
            if first is None:
                first = bounds.next - SEARCHED_RECORDS
            begin = max(first, bounds.oldest)
            if begin < bounds.next:
                async with self.log.reader() as reader:
                    async for batch in reader.read_arrow(begin + 1):
                        work.numbered.note_all(batch)
                        bounds = bounds._replace(next=int(batch.column("offset")[-1].as_py()))
            sequences.seen = bounds.next

    def _works(self) -> _Work:
        """What this process has open; a forked child starts anew."""
        here = portal.current()
        if self._work is None or self._work.portal is not here:
            self._work = _Work(here, Numbered(self._send_block, self._learn, self._clock))
        return self._work

    # Retention.

    async def _retain(self) -> int:
        bounds = await self.bounds_async()
        keep = await self._first_kept()
        if keep <= bounds.oldest + 1:
            # What an earlier one began may be left to be deleted.
            if RETENTION in await self.log.cursors.list():
                await self.log.collect(wait_s=0)
            return 0
        try:
            witness = await self.log.cursors.load(RETENTION)
            if witness.offset < keep:
                await self.log.cursors.save(RETENTION, keep, witness)
        except NotFoundError:
            await self.log.cursors.init(RETENTION, keep)
        except ConflictError:
            return 0  # Somebody else is at it.
        await self.log.collect(wait_s=0)
        return max(0, (await self.bounds_async()).oldest - bounds.oldest)

    async def _first_kept(self) -> int:
        """The offset in the log of the first record to keep; its age is that of its append."""
        keep = 1
        async with self.log.reader() as reader:
            if self.config.retention_s is not None:
                since_us = self._clock.now_us() - int(self.config.retention_s * 1_000_000)
                keep = await reader.offset_at(max(0, since_us))
            if self.config.retention_bytes is not None:
                fragments = await reader.scan()
                sizes = np.cumsum([one.num_bytes for one in reversed(fragments)])
                most = np.searchsorted(sizes, self.config.retention_bytes, "right")
                kept = fragments[len(fragments) - int(most) :]
                end = fragments[-1].limit if fragments else 1
                keep = max(keep, kept[0].start if kept else end)
        return keep

    # What is told of a topic that is gone.

    async def told(self, work: Awaitable[T]) -> T:
        """What came of it; where the log is gone, that the topic is."""
        try:
            return await work
        except NotFoundError as error:
            raise missing_topic(self.config.namespace, self.config.topic) from error
        except StateError as error:
            raise await self._gone(error) from error

    async def _gone(self, error: StateError) -> CordwoodError:
        """The log takes no more records: most often because its topic is being deleted."""
        if error.code is Code.SEALED:
            await self.check_there()
        return error


class LoggedScanning:
    """A place in a partition."""

    def __init__(self, partition: LoggedPartition, offset: int) -> None:
        """No I/O."""
        self._partition = partition
        self._etag = ""
        """Of the manifest that had nothing more for us."""
        self._incarnation = ""
        self.offset = offset

    def take(self, max_bytes: int = READ_BYTES) -> list[pa.RecordBatch]:
        """See `Scanning`."""
        found = _run(self._partition.told(self._take(max_bytes)))
        batches = [shown(batch) for batch in found]
        if batches:
            self.offset = batches[-1].column("offset")[-1].as_py() + 1
        return batches

    async def _take(self, max_bytes: int) -> list[pa.RecordBatch]:
        log = self._partition.log
        manifest, etag = await log.objects.load()
        if self._incarnation and manifest.incarnation != self._incarnation:
            raise NotFoundError("the log was made anew")
        self._incarnation = manifest.incarnation
        if self.offset + 1 == manifest.next_offset:
            self._etag = etag
            return []
        self._etag = ""
        if self.offset + 1 < manifest.oldest_offset:
            raise self._collected(manifest.oldest_offset - 1)
        async with log.reader() as reader:
            try:
                limits = Limits(max_bytes=max_bytes)
                return [one async for one in reader.read_arrow(self.offset + 1, limits)]
            except CollectedError as error:
                raise self._collected((await log.manifest()).oldest_offset - 1) from error

    def may_have(self) -> bool:
        """See `Scanning`. One HEAD while nothing comes."""
        if not self._etag:
            return True
        objects = self._partition.log.objects
        return _run(self._partition.told(objects.manifest_etag())) != self._etag

    def _collected(self, oldest: int) -> CollectedError:
        return CollectedError(
            f"{self._partition.log.name} begins with {oldest}: {self.offset} is gone",
            hint="go on from the oldest that is there",
        )

    def seek(self, offset: int) -> None:
        """See `Scanning`."""
        self._etag = ""
        self.offset = offset

    def skip(self) -> int:
        """See `Scanning`."""

        async def behind() -> int:
            reader = self._partition.log.reader()
            found = await reader.scan(self.offset + 1, Limits(max_files=1))
            return found[0].limit - 1 if found else self.offset

        self.seek(_run(behind()))
        return self.offset

    def close(self) -> None:
        """See `Scanning`: nothing is held."""


def _content(rows: Columns | Row) -> Content:
    if isinstance(rows, Row):
        body, headers = stored_row(rows)
        return body, rows.key, headers
    return stored(rows)


def _sizes(rows: Columns | Row) -> tuple[int, int]:
    """How many records, and about how many bytes."""
    if isinstance(rows, Row):
        return 1, rows.size_bytes
    return len(rows), content_bytes(rows)


def _handed(writer: Writer, content: Content) -> asyncio.Future[int]:
    if isinstance(content, tuple):
        body, key, headers = content
        return writer.append(body, key=key, headers=headers)
    return writer.append_arrow(content)


def _raise(error: CordwoodError) -> Any:
    raise error


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
