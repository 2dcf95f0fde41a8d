"""Topics, blocking: what the async classes and their twins are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
    UnsupportedError,
)
from cordwood.base.forks import starts_over
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.journal.journal import Journal
from cordwood.topics.alive import MEMORY_BYTES
from cordwood.topics.batch import Columns, Producer, Row, TopicRecord
from cordwood.topics.compaction import CompactionReport, CompactProgress, Throttle
from cordwood.topics.config import RETENTION_S, Ack, TopicConfig, checked
from cordwood.topics.consuming import Consuming, Positions, Start
from cordwood.topics.folder import Folder
from cordwood.topics.home import Bounds, Home, Offsets, Partition
from cordwood.topics.keeping import Keeping
from cordwood.topics.keys import Keys
from cordwood.topics.latest import latest, latest_batches
from cordwood.topics.logged import LoggedPartition
from cordwood.topics.names import check_name, name_id, partition_of
from cordwood.topics.partition import LocalPartition
from cordwood.topics.retention import Retained, RetentionReport, has_expired, retain
from cordwood.topics.routing import Router
from cordwood.topics.tier import TieredPartition, Uploaded, UploadProgress, UploadReport
from cordwood.topics.usage import usage_of

WORKERS = 4
"""Threads of a producer that append to partitions, each to its own."""
LOCAL_PERIOD_S = 300.0
STORE_PERIOD_S = 3600.0
"""How often a topic that is open is retained: on a store that takes requests."""


class Where(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class Sent(Sequence[Where]):
    """Where records are that were sent together."""

    def __init__(self, partitions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
        """One of each for every record, in the order in which they were given."""
        self.partitions = partitions
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Sent(self.partitions[place], self.offsets[place])
        return Where(int(self.partitions[place]), int(self.offsets[place]))


class Lag(NamedTuple):
    """How far a group is in a partition."""

    partition: int
    position: int
    next: int

    @property
    def records(self) -> int:
        """How many it has not read."""
        return max(0, self.next - self.position)


class PartitionState(msgspec.Struct, frozen=True):
    """What a partition holds."""

    partition: int
    oldest: int
    next: int
    properties: dict[str, str]
    not_uploaded: int | None = None
    """How many records are not on the topic's tier yet; None if it has none."""
    oldest_here: int | None = None
    """The first record that is in the directory; None if the topic has no tier."""
    bytes: int = 0
    """On the disk, with what was set aside for more."""
    extents: int = 0


class TopicState(msgspec.Struct, frozen=True):
    """What a topic is, and what it holds."""

    namespace: str
    topic: str
    namespace_id: int
    topic_id: int
    config: TopicConfig
    partitions: list[PartitionState]
    groups: list[str]
    warnings: list[str] = []
    """What does not look right."""


class Engine:
    """All topics of a home."""

    def __init__(
        self,
        home: Home,
        clock: Clock,
        entropy: Entropy,
        *,
        compacts: bool = True,
        retains: bool = True,
    ) -> None:
        """No I/O. Topics are compacted and retained by themselves, unless that is not wanted."""
        self.home = home
        self.clock = clock
        self.entropy = entropy
        period_s = LOCAL_PERIOD_S if isinstance(home, Folder) else STORE_PERIOD_S
        self.keeping = Keeping(self._retained, clock, entropy, period_s) if retains else None
        if isinstance(home, Folder):
            home.compacts = compacts
            home.when_full = self.keeping.soon if self.keeping is not None else None

    def close(self) -> None:
        """Let go of everything."""
        if self.keeping is not None:
            self.keeping.stop()
        self.home.close()

    def open_while(self, namespace: str, topic: str) -> Callable[[], None]:
        """Look after a topic until this is called."""
        if self.keeping is None:
            return lambda: None
        name = namespace, topic
        self.keeping.open(name)
        return partial(self.keeping.close, name)

    def create(
        self,
        config: TopicConfig,
        partition_properties: Mapping[int, Mapping[str, str]] | None,
        *,
        exist_ok: bool,
    ) -> None:
        """Make a topic."""
        if not isinstance(partition_properties or {}, Mapping):
            raise InvalidInputError("partition_properties maps partitions to their properties")
        attached: dict[Any, Any] = dict(partition_properties or {})
        if wrong := [one for one in attached.values() if not isinstance(one, Mapping)]:
            raise InvalidInputError(f"properties map texts to texts, they are not {wrong[0]!r}")
        made = checked(msgspec.structs.replace(config, created_us=self.clock.now_us()))
        for number in attached:
            if number not in range(made.partitions):
                raise InvalidInputError(f"there is no partition {number!r} to attach properties to")
        if exist_ok and (config.namespace, config.topic) in self.home.topics(config.namespace):
            return
        configs = [
            checked(
                msgspec.structs.replace(made, partition_properties=dict(attached.get(number, {})))
            )
            for number in range(made.partitions)
        ]
        try:
            self.home.create(configs)
        except AlreadyExistsError:
            # Somebody else made it meanwhile; or its id is another's.
            name = config.namespace, config.topic
            if not exist_ok or name not in self.home.topics(config.namespace):
                raise

    def topics(self, namespace: str | None) -> Sequence[tuple[str, str]]:
        """All topics, or those of a namespace."""
        if namespace is not None:
            check_name("namespace", namespace)
        return self.home.topics(namespace)

    def names(self, namespace: str | int, topic: str | int) -> tuple[str, str]:
        """The names of a topic, of which the ids may be given instead.

        Raises:
            NotFoundError: nothing has such an id.
        """
        if isinstance(namespace, str) and isinstance(topic, str):
            return check_name("namespace", namespace), check_name("topic", topic)
        for space, name in self.home.topics():
            if namespace in (space, name_id(space)) and topic in (name, name_id(name)):
                return space, name
        raise NotFoundError(f"there is no topic {namespace}/{topic}")

    def partitions(self, namespace: str, topic: str) -> list[Partition]:
        """The partitions of a topic."""
        count = self.home.partition(namespace, topic, 0).config.partitions
        return [self.home.partition(namespace, topic, number) for number in range(count)]

    def describe(self, namespace: str, topic: str) -> TopicState:
        """What a topic is, and what it holds."""
        found = []
        warnings: list[str] = []
        partitions = list(enumerate(self.partitions(namespace, topic)))
        asked = self.home.pace.each(lambda one: self._bounds(*one, warnings), partitions)
        for (number, partition), bounds in zip(partitions, asked, strict=True):
            properties = partition.config.partition_properties
            waiting = here = None
            if isinstance(partition, TieredPartition):
                waiting, here = partition.not_uploaded(), partition.local_bounds().oldest
            usage = usage_of(partition, number)
            warnings += usage.warnings
            found.append(
                PartitionState(
                    number,
                    bounds.oldest,
                    bounds.next,
                    properties,
                    waiting,
                    here,
                    usage.bytes,
                    usage.extents,
                )
            )
        if isinstance(self.home, Folder):
            warnings += self.home.background(namespace, topic).troubles.values()
        if self.keeping is not None and (namespace, topic) in self.keeping.troubles:
            warnings.append(self.keeping.troubles[namespace, topic])
        return TopicState(
            namespace,
            topic,
            name_id(namespace),
            name_id(topic),
            self.home.partition(namespace, topic, 0).config,
            found,
            sorted(self.home.groups(namespace, topic)),
            warnings,
        )

    def _bounds(self, number: int, partition: Partition, warnings: list[str]) -> Bounds:
        """Which records there are; of one whose tier does not answer, those in the directory."""
        try:
            return partition.bounds()
        except StoreError as error:
            if not isinstance(partition, TieredPartition):
                raise
            warnings.append(f"partition {number}: its tier does not answer: {error}")
            return partition.local_bounds()

    def retain(self, namespace: str, topic: str, now_us: int | None) -> RetentionReport:
        """Delete what a topic does not keep; the topic itself, if that is all."""
        gone = self._retained(namespace, topic, now_us)
        return RetentionReport(gone, self._cleaned_up(namespace, topic, now_us))

    def _retained(self, namespace: str, topic: str, now_us: int | None = None) -> list[Retained]:
        """Delete what a topic does not keep."""
        partitions = self.partitions(namespace, topic)
        gone = []
        for number, one in enumerate(partitions):
            if isinstance(one, LoggedPartition | TieredPartition):
                if now_us is not None:
                    raise UnsupportedError("what time it is on a store, the store says")
                gone.append(Retained(number, records=one.retain()))
            elif isinstance(one, LocalPartition):
                at_us = self.clock.now_us() if now_us is None else now_us
                gone.append(retain(one.journal, one.config, number, at_us))
        return gone

    def _cleaned_up(self, namespace: str, topic: str, now_us: int | None) -> bool:
        """Delete a topic in a directory of which nothing is worth keeping; whether that was so."""
        if not isinstance(self.home, Folder):
            return False
        at_us = self.clock.now_us() if now_us is None else now_us
        _, partitions = self._local(namespace, topic)
        kept = [(one.journal, one.config) for one in partitions]
        if any(config.tier is not None for _, config in kept):
            return False

        def is_over() -> bool:
            return all(has_expired(*one, at_us) for one in kept)

        # Asked again while nobody can append; most of the time the first answer is enough.
        return is_over() and self.home.delete_if(namespace, topic, is_over)

    def compact(
        self,
        namespace: str,
        topic: str,
        rate_bytes_s: float | None,
        progress: CompactProgress | None,
        *,
        memory_bytes: int = MEMORY_BYTES,
    ) -> CompactionReport:
        """Drop all but the last record of each key, in extents that are closed."""
        if rate_bytes_s is not None and not rate_bytes_s > 0:
            raise InvalidInputError(f"rate_bytes_s is {rate_bytes_s!r}, and has to be positive")
        folder, partitions = self._local(namespace, topic)
        pace = Throttle(self.clock, rate_bytes_s)
        found = [
            folder.compactor(one, pace, memory_bytes).compact(number, progress)
            for number, one in enumerate(partitions)
        ]
        return CompactionReport(found)

    def upload(self, namespace: str, topic: str, progress: UploadProgress | None) -> UploadReport:
        """Upload what is not yet on a topic's tier.

        Raises:
            StateError: it has none.
        """
        found = []
        for number, one in enumerate(self.partitions(namespace, topic)):
            if not isinstance(one, TieredPartition):
                raise StateError(
                    f"{namespace}/{topic} has no tier", hint="create another one with a tier"
                )
            before = one.far.bounds().next
            end = one.upload(progress)
            found.append(Uploaded(number, max(0, end - before), end))
        return UploadReport(found)

    def latest(
        self, namespace: str, topic: str, key: bytes, partition: int | None
    ) -> TopicRecord | None:
        """The last record of a key."""
        if not isinstance(key, bytes):
            raise InvalidInputError(f"a key is bytes, not a {type(key).__name__}")
        partitions = self._keyed(namespace, topic)
        number = partition_of(key, len(partitions)) if partition is None else partition
        if number not in range(len(partitions)):
            raise InvalidInputError(f"there is no partition {number!r}")
        return latest(*partitions[number], number, key)

    def latest_batches(
        self, namespace: str, topic: str, *, memory_bytes: int = MEMORY_BYTES
    ) -> Generator[tuple[int, pa.RecordBatch]]:
        """The last record of each key, as batches of one partition."""
        for number, one in enumerate(self._keyed(namespace, topic)):
            for batch in latest_batches(*one, memory_bytes=memory_bytes):
                yield number, batch

    def _keyed(self, namespace: str, topic: str) -> list[tuple[Journal, Keys]]:
        """The partitions of a compaction topic, and their keys."""
        _, partitions = self._local(namespace, topic)
        found = [(one.journal, one.keys) for one in partitions if one.keys is not None]
        if len(found) < len(partitions):
            raise StateError(
                f"{namespace}/{topic} is no compaction topic", hint="consume it from the oldest on"
            )
        return found

    def _local(self, namespace: str, topic: str) -> tuple[Folder, list[LocalPartition]]:
        """A topic in a directory.

        Raises:
            UnsupportedError: it is elsewhere.
        """
        partitions = self.partitions(namespace, topic)
        local = [one for one in partitions if isinstance(one, LocalPartition)]
        if len(local) < len(partitions) or not isinstance(self.home, Folder):
            raise UnsupportedError(f"{namespace}/{topic} is not in a directory")
        return self.home, local

    def consuming(
        self,
        namespace: str | int,
        topic: str | int,
        *,
        group: str | None,
        start: Start,
        positions: Positions | None,
    ) -> Consuming:
        """A consumer of a topic."""
        names = self.names(namespace, topic)
        made = Consuming(
            self.home, *names, self.clock, group=group, start=start, positions=positions
        )
        made.when_closed = self.open_while(*names)
        return made

    def lag(self, namespace: str, topic: str, group: str) -> list[Lag]:
        """How far a group is, partition by partition."""
        partitions = self.partitions(namespace, topic)
        groups = self.home.groups(namespace, topic)
        if group not in groups:
            raise NotFoundError(
                f"{namespace}/{topic} has no group {group!r}", hint="a consumer makes it"
            )
        found = []
        for number, bounds in enumerate(self.home.pace.each(_bounds_of, partitions)):
            position = groups[group].get(number, bounds.oldest)
            found.append(Lag(number, position, bounds.next))
        return found


def _bounds_of(partition: Partition) -> Bounds:
    return partition.bounds()


class Sending:
    """A producer, whatever it is made of."""

    def __init__(self, engine: Engine, namespace: str, topic: str, name: str | None) -> None:
        """Any number of threads use it. With a name, records may have sequence numbers."""
        self.topic = namespace, topic
        self.partitions = engine.partitions(namespace, topic)
        self.config = self.partitions[0].config
        self.router = Router(self.config, WORKERS)
        self.producer_id = None if name is None else _producer_id(name)
        self._is_closed = False
        self.start_over()
        self._is_forked = False
        starts_over(self)
        self._stop_keeping = engine.open_while(namespace, topic)

    def start_over(self) -> None:
        """It is its parent's, whose threads are not here: a child opens another."""
        self._workers: list[ThreadPoolExecutor | None] = [None] * WORKERS
        self._mutex = threading.Lock()
        self._is_forked = True

    def whose(self, sequence: int | None) -> Producer | None:
        """Whose record it is, by its sequence number.

        Raises:
            InvalidInputError: the producer has no name.
        """
        if sequence is None:
            return None
        if self.producer_id is None:
            raise InvalidInputError(
                "a sequence number is one of a producer that has a name",
                hint='open the producer with name="…"',
            )
        given: Any = sequence
        is_number = isinstance(given, int) and not isinstance(given, bool)
        if not is_number or not 0 <= given < OFFSET_LIMIT:
            raise InvalidInputError(f"{sequence!r} is no sequence number: they begin with 0")
        return Producer(self.producer_id, sequence)

    def send_one(self, row: Row, chosen: int | None, sequence: int | None) -> Where:
        """Append one record, here; the threads that do so at once share a sync."""
        if self._is_closed or self._is_forked:
            self.check_open()
        whose = None if sequence is None else self.whose(sequence)
        partition = self.router.place_one(row, chosen, sequence)
        return Where(partition, self.partitions[partition].append_one(row, whose))

    def send_all(self, columns: Columns, chosen: Any) -> Sent:
        """Append records, those of different partitions at once."""
        self.check_open()
        parts = self.router.split(columns, chosen)
        if len(parts) == 1:
            found = [self.partitions[parts[0][0]].append(columns)]
        else:
            work = [
                self._submit(number, self.partitions[number].append, columns.take(rows))
                for number, rows in parts
            ]
            found = [one.result() for one in work]
        return self.sent(parts, found, len(columns))

    def sent(
        self, parts: list[tuple[int, npt.NDArray[np.int64]]], found: list[Offsets], count: int
    ) -> Sent:
        """Where all records are."""
        partitions, offsets = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for (number, rows), told in zip(parts, found, strict=True):
            partitions[rows] = number
            offsets[rows] = told
        return Sent(partitions, offsets)

    def close(self) -> None:
        """Wait for what is under way; twice is no error."""
        with self._mutex:
            was_closed, self._is_closed = self._is_closed, True
            workers, self._workers = self._workers, [None] * WORKERS
        for worker in workers:
            if worker is not None:
                worker.shutdown()
        if not was_closed and not self._is_forked:
            self._stop_keeping()

    def check_open(self) -> None:
        """Raise if it is closed, or is another process's."""
        if self._is_closed:
            raise StateError("the producer is closed", hint="open another")
        if self._is_forked:
            raise StateError(
                "the producer was opened before this process was forked", hint="open another"
            )

    def _submit(
        self, partition: int, append: Callable[[Columns], Offsets], columns: Columns
    ) -> Future[Offsets]:
        """Let the thread that owns a partition append."""
        owner = self.router.owners[partition]
        with self._mutex:
            self.check_open()  # Somebody may have closed it since.
            worker = self._workers[owner]
            if worker is None:
                worker = ThreadPoolExecutor(1, f"cordwood-topics-{owner}")
                self._workers[owner] = worker
            return worker.submit(append, columns)


def _producer_id(name: object) -> int:
    """What records say of the producer with a name.

    Raises:
        InvalidInputError: it is no name.
    """
    try:
        if isinstance(name, str):
            return xxhash.xxh64_intdigest(name.encode())
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(f"a producer's name is a text, not {name!r}")


def config_of(
    namespace: str,
    topic: str,
    *,
    partitions: int,
    compaction: bool,
    properties: Mapping[str, str] | None,
    retention_s: float | Literal["default"] | None,
    retention_bytes: int | None,
    ack: Ack,
    flush_period_s: float,
    extent_bytes: int,
    tombstone_s: float,
    tier: str | None,
    local_retention_s: float | None,
) -> TopicConfig:
    """A config out of what a user says."""
    if not isinstance(properties or {}, Mapping):
        raise InvalidInputError(f"properties map texts to texts, they are not {properties!r}")
    if retention_s == "default":
        retention_s = None if compaction else RETENTION_S
    return TopicConfig(
        namespace=namespace,
        topic=topic,
        partitions=partitions,
        compaction=bool(compaction),
        properties=dict(properties or {}),
        retention_s=retention_s,
        retention_bytes=retention_bytes,
        ack=ack,
        flush_period_s=flush_period_s,
        extent_bytes=extent_bytes,
        tombstone_s=tombstone_s,
        tier=tier,
        local_retention_s=local_retention_s,
    )
