"""An event loop with virtual time, driven by a seed.

Time passes only when nothing is left to run: then it jumps to the next timer. Callbacks that are
ready together run in an order the seed chooses. With every other source of chance handed in
(base/clock.py) a whole cluster of writers, readers and crashes is a pure function of its seed:
equal seeds give equal traces, hours pass in milliseconds, and a failure replays.

It stands on private members of asyncio's base loop; a test pins that it works on this Python. Work
that is handed to a thread is done by the loop, as a step of its own.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded: the order of callbacks is the simulation's to choose
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class _NoSelector(selectors.BaseSelector):
    """A selector without files: waiting is what makes virtual time pass."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> NoReturn:
        raise RuntimeError("no files in a simulation")

    def unregister(self, fileobj: Any) -> NoReturn:
        raise RuntimeError("no files in a simulation")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class DeadlockError(RuntimeError):
    """Nothing is left to run and the simulation has not ended."""


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time and a seeded order of callbacks."""

    def __init__(self, seed: int) -> None:
        """Equal seeds give equal runs."""
        super().__init__()
        self._now_s = 0.0
        self._shuffle = random.Random(f"loop-{seed}")
        self._selector = _NoSelector(self._advance)
        self._clock_resolution = 1e-9
        self.set_exception_handler(self._note)
        self.complaints: list[str] = []
        """What asyncio would have logged: exceptions nobody looked at."""

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def _advance(self, timeout: float | None) -> None:
        if timeout is None:
            raise DeadlockError("every task waits for something that will not come")
        self._now_s += timeout

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            order = list(ready)
            self._shuffle.shuffle(order)
            ready.clear()
            ready.extend(order)
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, event_list: Any) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        """There are no other threads to be woken by."""

    def run_in_executor(  # type: ignore[override]
        self, _: Any, call: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """What a thread would do is done here, in a later step: threads depend on the machine."""
        answer: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if answer.done():
                return
            try:
                answer.set_result(call(*args))
            except Exception as error:  # noqa: BLE001 - it is told to who waits
                answer.set_exception(error)

        self.call_soon(work)
        return answer

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.complaints.append(f"{context.get('message')}: {error!r}")


def simulate(seed: int, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end in simulated time.

    Tasks still alive then (frozen processes) are dropped.
    """
    loop = SimLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main())
    finally:
        abandon(loop)
        asyncio.set_event_loop(None)
        loop.close()


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is still alive on a loop, as often as it takes: processes that were frozen."""
    for _ in range(ABANDON_ROUNDS):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(_pass_round())


async def _pass_round() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


ABANDON_ROUNDS = 50
"""A task may wait again while it is being cancelled, to close what it had open."""
