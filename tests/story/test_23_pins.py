"""Story 23: a range is pinned, the log is collected past it, and nothing of it is lost or left."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import AlreadyExistsError, CollectedError


async def pinned(log, name):
    """Every offset that a pin gives."""
    async with log.reader(pin=name) as reader:
        return [record.offset async for record in reader.read()]


@pytest.mark.cas
async def test_pin_collect_read_release_collect(
    place, numbers, collected, bucket_of, live, stored, bodies
):
    """The whole life: everything is collected, the pin is read, and in the end all is free."""
    # EVIDENCE-OF: G-38, G-57
    log, bucket = await numbers(place, 100), bucket_of(place)
    jobs = await log.cursors.init("jobs", 101)
    pin = await log.pin("backup", 20, 61)
    report = await collected(log)
    assert ["pin 'backup'"] == report.held
    assert 101 == report.oldest_offset
    assert set(range(20, 61)) == set(await bucket.slots())
    assert list(range(20, 61)) == await pinned(log, "backup")
    assert [] == await bodies(log)
    again = await collected(log)
    assert (0, ["pin 'backup'"]) == (again.deleted, again.held)

    await pin.release()
    report = await collected(log)
    assert [] == report.held
    assert set() == await live(log)
    assert set() == await stored(bucket)
    assert [] == [key for key in await bucket.keys() if key.startswith("gc/HELD")]
    with pytest.raises(CollectedError):
        await pinned(log, "backup")
    assert jobs.offset == (await log.state()).oldest_offset


async def test_overlapping_pins_hold_together(place, numbers, collected, bucket_of, stored):
    """What two hold goes when both have ended; the list of what is held does not grow."""
    log, bucket = await numbers(place, 60), bucket_of(place)
    await log.cursors.init("jobs", 61)
    one, two = await log.pin("one", 5, 31), await log.pin("two", 20, 41)
    report = await collected(log)
    assert ["pin 'one'", "pin 'two'"] == report.held
    assert set(range(5, 41)) == set(await bucket.slots())
    (key,) = [key for key in await bucket.keys() if key.startswith("gc/HELD")]
    size = len(await bucket.get(key))
    for _ in range(5):
        await collected(log)
    assert size == len(await bucket.get(key))
    await one.release()
    assert 15 <= (await collected(log)).deleted
    assert set(range(20, 41)) == set(await bucket.slots())
    assert list(range(20, 41)) == await pinned(log, "two")
    await two.release()
    await collected(log)
    assert set() == await stored(bucket)


async def test_a_pin_inside_one_fragment(place, collected, bucket_of):
    """The fragment stays whole; its neighbours go."""
    log = cordwood.Log(cordwood.Store.over(place), "orders")
    await log.create(grace_s=60)
    async with log.writer() as writer:
        for _ in range(5):
            await writer.append_many([b"a"] * 10)
    await log.cursors.init("jobs", 51)
    await log.pin("p", 23, 25)
    await collected(log)
    assert [3] == await bucket_of(place).slots()
    assert list(range(21, 31)) == await pinned(log, "p")


async def test_a_pin_over_several_collections(place, numbers, collected, bucket_of, stored):
    """A cursor moves through a pinned range step by step; each step leaves its part."""
    log, bucket = await numbers(place, 60), bucket_of(place)
    jobs = await log.cursors.init("jobs", 1)
    pin = await log.pin("p", 10, 51)
    for position in (5, 20, 33, 47, 61):
        jobs = await log.cursors.save("jobs", position, jobs)
        await collected(log)
        assert list(range(10, 51)) == await pinned(log, "p")
    assert set(range(10, 51)) == set(await bucket.slots())
    await pin.release()
    await collected(log)
    # Nodes that a writer made ahead, and cuts passed before anybody named them, may be left.
    left = await stored(bucket)
    assert [] == [key for key in left if key.startswith("log/")]
    assert 2 >= len(left)
    assert [] == [key for key in await bucket.keys() if key.startswith("gc/HELD")]


async def test_a_pin_expires_by_the_stores_clock(place, time, numbers, collected, bucket_of):
    """Then its files go with the next collection, and a late renewal fails."""
    # EVIDENCE-OF: G-58
    log = await numbers(place, 30)
    await log.cursors.init("jobs", 31)
    pin = await log.pin("p", 10, 21, ttl_s=600)
    await collected(log)
    time.pass_s(500)
    await pin.renew()
    time.pass_s(500)
    assert ["pin 'p'"] == (await collected(log)).held
    time.pass_s(600)
    assert [] == (await collected(log)).held
    assert [] == await bucket_of(place).slots()
    with pytest.raises(CollectedError):
        await pin.renew()
    await pin.release()


async def test_a_name_is_used_again(place, time, numbers, collected):
    """After release, after expiry; not before."""
    log = await numbers(place, 30)
    await log.cursors.init("jobs", 31)
    first = await log.pin("p", 10, 12)
    with pytest.raises(AlreadyExistsError):
        await log.pin("p", 20, 25)
    await first.release()
    await log.pin("p", 20, 25, ttl_s=60)
    await first.release()
    await first.release()
    await log.collect(wait_s=0)
    assert list(range(20, 25)) == await pinned(log, "p")
    time.pass_s(61)
    with pytest.raises(CollectedError):
        await log.pin("p", 10, 12)


async def test_a_pin_of_what_is_going_is_refused(place, numbers, collected, bucket_of):
    """Marked, unlinked or gone: too late, and nothing is left that holds."""
    log = await numbers(place, 30)
    await log.cursors.init("jobs", 21)
    await log.mark()
    for step in (log.unlink, lambda: collected(log), lambda: collected(log)):
        with pytest.raises(CollectedError, match="21"):
            await log.pin("p", 20, 25)
        assert [] == (await log.state()).pins or () == (await log.state()).pins
        await step()
    assert [] == (await collected(log)).held


async def test_a_reader_of_a_pin_that_ends_is_told(place, numbers, collected):
    """While it reads: CollectedError, not damage."""
    log = await numbers(place, 100)
    await log.cursors.init("jobs", 101)
    pin = await log.pin("p", 1, 100)
    await collected(log)
    reading = log.reader(pin="p").read()
    await anext(reading)
    await pin.release()
    await collected(log)
    with pytest.raises(CollectedError):
        [record async for record in reading]


async def test_a_pin_does_not_hold_back_the_manifest(place, numbers, collected, bucket_of):
    """A year-old pin costs its files, and nothing else: the root stays small."""
    log = await numbers(place, 200)
    jobs = await log.cursors.init("jobs", 1)
    await log.pin("old", 1, 3, ttl_s=365 * 86_400)
    await log.cursors.save("jobs", 201, jobs)
    await collected(log)
    assert 201 == (await log.state()).oldest_offset
    assert [1, 2] == await bucket_of(place).slots()


async def test_leaving_the_block_ends_it(place, numbers):
    """Also with an error."""
    log = await numbers(place, 5)
    with pytest.raises(RuntimeError):
        async with await log.pin("p", 1, 3):
            raise RuntimeError
    assert () == (await log.state()).pins


async def test_pins_are_made_while_a_collection_runs(place, numbers, collected):
    """Whichever comes first: the pin holds all of its range, or says that it is late."""
    log = await numbers(place, 60)
    await log.cursors.init("jobs", 50)
    results = await asyncio.gather(
        log.collect(wait_s=0),
        *(log.pin(f"p{n}", 40 + n, 60) for n in range(15)),
        return_exceptions=True,
    )
    await collected(log)
    for number, result in enumerate(results[1:]):
        if isinstance(result, CollectedError):
            continue
        assert list(range(40 + number, 60)) == await pinned(log, f"p{number}")
