"""Topics: namespaces, topics and partitions of keyed records, with producers and consumers.

::

    topics = cordwood.Topics("/data/topics")
    await topics.create("shop", "clicks", partitions=4)
    async with topics.producer("shop", "clicks") as producer:
        where = await producer.send(b"value", key=b"k")
    async with topics.consumer("shop", "clicks", group="g") as consumer:
        async for record in consumer:
            ...
            await consumer.commit()

Nothing runs that would have to be started first: whoever opens a topic reads and writes its files.
Records of one key are in one partition, in the order in which they were acknowledged; each has the
offset that it keeps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Literal, Self

import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import StateError
from cordwood.journal.journal import EXTENT_BYTES
from cordwood.journal.reading import READ_BYTES
from cordwood.log.records import Headers
from cordwood.store.url import Store
from cordwood.topics.batch import TopicRecord, iter_topic_records
from cordwood.topics.compaction import CompactionReport, CompactProgress
from cordwood.topics.config import FLUSH_PERIOD_S, TOMBSTONE_S, Ack
from cordwood.topics.consuming import Consuming, Fetched, Positions, Skipped, Start
from cordwood.topics.engine import Engine, Lag, Sending, Sent, TopicState, Where, config_of
from cordwood.topics.names import owner_of
from cordwood.topics.place import home_of
from cordwood.topics.retention import RetentionReport
from cordwood.topics.rows import checked_row, columns_of_arrow, columns_of_rows
from cordwood.topics.tier import UploadProgress, UploadReport


class Topics:
    """All topics of a place."""

    def __init__(
        self,
        place: str | os.PathLike[str] | Store,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        compacts: bool = True,
        retains: bool = True,
    ) -> None:
        """Name a directory or a store; no I/O.

        Args:
            place: the directory, or the store.
            clock: for simulations.
            entropy: likewise.
            compacts: whether producers compact a compaction topic by themselves, in a thread.
            retains: whether producers and consumers that are open delete by themselves what their
                topics do not keep, in a thread.
        """
        home = home_of(place, clock=clock, entropy=entropy)
        self._engine = Engine(home, clock, entropy, compacts=compacts, retains=retains)

    @property
    def name(self) -> str:
        """Where they are."""
        return self._engine.home.name

    async def create(
        self,
        namespace: str,
        topic: str,
        *,
        partitions: int = 1,
        compaction: bool = False,
        properties: Mapping[str, str] | None = None,
        partition_properties: Mapping[int, Mapping[str, str]] | None = None,
        retention_s: float | Literal["default"] | None = "default",
        retention_bytes: int | None = None,
        ack: Ack = "journal",
        flush_period_s: float = FLUSH_PERIOD_S,
        extent_bytes: int = EXTENT_BYTES,
        tombstone_s: float = TOMBSTONE_S,
        tier: str | None = None,
        local_retention_s: float | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make a topic.

        Args:
            namespace: ASCII letters, digits, `-` and `_`.
            topic: likewise.
            partitions: into how many ordered parts its records are divided, for good.
            compaction: whether only the last record of each key is kept, in the long run.
            properties: what to keep with the topic.
            partition_properties: what to keep with each partition.
            retention_s: how long records are kept after their time; None: for ever. By default 168
                hours, and for ever in a compaction topic, where it would also end the last record
                of a key.
            retention_bytes: how much of each partition is kept; None: all of it.
            ack: when a record is acknowledged: `journal`, when it is on the disk; `flush`, when it
                is written, and it is on the disk within the flush period; `store`, when it is on
                the store.
            flush_period_s: for `flush`.
            extent_bytes: the size of a partition's files; no record is larger.
            tombstone_s: how long a deleted key is still told, in a compaction topic.
            tier: the URL of a store that records of a topic in a directory are uploaded to.
            local_retention_s: how long what was uploaded stays in the directory; None: as long as
                on the store.
            exist_ok: whether there may be a topic of this name, which then stays as it is.

        Raises:
            AlreadyExistsError: there is one, or one with the same id.
            InvalidInputError: there cannot be such a topic.
        """
        config = config_of(
            namespace,
            topic,
            partitions=partitions,
            compaction=compaction,
            properties=properties,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
            ack=ack,
            flush_period_s=flush_period_s,
            extent_bytes=extent_bytes,
            tombstone_s=tombstone_s,
            tier=tier,
            local_retention_s=local_retention_s,
        )
        await asyncio.to_thread(
            self._engine.create, config, partition_properties, exist_ok=exist_ok
        )

    async def list(self, namespace: str | None = None) -> Sequence[tuple[str, str]]:
        """All topics, by namespace and name, in order."""
        return await asyncio.to_thread(self._engine.topics, namespace)

    async def describe(self, namespace: str | int, topic: str | int) -> TopicState:
        """What a topic is, and what it holds.

        Here and below, the 64-bit id of a namespace or a topic may stand for its name.

        Raises:
            NotFoundError: there is no such topic.
        """
        return await asyncio.to_thread(self._describe, namespace, topic)

    def producer(
        self, namespace: str | int, topic: str | int, *, name: str | None = None
    ) -> Producer:
        """Somebody who sends records, to be opened with `async with`.

        With a name, records can have sequence numbers: one that is sent again is not doubled.
        """
        return Producer(self._engine, namespace, topic, name)

    def consumer(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        group: str | None = None,
        start: Start = "oldest",
        timeout_s: float | None = None,
        positions: Positions | None = None,
    ) -> Consumer:
        """Somebody who reads records, to be opened with `async with`.

        Args:
            namespace: of the topic.
            topic: which one.
            group: consumers of one group share the partitions, and remember how far they are.
            start: where to begin in a partition for which nothing is remembered.
            timeout_s: end when nothing has come for so long; None: never.
            positions: where to go on in a partition, if that is remembered elsewhere, as by a sink
                that keeps it together with what it made of the records.
        """
        return Consumer(self._engine, namespace, topic, group, start, timeout_s, positions)

    async def lag(self, namespace: str | int, topic: str | int, group: str) -> Sequence[Lag]:
        """How far a group is, partition by partition.

        Raises:
            NotFoundError: there is no such topic, or no such group.
        """
        return await asyncio.to_thread(self._lag, namespace, topic, group)

    def owner(self, namespace: str, topic: str, partition: int, *, workers: int) -> int:
        """Which of so many workers, from 0 on, owns a partition.

        All who ask get the same answer, and one more worker takes over only its share. A program
        whose processes divide the work by it has one sender for each partition, which is fastest;
        it is right without as well.
        """
        return owner_of(namespace, topic, partition, workers)

    async def retain(
        self, namespace: str | int, topic: str | int, *, now_us: int | None = None
    ) -> RetentionReport:
        """Delete what is older than the topic's retention, or more than it keeps.

        Whole extents go, the oldest first, never the newest one of a partition. A topic that has
        nothing left to keep, and is itself older than its retention, is deleted.
        """
        return await asyncio.to_thread(self._retain, namespace, topic, now_us)

    async def compact(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        rate_bytes_s: float | None = None,
        progress: CompactProgress | None = None,
    ) -> CompactionReport:
        """Drop all but the last record of each key of a compaction topic, as far as it is closed.

        Appending and reading go on meanwhile. Offsets and order stay as they are. A record without
        a value, which says that its key is deleted, is kept for the topic's `tombstone_s`.

        Args:
            namespace: of the topic.
            topic: which one.
            rate_bytes_s: how much to read and write in a second; None: as fast as it goes.
            progress: called with how many bytes of a partition are done, and how many there are.

        Raises:
            StateError: it is no compaction topic.
        """
        return await asyncio.to_thread(self._compact, namespace, topic, rate_bytes_s, progress)

    async def upload(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        progress: UploadProgress | None = None,
    ) -> UploadReport:
        """Upload now what is not yet on a topic's tier, and wait for that.

        It happens by itself as well, soon after records were sent by a process that stays. Then
        files that are uploaded, and old enough, are deleted in the directory.

        Args:
            namespace: of the topic.
            topic: which one.
            progress: called with how many records of a partition are done, and how many there are.

        Raises:
            StateError: it has no tier; or the store has another's records.
            StoreError: the store failed; what it took is there.
        """
        return await asyncio.to_thread(self._upload, namespace, topic, progress)

    async def latest(
        self,
        namespace: str | int,
        topic: str | int,
        key: bytes,
        *,
        partition: int | None = None,
    ) -> TopicRecord | None:
        """The last record of a key of a compaction topic; None if there is none, or it is deleted.

        It is looked for in the partition that the key belongs to, or in the one that is named.
        """
        return await asyncio.to_thread(self._latest, namespace, topic, key, partition)

    async def latest_all(
        self, namespace: str | int, topic: str | int
    ) -> AsyncIterator[TopicRecord]:
        """The last record of each key of a compaction topic, but of those that are deleted.

        Each partition as it is when its turn comes, in the order of its offsets.
        """
        async for found in self.latest_batches(namespace, topic):
            for record in iter_topic_records(*found):
                yield record

    async def latest_batches(
        self, namespace: str | int, topic: str | int
    ) -> AsyncIterator[tuple[int, pa.RecordBatch]]:
        """The same as partitions and batches, as Arrow."""
        found = await asyncio.to_thread(self._latest_batches, namespace, topic)
        try:
            while (one := await asyncio.to_thread(next, found, None)) is not None:
                yield one
        finally:
            await asyncio.to_thread(found.close)

    async def delete(self, namespace: str | int, topic: str | int) -> None:
        """Delete a topic, with all its records."""
        await asyncio.to_thread(self._delete, namespace, topic)

    async def delete_group(self, namespace: str | int, topic: str | int, group: str) -> None:
        """Forget a group of consumers.

        Raises:
            NotFoundError: there is none.
            StateError: some are consuming.
        """
        await asyncio.to_thread(self._delete_group, namespace, topic, group)

    async def close(self) -> None:
        """Make durable what is not yet, and let go of all files."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Topics({self.name!r})"

    def _describe(self, namespace: str | int, topic: str | int) -> TopicState:
        return self._engine.describe(*self._engine.names(namespace, topic))

    def _lag(self, namespace: str | int, topic: str | int, group: str) -> Sequence[Lag]:
        return self._engine.lag(*self._engine.names(namespace, topic), group)

    def _retain(
        self, namespace: str | int, topic: str | int, now_us: int | None
    ) -> RetentionReport:
        return self._engine.retain(*self._engine.names(namespace, topic), now_us)

    def _compact(
        self,
        namespace: str | int,
        topic: str | int,
        rate_bytes_s: float | None,
        progress: CompactProgress | None,
    ) -> CompactionReport:
        names = self._engine.names(namespace, topic)
        return self._engine.compact(*names, rate_bytes_s, progress)

    def _upload(
        self, namespace: str | int, topic: str | int, progress: UploadProgress | None
    ) -> UploadReport:
        return self._engine.upload(*self._engine.names(namespace, topic), progress)

    def _latest(
        self, namespace: str | int, topic: str | int, key: bytes, partition: int | None
    ) -> TopicRecord | None:
        return self._engine.latest(*self._engine.names(namespace, topic), key, partition)

    def _latest_batches(
        self, namespace: str | int, topic: str | int
    ) -> Generator[tuple[int, pa.RecordBatch]]:
        return self._engine.latest_batches(*self._engine.names(namespace, topic))

    def _delete(self, namespace: str | int, topic: str | int) -> None:
        self._engine.home.delete(*self._engine.names(namespace, topic))

    def _delete_group(self, namespace: str | int, topic: str | int, group: str) -> None:
        self._engine.home.delete_group(*self._engine.names(namespace, topic), group)


class Producer:
    """Somebody who sends records to a topic; any number of tasks use it."""

    def __init__(
        self, engine: Engine, namespace: str | int, topic: str | int, name: str | None
    ) -> None:
        """Made by `Topics.producer`."""
        self._engine = engine
        self._topic = namespace, topic
        self._name = name
        self._open: Sending | None = None

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Where:
        """Send a record; where it is. It is acknowledged when this returns.

        Args:
            value: None says that the key is deleted, in a compaction topic.
            key: records of one key go to one partition.
            headers: names and what they say.
            timestamp_us: its time; else now.
            partition: which one, whatever the key says.
            sequence: its number among the records of this producer; one that was sent before is
                not sent again, and where it is is returned.

        Raises:
            InvalidInputError: something cannot be sent.
            LimitError: something is too large.
            StoreError: the disk failed, or is full; the record is not there.
        """
        sending = self._sending
        sending.check_open()
        row = checked_row(value, key, headers, timestamp_us)
        whose = sending.whose(sequence)
        number = sending.router.place_one(row, partition, sequence)
        return Where(number, await sending.partitions[number].append_one_async(row, whose))

    async def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Sent:
        """Send records; where they are. If it fails, some of them may be there."""
        columns = columns_of_rows(values, keys, headers)
        return await asyncio.to_thread(self._sending.send_all, columns, None)

    async def send_arrow(self, data: pa.Table | pa.RecordBatch) -> Sent:
        """Send records in Arrow columns: value, and key, headers, timestamp_us, partition."""
        return await asyncio.to_thread(self._sending.send_all, *columns_of_arrow(data))

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._open is not None:
            await asyncio.to_thread(self._open.close)

    async def __aenter__(self) -> Self:
        self._open = await asyncio.to_thread(self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> Sending:
        return Sending(self._engine, *self._engine.names(*self._topic), self._name)

    @property
    def _sending(self) -> Sending:
        if self._open is None:
            raise StateError("the producer is not open", hint="open it with `async with`")
        return self._open


class Consumer:
    """Somebody who reads records of a topic; one task uses it."""

    def __init__(
        self,
        engine: Engine,
        namespace: str | int,
        topic: str | int,
        group: str | None,
        start: Start,
        timeout_s: float | None,
        positions: Positions | None,
    ) -> None:
        """Made by `Topics.consumer`."""
        self._engine = engine
        self._topic = namespace, topic
        self._how = group, start, positions
        self._timeout_s = timeout_s
        self._open: Consuming | None = None

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions that it reads now."""
        return self._consuming.assigned

    async def __aiter__(self) -> AsyncIterator[TopicRecord]:
        """Record by record, until nothing comes for the timeout, or until it is closed."""
        self._consuming.check_open()
        while (found := await self._poll()) is not None:
            for record in iter_topic_records(found.partition, found.batch):
                self._consuming.done(record.partition, record.offset + 1)
                yield record
                if self._consuming.position(found.partition) != record.offset + 1:
                    break  # It was told to go on elsewhere.
            else:
                self._consuming.done(found.partition, found.next)

    async def batches(self) -> AsyncIterator[Fetched]:
        """The same by batches of one partition, as Arrow."""
        self._consuming.check_open()
        while (found := await self._poll()) is not None:
            self._consuming.done(found.partition, found.next)
            yield found

    def position(self, partition: int) -> int | None:
        """The record of a partition that comes next; None if the partition is not its own."""
        return self._consuming.position(partition)

    def seek(self, partition: int, offset: int) -> None:
        """Go on from another record.

        Raises:
            StateError: the partition is not its own.
        """
        self._consuming.seek(partition, offset)

    def skip(self, partition: int | None = None) -> Skipped:
        """Pass over records that are damaged, in the partition where that was told, or this one.

        Raises:
            StateError: the partition is not its own.
        """
        return self._consuming.skip(partition)

    async def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Let the group go on behind the records that were handed out, or from these positions.

        Done after a record was handled, no record is ever missed: one who dies in between leaves
        some to be handled twice.

        Raises:
            ConflictError: a partition is another member's by now; it goes on from the last commit.
            StateError: the consumer has no group.
        """
        await asyncio.to_thread(self._consuming.commit, positions)

    def stop(self) -> None:
        """End an iteration under way, from any thread or task."""
        self._consuming.stop()

    async def close(self) -> None:
        """Leave the group."""
        if self._open is not None:
            self._open.stop()
            await asyncio.to_thread(self._open.close)

    async def __aenter__(self) -> Self:
        self._open = await asyncio.to_thread(self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _poll(self) -> Fetched | None:
        return await self._consuming.poll_async(self._timeout_s, READ_BYTES)

    def _opened(self) -> Consuming:
        group, start, positions = self._how
        return self._engine.consuming(*self._topic, group=group, start=start, positions=positions)

    @property
    def _consuming(self) -> Consuming:
        if self._open is None:
            raise StateError("the consumer is not open", hint="open it with `async with`")
        return self._open
