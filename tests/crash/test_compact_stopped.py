"""A compaction or a sweep dies in its k-th request, for every k; the next one finishes."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Table, compact
from cordwood.store.memory import MemoryStore
from cordwood.testing.dying import DeadError, copy_of, dying
from cordwood.testing.handclock import HandClock

STEPS_MAX = 200
KEYS = 6
ROUNDS = 3


def over(memory):
    """The log and the table in a store."""
    store = cordwood.Store.over(memory)
    return cordwood.Log(store, "orders"), Table(store, "table")


def records(round_):
    """What is appended in one round: keys again and again, some deleted."""
    return [
        (
            b"k%d" % ((n * 5 + round_) % KEYS),
            b"" if (n + round_) % 7 == 0 else b"%d-%d" % (round_, n),
        )
        for n in range(12)
    ]


async def append(log, round_):
    """A fragment for every few records."""
    async with log.writer(create=True, options=cordwood.Options(batch_bytes=40)) as writer:
        pairs = records(round_)
        await asyncio.gather(*(writer.append(body, key=key) for key, body in pairs))


async def content(table, mode):
    """The bodies in the order of the log; or by their keys, each once."""
    rows = (await table.to_arrow()).sort_by("offset").to_pylist()
    if mode == "append":
        return [row["body"] for row in rows]
    found = {row["key"]: row["body"] for row in rows}
    assert len(found) == len(rows)
    return found


def model(rounds, mode):
    """What has to be in it."""
    if mode == "append":
        return [body for round_ in range(rounds) for _, body in records(round_)]
    pairs = {}
    for round_ in range(rounds):
        pairs |= dict(records(round_))
    return {key: body for key, body in pairs.items() if body}


def ground(mode):
    """A table that holds two rounds, and a third that is new."""
    clock = HandClock()
    memory = MemoryStore(clock=clock)

    async def write():
        log, table = over(memory)
        await table.create(mode=mode, grace_s=60, orphan_s=3_600)
        for round_ in range(ROUNDS - 1):
            await append(log, round_)
            await compact(log, table, engine="local")
        await append(log, ROUNDS - 1)

    asyncio.run(write())
    return memory


@pytest.fixture(scope="module", params=["append", "upsert"])
def begun(request):
    """The mode, and what there is."""
    return request.param, ground(request.param)


async def check(memory, mode, rounds):
    """Everything once, the cursor at the end, nothing damaged."""
    log, table = over(memory)
    assert model(rounds, mode) == await content(table, mode)
    assert [] == await table.scrub()
    assert 12 * rounds + 1 == (await log.cursors.load("compaction")).offset
    assert (await log.scrub(deep=True)).ok


def test_a_compaction_that_dies_is_resumed(begun):
    """Before its commit, in it, behind it: the next one leaves everything in the table once."""
    # EVIDENCE-OF: G-66, G-67, G-77
    mode, memory = begun

    async def one(last):
        clock = HandClock()
        copied = copy_of(memory, clock)
        log, table = over(dying(copied, last, takes_effect=True))
        try:
            await compact(log, table, engine="local")
        except DeadError:
            died = True
        else:
            died = False
        log, table = over(copied)
        assert await content(table, mode) in (model(ROUNDS - 1, mode), model(ROUNDS, mode))
        await compact(log, table, engine="local")
        await check(copied, mode, ROUNDS)
        # What died left files that nobody names, and a pin: both go by age, nothing else does.
        clock.pass_s(10_000)
        await table.sweep()
        clock.pass_s(10_000)
        await table.sweep()
        await log.collect(wait_s=0)
        clock.pass_s(10_000)
        await log.collect(wait_s=0)
        named = {f"table/{file.path}" for file in await table.files()}
        assert named == {meta.key async for meta in copied.list("table/data/")}
        assert 0 == len([meta async for meta in copied.list("orders/log/")])
        await append(log, ROUNDS)
        await compact(log, table, engine="local")
        await check(copied, mode, ROUNDS + 1)
        return died

    last = 1
    while asyncio.run(one(last)):
        last += 1
        assert last < STEPS_MAX
    assert last > 20


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_sweep_that_dies_is_resumed(takes_effect):
    """What the table names is there, whatever was deleted; the next sweep deletes the rest."""
    # EVIDENCE-OF: G-68, G-77
    memory = ground("upsert")

    async def one(last):
        clock = HandClock()
        clock.pass_s(10_000)
        copied = copy_of(memory, clock)
        log, table = over(copied)
        await compact(log, table, engine="local")
        await copied.put(f"table/data/{'0' * 32}.parquet", b"orphan")
        await table.sweep()
        clock.pass_s(10_000)
        _, doomed = over(dying(copied, last, takes_effect=takes_effect))
        try:
            await doomed.sweep()
        except DeadError:
            died = True
        else:
            died = False
        await check(copied, "upsert", ROUNDS)
        await table.sweep()
        named = {f"table/{file.path}" for file in await table.files()}
        assert named == {meta.key async for meta in copied.list("table/data/")}
        return died

    last = 1
    while asyncio.run(one(last)):
        last += 1
        assert last < STEPS_MAX
    assert last > 5
