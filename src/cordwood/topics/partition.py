"""A partition in a directory: a journal whose entries are batches of records.

::

    metadata         what the topic and the partition are (config.py)
    {offset}.wal     extents of the journal: records from this offset on
    ….wal.index      in a compaction topic, the keys of an extent (keyindex.py)
    tail, lock, …    see journal/journal.py

Offsets count records, from 0 on. An append is acknowledged when it is synced, unless the topic says
`flush`: then when it is written, and all that was written is synced once in a flush period. What a
power cut takes in between is lost, and what is lost nobody has read; a process that dies takes
nothing with it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    CollectedError,
    ConflictError,
    CordwoodError,
    CorruptionError,
    LimitError,
    StoreError,
)
from cordwood.base.forks import starts_over
from cordwood.journal.extent import END_BYTES, FRAMES_AT, Head, RecycledError, open_whatever
from cordwood.journal.frames import OVERHEAD
from cordwood.journal.group import Group, Ticket
from cordwood.journal.journal import Journal
from cordwood.journal.mark import Mark
from cordwood.journal.reading import READ_BYTES, Reading
from cordwood.journal.turn import Turn
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk
from cordwood.topics.batch import Columns, Producer, Row, decoded, encoded, encoded_row, joined
from cordwood.topics.config import TopicConfig
from cordwood.topics.home import Bounds, Offsets, Scanning, missing_topic
from cordwood.topics.keys import Keys
from cordwood.topics.sequences import SEARCHED_RECORDS, Sequences

BATCH_BYTES = 1 << 20
"""Records are written in batches of about this size."""
BATCH_HEAD_BYTES = 256
ROW_BYTES = 32
HEADER_BYTES = 16
"""What a batch costs, a record of it and a header, beside their content: not more than that."""


INDEXED_BYTES = 1 << 20
"""So far a writer of a compaction topic lets its key table stay behind."""


class _Append(NamedTuple):
    rows: Columns | Row
    records: int
    producer: Producer | None


class _Unflushed(NamedTuple):
    """Records that were acknowledged when they were written."""

    head: Head
    """Of the extent that they are in, or those before them."""
    number: int
    """The offset behind them."""


class LocalPartition:
    """One partition. Any number of threads, tasks and processes append to it and read it."""

    def __init__(
        self, folder: str, config: TopicConfig, disk: Disk, clock: Clock, entropy: Entropy
    ) -> None:
        """No I/O."""
        self.config = config
        self.journal = Journal(
            folder,
            disk,
            clock,
            entropy,
            extent_bytes=config.extent_bytes,
            missing=lambda _: missing_topic(config.namespace, config.topic),
        )
        self._clock = clock
        self._room = config.extent_bytes - FRAMES_AT - END_BYTES - OVERHEAD - BATCH_HEAD_BYTES
        self._group: Group[_Append, int] = Group(self._commit)
        self._sequences = Sequences()
        self.keys = Keys(self.journal, entropy) if config.compaction else None
        """Of a compaction topic."""
        has_short_way = self.keys is None and config.ack == "journal"
        self._short_bytes = self._room - ROW_BYTES if has_short_way else -1
        """Records up to this size may be appended by themselves."""
        self.when_closed: Callable[[], None] | None = None
        """Called when an extent of a compaction topic is full."""
        self.when_full: Callable[[], None] | None = None
        """Called when an extent is full, be it a compaction topic's or another's."""
        self._base: int | None = None
        self.trouble = ""
        """Why its keys could not be indexed, if that failed."""
        self.start_over()
        starts_over(self)
        _open_partitions.add(self)

    def start_over(self) -> None:
        """No thread is in the middle of anything, and none is to flush."""
        self._mutex = threading.Lock()
        self._flushing: threading.Timer | None = None
        self._unflushed: _Unflushed | None = None
        """What was acknowledged last and may not be flushed; whoever appends next is told so."""

    def append(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`."""
        return _numbered(
            (self._group.call(item, size), item.records)
            for item, size in list(self._items(columns, producer))
        )

    def append_one(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        is_plain = producer is None and not row.headers and row.size_bytes <= self._short_bytes
        if is_plain and self._group.is_idle:
            with self._group.working:
                return self._append_alone(row)
        return self._group.call(*self._item(row, 1, _row_bytes(row), producer))

    async def append_async(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`."""
        return _numbered(
            [
                (await self._group.call_async(item, size), item.records)
                for item, size in list(self._items(columns, producer))
            ]
        )

    async def append_one_async(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        item = self._item(row, 1, _row_bytes(row), producer)
        return await self._group.call_async(*item)

    def bounds(self) -> Bounds:
        """See `Partition`."""
        return self.local_bounds()

    def local_bounds(self) -> Bounds:
        """Which records are in the journal."""
        mark = self.journal.newest()
        with self.journal.told("read"):
            bases = self.journal.bases()
        return Bounds(bases[0] if bases else mark.synced_number, mark.synced_number)

    def scan(self, offset: int) -> Scanning:
        """See `Partition`."""
        return LocalScanning(self.journal, offset, self.flush_late)

    def not_uploaded(self) -> int:
        """See `Partition`: there is nothing to upload."""
        return 0

    def flush(self) -> None:
        """Make durable what was written, by whichever process."""
        with self.journal.turn() as turn:
            turn.sync()

    def flush_late(self, since_s: float) -> bool:
        """Flush what whoever wrote it has not flushed in its time: it may be dead."""
        is_late = self._clock.monotonic_s() - since_s > 2 * self.config.flush_period_s
        if is_late:
            with suppress(CordwoodError):  # One who may only read leaves it to others.
                self.flush()
        return is_late

    def close(self) -> None:
        """See `Partition`."""
        with self._mutex:
            flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.cancel()
            with self.journal.turn() as turn:
                self._check_kept(turn)
                turn.sync()
        if self.keys is not None:
            self.keys.close()
        self.journal.close()

    def _items(self, columns: Columns, producer: Producer | None) -> Iterator[tuple[_Append, int]]:
        """What is to be appended, in parts that fit.

        Raises:
            LimitError: one does not; all are asked for before the first is appended.
        """
        at = 0
        for part in split(columns, min(BATCH_BYTES, self._room)):
            whose = producer and Producer(producer.id, producer.sequence + at)
            yield self._item(part, len(part), content_bytes(part), whose)
            at += len(part)

    def _item(
        self, rows: Columns | Row, records: int, size: int, producer: Producer | None
    ) -> tuple[_Append, int]:
        if size > self._room:
            raise LimitError(
                f"a record of {size} bytes does not fit into an extent of {self._room}",
                hint="keep it elsewhere and append its name, or create the topic with larger "
                "extents",
            )
        return _Append(rows, records, producer), size

    def _append_alone(self, row: Row) -> int:
        """What `_commit` does for many, for one, in the shortest way."""
        now_us = self._clock.now_us()
        time_us = now_us if row.time_us is None else row.time_us
        payload = encoded_row(row)
        try:
            found = self.journal.append_alone(payload, time_us, now_us)
        except OSError as error:
            raise self.journal.error("append to", error) from error
        if found is not None:
            return found
        with self.journal.turn() as turn:
            offset = turn.append([payload], time_us=time_us)
            turn.sync()
        if turn.mark.base != self._base:
            self._begun(turn.mark.base)
        return offset

    def _begun(self, base: int) -> None:
        """Another extent is being filled than before."""
        before, self._base = self._base, base
        if before is not None and self.when_full is not None:
            self.when_full()

    def _commit(self, tickets: Sequence[Ticket[_Append, int]]) -> None:
        """Write what several have handed in, sync once, and tell each where its records are."""
        written: list[tuple[Ticket[_Append, int], int]] = []
        turn: Turn | None = None
        try:
            with self.journal.turn() as turn:
                self._check_kept(turn)
                if any(ticket.item.producer for ticket in tickets):
                    self._learn(turn)
                for batch in _batches(tickets, min(BATCH_BYTES, self._room)):
                    self._write(turn, batch, written)
                if self.config.ack == "flush":
                    turn.say()
                    self._unflushed = _Unflushed(turn.head, turn.number)
                    self._flush_soon()
                else:
                    turn.sync()
        except BaseException:
            self._sequences = Sequences()  # It may know of records that are not there.
            raise
        finally:
            limit = 0
            if turn is not None:
                limit = turn.written if self.config.ack == "flush" else turn.durable
            for ticket, offset in written:
                if offset + ticket.item.records <= limit:
                    ticket.succeed(offset)
        if turn.mark.base != self._base:
            self._begun(turn.mark.base)
        if self.keys is not None and self.keys.is_behind(turn.mark, INDEXED_BYTES):
            self._index(self.keys, turn.mark)

    def _index(self, keys: Keys, mark: Mark) -> None:
        """Let the key table follow; what fails is done later, by whoever needs it."""
        try:
            is_closed = keys.roll(mark, wait=False)
        except (OSError, CordwoodError, RecycledError) as error:
            self.trouble = f"{self.journal.folder}: its keys were not indexed: {error}"
            return
        if is_closed:
            self.trouble = ""
            if self.when_closed is not None:
                self.when_closed()

    def _write(
        self,
        turn: Turn,
        tickets: list[Ticket[_Append, int]],
        written: list[tuple[Ticket[_Append, int], int]],
    ) -> None:
        """Append a batch, as one entry."""
        now_us = self._clock.now_us()
        producer = tickets[0].item.producer
        if producer is not None:
            try:
                found = self._sequences.offset_of(producer)
            except ConflictError as error:
                tickets[0].fail(error)  # Its own: what others hand in has nothing to do with it.
                return
            if found is not None:
                written.append((tickets[0], found))  # Perhaps in this turn, and not yet durable.
                return
        alone = tickets[0].item.rows
        if len(tickets) == 1 and isinstance(alone, Row) and not alone.headers:
            count, newest_us = 1, now_us if alone.time_us is None else alone.time_us
            payload: list[Buffer] = [encoded_row(alone, producer=producer)]
        else:
            columns = joined([ticket.item.rows for ticket in tickets], now_us)
            count = len(columns)
            newest_us = now_us if columns.times_us is None else int(columns.times_us.max())
            payload = encoded(columns, producer=producer)
        offset = turn.append(payload, span=count, time_us=newest_us)
        if producer is not None:
            self._sequences.add(producer, count, offset)
        for ticket in tickets:
            written.append((ticket, offset))
            offset += ticket.item.records

    def _learn(self, turn: Turn) -> None:
        """Find out what producers appended, in other processes, or before this one was there."""
        seen = self._sequences.seen
        if seen is None:
            seen = max(self.local_bounds().oldest, turn.number - SEARCHED_RECORDS)
        turn.sync()
        reading = Reading(self.journal, seen)
        while reading.number < turn.number:
            try:
                for frame in reading.take():
                    self._sequences.note(frame)
            except CollectedError:
                reading.seek(self.local_bounds().oldest)
            except CorruptionError:
                reading.skip()  # Whoever reads it is told; what cannot be read is not there.
        reading.close()
        self._sequences.seen = turn.number

    def _flush_soon(self) -> None:
        """Make sure that what was written is synced within the flush period."""
        with self._mutex:
            if self._flushing is None:
                self._flushing = threading.Timer(self.config.flush_period_s, self._flush_now)
                self._flushing.daemon = True
                self._flushing.start()

    def _flush_now(self) -> None:
        with self._mutex:
            self._flushing = None
        try:
            self.flush()
        except CordwoodError as error:
            if isinstance(error, StoreError) and error.transient:
                self._flush_soon()  # Somebody kept it waiting: nothing is lost.
            self.trouble = f"{self.journal.folder}: records are not flushed, or lost: {error}"

    def _check_kept(self, turn: Turn) -> None:
        """Make sure that what was acknowledged without a flush is still there.

        Whoever failed to flush it, in whichever process, has given up the extent: then the next
        one begins with an offset that was given before.

        Raises:
            StoreError: it is not; told once.
        """
        known, now = self._unflushed, turn.head
        if known is None or known.head.salt == now.salt:
            return
        self._unflushed = None
        base, created_us = known.head.base, known.head.created_us
        bases = self.journal.bases()
        later = [one for one in bases if one > base]
        if (not later or later[0] >= known.number) and not (
            # A compaction leaves the time when an extent was made as it is.
            base in bases and self._made_us(base) not in (None, created_us)
        ):
            return
        self._sequences = Sequences()
        raise StoreError(
            f"what was sent to {self.journal.folder} since the last flush is lost, and this is not "
            "sent: the disk failed",
            hint="send again what is not there; offsets go on behind what was flushed",
        )

    def _made_us(self, base: int) -> int | None:
        """When an extent was made; None if that cannot be known."""
        try:
            extent, damage = open_whatever(self.journal.disk, self.journal.folder, base)
        except FileNotFoundError:
            return None
        extent.close()
        return extent.head.created_us if damage is None else None


class LocalScanning:
    """A place in a partition."""

    def __init__(
        self, journal: Journal, offset: int, flush_late: Callable[[float], bool] | None = None
    ) -> None:
        """No I/O. `flush_late` is asked to flush what has been waiting for that since some time."""
        self._journal = journal
        self._reading = Reading(journal, offset)
        self._flush_late = flush_late
        self._unflushed: tuple[int, float] | None = None
        """A number that was not flushed when it was first seen, and when that was."""
        self.offset = offset

    def take(self, max_bytes: int = READ_BYTES) -> list[pa.RecordBatch]:
        """See `Scanning`."""
        found: list[pa.RecordBatch] = []
        # Of some batches a compaction has left no records: that is not the end.
        while not found and (frames := self._reading.take(max_bytes)):
            for frame in frames:
                batch = decoded(frame.payload, frame.number, frame.time_us)
                if frame.number < self.offset:
                    batch = batch.filter(pc.field("offset") >= self.offset)
                self.offset = frame.number + frame.span
                if batch.num_rows:
                    found.append(batch)
        if not found and self._flush_late is not None:
            self._look_for_unflushed(self._flush_late)
        return found

    def _look_for_unflushed(self, flush_late: Callable[[float], bool]) -> None:
        mark = self._journal.newest()
        if mark.number == mark.synced_number:
            self._unflushed = None
        elif self._unflushed is None or self._unflushed[0] <= mark.synced_number:
            self._unflushed = mark.number, self._journal.now_s()
        elif flush_late(self._unflushed[1]):
            self._unflushed = None

    def may_have(self) -> bool:
        """See `Scanning`: to look is to take."""
        return True

    def seek(self, offset: int) -> None:
        """See `Scanning`."""
        self._reading.seek(offset)
        self.offset = offset

    def skip(self) -> int:
        """See `Scanning`."""
        self.offset = self._reading.skip()
        return self.offset

    def close(self) -> None:
        """See `Scanning`."""
        self._reading.close()


def _numbered(parts: Iterable[tuple[int, int]]) -> Offsets:
    """The offset of each record, from the first of each part and how many it has."""
    return np.concatenate([np.arange(first, first + count) for first, count in parts])


def content_bytes(columns: Columns) -> int:
    """About how large these records are in a batch, and not less."""
    size = ROW_BYTES * len(columns)
    for array in (columns.values, columns.keys):
        if array is not None and len(array):
            ends = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
            size += int(ends[-1]) - int(ends[0])
    return size + (0 if columns.headers is None else int(_headers_bytes(columns.headers).sum()))


def _row_bytes(row: Row) -> int:
    """The same for one record."""
    return row.size_bytes + ROW_BYTES + HEADER_BYTES * len(row.headers or ())


def _headers_bytes(headers: pa.Array) -> npt.NDArray[np.int64]:
    """How large the headers of each record are."""
    counts = headers.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    pairs = headers.flatten()
    sizes = np.zeros(len(pairs) + 1, np.int64)
    for name in ("name", "value"):
        sizes[1:] += pc.binary_length(pairs.field(name)).fill_null(0).to_numpy()
    ends = np.cumsum(counts)
    before = np.cumsum(sizes)
    found: npt.NDArray[np.int64] = HEADER_BYTES * counts + before[ends] - before[ends - counts]
    return found


def split(columns: Columns, size_bytes: int) -> Iterator[Columns]:
    """The records in parts of about this size; one that is larger is a part by itself."""
    if content_bytes(columns) <= size_bytes or len(columns) <= 1:
        yield columns
        return
    sizes = np.full(len(columns), ROW_BYTES, np.int64)
    for array in (columns.values, columns.keys):
        if array is not None:
            sizes += pc.binary_length(array).fill_null(0).to_numpy()
    if columns.headers is not None:
        sizes += _headers_bytes(columns.headers)
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(columns):
        room = (ends[begin - 1] if begin else 0) + size_bytes
        end = max(begin + 1, int(np.searchsorted(ends, room, "right")))
        yield columns.slice(begin, end - begin)
        begin = end


def _batches(
    tickets: Sequence[Ticket[_Append, int]], size_bytes: int
) -> Iterator[list[Ticket[_Append, int]]]:
    """Tickets that become one entry, of about this size; those of a producer by themselves."""
    batch: list[Ticket[_Append, int]] = []
    size = 0
    for ticket in tickets:
        if batch and (ticket.item.producer or size + ticket.size_bytes > size_bytes):
            yield batch
            batch, size = [], 0
        batch.append(ticket)
        size += ticket.size_bytes
        if ticket.item.producer:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_open_partitions: WeakSet[LocalPartition] = WeakSet()


@atexit.register
def _close_all() -> None:
    """What a program that ends has appended becomes durable, whatever the flush period is."""
    for partition in list(_open_partitions):
        with suppress(CordwoodError):
            LocalPartition.close(partition)  # Nothing is uploaded: a store may keep it waiting.
