"""Topics, blocking. Unlike most twins they need no loop: the engine blocks by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
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
    """All topics of a place. See `cordwood.Topics`."""

    def __init__(
        self,
        place: str | os.PathLike[str] | Store,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        compacts: bool = True,
        retains: bool = True,
    ) -> None:
        """Name a directory or a store; no I/O."""
        home = home_of(place, clock=clock, entropy=entropy)
        self._engine = Engine(home, clock, entropy, compacts=compacts, retains=retains)

    @property
    def name(self) -> str:
        """Where they are."""
        return self._engine.home.name

    def create(
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
        """Make a topic."""
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
        self._engine.create(config, partition_properties, exist_ok=exist_ok)

    def list(self, namespace: str | None = None) -> Sequence[tuple[str, str]]:
        """All topics, by namespace and name."""
        return self._engine.topics(namespace)

    def describe(self, namespace: str | int, topic: str | int) -> TopicState:
        """What a topic is, and what it holds."""
        return self._engine.describe(*self._engine.names(namespace, topic))

    def producer(
        self, namespace: str | int, topic: str | int, *, name: str | None = None
    ) -> Producer:
        """Somebody who sends records, to be opened with `with`."""
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
        """Somebody who reads records, to be opened with `with`."""
        return Consumer(self._engine, namespace, topic, group, start, timeout_s, positions)

    def lag(self, namespace: str | int, topic: str | int, group: str) -> Sequence[Lag]:
        """How far a group is, partition by partition."""
        return self._engine.lag(*self._engine.names(namespace, topic), group)

    def owner(self, namespace: str, topic: str, partition: int, *, workers: int) -> int:
        """Which of so many workers, from 0 on, owns a partition."""
        return owner_of(namespace, topic, partition, workers)

    def retain(
        self, namespace: str | int, topic: str | int, *, now_us: int | None = None
    ) -> RetentionReport:
        """Delete what is older than the topic's retention, or more than it keeps."""
        return self._engine.retain(*self._engine.names(namespace, topic), now_us)

    def compact(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        rate_bytes_s: float | None = None,
        progress: CompactProgress | None = None,
    ) -> CompactionReport:
        """Drop all but the last record of each key, as far as the topic is closed."""
        names = self._engine.names(namespace, topic)
        return self._engine.compact(*names, rate_bytes_s, progress)

    def upload(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        progress: UploadProgress | None = None,
    ) -> UploadReport:
        """Upload now what is not yet on a topic's tier, and wait for that."""
        return self._engine.upload(*self._engine.names(namespace, topic), progress)

    def latest(
        self,
        namespace: str | int,
        topic: str | int,
        key: bytes,
        *,
        partition: int | None = None,
    ) -> TopicRecord | None:
        """The last record of a key; None if there is none, or the key is deleted."""
        return self._engine.latest(*self._engine.names(namespace, topic), key, partition)

    def latest_all(self, namespace: str | int, topic: str | int) -> Iterator[TopicRecord]:
        """The last record of each key of a compaction topic, but of those that are deleted."""
        for found in self.latest_batches(namespace, topic):
            yield from iter_topic_records(*found)

    def latest_batches(
        self, namespace: str | int, topic: str | int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The same as partitions and batches, as Arrow."""
        return self._engine.latest_batches(*self._engine.names(namespace, topic))

    def delete(self, namespace: str | int, topic: str | int) -> None:
        """Delete a topic, with all its records."""
        self._engine.home.delete(*self._engine.names(namespace, topic))

    def delete_group(self, namespace: str | int, topic: str | int, group: str) -> None:
        """Forget a group of consumers."""
        self._engine.home.delete_group(*self._engine.names(namespace, topic), group)

    def close(self) -> None:
        """Make durable what is not yet, and let go of all files."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"sync.Topics({self.name!r})"


class Producer:
    """Somebody who sends records to a topic; any number of threads use it."""

    def __init__(
        self, engine: Engine, namespace: str | int, topic: str | int, name: str | None
    ) -> None:
        """Made by `Topics.producer`."""
        self._engine = engine
        self._topic = namespace, topic
        self._name = name
        self._open: Sending | None = None

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Where:
        """Send a record; where it is. It is acknowledged when this returns."""
        row = checked_row(value, key, headers, timestamp_us)
        return (self._open or self._sending).send_one(row, partition, sequence)

    def send_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> Sent:
        """Send records; where they are. If it fails, some of them may be there."""
        return self._sending.send_all(columns_of_rows(values, keys, headers), None)

    def send_arrow(self, data: pa.Table | pa.RecordBatch) -> Sent:
        """Send records in Arrow columns: value, and key, headers, timestamp_us, partition."""
        return self._sending.send_all(*columns_of_arrow(data))

    def close(self) -> None:
        """Wait for what is under way."""
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> Self:
        self._open = Sending(self._engine, *self._engine.names(*self._topic), self._name)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _sending(self) -> Sending:
        if self._open is None:
            raise StateError("the producer is not open", hint="open it with `with`")
        return self._open


class Consumer:
    """Somebody who reads records of a topic; one thread uses it."""

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

    def __iter__(self) -> Iterator[TopicRecord]:
        """Record by record, until nothing comes for the timeout, or until it is closed."""
        self._consuming.check_open()
        while (found := self._poll()) is not None:
            for record in iter_topic_records(found.partition, found.batch):
                self._consuming.done(record.partition, record.offset + 1)
                yield record
                if self._consuming.position(found.partition) != record.offset + 1:
                    break  # It was told to go on elsewhere.
            else:
                self._consuming.done(found.partition, found.next)

    def batches(self) -> Iterator[Fetched]:
        """The same by batches of one partition, as Arrow."""
        self._consuming.check_open()
        while (found := self._poll()) is not None:
            self._consuming.done(found.partition, found.next)
            yield found

    def position(self, partition: int) -> int | None:
        """The record of a partition that comes next; None if the partition is not its own."""
        return self._consuming.position(partition)

    def seek(self, partition: int, offset: int) -> None:
        """Go on from another record."""
        self._consuming.seek(partition, offset)

    def skip(self, partition: int | None = None) -> Skipped:
        """Pass over records that are damaged, in the partition where that was told, or this one."""
        return self._consuming.skip(partition)

    def commit(self, positions: Mapping[int, int] | None = None) -> None:
        """Let the group go on behind the records that were handed out, or from these positions."""
        self._consuming.commit(positions)

    def stop(self) -> None:
        """End an iteration under way, from any thread."""
        self._consuming.stop()

    def close(self) -> None:
        """Leave the group."""
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> Self:
        group, start, positions = self._how
        self._open = self._engine.consuming(
            *self._topic, group=group, start=start, positions=positions
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _poll(self) -> Fetched | None:
        return self._consuming.poll(self._timeout_s, READ_BYTES)

    @property
    def _consuming(self) -> Consuming:
        if self._open is None:
            raise StateError("the consumer is not open", hint="open it with `with`")
        return self._open
