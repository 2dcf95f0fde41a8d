"""A pool of open writers: any number of logs, a bounded number of them open.

::

    use ─▶ opening ─▶ open, in use ─▶ open, at rest ─▶ closing ─▶ gone
              │            ▲               │ used again     ▲
              └ fails      └───────────────┘                │
                 gone, or opened again by who comes next    └ idle for long, or its place is needed

1. Of several that want one log, the first opens it; the others wait for that.
2. A writer is closed only at rest, and closing waits until everything it took is durable or failed.
   Who wants the log meanwhile opens it anew, afterwards.
3. An open that fails is told to those who waited for it and leaves nothing behind. A writer that
   has broken down is replaced when it is next used.
4. A log holds one of `max_open` places from before it is opened until after it is closed. Who finds
   no place has the log closed that was at rest for longest; if all are in use, it waits in line.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from cordwood.base.clock import Clock
from cordwood.base.errors import Code, CordwoodError, InvalidInputError, StateError
from cordwood.log.writer import Writer


@dataclass(slots=True, eq=False)
class _Entry:
    """One log of the pool."""

    name: str
    users: int = 0
    rested_s: float = 0.0
    """When its last user left."""
    has_place: bool = False
    opening: asyncio.Task[Writer] | None = field(default=None, repr=False)
    """Its result is the writer."""
    closing: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_spoiled(self) -> bool:
        """Whether what was opened cannot be used any more, or never could."""
        task = self.opening
        if task is None or not task.done():
            return False
        return task.cancelled() or task.exception() is not None or not task.result().is_open


class Pool:
    """Writers by the name of their log."""

    def __init__(
        self, make: Callable[[str], Writer], *, max_open: int, idle_s: float, clock: Clock
    ) -> None:
        """Nothing open. `make` names a log's writer, not yet opened."""
        if type(max_open) is not int or max_open < 1:
            raise InvalidInputError(f"max_open is a whole number of at least 1, not {max_open!r}")
        if not idle_s >= 0:
            raise InvalidInputError(f"idle_s is in seconds, not {idle_s!r}")
        self._make = make
        self._idle_s = idle_s
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._resting: dict[str, _Entry] = {}
        """Open and unused, the longest first."""
        self._places = asyncio.Semaphore(max_open)
        self._waiting = 0
        """How many wait for a place."""
        self._leaving = 0
        """How many are being closed and will leave theirs."""
        self._gone = asyncio.Event()
        """The pool is closed and nothing is left in it."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def num_open(self) -> int:
        """Logs that are open or on their way in or out."""
        return len(self._entries)

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Writer]:
        """The open writer of a log; it stays open at least until the block is left."""
        while (entry := self._entries.get(name)) is not None and entry.closing is not None:
            await asyncio.wait([entry.closing])
        if self._is_closed:
            raise StateError("the fleet is closed", code=Code.CLOSED, hint="open a new one")
        if entry is None:
            entry = self._entries[name] = _Entry(name)
        self._resting.pop(name, None)
        entry.users += 1
        try:
            if entry.opening is None or entry.is_spoiled:
                entry.opening = _keep(self._open(entry, entry.opening))
            yield await asyncio.shield(entry.opening)
        finally:
            entry.users -= 1
            if not entry.users:
                self._rest(entry)

    async def close(self) -> None:
        """Close every writer as soon as it is at rest; no more is given out."""
        self._is_closed = True
        for entry in list(self._resting.values()):
            self._start_closing(entry)
        if self._timer is not None:
            self._timer.cancel()
        if self._entries:
            await self._gone.wait()

    # Opening.

    async def _open(self, entry: _Entry, before: asyncio.Task[Writer] | None) -> Writer:
        if before is not None:
            await _close(before)
        if not entry.has_place:
            await self._take_place()
            entry.has_place = True
        return await self._make(entry.name).open()

    async def _take_place(self) -> None:
        self._waiting += 1
        if self._places.locked() and self._resting and self._waiting > self._leaving:
            self._start_closing(next(iter(self._resting.values())))
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    # Closing.

    def _rest(self, entry: _Entry) -> None:
        """Nobody uses it now."""
        is_wanted = self._waiting > self._leaving and entry.has_place
        if self._is_closed or is_wanted or entry.is_spoiled:
            self._start_closing(entry)
            return
        entry.rested_s = self._clock.monotonic_s()
        self._resting[entry.name] = entry
        if self._timer is None:
            self._arm(entry)

    def _start_closing(self, entry: _Entry) -> None:
        self._resting.pop(entry.name, None)
        self._leaving += entry.has_place
        entry.closing = _keep(self._end(entry, will_leave=entry.has_place))

    async def _end(self, entry: _Entry, *, will_leave: bool) -> None:
        try:
            if entry.opening is not None:
                await _close(entry.opening)
        finally:
            self._leaving -= will_leave
            if entry.has_place:
                self._places.release()
            del self._entries[entry.name]
            if self._is_closed and not self._entries:
                self._gone.set()

    def _arm(self, oldest: _Entry) -> None:
        """Look again when the log that rests longest has rested long enough."""
        if math.isfinite(self._idle_s):
            delay_s = oldest.rested_s + self._idle_s - self._clock.monotonic_s()
            loop = asyncio.get_running_loop()
            # At least a little: a timer that comes too early by a rounding must not spin.
            self._timer = loop.call_later(max(0.001, delay_s), self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        since_s = self._clock.monotonic_s() - self._idle_s
        for entry in list(self._resting.values()):
            if entry.rested_s > since_s:
                self._arm(entry)
                return
            self._start_closing(entry)


async def _close(opening: asyncio.Task[Writer]) -> None:
    """Close what was opened, if it was. Whoever appended has been told what came of it."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        with suppress(CordwoodError):
            await opening.result().close()


def _keep(work: Any) -> asyncio.Task[Any]:
    """A task of the pool's own: cancelling a user does not reach it."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_look)
    return task


def _look(task: asyncio.Task[Any]) -> None:
    """Its users may have left before it failed: then nobody else looks at the error."""
    with suppress(asyncio.CancelledError):
        task.exception()
