"""Pins: what they hold, names, times by the store's clock, and what each call costs."""

from __future__ import annotations

import asyncio
import json

import pytest

import cordwood
from cordwood import (
    AlreadyExistsError,
    CollectedError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    UncertainError,
    UnsupportedError,
)
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.log import holds
from cordwood.log.format import Fragment, NodePointer, Position, encode
from cordwood.log.garbage import Garbage, GarbageExtension, Phase
from cordwood.log.holds import age_us, live_holds
from cordwood.log.pins import keep_pin
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock

COUNT = 40


@pytest.fixture
def time():
    """What the store says."""
    return HandClock()


@pytest.fixture
def store(time):
    """A store with a clock of its own."""
    return MemoryStore(clock=time)


@pytest.fixture
async def log(store):
    """A log of forty fragments of two records each."""
    log = cordwood.Log(cordwood.Store.over(store), "log")
    options = cordwood.Options(batch_bytes=1)
    async with log.writer(create=True, options=options) as writer:
        await asyncio.gather(*(writer.append_many([b"a", b"b"]) for _ in range(COUNT)))
    return log


async def held(log):
    """What is held now, as a sweep sees it."""
    return {h.what: (h.start, h.limit) for h in await live_holds(log.objects, SYSTEM_ENTROPY)}


async def test_a_pin_holds_whole_fragments(log):
    """Those that hold any of its range."""
    pin = await log.pin("backup", 4, 6)
    assert (3, 7) == (pin.start, pin.limit)
    assert 3600 == pin.ttl_s
    assert {"pin 'backup'": (3, 7)} == await held(log)
    assert ("backup",) == (await log.state()).pins


async def test_a_pin_inside_one_fragment_holds_it(log):
    """Nothing else."""
    pin = await log.pin("one", 4, 5)
    assert (3, 5) == (pin.start, pin.limit)
    async with log.reader(pin="one") as reader:
        assert [3, 4] == [record.offset async for record in reader.read()]
        assert [4] == [record.offset async for record in reader.read(4)]
        with pytest.raises(CollectedError):
            [record async for record in reader.read(2)]


@pytest.mark.parametrize(("start", "limit"), [(1, 81), (3, 79), (9, 75), (1, 3), (77, 81)])
async def test_the_object_has_the_fewest_pointers(log, store, start, limit):
    """Fragments, nodes, fragments, without a hole, and its slots."""
    await log.pin("p", start, limit)
    record = json.loads((await store.get("log/pin/p.json")).data)
    pointers = record["before"] + record["nodes"] + record["after"]
    ranges = [(p["start"]["offset"], p["limit"]["offset"]) for p in pointers]
    assert start == ranges[0][0]
    assert limit == ranges[-1][1]
    assert [end for _, end in ranges[:-1]] == [begin for begin, _ in ranges[1:]]
    assert ((start + 1) // 2, (limit + 1) // 2) == (record["first_seq_no"], record["limit_seq_no"])
    assert 7 + 7 + 5 >= len(pointers)


async def test_pins_may_overlap(log):
    """Each holds by itself."""
    one = await log.pin("one", 1, 20)
    await log.pin("two", 10, 30)
    await one.release()
    assert {"pin 'two'": (9, 31)} == await held(log)


# Names.


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 129, 7, None])
async def test_a_name_that_cannot_be_one_is_refused(log, name):
    """Also by a reader."""
    with pytest.raises(InvalidInputError):
        await log.pin(name, 1, 2)


async def test_a_name_is_taken_until_its_pin_ends(log):
    """Released names may be used again; a handle of the old pin does nothing to the new one."""
    old = await log.pin("p", 1, 5)
    with pytest.raises(AlreadyExistsError):
        await log.pin("p", 1, 5)
    await old.release()
    await log.pin("p", 7, 9)
    await old.release()
    with pytest.raises(CollectedError):
        await old.renew()
    assert {"pin 'p'": (7, 9)} == await held(log)


async def test_of_two_that_take_a_name_at_once_one_gets_it(log):
    """The other is told so, also where the name was used before."""
    await (await log.pin("again", 1, 3)).release()
    for name in ("fresh", "again"):
        results = await asyncio.gather(
            log.pin(name, 1, 3), log.pin(name, 5, 7), return_exceptions=True
        )
        assert [False, True] == sorted(isinstance(r, AlreadyExistsError) for r in results)


async def test_to_release_twice_is_no_error(log):
    """Nor after it expired, nor when leaving a block."""
    async with await log.pin("p", 1, 5) as pin:
        await pin.release()
    await pin.release()
    assert {} == await held(log)
    assert () == (await log.state()).pins


# Bad input.


@pytest.mark.parametrize(
    ("start", "limit"), [(5, 5), (6, 5), (-1, 5), (1, 82), (1.0, 2), ("1", 2), (True, 2)]
)
async def test_a_range_that_cannot_be_one_is_refused(log, store, start, limit):
    """Nothing is written."""
    with pytest.raises(InvalidInputError):
        await log.pin("p", start, limit)
    assert {} == await held(log)


@pytest.mark.parametrize("ttl_s", [0, -1, 1.5, "60", None, True, 10**12])
async def test_a_time_that_cannot_be_one_is_refused(log, ttl_s):
    """Whole seconds, ten years at most."""
    with pytest.raises(InvalidInputError):
        await log.pin("p", 1, 2, ttl_s=ttl_s)


async def test_a_reader_of_no_pin_is_refused(log):
    """There is none of this name, or it has ended."""
    with pytest.raises(NotFoundError):
        async with log.reader(pin="nobody"):
            pass
    await (await log.pin("p", 1, 5)).release()
    with pytest.raises(CollectedError):
        async with log.reader(pin="p"):
            pass


async def test_a_damaged_pin_stops_a_sweep(log, store):
    """Nobody knows what it holds; so does a strange or a newer one."""
    pin = await log.pin("p", 1, 5)
    good = (await store.get("log/pin/p.json")).data
    for data, error in [
        (good[:50], CorruptionError),
        (b"", CorruptionError),
        (good.replace(b'"format":1', b'"format":2'), UnsupportedError),
        (good.replace(b"log/Bucket", b"../Bucket"), CorruptionError),
    ]:
        await store.put("log/pin/p.json", data)
        with pytest.raises(error):
            await held(log)
    await store.put("log/pin/p.json", good)
    assert {"pin 'p'": (pin.start, pin.limit)} == await held(log)


# Ends.


async def test_a_pin_expires_by_the_stores_clock(log, time, store):
    """Not a moment before; then a collection ends it, and a renewal fails."""
    # EVIDENCE-OF: G-58
    pin = await log.pin("p", 1, 5, ttl_s=60)
    time.pass_s(60)
    assert {"pin 'p'": (1, 5)} == await held(log)
    await pin.renew()
    time.pass_s(59)
    assert {"pin 'p'": (1, 5)} == await held(log)
    await pin.renew(ttl_s=10)
    time.pass_s(10.001)
    assert {} == await held(log)
    assert json.loads((await store.get("log/pin/p.json")).data)["ended"]
    with pytest.raises(CollectedError):
        await pin.renew()
    with pytest.raises(CollectedError):
        async with log.reader(pin="p"):
            pass


async def test_a_pin_that_expired_unseen_may_be_renewed(log, time):
    """Until somebody ended it, all its files are there."""
    pin = await log.pin("p", 1, 5, ttl_s=60)
    time.pass_s(1_000)
    await pin.renew()
    assert {"pin 'p'": (1, 5)} == await held(log)


async def test_an_expired_name_may_be_used_again(log, time):
    """Whoever takes it ends the old one by the same put."""
    old = await log.pin("p", 1, 5, ttl_s=60)
    time.pass_s(61)
    await log.pin("p", 7, 9)
    with pytest.raises(CollectedError):
        await old.renew()


async def test_a_pin_renewed_while_a_collection_looks_at_it_counts(log, time, store):
    """Its age is that of the object that was read, not of an older look."""
    pin = await log.pin("p", 1, 5, ttl_s=60)
    time.pass_s(61)
    honest = store.get

    async def renewed_first(key):
        if key == "log/pin/p.json":
            store.get = honest
            await pin.renew()
        return await honest(key)

    async def renewed_after(key):
        found = await honest(key)
        if key == "log/pin/p.json":
            store.get = honest
            await pin.renew()
        return found

    for meddle in (renewed_first, renewed_after):
        store.get = meddle
        assert {"pin 'p'": (1, 5)} == await held(log)
        await pin.renew()
        time.pass_s(61)


def test_whole_seconds_are_not_taken_for_more():
    """A store that keeps whole seconds may have written up to one second later than it says."""
    assert 5_000_001 == age_us(1_000_000_000_001, 1_000_005_000_002)
    assert 4_000_000 == age_us(1_000_000_000_000, 1_000_005_000_000)


async def test_a_hold_that_begins_where_a_collection_goes_withdraws(log, store):
    """And leaves nothing that holds."""
    garbage = Garbage(first_to_keep=Position(9), cordwood=GarbageExtension("n", Phase.MARKED, "e"))
    await store.put("log/gc/GARBAGE", encode(garbage, "x"))
    with pytest.raises(CollectedError):
        await log.pin("p", 7, 20)
    assert {} == await held(log)
    assert (9, 21) == ((await log.pin("p", 9, 20)).start, 21)


def test_ranges_that_cannot_be_are_refused():
    """In a pin as in a fork's record."""
    for wrong in ({"start": 5, "limit": 4}, {"first_seq_no": 5, "limit_seq_no": 4}):
        numbers = {"start": 1, "limit": 2, "first_seq_no": 1, "limit_seq_no": 2, **wrong}
        with pytest.raises(CorruptionError):
            encode(holds.ForkRecord(log="../f", writer="w", **numbers), "x")
        with pytest.raises(CorruptionError):
            encode(
                holds.PinRecord(ttl_s=1, writer="w", before=(), nodes=(), after=(), **numbers), "x"
            )


async def test_a_cover_is_the_fewest_pointers(log):
    """Whole nodes where they lie inside, fragments at the edges."""
    manifest = await log.manifest()
    roots = (*manifest.nodes, *manifest.fragments)
    everything = await holds.cover(log.objects, roots, 1, 81)
    assert list(roots) == everything
    inner = await holds.cover(log.objects, roots, 2, 80)
    assert isinstance(inner[0], Fragment)
    assert any(isinstance(p, NodePointer) for p in inner)


# Kept by a task.


@pytest.mark.parametrize("error", [StoreError("503", transient=True), UncertainError("lost")])
async def test_a_kept_pin_is_renewed_through_errors(log, store, monkeypatch, error):
    """A store that fails is asked again; the task ends when the pin has."""
    monkeypatch.setattr("cordwood.log.pins.RENEWALS", 10_000)
    pin = await log.pin("job", 1, 5, ttl_s=1)
    put, answers = store.put, []
    renewed = asyncio.Event()

    async def failing(key, data, mode="overwrite"):
        answers.append(key)
        if len(answers) <= 3:
            raise error
        etag = await put(key, data, mode)
        renewed.set()
        return etag

    store.put = failing
    keeping = asyncio.ensure_future(keep_pin(pin))
    await asyncio.wait_for(renewed.wait(), 60)
    store.put = put
    assert len(answers) > 3
    with pytest.raises(CollectedError):
        while True:
            # Between look and put the task may renew it: then this was no release.
            await (await log.pinned("job")).release()
    await asyncio.wait_for(keeping, 60)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_renewal_whose_answer_was_lost(log, store, arrives):
    """The next one finds out what became of it; the pin is still ours."""
    pin = await log.pin("job", 1, 5, ttl_s=60)
    put = store.put

    async def losing(key, data, mode="overwrite"):
        if arrives:
            await put(key, data, mode)
        raise UncertainError("nobody knows")

    store.put = losing
    with pytest.raises(UncertainError):
        await pin.renew(90)
    store.put = put
    await pin.renew()
    assert (90 if arrives else 60) == pin.ttl_s
    await pin.release()
    with pytest.raises(CollectedError):
        await log.pinned("job")
