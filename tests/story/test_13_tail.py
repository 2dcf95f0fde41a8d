"""Story 13: a reader that follows the log sees every record once, in order, soon."""

from __future__ import annotations

import asyncio
import json

import pytest

import cordwood
from cordwood import CollectedError, Options
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log.reader import POLL_MAX_S
from cordwood.store.memory import MemoryStore
from cordwood.testing.simloop import simulate


def simulated_log(memory=None, name="orders"):
    """A log in simulated time."""
    store = cordwood.Store.over(memory or MemoryStore(clock=LoopClock()))
    return cordwood.Log(store, name, clock=LoopClock(), entropy=SeededEntropy(name))


def follow(log, seen, start=None):
    """A task that follows the log and notes what it sees, and when."""

    async def run():
        async with log.reader() as reader:
            async for record in reader.tail(start):
                seen.append((record.offset, record.body, asyncio.get_running_loop().time()))

    return asyncio.create_task(run())


async def stop(task):
    """End a follower as a user does: by cancelling it."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_a_tail_sees_everything_once():
    """From the beginning: what was there, and what comes, across batches, writers and folds."""

    async def main():
        log, seen = simulated_log(), []
        await log.create()
        async with log.writer() as writer:
            await writer.append_many([b"0", b"1"])
        task = follow(log, seen, 1)
        for writer_number in range(3):
            async with log.writer(options=Options(batch_bytes=1)) as writer:
                for n in range(10):
                    await writer.append(b"%d" % (2 + 10 * writer_number + n))
                    await asyncio.sleep(0.3)
        await asyncio.sleep(5)
        await stop(task)
        assert [(n + 1, b"%d" % n) for n in range(32)] == [item[:2] for item in seen]

    simulate(1, main)


def test_a_tail_without_a_start_begins_at_the_end():
    """Only what comes after it began."""

    async def main():
        log, seen = simulated_log(), []
        async with log.writer(create=True) as writer:
            await writer.append(b"before")
            task = follow(log, seen)
            await asyncio.sleep(1)
            await writer.append(b"after")
            await asyncio.sleep(2 * POLL_MAX_S)
        await stop(task)
        assert [(2, b"after")] == [item[:2] for item in seen]

    simulate(1, main)


def test_a_tail_may_begin_beyond_the_end():
    """It waits until the log gets there."""

    async def main():
        log, seen = simulated_log(), []
        async with log.writer(create=True) as writer:
            task = follow(log, seen, 3)
            for n in range(4):
                await asyncio.sleep(1)
                await writer.append(b"%d" % n)
            await asyncio.sleep(5)
        await stop(task)
        assert [(3, b"2"), (4, b"3")] == [item[:2] for item in seen]

    simulate(1, main)


def test_a_tail_is_at_most_a_poll_behind():
    """Also after a long silence a record is seen within the longest poll."""

    async def main():
        log, seen = simulated_log(), []
        async with log.writer(create=True) as writer:
            task = follow(log, seen)
            await asyncio.sleep(3600)
            appended_s = asyncio.get_running_loop().time()
            await writer.append(b"x")
            await asyncio.sleep(10)
        await stop(task)
        assert POLL_MAX_S + 0.1 >= seen[0][2] - appended_s

    simulate(1, main)


def test_an_idle_tail_costs_one_head_per_poll(hooked):
    """No GET while nothing comes; about one request a second."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        counting = hooked(memory)
        await simulated_log(memory).create()
        task = follow(simulated_log(counting), [])
        await asyncio.sleep(10)
        counting.calls.clear()
        await asyncio.sleep(100)
        await stop(task)
        operations = [operation for operation, _ in counting.calls]
        assert {"head"} == set(operations)
        assert 90 <= len(operations) <= 110

    simulate(1, main)


def test_many_tails_see_the_same():
    """Followers do not disturb each other or the writer."""

    async def main():
        log, views = simulated_log(), [[] for _ in range(5)]
        async with log.writer(create=True) as writer:
            tasks = [follow(log, seen, 1) for seen in views]
            for n in range(20):
                await writer.append(b"%d" % n)
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)
        for task in tasks:
            await stop(task)
        expected = [(n + 1, b"%d" % n) for n in range(20)]
        assert [expected] * 5 == [[item[:2] for item in seen] for seen in views]

    simulate(1, main)


async def test_a_tail_can_be_left(log):
    """Breaking out of the loop ends it; nothing keeps running."""
    async with log.writer(create=True) as writer:
        await writer.append_many([b"a", b"b"])
    before = asyncio.all_tasks()
    async with log.reader() as reader:
        tail = reader.tail(1)
        assert b"a" == (await anext(tail)).body
        await tail.aclose()
    assert before == asyncio.all_tasks()


async def test_a_tail_in_batches(log):
    """The same by record batches."""
    async with log.writer(create=True) as writer:
        await writer.append_many([b"a", b"b"])
        await writer.append_many([b"c"])
    async with log.reader() as reader:
        batches = reader.tail_arrow(2)
        first, second = await anext(batches), await anext(batches)
        await batches.aclose()
    assert ([2], [3]) == (
        first.column("offset").to_pylist(),
        second.column("offset").to_pylist(),
    )


@pytest.mark.cas
async def test_a_tail_from_a_collected_offset_says_so(log, bucket):
    """It does not silently skip what is gone."""
    # EVIDENCE-OF: G-14
    async with log.writer(create=True) as writer:
        await writer.append(b"gone")
        await writer.append(b"kept")
    manifest = await log.manifest()
    document = await bucket.manifest()
    document |= {
        "collected": manifest.fragments[0].setsum_hex,
        "fragments": document["fragments"][1:],
        "initial_offset": {"offset": 2},
        "initial_seq_no": 2,
    }
    await bucket.put("manifest/MANIFEST", json.dumps(document).encode())
    async with log.reader() as reader:
        with pytest.raises(CollectedError):
            await anext(reader.tail(1))
        tail = reader.tail(2)
        assert b"kept" == (await anext(tail)).body
        await tail.aclose()


async def test_a_tail_ends_behind_a_sealed_log(log):
    """What was there is given, what came before the seal as well; then nothing can follow."""
    async with log.writer(create=True) as writer:
        await writer.append(b"1")
        found = []

        async def follow():
            async with log.reader() as reader:
                found.extend([record.body async for record in reader.tail(start=1)])

        following = asyncio.ensure_future(follow())
        await writer.append(b"2")
    await log.seal("done")
    await asyncio.wait_for(following, 30)
    assert [b"1", b"2"] == found


async def test_a_tail_ends_behind_a_pin(log):
    """A pin holds what it holds."""
    async with log.writer(create=True) as writer:
        for body in (b"1", b"2", b"3"):
            await writer.append(body)
    await log.pin("p", 1, 3)
    async with log.reader(pin="p") as reader:
        assert [b"1", b"2"] == [record.body async for record in reader.tail(start=1)]
