"""What the tests of jobs share: a store in memory with a clock in the test's hand, and logs."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock


@pytest.fixture
def clock():
    """The store's clock, and ours."""
    return HandClock()


@pytest.fixture
def memory(clock):
    """A store of the test's own."""
    return MemoryStore(clock=clock)


@pytest.fixture
def store(memory):
    """The same, as users have it."""
    return cordwood.Store.over(memory)


@pytest.fixture
def append(store):
    """`await append("a", [(key, body), …])`: one fragment for every few records."""

    async def work(name, records, batch_bytes=200):
        options = cordwood.Options(batch_bytes=batch_bytes)
        log = cordwood.Log(store, name)
        async with log.writer(create=True, options=options) as writer:
            await asyncio.gather(*(writer.append(body, key=key) for key, body in records))
        return log

    return work


@pytest.fixture
def rows():
    """`await rows(table)`: what is in it, by log and key; or by log and offset without a key."""

    async def work(table):
        found = (await table.to_arrow()).to_pylist()
        named = {(row["log"], row["key"] or row["offset"]): row["body"] for row in found}
        assert len(named) == len(found), "a key twice"
        return named

    return work
