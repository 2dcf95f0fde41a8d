"""A store that misbehaves the way remote stores do, by chance or to order, and repeatably.

`FaultyStore` wraps any store and adds latency and faults. What a fault does, on a put or delete::

    fault          the caller gets                      the write happens
    -------------  -----------------------------------  ------------------------------
    error_before   an error that leaves it open         never
    error_after    the same error                       yes: its answer is lost
    hang_before    nothing, until it stops waiting      never
    hang_after     nothing, until it stops waiting      yes
    zombie         an error that leaves it open         later, perhaps after a retry
    throttled      an error that says nothing happened  never
    conflict       S3's 409: "exists" on create         never; and nothing need exist

Reads know `error_before`, `hang_before` and `throttled`; any other fault drawn for a read is an
error. The rules that make a test with it worth something:

1. **The effect is not the caller's.** It runs in a task of its own: cancelling the caller neither
   prevents nor undoes it, exactly as with a request on the wire. `drain` waits for all of them.
2. **One effect per call.** The inner store sees every put at most once.
3. **Seeded.** All chance comes from the `Entropy` given, drawn when a call starts: equal seeds and
   equal schedules give equal runs. Scripted faults come first, in their order.
4. **Lists are never torn.** A list waits and fails like any read, between pages; what it gives is
   what the inner store gives.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple, TypeVar

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import AlreadyExistsError, StoreError
from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode
from cordwood.store.streams import as_generator

_T = TypeVar("_T")

_PAGE_KEYS = 1_000
"""Keys per page of a list, as on S3."""

_P99_SIGMAS = NormalDist().inv_cdf(0.99)


class Fault(StrEnum):
    """What may go wrong with one request; the table in the module's header says how."""

    NONE = "none"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    HANG_BEFORE = "hang_before"
    HANG_AFTER = "hang_after"
    ZOMBIE = "zombie"
    THROTTLED = "throttled"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a request takes: log-normal by its median and 99th percentile, with a slow tail."""

    median_s: float = 0.0
    p99_s: float | None = None
    """None: every request takes exactly the median."""
    tail_probability: float = 0.0
    """How often a request takes more: a time that is exponentially distributed, or even."""
    tail_mean_s: float = 0.0
    tail_even_s: tuple[float, float] | None = None
    """From, to; instead of the mean."""

    def draw(self, entropy: Entropy) -> float:
        """One request's time in seconds."""
        seconds = self.median_s
        if self.p99_s is not None:
            # The smallest number keeps the normal quantile finite where uniform gives zero.
            sigmas = NormalDist().inv_cdf(max(entropy.uniform(), 2**-53)) / _P99_SIGMAS
            seconds *= (self.p99_s / self.median_s) ** sigmas
        if self.tail_probability and entropy.uniform() < self.tail_probability:
            chance = entropy.uniform()
            if self.tail_even_s is None:
                seconds -= self.tail_mean_s * math.log(1.0 - chance)
            else:
                low_s, high_s = self.tail_even_s
                seconds += low_s + (high_s - low_s) * chance
        return seconds


INSTANT = Latency()
SOON = Latency(0.05)


class _Plan(NamedTuple):
    """All chance of one request, drawn before it starts."""

    fault: Fault
    before_s: float
    after_s: float
    zombie_s: float


class FaultyStore:
    """A store with latency and faults in front of `inner`."""

    def __init__(
        self,
        inner: ObjectStore,
        entropy: Entropy,
        clock: Clock,
        *,
        latency: Latency | Mapping[str, Latency] = INSTANT,
        write_faults: Mapping[Fault, float] | None = None,
        read_faults: Mapping[Fault, float] | None = None,
        effect_at: float = 0.5,
        zombie_delay: Latency = SOON,
    ) -> None:
        """Wrap a store.

        Args:
            inner: the store that does the work.
            entropy: where chance comes from.
            clock: measures how long requests took, for `busy_s`.
            latency: for every operation, or by its name (get, get_range, head, put, delete, list).
            write_faults: how likely each fault is on a put or delete; the rest goes well.
            read_faults: the same for get, get_range, head and each page of a list.
            effect_at: the part of a write's latency that passes before its effect.
            zombie_delay: how long after its error a zombie's write takes effect.
        """
        self._inner = inner
        self._entropy = entropy
        self._clock = clock
        self._latency = latency
        self._write_faults = dict(write_faults or {})
        self._read_faults = dict(read_faults or {})
        self._effect_at = effect_at
        self._zombie_delay = zombie_delay
        self._script: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._effects: set[asyncio.Task[object]] = set()
        """Writes on their way to the inner store; each removes itself when it is done."""
        self.counts: Counter[str] = Counter()
        """Requests by operation (`put`) and by what went wrong (`put:zombie`)."""
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        """Seconds spent in requests that were answered, by operation."""

    def script(self, operation: str, *faults: Fault) -> None:
        """Give these faults to the next requests of this operation, before any chance."""
        self._script[operation].extend(faults)

    def heal(self) -> None:
        """From now on nothing goes wrong; what is on its way still arrives."""
        self._script.clear()
        self._write_faults.clear()
        self._read_faults.clear()

    async def drain(self) -> None:
        """Wait until every write that was sent has taken effect or failed, zombies included."""
        while self._effects:
            await asyncio.wait(self._effects)

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        return await self._read("get", key, lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        return await self._read("get_range", key, lambda: self._inner.get_range(key, start, length))

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._read("head", key, lambda: self._inner.head(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object, or seem to. See `ObjectStore.put` and the table of faults."""
        plan = self._plan("put", self._write_faults)
        if plan.fault is Fault.CONFLICT and mode == "create":
            await _sleep(plan.before_s + plan.after_s)
            raise AlreadyExistsError(f"put {key!r}: 409, a conflicting request is in progress")
        return await self._write("put", key, plan, lambda: self._inner.put(key, data, mode))

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, or seem to. See `ObjectStore.delete`."""
        wanted = list(keys)
        plan = self._plan("delete", self._write_faults)
        key = wanted[0] if wanted else ""
        await self._write("delete", key, plan, lambda: self._inner.delete(wanted))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        async with aclosing(as_generator(self._inner.list(prefix, start_after))) as metas:
            full = True
            while full:
                plan = self._plan("list", self._read_faults)
                await self._fail_read("list", prefix, plan)
                page: list[Meta] = []
                async for meta in metas:
                    page.append(meta)
                    if len(page) == _PAGE_KEYS:
                        break
                full = len(page) == _PAGE_KEYS
                for meta in page:
                    yield meta

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable; never faulty. See `ObjectStore.sync`."""
        await self._inner.sync(keys)

    def _plan(self, operation: str, faults: Mapping[Fault, float]) -> _Plan:
        self.counts[operation] += 1
        latency = self._latency
        if isinstance(latency, Mapping):
            latency = latency.get(operation, INSTANT)
        seconds = latency.draw(self._entropy)
        fault = self._fault(operation, faults)
        if fault is not Fault.NONE:
            self.counts[f"{operation}:{fault}"] += 1
        zombie_s = self._zombie_delay.draw(self._entropy) if fault is Fault.ZOMBIE else 0.0
        return _Plan(fault, seconds * self._effect_at, seconds * (1 - self._effect_at), zombie_s)

    def _fault(self, operation: str, faults: Mapping[Fault, float]) -> Fault:
        scripted = self._script[operation]
        if scripted:
            return scripted.popleft()
        if faults:
            point = self._entropy.uniform()
            for fault, probability in faults.items():
                point -= probability
                if point < 0:
                    return fault
        return Fault.NONE

    async def _read(self, operation: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        started_s = self._clock.monotonic_s()
        plan = self._plan(operation, self._read_faults)
        await self._fail_read(operation, key, plan)
        answer = await call()
        self.busy_s[operation] += self._clock.monotonic_s() - started_s
        return answer

    async def _fail_read(self, operation: str, key: str, plan: _Plan) -> None:
        """Let the time pass, then fail if that is the plan."""
        await _sleep(plan.before_s + plan.after_s)
        if plan.fault in {Fault.HANG_BEFORE, Fault.HANG_AFTER}:
            await _never()
        if plan.fault is not Fault.NONE:
            raise _error(operation, key, plan.fault)

    async def _write(
        self, operation: str, key: str, plan: _Plan, call: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Carry out a plan for a write whose effect is `call`."""
        started_s = self._clock.monotonic_s()
        if plan.fault in _WITHOUT_EFFECT:
            await _sleep(plan.before_s + plan.after_s)
            if plan.fault is Fault.HANG_BEFORE:
                await _never()
            raise _error(operation, key, plan.fault)
        effect = self._detach(plan.before_s + plan.zombie_s, call)
        if plan.fault is Fault.ZOMBIE:
            await _sleep(plan.before_s)
            raise _error(operation, key, plan.fault)
        answer = await asyncio.shield(effect)
        await _sleep(plan.after_s)
        if plan.fault is Fault.HANG_AFTER:
            await _never()
        if plan.fault is not Fault.NONE:
            raise _error(operation, key, plan.fault)
        self.busy_s[operation] += self._clock.monotonic_s() - started_s
        return answer

    def _detach(self, delay_s: float, call: Callable[[], Awaitable[_T]]) -> asyncio.Task[_T]:
        """Start the effect in a task that outlives its caller."""

        async def run() -> _T:
            await _sleep(delay_s)
            return await call()

        task = asyncio.get_running_loop().create_task(run())
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        task.add_done_callback(_retrieve)
        return task


_WITHOUT_EFFECT = {Fault.ERROR_BEFORE, Fault.HANG_BEFORE, Fault.THROTTLED, Fault.CONFLICT}


def _error(operation: str, key: str, fault: Fault) -> StoreError:
    """What the caller is told: nothing happened, or it may have."""
    return StoreError(
        f"{operation} {key!r}: injected {fault}",
        operation=operation,
        key=key,
        applied=fault is not Fault.THROTTLED,
        transient=True,
    )


def _retrieve(task: asyncio.Task[object]) -> None:
    """Look at the outcome of a task whose caller may be gone, so that nobody warns about it."""
    if not task.cancelled():
        task.exception()


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


async def _never() -> None:
    await asyncio.get_running_loop().create_future()
