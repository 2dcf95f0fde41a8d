"""Who waits is told in order, and the event loop gets to other things in between."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.errors import StoreError
from cordwood.log.answers import TOLD_AT_ONCE, Answers
from cordwood.log.batch import Batch
from cordwood.log.log import Log
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store


class World:
    """Answers, and what was heard of them."""

    def __init__(self):
        """Nobody waits."""
        self.heard = []
        """Offsets and errors, and batches that are done, in the order in which they were told."""
        self.num_rests = 0
        self.answers = Answers(self.heard.append, self._rest)

    def _rest(self):
        self.num_rests += 1

    def batch(self, count):
        """Records whose waiters tell what they heard."""
        batch = Batch()
        for _ in range(count):
            waiter = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(lambda w: self.heard.append(w.exception() or w.result()))
            batch.add_row(b"x", 1, waiter)
        return batch


async def turns(answers):
    """How often the event loop goes round until nobody waits."""
    count = 0
    while answers:
        await asyncio.sleep(0)
        count += 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return count


async def test_few_are_told_at_once():
    """A lone append does not wait for a turn of the loop."""
    world = World()
    batch = world.batch(TOLD_AT_ONCE - 1)
    world.answers.tell(batch, 7)
    assert not world.answers
    assert [batch] == world.heard
    await turns(world.answers)
    assert [batch, *range(7, 6 + TOLD_AT_ONCE)] == world.heard
    assert world.num_rests == 1


@pytest.mark.parametrize("sizes", [[5_000], [1_000] * 5, [10] * 500, [1, 4_998, 1]])
async def test_many_are_told_in_order_and_bit_by_bit(sizes):
    """Whether they are in one batch or in many."""
    world = World()
    batches = [world.batch(size) for size in sizes]
    start = 1
    for batch in batches:
        world.answers.tell(batch, start)
        start += batch.num_records
    most = 0
    before = 0
    while world.answers:
        await asyncio.sleep(0)
        told = sum(isinstance(one, int) for one in world.heard)
        most, before = max(most, told - before), told
    await turns(world.answers)
    assert [one for one in world.heard if isinstance(one, int)] == list(range(1, 5_001))
    assert [one for one in world.heard if isinstance(one, Batch)] == batches
    assert most < 2 * TOLD_AT_ONCE
    assert world.num_rests == 1


async def test_a_failure_is_told_to_all_at_once_after_what_came_before():
    """Whoever was written hears of it first."""
    world = World()
    first, second = world.batch(3 * TOLD_AT_ONCE), world.batch(2 * TOLD_AT_ONCE)
    world.answers.tell(first, 1)
    error = StoreError("it is gone")
    world.answers.tell(second, error)
    assert not world.answers
    assert [first, second] == world.heard
    await turns(world.answers)
    told = world.heard[2:]
    assert told[: 3 * TOLD_AT_ONCE] == list(range(1, 3 * TOLD_AT_ONCE + 1))
    assert set(told[3 * TOLD_AT_ONCE :]) == {error}


@pytest.mark.parametrize("how", ["close", "flush"])
@pytest.mark.parametrize("protocol", ["cas", "chain"])
async def test_who_closes_or_flushes_waits_until_all_were_told(how, protocol):
    """However many they are."""
    log = Log(Store.over(MemoryStore(), "memory:"), "log")
    await log.create(protocol=protocol)
    writer = await log.writer().open()
    futures = [writer.append(b"x") for _ in range(20 * TOLD_AT_ONCE)]
    await (writer.close() if how == "close" else writer.flush())
    assert [future.result() for future in futures] == list(range(1, 20 * TOLD_AT_ONCE + 1))
    await writer.close()


async def test_others_have_their_turn_while_many_are_told():
    """Who appends next does not wait until all others were told."""
    log = Log(Store.over(MemoryStore(), "memory:"), "log")
    async with log.writer(create=True) as writer:
        futures = [writer.append(b"x") for _ in range(20 * TOLD_AT_ONCE)]
        await futures[0]
        seen = []
        while not futures[-1].done():
            seen.append(sum(future.done() for future in futures))
            await asyncio.sleep(0)
        assert len(seen) > 5
