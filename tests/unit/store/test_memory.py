"""What the reference adds to the contract: lists are live, names are shared, time is injected."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from cordwood.base.errors import ContendedError
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore


class Clock:
    """A clock that stands still."""

    def now_us(self):
        return 123_456_789

    def monotonic_s(self):
        return 0.0


async def test_time_is_injected():
    """An object's time is the clock's."""
    store = MemoryStore(Clock())
    await store.put("object", b"")
    assert 123_456_789 == (await store.head("object")).modified_us


def test_nothing_waits():
    """No call suspends: each ends the first time it is run."""

    def finish(coroutine):
        with pytest.raises(StopIteration) as caught:
            coroutine.send(None)
        return caught.value.value

    store = MemoryStore()
    etag = finish(store.put("object", b"bytes", "create"))
    assert (b"bytes", etag) == finish(store.get("object"))
    assert b"yt" == finish(store.get_range("object", 1, 2))
    assert "object" == finish(store.head("object")).key
    assert "object" == finish(anext(store.list())).key
    assert None is finish(store.sync(["object"]))
    assert None is finish(store.delete(["object"]))


async def test_list_is_live():
    """A list gives what is put or left behind its position while it runs, and not what is gone."""
    store = MemoryStore()
    for key in "aceg":
        await store.put(key, b"")
    metas = store.list()
    assert "a" == (await anext(metas)).key
    await store.delete(["a", "c"])
    await store.put("b", b"")
    await store.put("A", b"")
    assert ["b", "e", "g"] == [meta.key async for meta in metas]


async def test_bytes_are_copied():
    """A buffer changed after the put does not change the object."""
    store, buffer = MemoryStore(), bytearray(b"before")
    await store.put("object", buffer)
    buffer[:] = b"after!"
    assert b"before" == (await store.get("object")).data


def test_private_stores_are_freed():
    """A private store lives as long as it is held; a named one as long as the process."""
    held = MemoryStore.named("held", private=True)
    assert held is MemoryStore.named("held", private=True)
    watched = weakref.ref(held)
    del held
    gc.collect()
    assert None is watched()
    named = MemoryStore.named("stays")
    asyncio.run(named.put("object", b"1"))
    del named
    gc.collect()
    assert b"1" == asyncio.run(MemoryStore.named("stays").get("object")).data


def test_threads():
    """Threads that swap one object lose no update, and the sorted keys stay right."""
    store = MemoryStore()
    asyncio.run(store.put("counter", b"0"))

    async def add(name):
        for num in range(200):
            await store.put(f"{name}/{num}", b"")
            while True:
                found = await store.get("counter")
                try:
                    await store.put("counter", str(int(found.data) + 1).encode(), Match(found.etag))
                    break
                except ContendedError:
                    continue

    threads = [threading.Thread(target=asyncio.run, args=(add(str(num)),)) for num in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"800" == asyncio.run(store.get("counter")).data
    assert sorted(store._objects) == store._keys
