"""Many processes on one directory: the promises of the suite hold between them too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from cordwood.base.errors import AlreadyExistsError, ContendedError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store

PROCESSES = 16
SWAPS = 20
KEYS = 10

WORKER = """
import asyncio, sys
from cordwood.base.errors import AlreadyExistsError, ContendedError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore

async def main(root, name, swaps, keys):
    # Half of them name the folder by another root: they must exclude each other all the same.
    if int(name) % 2:
        store, folder = DirectoryStore(root), "shared/"
    else:
        store, folder = DirectoryStore(root + "/shared"), ""
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(keys)):
        try:
            await store.put(f"{folder}key-{number}", name.encode(), "create")
            print("won", number, flush=True)
        except AlreadyExistsError:
            pass
    for number in range(int(swaps)):
        while True:
            found = await store.get(f"{folder}counter")
            try:
                body = f"{int(found.data.split()[0]) + 1} {name} {number}".encode()
                await store.put(f"{folder}counter", body, Match(found.etag))
                break
            except ContendedError:
                continue

asyncio.run(main(*sys.argv[1:]))
"""


def work_together(root):
    """Run the workers, started together; by key number, who created it."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(root), str(num), str(SWAPS), str(KEYS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for num in range(PROCESSES)
    ]
    winners = {}
    try:
        for worker in workers:
            assert "ready\n" == worker.stdout.readline()
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for num, worker in enumerate(workers):
            output, _ = worker.communicate()
            assert 0 == worker.returncode
            for line in output.splitlines():
                number = line.split()[1]
                assert number not in winners
                winners[number] = num
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return winners


def test_sixteen_processes(tmp_path):
    """Sixteen processes swap without a lost update, and each created key has one winner."""
    # EVIDENCE-OF: G-29
    store = DirectoryStore(str(tmp_path))
    asyncio.run(store.put("shared/counter", b"0", "create"))
    winners = work_together(tmp_path)
    assert KEYS == len(winners)
    for number, num in winners.items():
        assert str(num).encode() == asyncio.run(store.get(f"shared/key-{number}")).data
    count = asyncio.run(store.get("shared/counter")).data.split()[0]
    assert PROCESSES * SWAPS == int(count)


def test_threads_with_loops_of_their_own(tmp_path):
    """One store object serves threads with event loops of their own, without a lost update."""
    # EVIDENCE-OF: G-29
    store = Store(tmp_path)
    threads, swaps = 16, 10

    async def add():
        for _ in range(swaps):
            while True:
                found = await store.get("counter")
                try:
                    await store.put("counter", str(int(found.data) + 1).encode(), Match(found.etag))
                    break
                except ContendedError:
                    continue

    asyncio.run(store.put("counter", b"0", "create"))
    running = [threading.Thread(target=asyncio.run, args=(add(),)) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert str(threads * swaps).encode() == asyncio.run(store.get("counter")).data


def in_child(call):
    """What a forked child's `call` returned: its exit status, 99 for an exception."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = call()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_directory_after_fork(tmp_path):
    """A directory store that was used before a fork works in the child and in the parent."""
    # EVIDENCE-OF: G-31
    store = Store(tmp_path)
    etag = asyncio.run(store.put("object", b"parent", "create"))

    def child():
        assert b"parent" == asyncio.run(store.get("object")).data
        asyncio.run(store.put("object", b"child", Match(etag)))
        return 7

    assert 7 == in_child(child)
    assert b"child" == asyncio.run(store.get("object")).data
    with pytest.raises(AlreadyExistsError):
        asyncio.run(store.put("object", b"", "create"))


def test_memory_after_fork():
    """A forked child inherits a memory store's objects; what it writes stays its own."""
    store = Store("memory:forked")
    asyncio.run(store.put("object", b"parent"))

    def child():
        found = asyncio.run(store.get("object"))
        assert b"parent" == found.data
        asyncio.run(store.put("object", b"child", Match(found.etag)))
        assert b"child" == asyncio.run(MemoryStore.named("forked").get("object")).data
        return 7

    assert 7 == in_child(child)
    assert b"parent" == asyncio.run(store.get("object")).data


def test_fork_while_locked(tmp_path):
    """A child forked while another thread holds a lock neither keeps the lock nor waits for it."""
    store = DirectoryStore(str(tmp_path))
    asyncio.run(store.put("object", b"0"))
    stop = threading.Event()

    def write():
        while not stop.is_set():
            asyncio.run(store.put("object", b"busy"))

    writer = threading.Thread(target=write)
    writer.start()

    def child():
        asyncio.run(store.put("object", b"child"))
        return 7

    try:
        assert [7] * 10 == [in_child(child) for _ in range(10)]
    finally:
        stop.set()
        writer.join()
