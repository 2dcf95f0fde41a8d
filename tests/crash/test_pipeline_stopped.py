"""A run of the pipeline dies in its k-th request, for every k; the next runs finish the work."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Pipeline, Policy, Table
from cordwood.store.memory import MemoryStore
from cordwood.testing.dying import DeadError, copy_of, dying
from cordwood.testing.handclock import HandClock

STEPS_MAX = 400
LOGS = ("logs/0", "logs/1")
PAST_EVERYTHING_S = 100_000
"""Grace intervals, pins, and the age at which what nobody names is deleted."""


def pipeline(memory, clock):
    """One that takes every log with something new."""
    store = cordwood.Store.over(memory)
    policy = Policy(min_records=1)
    return Pipeline(store, policy=policy, quiet_s=0.0, mode="upsert", clock=clock, engine="local")


async def write(memory, clock, round_):
    """Four keys in each log, again and again."""
    async with cordwood.Fleet(cordwood.Store.over(memory), "m1", create=True, clock=clock) as fleet:
        for log in LOGS:
            for key in range(4):
                await fleet.append(log, b"%d" % round_, key=b"%d" % key)


@pytest.fixture(scope="module")
def ground():
    """A fleet whose first records are in tables, and whose next ones are not."""
    clock = HandClock()
    memory = MemoryStore(clock=clock)

    async def work():
        await write(memory, clock, 0)
        await pipeline(memory, clock).run()
        await write(memory, clock, 1)

    asyncio.run(work())
    return memory


async def check(memory, clock, round_):
    """Everything in the tables, once; nothing left in the logs or beside the tables."""
    store = cordwood.Store.over(memory)
    for _ in range(3):
        clock.pass_s(PAST_EVERYTHING_S)
        report = await pipeline(memory, clock).run()
        assert {} == report.errors
    for log in LOGS:
        table = Table(store, f"tables/{log}")
        rows = (await table.to_arrow()).to_pylist()
        expected = {b"%d" % key: b"%d" % round_ for key in range(4)}
        assert expected == {row["key"]: row["body"] for row in rows}
        assert 4 == len(rows)
        named = {f"{table.name}/{file.path}" for file in await table.files()}
        assert named == {meta.key async for meta in memory.list(f"{table.name}/data/")}
        assert [] == [meta.key async for meta in memory.list(f"{log}/log/")]
        assert (await cordwood.Log(store, log).scrub(deep=True)).ok
    assert () == report.waiting + report.unswept
    assert [] == (await cordwood.survey(store)).dirty


@pytest.mark.slow
def test_a_run_that_dies_is_resumed(ground):
    """Behind whichever request: compacted once, collected, swept; no log is forgotten."""
    # EVIDENCE-OF: G-77

    async def one(last):
        clock = HandClock()
        copied = copy_of(ground, clock)
        try:
            await pipeline(dying(copied, last, takes_effect=True), clock).run()
        except DeadError:
            died = True
        else:
            died = False
        await check(copied, clock, 1)
        if last % 10 == 0:
            await write(copied, clock, 2)
            await check(copied, clock, 2)
        return died

    last = 1
    while asyncio.run(one(last)):
        last += 1
        assert last < STEPS_MAX
    assert last > 50
