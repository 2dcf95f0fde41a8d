"""Group commit: what many threads and tasks hand in is made durable together.

Whoever hands something in and finds nobody at work does the work, for all who have handed in by
then; the others wait meanwhile, and find it done, or do the next round. So one alone waits for
nobody, and many share one sync. Tasks of an event loop do not work themselves: one thread does it
for all of them (`drive`).

What is handed in and not yet taken is bounded: whoever would exceed that waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from cordwood.base.errors import StoreError
from cordwood.base.forks import starts_over

T = TypeVar("T")
R = TypeVar("R")

WAITING_BYTES_MAX = 1 << 20


class Ticket(Generic[T, R]):
    """One thing that was handed in, and what became of it."""

    __slots__ = ("error", "future", "is_done", "item", "outcome", "size_bytes")

    def __init__(self, item: T, size_bytes: int) -> None:
        """Not done."""
        self.item = item
        self.size_bytes = size_bytes
        self.is_done = False
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self.future: asyncio.Future[R] | None = None

    def succeed(self, outcome: R) -> None:
        """It is done."""
        self.outcome, self.is_done = outcome, True

    def fail(self, error: BaseException) -> None:
        """It will not be done."""
        self.error, self.is_done = error, True

    def result(self) -> R:
        """What became of it."""
        if self.error is not None:
            raise self.error
        return self.outcome  # type: ignore[return-value]


class Group(Generic[T, R]):
    """Work that is done for many at once, by one at a time."""

    def __init__(
        self,
        work: Callable[[Sequence[Ticket[T, R]]], None],
        *,
        waiting_bytes: int = WAITING_BYTES_MAX,
    ) -> None:
        """`work` settles every ticket; whatever it raises, those it did not settle get."""
        self._work = work
        self._limit_bytes = waiting_bytes
        self.start_over()
        starts_over(self)

    def start_over(self) -> None:
        """Nobody is at work, and nobody waits."""
        self.working = threading.Lock()
        """Held by who is at work. Only with `with`: an interrupt that
        comes between an `acquire` and its `try` leaves a lock held for ever."""
        self._mutex = threading.Lock()
        self._waiting: list[Ticket[T, R]] = []
        self._waiting_bytes = 0
        self._is_driven = False

    @property
    def waiting_bytes(self) -> int:
        """How much was handed in and not yet taken."""
        return self._waiting_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nobody is at work and nobody waits: then one may do its own work by itself."""
        return not (self._waiting or self.working.locked())

    def call(self, item: T, size_bytes: int) -> R:
        """Hand in, and wait until it is done."""
        ticket: Ticket[T, R] = Ticket(item, size_bytes)
        while not self._hand_in(ticket):
            self._work_once()
        while not ticket.is_done:
            self._work_once()
        return ticket.result()

    async def call_async(self, item: T, size_bytes: int) -> R:
        """The same for a task, which does not block its loop."""
        ticket: Ticket[T, R] = Ticket(item, size_bytes)
        loop = asyncio.get_running_loop()
        ticket.future = loop.create_future()
        while not self._hand_in(ticket):
            await loop.run_in_executor(None, self._work_once)
        if not self._is_driven:
            self._is_driven = True
            try:
                loop.run_in_executor(None, self._drive)
            except BaseException:
                # This loop ends, and has no threads any more: others do without it, and it without
                # what it handed in.
                with self._mutex:
                    self._is_driven = False
                    if ticket in self._waiting:
                        self._waiting.remove(ticket)
                        self._waiting_bytes -= ticket.size_bytes
                raise
        return await asyncio.shield(ticket.future)

    def _drive(self) -> None:
        """Work as long as there is work."""
        while True:
            self._work_once()
            with self._mutex:
                if not self._waiting:
                    self._is_driven = False
                    return

    def _hand_in(self, ticket: Ticket[T, R]) -> bool:
        """Whether there was room for it. One alone always has room."""
        with self._mutex:
            if self._waiting and self._waiting_bytes + ticket.size_bytes > self._limit_bytes:
                return False
            self._waiting.append(ticket)
            self._waiting_bytes += ticket.size_bytes
            return True

    def _work_once(self) -> None:
        """Do what waits, or wait for whoever does it."""
        with self.working:
            with self._mutex:
                taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not taken:
                return
            try:
                self._work(taken)
            except Exception as error:  # noqa: BLE001 - everybody who waits has to know
                _fail(taken, error)
            except BaseException:
                # Somebody stopped this thread; the others did not ask for that.
                _fail(taken, _stopped())
                raise
            finally:
                _tell(taken)


def _fail(tickets: Iterable[Ticket[T, R]], error: BaseException) -> None:
    for ticket in tickets:
        if not ticket.is_done:
            ticket.fail(error)


def _stopped() -> StoreError:
    return StoreError(
        "whoever worked for all was stopped in the middle", transient=True, hint="try again"
    )


def _tell(tickets: Iterable[Ticket[T, R]]) -> None:
    """Wake tasks: each loop once, for all of its own."""
    loops: dict[asyncio.AbstractEventLoop, list[Ticket[T, R]]] = {}
    for ticket in tickets:
        if ticket.future is not None:
            loops.setdefault(ticket.future.get_loop(), []).append(ticket)
    for loop, theirs in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, theirs)


def _settle(tickets: Iterable[Ticket[T, R]]) -> None:
    for ticket in tickets:
        future = ticket.future
        if future is None or future.done():
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.outcome)  # type: ignore[arg-type]
