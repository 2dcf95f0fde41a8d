"""A few threads for work that keeps a core busy: hashing, encoding, reading large files.

As many as there are cores and no more. More would not be faster, and every thread that handles
large buffers keeps its own pool of memory: with a thread per request the same scan costs a third
more. What waits for the disk (a sync) belongs elsewhere, in asyncio's own, larger pool.

Work that holds the interpreter gains nothing from a second thread: it takes `Turns`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work that is done step by step."""

_pool: ThreadPoolExecutor | None = None


def all_steps(steps: Steps[T]) -> T:
    """Do them all; what the last one returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_worker(call: Callable[P, T | Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a plain function, or all steps of a generator, in a worker thread and wait for it."""

    def work() -> T:
        try:
            found = call(*args, **kwargs)
        except StopIteration as error:
            raise _not_to_be_told(error) from error
        return all_steps(found) if isinstance(found, Generator) else found

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_workers(), work)


def share(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Do all of these in this thread and in the workers that are free; what they return, in order.

    It ends when nobody works any more. Who does not begin in time is not waited for, so a worker
    may call this too: none waits for one that waits for it.
    """
    outcomes: list[Future[T]] = []
    waiting: deque[tuple[Callable[[], T], Future[T]]] = deque()
    for call in calls:
        outcomes.append(Future())
        waiting.append((call, outcomes[-1]))

    def work() -> None:
        has_failed = False
        while True:
            try:
                call, outcome = waiting.popleft()
            except IndexError:
                return
            if has_failed:
                outcome.cancel()  # Nobody asks for the rest.
                outcome.set_running_or_notify_cancel()
                continue
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is told below
                has_failed = True
                outcome.set_exception(error)
                del call, outcome

    helpers: list[Future[None]] = []
    num_helpers = min(os.cpu_count() or 1, len(outcomes)) - 1
    # Without a thread to be had it is done here. What was handed in may still be begun by a worker
    # that becomes free: so it is the outcomes that are waited for.
    with suppress(RuntimeError):
        helpers.extend(_workers().submit(work) for _ in range(num_helpers))
    work()
    for helper in helpers:
        helper.cancel()
    wait(outcomes)
    try:
        return list(map(Future.result, outcomes))
    finally:
        # An error holds the frames it went through: if they held it too, what they worked on would
        # stay in memory until the collector comes.
        outcomes.clear()


def _workers() -> ThreadPoolExecutor:
    global _pool  # noqa: PLW0603 - one pool per process is the point
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="cordwood-worker")
    return _pool


class Turns:
    """One piece of work after the other, in a worker thread; what has gathered goes there at once.

    To and fro for each piece costs the hashing of a fragment of 8 MiB two per cent more.

    Work may be a generator. Then all that has gathered does its first step, up to the first
    `yield`, before any does its second: steps of a kind find the processor's caches warm, and what
    is short is done in a fifth of the time. What it returns is the result.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: list[_Piece] = []
        self._rounds: asyncio.Task[None] | None = None

    async def take(self, call: Callable[P, T | Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a plain function, or a generator, when its turn comes, and wait for it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(_Piece(lambda: call(*args, **kwargs), future))
        if self._rounds is None:
            self._rounds = asyncio.ensure_future(self._work())
        result: T = await future
        return result

    async def stop(self) -> None:
        """Have nobody wait any more: what is being done is done for nobody, the rest is not."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
            self._end([])  # Also if it had not begun.

    async def _work(self) -> None:
        pieces: list[_Piece] = []
        try:
            while self._waiting:
                pieces, self._waiting = self._waiting, []
                try:
                    await in_worker(_do_all, pieces)
                except Exception as error:  # noqa: BLE001 - there was no thread: all are told
                    for piece in pieces:
                        piece.error = error
                for piece in pieces:
                    piece.tell()
        finally:
            self._end(pieces)

    def _end(self, pieces: list[_Piece]) -> None:
        left, self._waiting, self._rounds = (*pieces, *self._waiting), [], None
        for piece in left:
            piece.future.cancel()  # of whoever has been told, this changes nothing


@dataclass(slots=True)
class _Piece:
    """Work, and who waits for it."""

    call: Callable[[], Any]
    future: asyncio.Future[Any]
    steps: Steps[Any] | None = None
    result: Any = None
    error: Exception | None = None

    def do(self) -> bool:
        """One step, in the worker, unless nobody waits any more; whether more are to come."""
        if self.future.cancelled():
            return False
        try:
            if self.steps is None:
                self.result = self.call()
                if not isinstance(self.result, Generator):
                    return False
                self.steps = self.result
            return self._has_more(self.steps)
        except StopIteration as error:
            self.error = _not_to_be_told(error)
            self.error.__cause__ = error
        except Exception as error:  # noqa: BLE001 - it is told to who waits
            self.error = error
        return False

    def _has_more(self, steps: Steps[Any]) -> bool:
        try:
            next(steps)
        except StopIteration as end:
            self.result = end.value
            return False
        return True

    def tell(self) -> None:
        """In the event loop."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


def _not_to_be_told(_: StopIteration) -> Exception:
    """In its place: a future that is told a StopIteration never is told anything."""
    return RuntimeError("work in a worker raised StopIteration")


def _do_all(pieces: list[_Piece]) -> None:
    while pieces:
        pieces = [piece for piece in pieces if piece.do()]


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool  # noqa: PLW0603 - it gets a pool of its own
    _pool = None


os.register_at_fork(after_in_child=_forget)
