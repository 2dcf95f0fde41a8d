"""Processes that are stopped, killed or interrupted around a folder's lock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import StoreError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.disk import Disk
from cordwood.store.files import LOCK_NAME, TEMP_PREFIX

HOLDER = """
import asyncio, os, signal, sys, threading, time
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.disk import Disk

class Stopping(Disk):
    "Stops the process where the lock is held and the name not yet changed."
    def rename(self, source, target):
        if mode == "fork":
            locked.set()
            time.sleep(3600)
        # To this thread: one sent to the process may stop it a little later.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        super().rename(source, target)

root, etag, mode = sys.argv[1:]
locked = threading.Event()
store = DirectoryStore(root, disk=Stopping())

def put():
    print(asyncio.run(store.put("object", b"holder", Match(etag))), flush=True)

if mode == "fork":
    threading.Thread(target=put, daemon=True).start()
    locked.wait()
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    print(child, flush=True)
    time.sleep(3600)
put()
"""

WAITER = """
import asyncio, signal, sys
from cordwood.base import portal
from cordwood.store.directory import DirectoryStore

# A shell's background job, and all that it starts, ignores Ctrl-C unless told otherwise.
signal.signal(signal.SIGINT, signal.default_int_handler)
root, mode = sys.argv[1:]
store = DirectoryStore(root, lock_wait_s=3600.0)

async def main():
    print("begun", flush=True)
    await store.put("object", b"waiter")

if mode == "async":
    asyncio.run(main())
else:
    portal.current().run(main())
"""


@contextmanager
def running(source, *args):
    """A process that does not outlive the test, even if it is stopped."""
    command = [sys.executable, "-c", source, *map(str, args)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def stopped_holder(root):
    """A store with one object, and a process that was stopped while it held the lock."""
    store = DirectoryStore(str(root), lock_wait_s=0.3)
    etag = asyncio.run(store.put("object", b"before"))
    with running(HOLDER, root, etag, "stop") as holder:
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield store, etag, holder


def test_stopped_holder(tmp_path):
    """Others are told that the lock is held; when its holder goes on, so does everything."""
    # EVIDENCE-OF: G-29
    with stopped_holder(tmp_path) as (store, etag, holder):
        for call in (
            lambda: store.put("object", b"us", Match(etag)),
            lambda: store.delete(["object"]),
        ):
            with pytest.raises(StoreError, match="lock") as caught:
                asyncio.run(call())
            assert (False, True) == (caught.value.applied, caught.value.transient)
        assert (b"before", etag) == asyncio.run(store.get("object"))
        # Whatever needs no lock goes on, in the same folder too.
        asyncio.run(store.put("new", b"", "create"))
        holder.send_signal(signal.SIGCONT)
        theirs = holder.stdout.readline().strip()
        assert (b"holder", theirs) == asyncio.run(store.get("object"))
        asyncio.run(store.put("object", b"us", Match(theirs)))


def test_killed_holder(tmp_path):
    """A holder that is killed, even while stopped, frees the lock, and its put never happened."""
    # EVIDENCE-OF: G-29
    with stopped_holder(tmp_path) as (_, etag, holder):
        patient = DirectoryStore(str(tmp_path))

        async def put():
            task = asyncio.ensure_future(patient.put("object", b"us", Match(etag)))
            await asyncio.sleep(0.2)
            assert not task.done()
            holder.kill()
            async with asyncio.timeout(20):
                return await task

        ours = asyncio.run(put())
        assert (b"us", ours) == asyncio.run(patient.get("object"))
        assert 1 == len(list(tmp_path.glob(f"{TEMP_PREFIX}*")))  # swept when it is an hour old


def test_killed_holder_with_a_child(tmp_path):
    """A child forked while the lock was held does not keep it when its parent is killed."""
    store = DirectoryStore(str(tmp_path), lock_wait_s=20.0)
    etag = asyncio.run(store.put("object", b"before"))
    with running(HOLDER, tmp_path, etag, "fork") as holder:
        child = int(holder.stdout.readline())
        try:
            holder.kill()
            asyncio.run(store.put("object", b"us", Match(etag)))
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_interrupt_while_waiting(tmp_path, mode):
    """Ctrl-C ends a process that waits for a lock, soon, and nothing was written."""
    store = DirectoryStore(str(tmp_path))
    asyncio.run(store.put("object", b"before"))
    with Disk().lock(str(tmp_path / LOCK_NAME)), running(WAITER, tmp_path, mode) as waiter:
        assert "begun\n" == waiter.stdout.readline()
        until_s = SYSTEM_CLOCK.monotonic_s() + 20.0
        while not list(tmp_path.glob(f"{TEMP_PREFIX}*")):
            assert SYSTEM_CLOCK.monotonic_s() < until_s
        waiter.send_signal(signal.SIGINT)
        _, errors = waiter.communicate(timeout=20)
        assert -signal.SIGINT == waiter.returncode
        assert "KeyboardInterrupt" in errors
        assert [] == list(tmp_path.glob(f"{TEMP_PREFIX}*"))
    assert b"before" == asyncio.run(store.get("object")).data
