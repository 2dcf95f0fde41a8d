"""How a process ends that used the client library: not before the library's threads are out of it.

A thread of the library that hands an answer to an event loop wakes the loop's thread before it is
done itself. Should the program end with just that answer, the interpreter is gone when the thread
wants it back; Python then ends the thread, which the library's language takes for a crash of the
whole process: SIGABRT, and an exit code that says that all failed. With other work on the machine
that was one process in five.

So the interpreter, when it is about to end, first waits until no thread of another language is in
the middle of handing something over, and lets those in that were waiting outside.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from types import FrameType

OUTSIDE_S = 0.01
"""How long those that have not begun may take to begin: until they do nobody can see them."""

PAUSE_S = 0.001
WAIT_MAX_S = 2.0

_HANDING_OVER = asyncio.BaseEventLoop.call_soon_threadsafe.__code__


def wait_for_the_library() -> None:
    """Wait until nobody but Python's own threads hands anything to an event loop."""
    _pause(OUTSIDE_S)
    waited_s = 0.0
    while _is_handing_over() and waited_s < WAIT_MAX_S:
        _pause(PAUSE_S)
        waited_s += PAUSE_S


def _pause(seconds: float) -> None:
    """Let other threads go on."""
    threading.Event().wait(seconds)


def _is_handing_over() -> bool:
    ours = {thread.ident for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - documented, for debuggers; there is no other way
    return any(_is_within(frame) for ident, frame in frames.items() if ident not in ours)


def _is_within(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _HANDING_OVER:
        frame = frame.f_back
    return frame is not None


atexit.register(wait_for_the_library)
