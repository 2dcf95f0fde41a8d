"""Count and time what goes through a store.

Latencies go into logarithmic buckets, eight to a doubling: a quantile is right to about 9 %, at a
few hundred bytes per operation however many requests there were.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UncertainError,
)
from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode
from cordwood.store.streams import as_generator

OPERATIONS = ("get", "get_range", "head", "put", "delete", "list", "sync")

_BUCKETS_PER_DOUBLING = 8
_UNIT_S = 1e-6
"""The lowest bucket ends here; nothing that waits is faster."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long requests took."""

    buckets: Mapping[int, int] = field(default_factory=dict)
    """Requests by bucket; bucket b ends at 2^(b/8) microseconds."""
    total_s: float = 0.0
    max_s: float = 0.0

    @property
    def count(self) -> int:
        """Requests measured."""
        return sum(self.buckets.values())

    def quantile_s(self, quantile: float) -> float:
        """The time that this part of the requests did not exceed; 0 if there were none."""
        left = math.ceil(quantile * self.count)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(self.max_s, _UNIT_S * 2 ** (bucket / _BUCKETS_PER_DOUBLING))
        return self.max_s


@dataclass(frozen=True, slots=True)
class OperationMetrics:
    """What became of one operation's requests."""

    requests: int = 0
    """Calls made; one of a list is all its pages."""
    refused: int = 0
    """Of those, answered with not found, exists, contended or a wrong argument."""
    errors: int = 0
    """Of those, ended by any other error."""
    bytes_up: int = 0
    bytes_down: int = 0
    latency: Histogram = field(default_factory=Histogram)
    """Of the calls that ended, however; for a list the time its consumer waited."""


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """Everything counted since the start or the last reset."""

    operations: Mapping[str, OperationMetrics]
    elapsed_s: float

    @property
    def requests(self) -> int:
        """Calls of all operations."""
        return sum(metrics.requests for metrics in self.operations.values())


class _Tally:
    """One operation's counters."""

    __slots__ = (
        "buckets",
        "bytes_down",
        "bytes_up",
        "errors",
        "max_s",
        "refused",
        "requests",
        "total_s",
    )

    def __init__(self) -> None:
        self.requests = self.refused = self.errors = self.bytes_up = self.bytes_down = 0
        self.total_s = self.max_s = 0.0
        self.buckets: Counter[int] = Counter()

    def freeze(self) -> OperationMetrics:
        return OperationMetrics(
            self.requests,
            self.refused,
            self.errors,
            self.bytes_up,
            self.bytes_down,
            Histogram(dict(self.buckets), self.total_s, self.max_s),
        )


class MeteredStore:
    """A store that counts: requests, bytes, refusals, errors and latencies by operation."""

    def __init__(self, inner: ObjectStore, clock: Clock = SYSTEM_CLOCK) -> None:
        """Wrap a store; `clock` measures its requests."""
        self._inner = inner
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies = {name: _Tally() for name in OPERATIONS}
        self._since_s: float | None = None
        """When counting began: at the first request, since a clock may need a running loop."""

    def __repr__(self) -> str:
        """What is wrapped."""
        return f"MeteredStore({self._inner!r})"

    def snapshot(self) -> StoreMetrics:
        """Everything counted so far. Every operation is there, also those never asked for."""
        with self._lock:
            operations = {name: tally.freeze() for name, tally in self._tallies.items()}
            since_s = self._since_s
        elapsed_s = 0.0 if since_s is None else self._clock.monotonic_s() - since_s
        return StoreMetrics(operations, elapsed_s)

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._tallies = {name: _Tally() for name in OPERATIONS}
            self._since_s = None

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        found = await self._measure("get", self._inner.get(key))
        self._count("get", bytes_down=len(found.data))
        return found

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        data = await self._measure("get_range", self._inner.get_range(key, start, length))
        self._count("get_range", bytes_down=len(data))
        return data

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._measure("head", self._inner.head(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object; its bytes count as sent, also if refused. See `ObjectStore.put`."""
        self._count("put", bytes_up=len(data))
        return await self._measure("put", self._inner.put(key, data, mode))

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        await self._measure("delete", self._inner.delete(keys))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        waited_s = 0.0
        outcome: BaseException | None = None
        try:
            async with aclosing(as_generator(self._inner.list(prefix, start_after))) as metas:
                while True:
                    started_s = self._clock.monotonic_s()
                    meta = await anext(metas, None)
                    waited_s += self._clock.monotonic_s() - started_s
                    if meta is None:
                        return
                    yield meta
        except Exception as error:
            outcome = error
            raise
        finally:
            self._record("list", waited_s, outcome)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        await self._measure("sync", self._inner.sync(keys))

    async def _measure(self, operation: str, request: Awaitable[_T]) -> _T:
        started_s = self._clock.monotonic_s()
        outcome: BaseException | None = None
        try:
            return await request
        except BaseException as error:
            outcome = error
            raise
        finally:
            self._record(operation, self._clock.monotonic_s() - started_s, outcome)

    def _record(self, operation: str, seconds: float, outcome: BaseException | None) -> None:
        refused = isinstance(outcome, _REFUSALS) and not isinstance(outcome, UncertainError)
        bucket = math.ceil(math.log2(max(seconds / _UNIT_S, 1.0)) * _BUCKETS_PER_DOUBLING)
        with self._lock:
            tally = self._tallies[operation]
            tally.requests += 1
            tally.refused += refused
            tally.errors += outcome is not None and not refused
            tally.total_s += seconds
            tally.max_s = max(tally.max_s, seconds)
            tally.buckets[bucket] += 1
            if self._since_s is None:
                self._since_s = self._clock.monotonic_s() - seconds

    def _count(self, operation: str, *, bytes_up: int = 0, bytes_down: int = 0) -> None:
        with self._lock:
            self._tallies[operation].bytes_up += bytes_up
            self._tallies[operation].bytes_down += bytes_down


_REFUSALS = (NotFoundError, AlreadyExistsError, ConflictError, InvalidInputError)
