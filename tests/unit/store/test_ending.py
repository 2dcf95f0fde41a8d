"""A process that used the client library does not end under the library's threads."""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading

from cordwood.store import ending

PATIENCE_S = 60


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop that is slow to be woken, as one is whose waker has to wait for the interpreter."""

    def __init__(self):
        """Nobody wakes it."""
        self.entered, self.let_go = threading.Event(), threading.Event()
        super().__init__()

    def _write_to_self(self):
        self.entered.set()
        self.let_go.wait(PATIENCE_S)


def test_who_hands_something_over_is_waited_for(monkeypatch):
    """A thread that Python did not start is seen, and the end comes behind it."""
    loop, left, seen = SlowLoop(), threading.Event(), []

    def hand_over():
        """As the library's threads do."""
        loop.call_soon_threadsafe(print)
        left.set()

    def pause(_):
        """Look what is waited for; the third time, let it end."""
        seen.append(ending._is_handing_over())
        if len(seen) == 3:
            loop.let_go.set()
            assert left.wait(PATIENCE_S)

    monkeypatch.setattr(ending, "_pause", pause)
    _thread.start_new_thread(hand_over, ())
    assert loop.entered.wait(PATIENCE_S)
    ending.wait_for_the_library()
    assert [True, True, True] == seen
    assert not ending._is_handing_over()
    loop.close()


def test_nobody_is_waited_for_longer_than_a_while(monkeypatch):
    """A thread that never ends does not keep the process."""
    pauses = []
    monkeypatch.setattr(ending, "_pause", pauses.append)
    monkeypatch.setattr(ending, "_is_handing_over", lambda: True)
    ending.wait_for_the_library()
    assert ending.WAIT_MAX_S <= sum(pauses) < 2 * ending.WAIT_MAX_S


def test_a_remote_store_brings_it_along():
    """Whoever loads the client has it done when the interpreter ends."""
    code = """
import atexit
registered = []
atexit.register = lambda call: registered.append(call.__name__)
import cordwood.store.remote
assert "wait_for_the_library" in registered, registered
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
