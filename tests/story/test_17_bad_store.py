"""Story 17: a store that is slow, fails, hangs or is full: the right error, and a live writer.

Whatever happens, three things hold when the store is well again: what was acknowledged is read
where it was told, what failed for certain is not read, and nothing is read twice.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Code, Options, StoreError, UncertainError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

DEADLINE_S = 10.0


class World:
    """A faulty store with a log and one writer, in simulated time."""

    def __init__(self, **faulty):
        """As told; nothing goes wrong until it is scripted."""
        self.memory = MemoryStore(clock=LoopClock())
        self.faulty = FaultyStore(self.memory, SeededEntropy("faults"), LoopClock(), **faulty)
        self.store = RetryingStore(
            self.faulty,
            LoopClock(),
            SeededEntropy("retry"),
            deadline_s=DEADLINE_S,
            attempt_s=3.0,
        )
        self.told, self.failed = {}, set()

    def log(self, store=None, name="writer"):
        """The log as a process sees it."""
        return cordwood.Log(
            cordwood.Store.over(store or self.store),
            "orders",
            clock=LoopClock(),
            entropy=SeededEntropy(name),
        )

    async def append(self, writer, body):
        """Append and note what was promised; the error, if any."""
        try:
            self.told[body] = await writer.append(body)
        except UncertainError as error:
            return error
        except StoreError as error:
            self.failed.add(body)
            return error
        return None

    async def check(self):
        """The three things."""
        await self.faulty.drain()
        log = self.log(self.memory, "reader")
        async with self.log(self.memory, "adopter").writer():
            pass
        async with log.reader() as reader:
            records = [record async for record in reader.read()]
        found = {record.body: record.offset for record in records}
        assert len(records) == len(found)
        assert self.told.items() <= found.items()
        assert not self.failed & found.keys()
        assert (await log.scrub()).ok


def break_store(faulty, fault, operations=("put",), count=100):
    """From now on these operations fail this way, until the store is healed."""
    for operation in operations:
        faulty.script(operation, *[fault] * count)


def test_a_slow_store_is_only_slow():
    """Seconds per request: appends take long, and nothing else changes."""

    async def main():
        world = World(latency=Latency(2.0, 2.9))
        await world.log().create()
        async with world.log().writer() as writer:
            answers = [world.append(writer, b"%d" % n) for n in range(50)]
            assert {None} == set(await asyncio.gather(*answers))
        assert 50 == len(world.told)
        await world.check()

    simulate(1, main)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.ERROR_BEFORE, UncertainError),
        (Fault.ERROR_AFTER, UncertainError),
        (Fault.HANG_BEFORE, UncertainError),
        (Fault.HANG_AFTER, UncertainError),
        (Fault.ZOMBIE, UncertainError),
        (Fault.THROTTLED, StoreError),
    ],
)
def test_a_store_that_stays_down(fault, kind):
    """Past the deadline: uncertain where a write may have happened, a StoreError where not."""

    async def main():
        world = World()
        await world.log().create()
        async with world.log().writer() as writer:
            assert await world.append(writer, b"before") is None
            break_store(world.faulty, fault, ("put", "get", "head", "delete"))
            error = await world.append(writer, b"during")
            assert kind is type(error)
            if kind is StoreError:
                assert Code.STORE_UNREACHABLE == error.code
                assert not error.applied
            else:
                assert 32 == len(error.write_id)
            world.faulty.heal()
            assert await world.append(writer, b"after") is None
            assert await world.append(writer, b"and on") is None
        await world.check()

    simulate(1, main)


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.NONE])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("nth", range(4))
def test_a_store_that_fails_for_a_moment(nth, count, fault):
    """A few failures in a row, at any put, are overcome: every append succeeds."""

    async def main():
        world = World()
        await world.log().create()
        async with world.log().writer() as writer:
            world.faulty.script("put", *[Fault.NONE] * nth, *[fault] * count)
            for n in range(4):
                assert await world.append(writer, b"%d" % n) is None
        assert [1, 2, 3, 4] == list(world.told.values())
        await world.check()

    simulate(1, main)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.HANG_BEFORE, Fault.THROTTLED])
def test_reads_that_fail_for_a_moment_are_repeated(fault):
    """Opening and reading overcome a few failures."""

    async def main():
        world = World()
        async with world.log().writer(create=True) as writer:
            await world.append(writer, b"x")
        break_store(world.faulty, fault, ("get",), 2)
        async with world.log().reader() as reader:
            assert [b"x"] == [record.body async for record in reader.read()]
        break_store(world.faulty, fault, ("get",), 2)
        async with world.log().writer() as writer:
            await world.append(writer, b"y")
        await world.check()

    simulate(1, main)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.HANG_BEFORE, Fault.THROTTLED])
def test_reads_that_keep_failing_say_so(fault):
    """A StoreError that names the store as unreachable, from reader, writer, state and scrub."""

    async def main():
        world = World()
        await world.log().create()
        for ask in (
            world.log().writer().open,
            world.log().reader().__aenter__,
            world.log().state,
            world.log().scrub,
        ):
            break_store(world.faulty, fault, ("get",))
            with pytest.raises(StoreError) as caught:
                await ask()
            assert Code.STORE_UNREACHABLE == caught.value.code
            world.faulty.heal()

    simulate(1, main)


def test_many_appends_through_a_long_outage():
    """A pipeline full of fragments when the store goes: each answer is right, and order is kept."""

    async def main():
        world = World(latency=Latency(0.05))
        await world.log().create()
        async with world.log().writer(options=Options(batch_bytes=1, in_flight=8)) as writer:
            first = [asyncio.ensure_future(world.append(writer, b"a%d" % n)) for n in range(20)]
            await asyncio.sleep(0.12)
            break_store(world.faulty, Fault.ERROR_AFTER, ("put", "get", "head"), 1000)
            second = [asyncio.ensure_future(world.append(writer, b"b%d" % n)) for n in range(20)]
            await asyncio.gather(*first, *second)
            world.faulty.heal()
            third = [asyncio.ensure_future(world.append(writer, b"c%d" % n)) for n in range(20)]
            assert {None} == set(await asyncio.gather(*third))
        await world.check()

    simulate(1, main)


@pytest.mark.parametrize("delay_s", [15.0, 40.0, 400.0])
def test_an_uncertain_append_is_decided_by_the_next_acknowledged_one(delay_s):
    """A put that takes effect long after its writer gave up is in the log once or never."""
    # EVIDENCE-OF: G-17

    async def main():
        world = World(zombie_delay=Latency(delay_s))
        await world.log().create()
        async with world.log().writer() as writer:
            await world.append(writer, b"before")
            world.faulty.script("put", Fault.ZOMBIE)
            world.faulty.script("get", *[Fault.THROTTLED] * 100)
            error = await world.append(writer, b"late")
            assert UncertainError is type(error)
            world.faulty.heal()
            assert await world.append(writer, b"after") is None
            async with world.log(world.memory, "reader").reader() as reader:
                decided = [record.body async for record in reader.read()]
            await world.faulty.drain()
            assert await world.append(writer, b"last") is None
        async with world.log(world.memory, "reader").reader() as reader:
            found = [record.body async for record in reader.read()]
        assert [*decided, b"last"] == found
        await world.check()

    simulate(1, main)


def full_store(memory, hooked, refused):
    """A store whose disk is full for the puts that `refused` picks, until it is switched off."""
    switch = {"full": True}

    async def put(call, key, _data, mode):
        if switch["full"] and refused(key, mode):
            raise StoreError(
                f"put {key!r}: no space left",
                code=Code.STORE_FULL,
                operation="put",
                key=key,
                applied=False,
                transient=False,
                hint="make room",
            )
        return await call()

    return hooked(memory, put=put), switch


def is_fragment(key, _mode):
    """A slot."""
    return "FragmentSeqNo" in key


def is_swap(_key, mode):
    """A manifest."""
    return isinstance(mode, Match)


def is_node(key, _mode):
    """A node."""
    return "SNAPSHOT" in key


async def test_a_full_disk_is_said_to_be_full(memory, hooked, log, bucket, bodies):
    """No slot can be written: StoreError with its code, nothing is left, and it is repeatable."""
    await log.create()
    store, switch = full_store(memory, hooked, is_fragment)
    async with cordwood.Log(cordwood.Store.over(store), "orders").writer() as writer:
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                await writer.append(b"refused")
            assert (Code.STORE_FULL, False) == (caught.value.code, caught.value.applied)
            assert "no space" in str(caught.value)
        assert [] == await bucket.slots()
        switch["full"] = False
        assert 1 == await writer.append(b"taken")
    assert [b"taken"] == await bodies(log)


async def test_a_disk_that_fills_between_fragment_and_manifest(memory, hooked, log, bucket, bodies):
    """The fragment lies there and may be adopted: uncertain, and later there once."""
    await log.create()
    store, switch = full_store(memory, hooked, is_swap)
    async with cordwood.Log(cordwood.Store.over(store), "orders").writer() as writer:
        with pytest.raises(UncertainError) as caught:
            await writer.append(b"orphan")
        assert "no space" in str(caught.value)
        assert [] == await bodies(log)
        switch["full"] = False
        assert 2 == await writer.append(b"after")
    assert [b"orphan", b"after"] == await bodies(log)


async def test_a_disk_too_full_for_nodes_only_makes_the_root_longer(memory, hooked, log, bodies):
    """Nodes are a convenience: appends go on, and folding catches up when there is room."""
    await log.create()
    store, switch = full_store(memory, hooked, is_node)
    async with cordwood.Log(cordwood.Store.over(store), "orders").writer() as writer:
        for n in range(30):
            await writer.append(b"%d" % n)
        assert (30, 0) == (
            len((await log.manifest()).fragments),
            len((await log.manifest()).nodes),
        )
        switch["full"] = False
        for n in range(30, 40):
            await writer.append(b"%d" % n)
    manifest = await log.manifest()
    assert 20 > len(manifest.fragments)
    assert [b"%d" % n for n in range(40)] == await bodies(log)


async def test_a_full_disk_harms_only_what_it_refused(memory, hooked, log, bodies):
    """Appends in flight together: those behind the refused one are written in their order."""
    await log.create()
    refused = []

    def second_slot_once(key, _mode):
        if "FragmentSeqNo=0000000000000002" in key and not refused:
            refused.append(key)
            return True
        return False

    store, _ = full_store(memory, hooked, second_slot_once)
    options = Options(batch_bytes=1, in_flight=8)
    log_on_it = cordwood.Log(cordwood.Store.over(store), "orders")
    async with log_on_it.writer(options=options) as writer:
        answers = [writer.append(b"%d" % n) for n in range(5)]
        results = await asyncio.gather(*answers, return_exceptions=True)
    errors = [n for n, result in enumerate(results) if isinstance(result, StoreError)]
    assert [1] == errors
    assert [b"0", b"2", b"3", b"4"] == await bodies(log)


async def test_a_store_that_denies_says_so(memory, hooked, log):
    """An error that will not pass is raised as it is, with its code."""
    await log.create()

    async def deny(_call, key, *_):
        raise StoreError(f"{key}: denied", code=Code.STORE_DENIED, applied=False, transient=False)

    denied = cordwood.Log(cordwood.Store.over(hooked(memory, put=deny)), "orders")
    async with denied.writer() as writer:
        with pytest.raises(StoreError) as caught:
            await writer.append(b"x")
    assert Code.STORE_DENIED == caught.value.code
    unreadable = cordwood.Log(cordwood.Store.over(hooked(memory, get=deny)), "orders")
    for ask in (unreadable.state, unreadable.scrub, unreadable.writer().open):
        with pytest.raises(StoreError) as caught:
            await ask()
        assert Code.STORE_DENIED == caught.value.code


@pytest.mark.parametrize("what", ["MANIFEST", "SNAPSHOT", "FragmentSeqNo=0000000000000003"])
async def test_a_scrub_does_not_take_a_failing_store_for_damage(memory, hooked, log, what):
    """An object that could not be read is not a damaged object: the scrub ends with StoreError."""
    async with log.writer(create=True) as writer:
        for n in range(12):
            await writer.append(b"%d" % n)

    async def fail(call, key, *_):
        if what in key:
            raise StoreError(f"{key}: input/output error", operation="get", key=key)
        return await call()

    store = hooked(memory, get=fail, get_range=fail)
    failing = cordwood.Log(cordwood.Store.over(store), "orders")
    with pytest.raises(StoreError, match="input/output"):
        await failing.scrub(deep=True)


async def test_our_own_bug_leaves_nobody_waiting(memory, hooked, log):
    """An exception that no store should raise closes the writer; every waiter hears of it."""
    # EVIDENCE-OF: G-15
    # EVIDENCE-OF: G-2, G-15, G-17
    # EVIDENCE-OF: G-15, G-16
    await log.create()
    unseen = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: unseen.append(context))

    async def burst(_call, key, _data, mode):
        raise ZeroDivisionError(f"{key} {mode}")

    broken = cordwood.Log(cordwood.Store.over(hooked(memory, put=burst)), "orders")
    writer = await broken.writer().open()
    answers = [writer.append(b"%d" % n) for n in range(3)]
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert {True} == {isinstance(result, cordwood.CordwoodError) for result in results}
    await writer.close()
    with pytest.raises(cordwood.StateError):
        writer.append(b"more")
