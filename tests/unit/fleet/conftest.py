"""What the tests of a fleet share: a store with a hook, and ways to compact."""

from __future__ import annotations

import pytest

import cordwood
from cordwood.base.clock import SystemClock
from cordwood.base.errors import NotFoundError
from cordwood.fleet.dirty import COMPACTION
from cordwood.store.memory import MemoryStore


class HookedMemory(MemoryStore):
    """A store in memory; tests step in before a put, and count requests."""

    def __init__(self):
        super().__init__()
        self.before_put = None
        self.calls = []

    async def get(self, key):
        self.calls.append(("get", key))
        return await super().get(key)

    async def head(self, key):
        self.calls.append(("head", key))
        return await super().head(key)

    async def put(self, key, data, mode="overwrite"):
        self.calls.append(("put", key))
        if self.before_put is not None:
            await self.before_put(key)
        return await super().put(key, data, mode)

    def list(self, prefix="", start_after=""):
        self.calls.append(("list", prefix))
        return super().list(prefix, start_after)


class HandClock(SystemClock):
    """A wall clock that a test moves on."""

    later_s = 0.0

    def now_us(self):
        return super().now_us() + int(self.later_s * 1_000_000)


@pytest.fixture
def memory():
    """A store of the test's own."""
    return HookedMemory()


@pytest.fixture
def store(memory):
    """The same, as users have it."""
    return cordwood.Store.over(memory)


@pytest.fixture
def clock():
    """Time that a test moves on."""
    return HandClock()


@pytest.fixture
def compact(store):
    """`await compact("log-1")`: move its compaction cursor to its end, or to an offset."""

    async def move(name, to=None):
        log = cordwood.Log(store, name)
        if to is None:
            to = (await log.manifest()).next_offset
        try:
            witness = await log.cursors.load(COMPACTION)
        except NotFoundError:
            witness = await log.cursors.init(COMPACTION, 1)
        await log.cursors.save(COMPACTION, to, witness)

    return move
