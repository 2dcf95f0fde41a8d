"""Killed writers of a real directory: nothing acknowledged is lost, nothing left locked or torn."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore
from cordwood.store.files import LOCK_NAME, TEMP_PREFIX

FILLING = b" ." * 2_000

WRITER = """
import asyncio, sys
from cordwood.base.errors import ContendedError
from cordwood.store.api import Match
from cordwood.store.directory import DirectoryStore

async def main(root, name):
    store = DirectoryStore(root)
    while True:
        found = await store.get("counter")
        count = int(found.data.split()[0]) + 1
        try:
            body = f"{count} {name}".encode() + b" ." * 2_000
            await store.put("counter", body, Match(found.etag))
        except ContendedError:
            continue
        await store.put(f"made/{count:06}", str(count).encode() * 50, "create")
        print(count, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Writers:
    """Writer processes, and what they have acknowledged."""

    def __init__(self, root):
        self.root = root
        self.running = []
        self.started = 0
        self.kills = 0
        self.acknowledged = []

    def start(self):
        command = [sys.executable, "-c", WRITER, str(self.root), f"writer-{self.started}"]
        self.running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self.started += 1

    def kill_after(self, acknowledgements):
        """Kill the oldest one after so many more, at whatever it is doing then."""
        victim = self.running[0]
        lines = [victim.stdout.readline() for _ in range(acknowledgements)]
        self.running.pop(0)
        victim.send_signal(signal.SIGKILL)
        lines += victim.stdout.readlines()
        victim.stdout.close()
        victim.wait()
        self.kills += 1
        self.acknowledged += [int(line) for line in lines if line.endswith("\n")]


@pytest.fixture
def writers(tmp_path):
    """Writers on a directory; none of them outlives the test."""
    writers = Writers(tmp_path)
    yield writers
    for writer in writers.running:
        writer.kill()
        writer.stdout.close()
        writer.wait()


def test_sigkill(tmp_path, writers):
    """Writers killed at any moment lose no acknowledged swap and no acknowledged object."""
    store = DirectoryStore(str(tmp_path))
    asyncio.run(store.put("counter", b"0 start", "create"))
    for _ in range(4):
        writers.start()
    for turn in range(12):
        writers.kill_after(3 + turn % 5)
        if turn < 8:
            writers.start()
    assert [] == writers.running
    asyncio.run(check(store, writers))
    names = [path.name for path in tmp_path.rglob(".cordwood-*")]
    assert all(name == LOCK_NAME or name.startswith(TEMP_PREFIX) for name in names)


async def check(store, writers):
    """Everything acknowledged is there, once; all that is there is whole; nothing is locked."""
    found = await store.get("counter")
    total = int(found.data.split()[0])
    assert found.data.endswith(FILLING)
    assert len(writers.acknowledged) == len(set(writers.acknowledged))
    # A writer killed between its swap and its line did one more than it said.
    assert len(writers.acknowledged) <= total <= len(writers.acknowledged) + writers.kills
    listed = {meta.key async for meta in store.list("made/")}
    assert {f"made/{count:06}" for count in writers.acknowledged} <= listed
    for key in listed:
        assert str(int(key.removeprefix("made/"))).encode() * 50 == (await store.get(key)).data
    await store.put("counter", b"done", Match(found.etag))
