"""Story 21: consumers keep their places in a log, and the log keeps what they have not read."""

from __future__ import annotations

import json

import pytest

import cordwood
from cordwood import (
    AlreadyExistsError,
    CollectedError,
    ContendedError,
    InvalidInputError,
    StateError,
)


async def test_a_consumer_goes_on_where_it_stopped(place, numbers, bodies):
    """Process after process, each reads from the cursor and moves it."""
    # EVIDENCE-OF: G-36
    log = await numbers(place, 30)
    await log.cursors.init("jobs", 1)
    seen = []
    for _ in range(3):
        witness = await log.cursors.load("jobs")
        batch = await bodies(log, witness.offset, cordwood.Limits(max_records=10))
        await log.cursors.save("jobs", witness.offset + len(batch), witness)
        seen += batch
    assert [b"%d" % n for n in range(1, 31)] == seen
    assert {"jobs": 31} == (await log.state()).cursors


async def test_two_consumers_of_one_cursor_do_not_both_advance(place, numbers):
    """The one that comes second is told."""
    # EVIDENCE-OF: G-36
    log = await numbers(place, 5)
    made = await log.cursors.init("jobs", 1)
    await log.cursors.save("jobs", 3, made)
    with pytest.raises(ContendedError) as caught:
        await log.cursors.save("jobs", 5, made)
    assert "load it again" in caught.value.hint
    assert 3 == (await log.cursors.load("jobs")).offset


@pytest.mark.cas
async def test_the_file_is_one_that_wal3_reads(place, numbers, bucket_of):
    """Three fields, in their order."""
    log = await numbers(place, 5)
    await log.cursors.init("jobs", 4)
    document = json.loads(await bucket_of(place).get("cursor/jobs.json"))
    assert ["position", "epoch_us", "writer"] == list(document)
    assert {"offset": 4} == document["position"]


@pytest.mark.parametrize("name", ["a/b", "../manifest/MANIFEST", "a.json", "", "a\\b", "*"])
async def test_a_name_cannot_leave_its_folder(place, numbers, bucket_of, name):
    """Nothing is written."""
    log = await numbers(place, 2)
    before = await bucket_of(place).keys()
    with pytest.raises(InvalidInputError):
        await log.cursors.init(name, 1)
    assert before == await bucket_of(place).keys()


async def test_the_slowest_cursor_decides_what_stays(place, numbers, collected, bodies):
    """Everything from it on can be read; nothing before it."""
    # EVIDENCE-OF: G-36, G-37
    log = await numbers(place, 40)
    await log.cursors.init("fast", 40)
    await log.cursors.init("slow", 12)
    assert 12 == (await collected(log)).oldest_offset
    assert [b"%d" % n for n in range(12, 41)] == await bodies(log)
    with pytest.raises(CollectedError):
        await bodies(log, 11)


async def test_a_deleted_cursor_holds_nothing_back(place, numbers, collected):
    """Its name is free again."""
    log = await numbers(place, 40)
    await log.cursors.init("fast", 30)
    slow = await log.cursors.init("slow", 12)
    await log.cursors.delete("slow", slow)
    assert (await collected(log)).oldest_offset in {29, 30}
    assert 33 == (await log.cursors.init("slow", 33)).offset


async def test_a_cursor_below_the_collected_point_is_refused(place, numbers, collected):
    """New or moved back: the error says where to start."""
    log = await numbers(place, 40)
    jobs = await log.cursors.init("jobs", 20)
    await collected(log)
    for attempt in (log.cursors.init("new", 19), log.cursors.save("jobs", 19, jobs)):
        with pytest.raises(CollectedError, match="20"):
            await attempt
    assert {"jobs": 20} == (await log.state()).cursors


async def test_a_log_that_lost_its_last_cursor_is_not_collected(place, numbers, collected):
    """No cursor says nothing; it does not say that all may go."""
    log = await numbers(place, 10)
    jobs = await log.cursors.init("jobs", 5)
    await log.cursors.delete("jobs", jobs)
    with pytest.raises(StateError) as caught:
        await collected(log)
    assert "no_cursor" == caught.value.code
    assert 1 == (await log.state()).oldest_offset


async def test_a_cursor_exists_once(place, numbers):
    """Whoever comes second loads it."""
    log = await numbers(place, 3)
    await log.cursors.init("jobs", 1)
    with pytest.raises(AlreadyExistsError):
        await log.cursors.init("jobs", 2)


async def test_local_clocks_mean_nothing(place, numbers, collected):
    """A consumer and a collector whose clocks are a day off, either way."""

    class Wrong(cordwood.base.clock.SystemClock):
        def __init__(self, off_s):
            self.off_us = off_s * 1_000_000

        def now_us(self):
            return super().now_us() + self.off_us

    await numbers(place, 20)
    store = cordwood.Store.over(place)
    early = cordwood.Log(store, "orders", clock=Wrong(-86_400))
    late = cordwood.Log(store, "orders", clock=Wrong(86_400))
    made = await early.cursors.init("jobs", 5)
    await early.cursors.save("jobs", 10, made)
    report = await late.collect(wait_s=0)
    assert 60 == pytest.approx(report.due_s)
    assert 0 == report.deleted
    assert 9 < (await collected(late)).deleted


async def test_a_cursor_behind_the_end_frees_nothing(log):
    """It was mistyped: what is not even written cannot have been read."""
    async with log.writer(create=True) as writer:
        await writer.append(b"1")
    witness = await log.cursors.init("c", 1)
    witness = await log.cursors.save("c", 1_000, witness)
    with pytest.raises(StateError, match="behind the end"):
        await log.collect()
    await log.cursors.save("c", 2, witness)
    assert 2 == (await log.collect()).oldest_offset


async def test_a_cursor_before_the_first_record_stands_at_the_first(log):
    """As for a reader, offset 0 is the beginning."""
    await log.create()
    assert 1 == (await log.cursors.init("c", 0)).offset
