"""Planning a read, on the driver: one look at the manifest, a range, a pin, splits.

The range is fixed by the one manifest that was loaded, so a read sees what was there then: all of
an append or nothing of it, and nothing that comes later. Nodes no larger than a split are not
opened; the task that gets one does that. So planning costs as much as there are splits. Where one
stream is read, what cannot hold it is left out here, and below the nodes that are left, by the
tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import Code, CollectedError, NotFoundError
from cordwood.log import tree
from cordwood.log.catalogue import logs_in
from cordwood.log.filters import Filter
from cordwood.log.format import Fragment, Manifest, NodePointer
from cordwood.log.log import Log
from cordwood.log.pins import Pin
from cordwood.log.reader import Limits, Reader, View
from cordwood.log.sieve import Sieve
from cordwood.spark.options import Frozen, Place, ReadOptions
from cordwood.spark.pins import make_pin
from cordwood.spark.splits import Hold, Pointer, Split, Work, cut
from cordwood.store.url import Store

T = TypeVar("T")

LOOKS_AT_ONCE = 16
"""Logs planned at the same time."""

PAUSES_S = (0.05, 0.2, 1.0)
"""Between looks at a log that is just being collected."""


class Planner(Reader):
    """A reader that finds out where records lie, and leaves them there."""

    def __init__(self, log: Log, *, pin: str | None = None) -> None:
        """No I/O. With `pin`, of what that pin holds."""
        super().__init__(log.objects, pin=pin)
        self._log = log
        self._turns = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def bounds(self, start: int | None, limits: Limits) -> tuple[View, int, int]:
        """The log as it is now, and the offsets `[begin, end)` that the limits leave of it."""
        view, _ = await self._load()
        begin, end = await self._unless_collected(self._bounds(view, start, limits), view)
        return view, begin, end

    async def range(
        self, view: View, begin: int, end: int, node_bytes: int, stream: str | None = None
    ) -> Work:
        """A range of what was seen. Nodes with more than `node_bytes` below them are opened.

        With `stream`, without what cannot hold it: a filter is read for each node that is left.
        """
        sieve = None
        if stream is not None and view.has_filters:
            sieve = Sieve(self._objects, stream)
        opening = self._open(view.pointers, begin, end, node_bytes, sieve, view.sets)
        pointers = await self._unless_collected(opening, view)
        log = self._log
        whole = Work(log.store.url, log.name, self._objects.ancestors, begin, end, (), ())
        return msgspec.structs.replace(whole.only(pointers), is_sifted=sieve is not None)

    async def _open(
        self,
        pointers: Sequence[Pointer],
        begin: int,
        end: int,
        node_bytes: int,
        sieve: Sieve | None,
        sets: Mapping[int, Filter] = MappingProxyType({}),
    ) -> list[Pointer]:
        """The pointers of `[begin, end)`; nodes that are large, or only partly in it, opened."""

        async def open_one(pointer: Pointer) -> list[Pointer]:
            if sieve is not None and not sieve.may_hold(pointer, sets):
                return []
            is_inside = begin <= pointer.start and pointer.limit <= end
            if isinstance(pointer, Fragment):
                return [pointer]
            if is_inside and pointer.num_bytes <= node_bytes:
                return [] if sieve is not None and await self._denied(sieve, pointer) else [pointer]
            async with self._turns:
                if sieve is not None:
                    below = await sieve.open(pointer)
                else:
                    below = (await self._objects.read_node(pointer)).children
            return await self._open(below, begin, end, node_bytes, sieve)

        parts = await asyncio.gather(*map(open_one, tree.overlapping(pointers, begin, end)))
        return [pointer for part in parts for pointer in part]

    async def _denied(self, sieve: Sieve, pointer: NodePointer) -> bool:
        async with self._turns:
            return await sieve.denies(pointer)


async def find(place: Place) -> list[Log]:
    """The logs that are meant, by name."""
    store = Store(place.store)
    names = await logs_in(store, place.names) if place.is_pattern else list(place.names)
    if not names:
        raise NotFoundError(
            f"no log in {place.store} is named like {' or '.join(place.names)}",
            code=Code.NO_SUCH_LOG,
            hint="`*` stands for the letters of one segment, `**` for any segments",
        )
    return [Log(store, name) for name in names]


async def manifests(place: Place) -> dict[str, Manifest]:
    """The manifest of every log that is meant."""
    logs = await find(place)
    found = await in_turns(log.manifest() for log in logs)
    return {log.name: manifest for log, manifest in zip(logs, found, strict=True)}


async def plan(options: ReadOptions) -> list[Split]:
    """The splits of a read, the logs one after the other."""
    if options.frozen is not None:
        works = [_thaw(part, options) for part in options.frozen]
    else:
        works = [_plan(log, options) for log in await find(options.place)]
    return cut(await in_turns(works), options.split_bytes)


async def in_turns(works: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all of them, a few at the same time."""
    turns = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def take_turn(work: Awaitable[T]) -> T:
        async with turns:
            return await work

    return await asyncio.gather(*map(take_turn, works))


async def _plan(log: Log, options: ReadOptions) -> Work:
    work, pin = await freeze(log, options)
    return work if pin is None else _held(work, pin.name, pin.ttl_s, by_tasks=True)


async def _thaw(part: Frozen, options: ReadOptions) -> Work:
    """A range that was fixed before."""
    planner = Planner(Log(Store(options.place.store), part.log), pin=part.pin)
    view, begin, end = await planner.bounds(part.begin, Limits(limit_offset=part.end))
    work = await planner.range(view, begin, end, options.split_bytes, options.stream)
    if part.pin is None:
        return work
    return _held(work, part.pin, options.pin_ttl_s, by_tasks=False)


def _held(work: Work, pin: str, ttl_s: int, *, by_tasks: bool) -> Work:
    """The work, with the pin that keeps its files."""
    hold = Hold(pin, ttl_s, SYSTEM_CLOCK.now_us(), by_tasks)
    return msgspec.structs.replace(work, hold=hold)


async def freeze(log: Log, options: ReadOptions) -> tuple[Work, Pin | None]:
    """What a read of one log will see, pinned unless that was not wanted."""
    planner = Planner(log, pin=options.pin)
    start = options.start_offset
    if options.cursor is not None:
        start = (await log.cursors.load(options.cursor)).offset
    for pause_s in (*PAUSES_S, None):
        view, begin, end = await planner.bounds(start, limits_of(options))
        pin = None
        try:
            if begin < end and options.pin is None and options.pin_ttl_s:
                pin = await make_pin(log, begin, end, options.pin_ttl_s)
            wanted = options.split_bytes, options.stream
            return await planner.range(view, begin, end, *wanted), pin
        except CollectedError:
            if start is not None or pause_s is None:
                raise
            # A collection is on its way. Whoever asked for what is there gets what it leaves.
            await asyncio.sleep(pause_s)
    raise AssertionError


def limits_of(options: ReadOptions) -> Limits:
    """Where a read ends, and the times that its records are of."""
    return Limits(
        limit_offset=options.end_offset,
        start_time_us=options.start_time_us,
        limit_time_us=options.end_time_us,
    )
