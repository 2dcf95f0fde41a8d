"""The writer's own behaviour in simulated time: pace, order, flush, throttle, back-pressure."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import LimitError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

PUT_S = 0.1


def world(put_s=PUT_S, deadline_s=None):
    """A log whose puts take `put_s`, its faulty store, and a meter in front of it."""
    clock, entropy = LoopClock(), SeededEntropy("writer")
    faulty = FaultyStore(MemoryStore(clock=clock), entropy, clock, latency={"put": Latency(put_s)})
    meter = MeteredStore(faulty, clock)
    store = (
        meter if deadline_s is None else RetryingStore(meter, clock, entropy, deadline_s=deadline_s)
    )
    return Log(Store.over(store, "sim:"), "log", clock=clock, entropy=entropy), faulty, meter


def now():
    return asyncio.get_running_loop().time()


def test_an_idle_writer_does_not_wait():
    """The first append costs a fragment and a manifest, and no batch interval."""

    async def main():
        log, _, _ = world()
        async with log.writer(create=True) as writer:
            started = now()
            await writer.append(b"x")
            return now() - started

    assert simulate(1, main) == pytest.approx(2 * PUT_S, abs=0.001)


def test_a_steady_load_stays_near_the_floor():
    """At any load an append takes at most three puts and a little: it waits for one manifest."""

    async def main():
        log, _, _ = world()
        took = []

        async def one(writer):
            started = now()
            await writer.append(b"x" * 50)
            took.append(now() - started)

        async with log.writer(create=True) as writer, asyncio.TaskGroup() as group:
            for _ in range(1000):
                group.create_task(one(writer))
                await asyncio.sleep(0.003)
        return took

    took = sorted(simulate(1, main))
    assert took[500] <= 2.6 * PUT_S
    assert took[-1] <= 3.1 * PUT_S


def test_flush_waits_for_what_was_appended_before_it():
    """It returns when those are durable, though the appending goes on."""

    async def main():
        log, _, _ = world()
        async with log.writer(create=True) as writer:
            early = [writer.append(b"early") for _ in range(10)]
            over = False

            async def go_on():
                while not over:
                    writer.append(b"late")
                    await asyncio.sleep(0.01)

            busy = asyncio.ensure_future(go_on())
            await writer.flush()
            done = all(future.done() for future in early)
            over = True
            await busy
            await writer.flush()
            await writer.flush()
        return done

    assert simulate(1, main)


def test_throttle_bounds_the_puts_and_still_acknowledges():
    """Twenty puts a second, fragments and manifests together, and no append starves."""

    async def main():
        log, _, meter = world()
        options = Options(throttle=20, batch_bytes=60)
        async with log.writer(create=True, options=options) as writer:
            meter.reset()
            started = now()
            first = writer.append(b"x" * 50)
            futures = [first, *(writer.append(b"x" * 50) for _ in range(100))]
            await first
            first_s = now() - started
            await asyncio.gather(*futures)
            elapsed = now() - started
        return first_s, meter.snapshot().operations["put"].requests / elapsed

    first_s, puts_per_s = simulate(1, main)
    assert first_s < 0.5
    assert puts_per_s <= 25


def test_a_full_queue_refuses_and_recovers():
    """Beyond queue_bytes append raises at once; when the rest is durable it takes more."""

    async def main():
        log, _, _ = world()
        options = Options(queue_bytes=1_000)
        async with log.writer(create=True, options=options) as writer:
            futures = [writer.append(b"x" * 100) for _ in range(8)]
            with pytest.raises(cordwood.LimitError) as caught:
                writer.append(b"x" * 100)
            await asyncio.gather(*futures)
            offset = await writer.append(b"x" * 100)
        return caught.value.code, caught.value.retry, offset

    assert simulate(1, main) == ("queue_full", "now", 9)


def test_a_batch_larger_than_the_queue_goes_alone():
    """One atomic batch is taken even if it is larger than the queue, when nothing else waits."""

    async def main():
        log, _, _ = world()
        async with log.writer(create=True, options=Options(queue_bytes=100)) as writer:
            return await writer.append_many([b"x" * 100] * 5)

    assert simulate(1, main) == 1


@pytest.mark.parametrize("in_flight", [1, 8])
def test_order_is_the_order_of_the_calls(in_flight):
    """Whatever lands first, records keep the order of the calls."""

    async def main():
        clock, entropy = LoopClock(), SeededEntropy("order")
        faulty = FaultyStore(MemoryStore(clock=clock), entropy, clock, latency=Latency(0.05, 0.5))
        log = Log(Store.over(faulty, "sim:"), "log", clock=clock, entropy=entropy)
        options = Options(in_flight=in_flight, batch_bytes=80)
        async with log.writer(create=True, options=options) as writer:
            futures = []
            for number in range(200):
                futures.append(writer.append(str(number).encode()))
                await asyncio.sleep(0.001)
            offsets = await asyncio.gather(*futures)
        async with log.reader() as reader:
            return offsets, [int(record.body) async for record in reader.read()]

    offsets, bodies = simulate(1, main)
    assert list(range(1, 201)) == offsets
    assert list(range(200)) == bodies


def test_what_is_uncertain_can_be_found_out():
    """An append whose answer was lost is found by find_write, or surely is not there."""

    async def main():
        log, faulty, _ = world(deadline_s=1.0)
        found = []
        async with log.writer(create=True) as writer:
            for fault in (Fault.HANG_AFTER, Fault.HANG_BEFORE):
                faulty.script("put", fault)
                faulty.script("get", *[Fault.ERROR_BEFORE] * 40)
                with pytest.raises(cordwood.UncertainError) as caught:
                    await writer.append(b"lost")
                faulty.heal()
                error = caught.value
                if fault is Fault.HANG_BEFORE:
                    with pytest.raises(cordwood.UncertainError):
                        await log.find_write(error)
                marker = await writer.append(b"marker")
                found.append((await log.find_write(error), marker))
        async with log.reader() as reader:
            return found, [record.body async for record in reader.read()]

    found, bodies = simulate(1, main)
    assert [(1, 2), (None, 3)] == found
    assert [b"lost", b"marker", b"marker"] == bodies


def test_a_writer_is_opened_once_and_closed_for_good():
    """Appending before, opening twice and appending after are refused with a hint."""

    async def main():
        log, _, _ = world()
        writer = log.writer(create=True)
        with pytest.raises(cordwood.StateError, match="async with"):
            writer.append(b"x")
        await writer.open()
        with pytest.raises(cordwood.StateError):
            await writer.open()
        await writer.close()
        await writer.close()
        with pytest.raises(cordwood.StateError) as caught:
            writer.append_many([b"x"])
        return caught.value.code

    assert simulate(1, main) == "closed"


async def test_a_block_that_makes_no_fragment_spoils_nobody_elses(monkeypatch):
    """What shares a batch with it is written all the same, in order."""
    monkeypatch.setattr("cordwood.log.flight.FRAGMENT_BYTES_MAX", 4_000)
    log = cordwood.Log(cordwood.Store.over(MemoryStore()), "log")
    async with log.writer(create=True, options=Options(compression="none")) as writer:
        before = writer.append(b"before")
        block = writer.append_many([b"x" * 5_000, b"y"])
        after = writer.append(b"after")
        await writer.flush()
        with pytest.raises(LimitError, match="smaller batches"):
            await block
        assert [1, 2] == [await before, await after]
    async with log.reader() as reader:
        assert [b"before", b"after"] == [record.body async for record in reader.read()]


class TestBeforeNaming:
    """Somebody wants to know of new records before they are named."""

    async def test_it_is_told_before_the_first_slot_and_not_again(self):
        """Once for the ground a writer stands on, with the offset that comes next."""
        log = cordwood.Log("memory:", "a")
        told = []

        async def tell(offset):
            told.append((offset, [meta.key async for meta in log.store.list("a/log/")]))

        async with log.writer(create=True, before_naming=tell) as writer:
            assert [] == told
            for _ in range(5):
                await writer.append(b"x")
        assert [(1, [])] == told

    async def test_it_is_told_again_when_somebody_else_wrote(self):
        """New ground, new word: also if nothing of ours had to be adopted."""
        log = cordwood.Log("memory:", "a")
        told = []

        async def tell(offset):
            told.append(offset)

        async with log.writer(create=True, before_naming=tell) as writer:
            await writer.append(b"x")
            async with log.writer() as other:
                await other.append(b"y")
            await writer.append(b"z")
        assert [1, 3] == told

    async def test_what_it_raises_fails_the_append(self):
        """Nothing was written, and the next append tries again."""
        log = cordwood.Log("memory:", "a")
        is_broken = True

        async def tell(offset):
            if is_broken:
                raise cordwood.StoreError("cannot tell", transient=True)

        async with log.writer(create=True, before_naming=tell) as writer:
            with pytest.raises(cordwood.StoreError, match="nothing was written: cannot tell"):
                await writer.append(b"x")
            assert [] == [meta.key async for meta in log.store.list("a/log/")]
            is_broken = False
            assert 1 == await writer.append(b"y")


async def test_close_behind_a_record_of_which_no_fragment_can_be_made(monkeypatch):
    """Who appended is told, and to close has nothing left to wait for."""
    log = cordwood.Log("memory:", "a")
    writer = await log.writer(create=True).open()

    def spoil(*_):
        raise LimitError("no room")

    monkeypatch.setattr("cordwood.log.pipeline.build", spoil)
    future = writer.append(b"x")
    await writer.close()
    with pytest.raises(LimitError, match="no room"):
        await future
