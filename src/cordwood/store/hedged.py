"""Ask twice where an answer is slow: the "robust" store of the wal3 design.

Object stores answer most requests quickly and a few very slowly. A request that may be sent twice
is sent again once it has taken longer than most do, and the first answer counts. That trades a few
more requests for a much shorter tail, and it is the opposite of backing off, so it has a budget:

* X hedges a second at most, one per 1/X seconds, for the whole store.
* The threshold is a quantile of the last N requests of the same kind (and, where the size is known
  beforehand, of about the same size), and half more than their median at least.
* A request past the threshold is sent again when there has been no hedge within 1/X seconds;
  while there has been one, it waits for its turn or its answer.
* How many requests are outstanding is bounded by whoever calls, not here.

What may be hedged, and when an answer counts:

===================  ========  ================================================================
get, get_range,      yes       the first answer
head
put, create          yes       rules 1 to 4: a second put answered "exists" is ours if the object
                               is ours
put, Match           yes       rules 1 to 4: two with one etag take effect once at most, for the
                               first ends the etag; the bytes carry a write id, so ours are known
put, overwrite       no        a late twin could undo what came after
delete, copy, list   no        the same; a list is many requests
===================  ========  ================================================================

A conditional put sent twice can meet itself: then one twin is refused because the other succeeded.

1. A success of either twin is the answer.
2. A refusal of one, while the other is under way, is not final: the other is waited for, and its
   success is the answer. Of a Match the object is read meanwhile: if its bytes are ours, that is
   the answer at once. (Not of a create: equal bytes may have been there before us.)
3. Refused both: AlreadyExistsError or ContendedError, and nothing of ours was written.
4. A refusal of one and no answer from the other (an error that leaves it open): the object is read
   back, and is ours if its bytes are ours. If not, a create was refused; a Match stays uncertain,
   for ours may have been there in between.

A loser of the race is cancelled and its outcome looked at, so nobody warns of an exception never
retrieved. A cancelled put may still arrive: a create finds its key taken, a Match its etag gone,
and it changes nothing; should the created object have been deleted by then, it comes back as an
orphan, as after any put that was given up on. Etags that come back with equal bytes are no danger:
whatever Cordwood replaces has an id of its own in each version.

Defaults: X is ten. That keeps up with 200 requests a second at the 95th percentile, and costs at
most ten requests a second more, and two reads for each put that met itself. N is 200: enough to
know a 95th percentile, and few enough to follow a store whose speed changes. The 95th percentile
adds about 5 % of requests; `cordwood log bench tail` shows what it is worth.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    CordwoodError,
    NotFoundError,
    StoreError,
    UncertainError,
    UnsupportedError,
)
from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode, ServerCopies

HEDGES_PER_S = 10.0
WINDOW = 200
QUANTILE = 0.95

_TWINS = 2
_REFUSALS = (AlreadyExistsError, ContendedError)

_SLOWER = 1.5
"""A slow request takes so many times as long as one in the middle. Where all take about the same
time, some are always the slowest, and nothing is gained by asking again."""

_SAMPLES_MIN = 20
"""Requests of a kind before the first hedge: a quantile of fewer says little."""

_Kind = tuple[str, int]
"""An operation, and the size class of what it moves where that is known beforehand."""

_T = TypeVar("_T")


class HedgedStore:
    """A store that sends slow reads and conditional puts a second time, within a budget."""

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock = SYSTEM_CLOCK,
        *,
        hedges_per_s: float = HEDGES_PER_S,
        window: int = WINDOW,
        quantile: float = QUANTILE,
    ) -> None:
        """Wrap a store.

        Args:
            inner: the store.
            clock: measures requests; it must go with the event loop's time.
            hedges_per_s: X of the budget; 0 sends nothing twice.
            window: N, how many of the last requests of a kind the threshold is taken from.
            quantile: the part of them that is faster than the threshold.
        """
        self._inner = inner
        self._clock = clock
        self._interval_s = 1.0 / hedges_per_s if hedges_per_s > 0 else float("inf")
        self._window = window
        self._quantile = quantile
        self._lock = threading.Lock()
        """Guards the two below: one store may serve several event loops in several threads."""
        self._next_hedge_s = float("-inf") if hedges_per_s > 0 else float("inf")
        self._took_s: dict[_Kind, deque[float]] = {}
        self.hedges = 0
        """Requests sent a second time so far."""

    def __repr__(self) -> str:
        """What is wrapped."""
        return f"HedgedStore({self._inner!r})"

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        return await self._read(("get", 0), lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        kind = ("get_range", _size_class(length))
        return await self._read(kind, lambda: self._inner.get_range(key, start, length))

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._read(("head", 0), lambda: self._inner.head(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object; an overwrite is not hedged. See `ObjectStore.put`."""
        if mode == "overwrite":
            return await self._inner.put(key, data, mode)
        return await self._put_if(key, data, mode)

    async def copy(self, source: str, target: str) -> None:
        """Copy an object, asked once. See `ServerCopies.copy`."""
        if not isinstance(self._inner, ServerCopies):
            raise UnsupportedError(f"copy {source!r}: this store does not copy")
        await self._inner.copy(source, target)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        await self._inner.delete(keys)

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        return self._inner.list(prefix, start_after)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        await self._inner.sync(keys)

    async def _read(self, kind: _Kind, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        answers, errors = await self._race(kind, call, (StoreError,))
        if answers:
            return answers[0]
        raise errors[0]

    async def _put_if(self, key: str, data: Buffer, mode: PutMode) -> str:
        """A conditional put by the four rules in the module's header."""
        what = "create" if mode == "create" else "match"

        async def find_ours() -> str | None:
            found = await self._inner.get(key)
            return found.etag if found.data == bytes(data) else None

        answers, errors = await self._race(
            (what, _size_class(len(data))),
            lambda: self._inner.put(key, data, mode),
            (*_REFUSALS, StoreError, UncertainError),
            None if mode == "create" else find_ours,
        )
        if answers:
            return answers[0]
        refused = [error for error in errors if isinstance(error, _REFUSALS)]
        in_doubt = [error for error in errors if _is_in_doubt(error)]
        if refused and in_doubt:
            try:
                etag = await find_ours()
            except (NotFoundError, StoreError) as error:
                raise in_doubt[0] from error
            if etag is not None:
                return etag
            raise (refused if mode == "create" else [_moved_on(key)])[0] from in_doubt[0]
        # Nobody is told that nothing happened while one of the twins may have done it.
        raise (refused or in_doubt or errors)[0]

    async def _race(
        self,
        kind: _Kind,
        call: Callable[[], Coroutine[Any, Any, _T]],
        inconclusive: tuple[type[CordwoodError], ...],
        look: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    ) -> tuple[Sequence[_T], Sequence[CordwoodError]]:
        """Send a request, twice if it is slow; `look` for its effect if one twin is refused.

        Returns:
            The first answer, if there is one, and the inconclusive errors that came instead.
        """
        started_s = self._clock.monotonic_s()
        tasks = [asyncio.ensure_future(call())]
        try:
            if await self._is_slow(kind, tasks[0], started_s):
                tasks.append(asyncio.ensure_future(call()))
            errors: list[CordwoodError] = []
            pending: set[asyncio.Task[Any]] = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = _answer(task, inconclusive, errors, is_look=task not in tasks[:2])
                    if answer is not None:
                        self._learn(kind, self._clock.monotonic_s() - started_s)
                        return [answer], errors
                is_refused = any(isinstance(error, _REFUSALS) for error in errors)
                if look is not None and is_refused and pending and len(tasks) == _TWINS:
                    tasks.append(asyncio.ensure_future(look()))
                    pending.add(tasks[-1])
            return [], errors
        finally:
            for task in tasks:
                _dismiss(task)

    async def _is_slow(self, kind: _Kind, task: asyncio.Task[_T], started_s: float) -> bool:
        """Wait for the answer, or for the moment at which it may be asked for again."""
        threshold_s = self._threshold_s(kind)
        while not task.done():
            at_s = max(started_s + threshold_s, self._next_hedge_s)
            wait_s = None if at_s == float("inf") else max(0.0, at_s - self._clock.monotonic_s())
            await asyncio.wait([task], timeout=wait_s)
            if not task.done() and self._take_turn():
                return True
        return False

    def _take_turn(self) -> bool:
        """Use the budget's next hedge, if it is there."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._next_hedge_s:
                return False
            self._next_hedge_s = now_s + self._interval_s
            self.hedges += 1
            return True

    def _threshold_s(self, kind: _Kind) -> float:
        """How long a request of this kind may take before it counts as slow."""
        with self._lock:
            took_s = sorted(self._took_s.get(kind, ()))
        if len(took_s) < min(_SAMPLES_MIN, self._window):
            return float("inf")
        slow_s = took_s[min(len(took_s) - 1, int(self._quantile * len(took_s)))]
        return max(slow_s, _SLOWER * took_s[len(took_s) // 2])

    def _learn(self, kind: _Kind, seconds: float) -> None:
        with self._lock:
            if kind not in self._took_s:
                self._took_s[kind] = deque(maxlen=self._window)
            self._took_s[kind].append(seconds)


def _answer(
    task: asyncio.Task[Any],
    inconclusive: tuple[type[CordwoodError], ...],
    errors: list[CordwoodError],
    *,
    is_look: bool,
) -> Any:
    """What a request gave; None, and its error with the others, if that settles nothing."""
    try:
        return task.result()
    except inconclusive as error:
        if not is_look:
            errors.append(error)
    except NotFoundError:
        if not is_look:
            raise
    return None


def _moved_on(key: str) -> UncertainError:
    return UncertainError(
        f"put {key!r}: an answer was lost, and the object has changed since",
        hint="look for the write's own id in the object's history before writing it again",
    )


def _size_class(size_bytes: int) -> int:
    """Sizes within a factor of eight belong together, and all whose transfer hardly counts."""
    return (size_bytes >> 15).bit_length() // 3


def _is_in_doubt(error: CordwoodError) -> bool:
    return isinstance(error, UncertainError) or (isinstance(error, StoreError) and error.applied)


def _dismiss(task: asyncio.Task[Any]) -> None:
    """Stop a twin, and look at how it ended so that nobody warns about it."""
    task.cancel()
    task.add_done_callback(_look)


def _look(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
