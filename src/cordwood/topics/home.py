"""What topics need of the place where they live.

There are two: a directory, where a partition is a journal (folder.py), and an object store, where
it is a log (shelf.py). All methods block; the async classes call them in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.base.errors import AlreadyExistsError, NotFoundError
from cordwood.topics.batch import Columns, Producer, Row
from cordwood.topics.config import TopicConfig

T = TypeVar("T")
R = TypeVar("R")
Offsets: TypeAlias = npt.NDArray[np.int64]


class Bounds(NamedTuple):
    """Which records there are: from `oldest` on, up to but without `next`."""

    oldest: int
    next: int


class Pace(NamedTuple):
    """How often a consumer asks: what costs nothing on a disk costs a request on a store."""

    refresh_s: float
    """A member of a group asks so often who else is there."""
    pause_first_s: float
    """Before it looks again for records, where there were none; doubled each time."""
    pause_max_s: float
    at_once: int = 1
    """So many partitions are asked at the same time."""

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """What comes of it for each of several partitions."""
        if self.at_once == 1 or len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(self.at_once, len(items))) as pool:
            return list(pool.map(work, items))


class Scanning(Protocol):
    """A place in a partition; one thread uses it."""

    offset: int
    """Of the record that comes next."""

    def take(self, max_bytes: int = ...) -> list[pa.RecordBatch]:
        """The records that come next; none at the end.

        Raises:
            CollectedError: they are gone.
            CorruptionError: they are damaged; `skip` goes on behind them.
        """
        ...

    def may_have(self) -> bool:
        """Whether it is worth taking: False if nothing was appended since nothing was found."""
        ...

    def seek(self, offset: int) -> None:
        """Go on from another record."""
        ...

    def skip(self) -> int:
        """Go on behind what cannot be read; the offset that comes next."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Partition(Protocol):
    """One partition of a topic."""

    @property
    def config(self) -> TopicConfig:
        """What it is."""
        ...

    def append(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """Append records; the offset of each. They are acknowledged when this returns.

        Many are appended in parts, between which those of others may be.
        """
        ...

    def append_one(self, row: Row, producer: Producer | None = None) -> int:
        """The same with one record."""
        ...

    async def append_one_async(self, row: Row, producer: Producer | None = None) -> int:
        """The same with one record, for a task."""
        ...

    async def append_async(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """The same for a task."""
        ...

    def bounds(self) -> Bounds:
        """Which records there are."""
        ...

    def scan(self, offset: int) -> Scanning:
        """Read from here on."""
        ...

    def not_uploaded(self) -> int:
        """How many records are not on the topic's tier yet."""
        ...

    def close(self) -> None:
        """Make durable what is not yet, and let go of it."""
        ...


class Membership(Protocol):
    """One member of a group of consumers."""

    def owned(self) -> frozenset[int]:
        """The partitions that are this member's now; asks who else is there."""
        ...

    def positions(self) -> dict[int, int]:
        """Where the group goes on, for the partitions for which that is known."""
        ...

    def commit(self, positions: Mapping[int, int]) -> None:
        """Let the group go on from here, in partitions that are this member's.

        Raises:
            ConflictError: one of them is not, any more.
        """
        ...

    def leave(self) -> None:
        """Give up all partitions; twice is no error."""
        ...


class Home(Protocol):
    """Where topics live."""

    pace: Pace

    @property
    def name(self) -> str:
        """For errors."""
        ...

    def create(self, configs: Sequence[TopicConfig]) -> None:
        """Make a topic of these partitions; AlreadyExistsError if there is one."""
        ...

    def topics(self, namespace: str | None = None) -> list[tuple[str, str]]:
        """All topics, by namespace and name, in order."""
        ...

    def partition(self, namespace: str, topic: str, number: int) -> Partition:
        """A partition; the same object each time."""
        ...

    def join(self, namespace: str, topic: str, group: str) -> Membership:
        """Be one of a group of consumers."""
        ...

    def groups(self, namespace: str, topic: str) -> dict[str, dict[int, int]]:
        """Where each group goes on, by partition."""
        ...

    def delete_group(self, namespace: str, topic: str, group: str) -> None:
        """Forget a group; StateError while it has members."""
        ...

    def delete(self, namespace: str, topic: str) -> None:
        """Delete a topic; NotFoundError if there is none."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


def missing_topic(namespace: str, topic: str) -> NotFoundError:
    """The error for a topic that is not there."""
    return NotFoundError(f"there is no topic {namespace}/{topic}", hint="create the topic first")


def taken_name(namespace: str, topic: str) -> AlreadyExistsError:
    """The error for a topic that is there already."""
    return AlreadyExistsError(
        f"topic {namespace}/{topic} exists already", hint="use it, or choose another name"
    )


def taken_id(what: str, name: str, other: str) -> AlreadyExistsError:
    """The error for a name whose id is another's."""
    return AlreadyExistsError(
        f"{what} {name!r} has the same id as {other!r}", hint="choose another name"
    )
