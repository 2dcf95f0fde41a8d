"""What changes, on a store that only creates: compare-and-swap by versions."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    NotFoundError,
    UncertainError,
)
from cordwood.log.chain import names
from cordwood.log.chain.registers import Registers
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked

KEY = "orders/cursor/app.json"


class ChainLog:
    """Says that the log is a chain."""

    kind = "chain"
    grace_s = 10.0

    async def is_chain(self):
        """It is."""
        return True

    def is_cas(self):
        """It is not."""
        raise AssertionError


@pytest.fixture
def memory():
    """Where the versions are."""
    return MemoryStore()


@pytest.fixture
def store(memory):
    """The store as a chain log sees it."""
    return Registers(memory, ChainLog(), SYSTEM_CLOCK)


async def test_versions_are_replaced_one_by_one(store, memory):
    """Each is an object of its own, and the newest is what is read."""
    first = await store.put(KEY, b"one", "create")
    second = await store.put(KEY, b"two", Match(first))
    assert (b"two", second) == await store.get(KEY)
    assert second == (await store.head(KEY)).etag
    kept = [meta.key async for meta in memory.list("orders/")]
    assert [f"orders/{names.version('cursor/app.json', n)}" for n in (1, 0)] == kept
    await store.sync([KEY, "orders/cursor/none.json"])


async def test_who_saw_an_older_one_is_told(store):
    """Also where the next version's name is free again."""
    first = await store.put(KEY, b"one", "create")
    await store.put(KEY, b"two", Match(first))
    with pytest.raises(ContendedError):
        await store.put(KEY, b"three", Match(first))
    with pytest.raises(AlreadyExistsError):
        await store.put(KEY, b"three", "create")
    with pytest.raises(ContendedError):
        await store.put("orders/cursor/none.json", b"x", Match(first))


async def test_of_many_one_wins(store):
    """A race of creates for the next version."""
    first = await store.put(KEY, b"one", "create")
    answers = await asyncio.gather(
        *(store.put(KEY, b"%d" % n, Match(first)) for n in range(20)), return_exceptions=True
    )
    assert 19 == sum(isinstance(answer, ContendedError) for answer in answers)


async def test_a_list_has_each_once(store, memory):
    """With the newest version's etag; what is none of them is listed as it is."""
    for name in ("a", "b", "b_c"):
        etag = await store.put(f"orders/cursor/{name}.json", b"1", "create")
        await store.put(f"orders/cursor/{name}.json", b"2", Match(etag))
    await memory.put("orders/cursor/strange file", b"")
    found = [(meta.key, meta.etag) async for meta in store.list("orders/cursor/")]
    keys = [f"orders/cursor/{name}.json" for name in ("a", "b", "b_c")]
    assert [(key, (await store.get(key)).etag) for key in keys] == [
        one for one in found if one[0].endswith(".json")
    ]
    assert 4 == len(found)
    for i, key in enumerate(keys):
        behind = [meta.key async for meta in store.list("orders/cursor/", key)]
        assert keys[i + 1 :] == [one for one in behind if one.endswith(".json")]


async def test_versions_of_what_was_made_anew_are_others(store):
    """The number is the same, and the etag is not: who saw the old one is told."""
    old = await store.put(KEY, b"one", "create")
    await store.delete([KEY])
    new = await store.put(KEY, b"other", "create")
    with pytest.raises(ContendedError):
        await store.put(KEY, b"two", Match(old))
    await store.put(KEY, b"two", Match(new))


async def test_to_delete_one_is_to_delete_all_its_versions(store, memory):
    """Nothing of it is left."""
    etag = await store.put(KEY, b"one", "create")
    await store.put(KEY, b"two", Match(etag))
    await store.delete([KEY, "orders/other"])
    with pytest.raises(NotFoundError):
        await store.get(KEY)
    assert [] == [meta.key async for meta in memory.list("")]


@pytest.mark.parametrize("is_newest", [True, False])
async def test_an_answer_that_took_too_long_is_looked_at(memory, is_newest):
    """It counts if the version is the newest; otherwise nobody can know."""
    # EVIDENCE-OF: G-123
    time = HandClock()

    async def slow(call, key, data, mode):
        answer = await call()
        time.pass_s(6)
        if not is_newest:
            await memory.put(f"orders/{names.version('cursor/app.json', 1)}", b"behind it")
        return answer

    store = Registers(Hooked(memory, put=slow), ChainLog(), time)
    if is_newest:
        etag = await store.put(KEY, b"one", "create")
        assert (b"one", etag) == await store.get(KEY)
    else:
        with pytest.raises(UncertainError, match="too long"):
            await store.put(KEY, b"one", "create")
