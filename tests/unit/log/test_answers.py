"""Who waits is told in order, and the event loop gets to other things in between."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from cordwood.base.errors import LimitError, StateError, StoreError
from cordwood.log.answers import TOLD_AT_ONCE, Answers
from cordwood.log.batch import Batch, Queue
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store


class Watch:
    """Hears that all of a batch were told."""

    def __init__(self, heard, batch):
        """`heard` gets the batch."""
        self.heard, self.batch = heard, batch

    def done(self):
        """Once only."""
        return self.batch in self.heard

    def set_result(self, _):
        """All were told."""
        self.heard.append(self.batch)


class World:
    """Answers, and what was heard of them."""

    def __init__(self):
        """Nobody waits."""
        self.heard = []
        """Offsets and errors, and batches that are done, in the order in which they were told."""
        self.num_rests = 0
        self.queue = Queue(2**30, 2**30)
        self.answers = Answers(self.queue, self._rest)

    def _rest(self):
        self.num_rests += 1

    def batch(self, count):
        """Records whose waiters tell what they heard."""
        batch = Batch()
        for _ in range(count):
            waiter = asyncio.get_running_loop().create_future()
            waiter.add_done_callback(lambda w: self.heard.append(w.exception() or w.result()))
            self.queue.admit(1)
            batch.add_row(b"x", 1, waiter)
        batch.watchers.append(Watch(self.heard, batch))
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
    assert world.queue.unresolved_bytes == 0
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
    assert most < 5_000 // 4
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


async def test_what_is_durable_no_longer_counts_against_the_queue():
    """Though not all have been told."""
    world = World()
    batch = world.batch(4 * TOLD_AT_ONCE)
    assert world.queue.unresolved_bytes == 4 * TOLD_AT_ONCE
    world.answers.tell(batch, 1)
    assert world.answers
    assert world.queue.unresolved_bytes == 0
    await turns(world.answers)


async def test_a_batch_is_done_with_when_its_last_one_was_told():
    """Not a turn of the loop later."""
    world = World()
    batch = world.batch(TOLD_AT_ONCE)
    world.answers.tell(batch, 1)
    assert [batch] == world.heard


async def test_nobody_falls_behind_for_ever():
    """Where more come in each turn than are told at once, more are told."""
    world, start, waiting = World(), 1, []
    for _ in range(100):
        batch = world.batch(4 * TOLD_AT_ONCE)
        world.answers.tell(batch, start)
        start += batch.num_records
        await asyncio.sleep(0)
        waiting.append(world.answers._num_waiters)
    assert max(waiting) <= 9 * 4 * TOLD_AT_ONCE
    await turns(world.answers)
    assert [one for one in world.heard if isinstance(one, int)] == list(range(1, start))


def a_log():
    return Log(Store.over(MemoryStore(), "memory:"), "log")


PROTOCOLS = pytest.mark.parametrize("protocol", ["cas", "chain"])


@pytest.mark.parametrize("how", ["close", "flush"])
@pytest.mark.parametrize("when", ["before", "while"])
@PROTOCOLS
async def test_who_closes_or_flushes_waits_until_all_were_told(how, when, protocol):
    """However many they are, and also while some have been."""
    log = a_log()
    await log.create(protocol=protocol)
    writer = await log.writer().open()
    futures = [writer.append(b"x") for _ in range(20 * TOLD_AT_ONCE)]
    if when == "while":
        await futures[0]
        assert not futures[-1].done()
    await (writer.close() if how == "close" else writer.flush())
    assert [future.result() for future in futures] == list(range(1, 20 * TOLD_AT_ONCE + 1))
    await writer.close()


@PROTOCOLS
async def test_who_finds_the_queue_full_and_flushes_gets_in(protocol):
    """While many are still to be told, too."""
    log = a_log()
    await log.create(protocol=protocol)
    async with log.writer(options=Options(queue_bytes=4 * TOLD_AT_ONCE * 20)) as writer:
        futures = [writer.append(b"xxxx") for _ in range(4 * TOLD_AT_ONCE)]
        with pytest.raises(LimitError):
            writer.append(b"xxxx")
        await futures[0]
        assert not futures[-1].done()
        await writer.append(b"xxxx")
        await writer.flush()


@pytest.mark.parametrize("num", [TOLD_AT_ONCE - 1, TOLD_AT_ONCE, 2 * TOLD_AT_ONCE])
async def test_who_awaits_the_oldest_when_the_queue_is_full_gets_in(num):
    """There is always an oldest one that is not done."""
    async with a_log().writer(create=True, options=Options(queue_bytes=num * 20)) as writer:
        waiting = deque()
        for _ in range(10 * num):
            while True:
                try:
                    waiting.append(writer.append(b"xxxx"))
                    break
                except LimitError:
                    await waiting.popleft()
        await asyncio.gather(*waiting)


ENDS = {
    "a task failed": lambda pipeline: pipeline._break_down(RuntimeError("it failed")),
    "the log is sealed": lambda pipeline: pipeline._end_sealed(StateError("it is sealed")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@PROTOCOLS
async def test_a_writer_that_ends_by_itself_leaves_nobody_waiting(end, protocol):
    """Whose records are durable hears of it, though the writer is closed at once."""
    log = a_log()
    await log.create(protocol=protocol)
    writer = await log.writer().open()
    futures = [writer.append(b"x") for _ in range(20 * TOLD_AT_ONCE)]
    await futures[0]
    assert not futures[-1].done()
    end(writer._pipeline)
    assert [future.result() for future in futures] == list(range(1, 20 * TOLD_AT_ONCE + 1))
    await writer.close()


async def test_others_have_their_turn_while_many_are_told():
    """Who appends next does not wait until all others were told."""
    async with a_log().writer(create=True) as writer:
        futures = [writer.append(b"x") for _ in range(20 * TOLD_AT_ONCE)]
        await futures[0]
        seen = []
        while not futures[-1].done():
            seen.append(sum(future.done() for future in futures))
            await asyncio.sleep(0)
        assert len(seen) > 5
