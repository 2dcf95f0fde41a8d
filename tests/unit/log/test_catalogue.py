"""Finding logs by a pattern of their names."""

from __future__ import annotations

import pytest

from cordwood import Log, Store
from cordwood.log.catalogue import logs_in
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore

NAMES = ("clicks", "orders-1", "orders-10", "orders-2", "orders-2/eu", "team/a/orders", "team/b")


@pytest.fixture
async def store():
    """A store with logs in several places, and something that is none."""
    store = Store("memory:")
    for name in NAMES:
        log = Log(store, name)
        await log.create()
        async with log.writer() as writer:
            await writer.append(b"x")
        await log.cursors.init("c", 1)
    await store.put("orders-3/notes.txt", b"not a log")
    await store.put("orders-4/cursor/c.json", b"what a log left behind")
    return store


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders-*", ["orders-1", "orders-10", "orders-2"]),
        ("orders-?", ["orders-1", "orders-2"]),
        ("*", ["clicks", "orders-1", "orders-10", "orders-2"]),
        ("*/b", ["team/b"]),
        ("team/*", ["team/b"]),
        ("team/**", ["team/a/orders", "team/b"]),
        ("**/orders", ["team/a/orders"]),
        ("orders-2/*", ["orders-2/eu"]),
        ("**", sorted(NAMES)),
        ("nothing*", []),
        ("clicks", ["clicks"]),
    ],
)
async def test_logs_are_found_by_their_manifest(store, pattern, found):
    """A star stands for letters of a segment, two for segments, a question mark for a letter."""
    assert await logs_in(store, [pattern]) == found


async def test_several_patterns_give_each_log_once(store):
    """In order, whichever pattern it matched."""
    assert await logs_in(store, ["orders-1*", "orders-?", "clicks"]) == [
        "clicks",
        "orders-1",
        "orders-10",
        "orders-2",
    ]


@pytest.mark.parametrize("fragments", [1, 30])
async def test_what_lies_in_a_log_is_not_listed(fragments):
    """A log with many fragments costs as much as one with few: a LIST and a HEAD."""
    meter = MeteredStore(MemoryStore())
    store = Store.over(meter, "test:")
    for i in range(4):
        async with Log(store, f"log-{i}").writer(create=True) as writer:
            for _ in range(fragments):
                await writer.append(b"x")
    meter.reset()
    assert len(await logs_in(store, ["log-*"])) == 4
    operations = meter.snapshot().operations
    assert (operations["list"].requests, operations["head"].requests) == (5, 4)
