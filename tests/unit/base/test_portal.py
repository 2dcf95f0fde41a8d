"""Blocking calls: what they wait for, what they raise, and Ctrl-C at any moment."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from cordwood.base import portal

PATIENCE_S = 60


async def value(of):
    """Known at once."""
    return of


async def error(of):
    """Failed at once."""
    raise of


def test_what_a_call_returns_or_raises():
    """As if it had been made here; also if it was cancelled on the loop."""

    async def cancelled():
        asyncio.current_task().cancel()
        await asyncio.sleep(PATIENCE_S)

    home = portal.current()
    assert home.run(value(7)) == 7
    with pytest.raises(KeyError, match="lost"):
        home.run(error(KeyError("lost")))
    with pytest.raises(CancelledError):
        home.run(cancelled())


def test_an_error_keeps_nothing_in_memory():
    """What was worked on is free as soon as nobody looks at the error any more."""

    class Large:
        pass

    async def fail(_):
        raise KeyError

    gc.disable()
    try:
        large = Large()
        left = weakref.ref(large)
        with pytest.raises(KeyError):
            portal.current().run(fail(large))
        del large
        portal.current().run(value(1))  # The loop has forgotten it too.
        assert left() is None
    finally:
        gc.enable()


def test_a_call_that_is_interrupted_is_cancelled():
    """What it was doing on the loop ends."""
    begun, ended = threading.Event(), threading.Event()

    async def work():
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    def interrupt():
        assert begun.wait(PATIENCE_S)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            portal.current().run(work())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended.wait(PATIENCE_S)


@pytest.mark.filterwarnings(
    "ignore:coroutine 'value' was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_ctrl_c_at_any_moment_does_not_stop_the_loop():
    """The next call is answered, wherever the last one was interrupted."""
    home = portal.current()
    interrupted = 0

    def interrupt(*_):
        nonlocal interrupted
        interrupted += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for nth in range(2_000):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + nth % 300 * 1e-6)
                while interrupted == nth:  # Python ignores one while it frees something.
                    home.run(value(1))
            answered = threading.Event()
            home.loop.call_soon_threadsafe(answered.set)
            assert answered.wait(PATIENCE_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
