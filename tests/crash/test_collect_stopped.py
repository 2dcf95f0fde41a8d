"""A collector, pinner or consumer dies after its k-th request, for every k; the next one finishes.

Each death comes in two kinds: the last request never reached the store, or it took effect and its
answer was lost. From then on the dead process reaches the store no more.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

import cordwood
from cordwood import AlreadyExistsError, CollectedError, NotFoundError
from cordwood.log import paths
from cordwood.log.chain import names
from cordwood.store.memory import MemoryStore
from cordwood.testing.dying import DeadError, copy_of, dying
from cordwood.testing.handclock import HandClock

COUNT = 60
GRACE_S = 60
STEPS_MAX = 500


def log_over(store):
    """The log in a store."""
    return cordwood.Log(cordwood.Store.over(store), "orders")


@pytest.fixture(scope="module", params=["cas", "chain"])
def ground(request):
    """A log of sixty fragments, with a cursor at 41 and a pin over [11, 21)."""
    return filled(request.param)


@pytest.fixture(scope="module")
def cas_ground():
    """The same, as another program may have left it."""
    return filled("cas")


def filled(protocol):
    """A store with that log."""
    memory = MemoryStore(clock=HandClock())

    async def write():
        log = log_over(memory)
        await log.create(grace_s=GRACE_S, protocol=protocol)
        options = cordwood.Options(batch_bytes=1)
        async with log.writer(options=options) as writer:
            await asyncio.gather(*(writer.append(b"%d" % n) for n in range(1, COUNT + 1)))
        await log.cursors.init("jobs", 41)
        await log.pin("backup", 11, 21, ttl_s=10**6)

    asyncio.run(write())
    return memory


async def finish(store, time):
    """Collect until nothing is left to do."""
    log = log_over(store)
    for _ in range(3):
        report = await log.collect(wait_s=0)
        time.pass_s(report.due_s + 1)
    assert 0 == report.due_s
    return log


async def offsets(log, **options):
    """What can be read."""
    async with log.reader(**options) as reader:
        return [int(record.body) async for record in reader.read()]


def left(store):
    """Fragments and nodes in the store."""
    folders = ("orders/log/", "orders/shard", "orders/snapshot/")
    return {key for key in store._objects if key.startswith(folders)}


def fragment(key):
    """The number of a fragment, of either protocol; None if it is a node."""
    name = names.parse_fragment(key.removeprefix("orders/"))
    return name.seq_no if name else paths.fragment_seq_no(key)


async def deaths(ground, work, stride=1):
    """Run `work` on copies of the ground, dying in each request in turn; give each copy after.

    With a `stride`, in one of so many requests: where a protocol takes many of them.
    """
    for takes_effect in (False, True):
        for last in range(1 + takes_effect * (stride // 2), STEPS_MAX, stride):
            time = HandClock()
            store = copy_of(ground, time)
            try:
                await work(log_over(dying(store, last, takes_effect=takes_effect)), time)
            except DeadError:
                yield store, time
            else:
                break
        else:
            raise AssertionError("it never ends")


async def check(store, time, expected):
    """After a death: finish, and compare with a collection that nobody disturbed."""
    log = await finish(store, time)
    assert list(range(41, COUNT + 1)) == await offsets(log)
    assert list(range(11, 21)) == await offsets(log, pin="backup")
    assert (await log.scrub(deep=True)).ok
    extra = left(store) - expected
    assert [] == [key for key in extra if fragment(key)]
    assert expected <= left(store)
    return len(extra)


async def test_a_collection_that_dies_anywhere_is_finished_by_the_next(ground):
    """All three steps, every request."""
    # EVIDENCE-OF: G-59

    async def collect(log, time):
        report = await log.collect(wait_s=0)
        time.pass_s(report.due_s + 1)
        await log.collect(wait_s=0)

    time = HandClock()
    undisturbed = copy_of(ground, time)
    await finish(undisturbed, time)
    expected = left(undisturbed)
    count = orphans = 0
    is_chain = any(key.startswith("orders/shard") for key in ground._objects)
    async for store, later in deaths(ground, collect, 4 if is_chain else 1):
        count += 1
        orphans += await check(store, later, expected)
    assert 60 < count
    # The nodes that stay are the same each time, so what a dead one wrote is found and used.
    assert 0 == orphans


async def test_a_cancelled_collection_that_dies_anywhere_is_finished(ground):
    """A cursor goes back between mark and unlink, so the garbage is given up: every request."""
    # EVIDENCE-OF: G-59

    async def cancel(log, time):
        await log.unlink()

    marked = copy_of(ground, HandClock())
    log = log_over(marked)
    jobs = await log.cursors.load("jobs")
    await log.mark()
    # As another program would do it: without a look at GARBAGE.
    is_chain = log.objects.chain is not None
    key = names.version("cursor/jobs.json", 2) if is_chain else "cursor/jobs.json"
    await marked.put(f"orders/{key}", b'{"position":{"offset":31},"epoch_us":1,"writer":"wal3"}')
    assert (41, 31) == (jobs.offset, (await log.cursors.load("jobs")).offset)
    most = 0
    count = 0
    async for store, time in deaths(marked, cancel):
        count += 1
        log = await finish(store, time)
        assert list(range(31, COUNT + 1)) == await offsets(log)
        assert (await log.scrub(deep=True)).ok
        named = {f"orders/{p.path}" for p in (await log.manifest()).nodes}
        most = max(most, len([k for k in left(store) if "/snapshot/" in k and k not in named]))
    assert 8 < count
    # One node per level may be left: those that the garbage would have put into the tree. Nodes
    # below the root and those that the pin holds count here, too.
    assert 8 >= most


@pytest.mark.parametrize("is_unlinked", [False, True])
async def test_a_take_over_that_dies_anywhere_is_finished(cas_ground, is_unlinked):
    """Before the other program replaced the manifest and after it: every request."""
    # EVIDENCE-OF: G-59

    async def take_over(log, time):
        await log.collect(wait_s=0, take_over=True)

    foreign = copy_of(cas_ground, HandClock())
    log = log_over(foreign)
    await log.mark()
    garbage = json.loads((await foreign.get("orders/gc/GARBAGE")).data)
    if is_unlinked:
        await log.unlink()
    del garbage["cordwood"]
    await foreign.put("orders/gc/GARBAGE", json.dumps(garbage).encode())
    time = HandClock()
    undisturbed = copy_of(cas_ground, time)
    await finish(undisturbed, time)
    count = 0
    async for store, later in deaths(foreign, take_over):
        count += 1
        with suppress(cordwood.StateError):
            # Unless it died before it had taken over anything.
            await log_over(store).collect(wait_s=0)
        await log_over(store).collect(wait_s=0, take_over=True)
        await check(store, later, left(undisturbed))
    assert 8 < count


async def test_a_release_that_dies_anywhere_frees_in_the_end(ground):
    """Released, collected: every request of both."""
    # EVIDENCE-OF: G-59
    time = HandClock()
    swept = copy_of(ground, time)
    await finish(swept, time)

    async def release(log, time):
        pin = await log.pin("again", 45, 50)
        await pin.release()
        await log.collect(wait_s=0)

    async for store, later in deaths(swept, release):
        later.pass_s(10**7)
        log = await finish(store, later)
        assert set(range(41, COUNT + 1)) == {fragment(key) for key in left(store) if fragment(key)}
        assert list(range(41, COUNT + 1)) == await offsets(log)
        assert [] == [key for key in store._objects if "HELD" in key]


async def test_a_pin_that_dies_while_it_is_made_holds_or_not(ground):
    """Nothing is damaged either way; its name is free when its time is over."""

    async def pin(log, time):
        await log.pin("new", 20, 45, ttl_s=100)

    async for store, time in deaths(ground, pin):
        log = await finish(store, time)
        assert list(range(41, COUNT + 1)) == await offsets(log)
        with suppress(NotFoundError, CollectedError):
            assert list(range(20, 45)) == await offsets(log, pin="new")
        time.pass_s(200)
        assert 41 == (await log.pin("new", 41, 45)).start


@pytest.mark.parametrize("target", [44, 10])
async def test_a_save_that_dies_anywhere_leaves_a_cursor(ground, target):
    """At the old place or the new one, and what it says it holds can be read."""

    async def save(log, time):
        witness = await log.cursors.load("jobs")
        await log.cursors.save("jobs", target, witness)

    async for store, time in deaths(ground, save):
        log = log_over(store)
        now = await log.cursors.load("jobs")
        assert now.offset in {41, target}
        now = await log.cursors.save("jobs", now.offset, now)
        await finish(store, time)
        assert now.offset in await offsets(log)


async def test_an_init_or_delete_that_dies_anywhere_may_be_repeated(ground):
    """Whoever comes next finds it or makes it."""

    async def init(log, time):
        made = await log.cursors.init("new", 5)
        await log.cursors.delete("new", made)

    async for store, time in deaths(ground, init):
        log = log_over(store)
        try:
            witness = await log.cursors.init("new", 5)
        except AlreadyExistsError:
            witness = await log.cursors.load("new")
            witness = await log.cursors.save("new", 5, witness)
        await finish(store, time)
        assert 5 in await offsets(log)
        await log.cursors.delete("new", witness)
        await finish(store, time)
        assert list(range(41, COUNT + 1)) == await offsets(log)
