"""The one background event loop behind the blocking twins.

    portal.run(coroutine)      run it there, wait here for the result

One daemon thread per process runs the loop, started at first use. A forked child must not use its
parent's: the thread does not exist there and a call would hang for ever. So the portal forgets
itself in a child (`os.register_at_fork`), which then gets a fresh loop, and everything that holds
state on a loop remembers which portal it belongs to and refuses clearly when that one is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from cordwood.base.errors import Code, StateError

T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        """Start the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cordwood-loop", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it; Ctrl-C cancels it."""
        try:
            self.check_outside()
        except StateError:
            work.close()
            raise
        call = _Call(work)
        try:
            self.loop.call_soon_threadsafe(call.begin)
            return call.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(call.cancel)
            raise

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.current_thread() is self._thread

    def check_outside(self) -> None:
        """Call before waiting for the loop.

        Raises:
            StateError: this is the loop's own thread, which would wait for itself.
        """
        if self.is_here:
            raise StateError(
                "a blocking call was made on Cordwood's own event loop",
                hint="use the async classes in `cordwood` there",
            )

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop without waiting."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop, and have nothing more to do with it."""
        self.loop.call_soon_threadsafe(_Call(work).begin)


class _Call(Generic[T]):
    """A coroutine on the loop, and a thread that waits for it.

    The thread may be interrupted anywhere, by Ctrl-C: also within a future of the library, between
    taking its lock and the block that releases it. The loop would wait for that lock for ever. So
    the answer comes by a queue, whose calls are done or not done.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        """Not begun."""
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._answer: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def begin(self) -> None:
        """On the loop."""
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """On the loop: nobody waits any more."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def wait(self) -> T:
        """In the thread: what it returns or raises."""
        result, error = self._answer.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # It holds this frame, which would hold it.
        return cast("T", result)

    def _end(self, task: asyncio.Task[T]) -> None:
        # The thread gets no hold of the task: where one is freed, Python ignores a Ctrl-C.
        self._task = None
        if task.cancelled():
            self._answer.put((None, CancelledError()))
        elif (error := task.exception()) is not None:
            self._answer.put((None, error))
        else:
            self._answer.put((task.result(), None))


_lock = threading.Lock()
_portal: Portal | None = None


def current() -> Portal:
    """This process's portal."""
    global _portal  # noqa: PLW0603 - one loop per process is the point
    with _lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def check_same(portal: Portal, what: str) -> Portal:
    """The portal, if it is still this process's.

    Raises:
        StateError: the process was forked since `what` was opened.
    """
    if portal is not _portal:
        raise StateError(
            f"{what} was opened before this process was forked",
            code=Code.FORKED,
            hint="open it again in the child; Log and Store objects go on working there",
        )
    return portal


def _forget() -> None:
    global _portal, _lock  # noqa: PLW0603 - the child starts without its parent's loop and lock
    _portal = None
    _lock = threading.Lock()


def _wait_for_arrow() -> None:
    """Arrow imports pandas with the first array, under a lock, perhaps in the loop's thread.

    A child forked meanwhile would have the lock, and nobody to free it: wait until that is done.
    """
    arrow = sys.modules.get("pyarrow")
    if _portal is not None and arrow is not None and "pandas" in sys.modules:
        arrow.array([])


os.register_at_fork(before=_wait_for_arrow, after_in_child=_forget)
