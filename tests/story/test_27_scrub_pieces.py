"""Story 27: a scrub piece by piece, by samples, and beside a collection."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

import cordwood
from cordwood import CollectedError, InvalidInputError, Limits, Setsum, StoreError
from cordwood.log import paths
from cordwood.log.tree import FANOUT
from cordwood.store.memory import MemoryStore
from cordwood.testing.hooked import Hooked

COUNT = FANOUT * FANOUT + FANOUT + 3


@pytest.fixture
async def whole(log):
    """A log with two levels of nodes and nothing wrong."""
    await log.create(grace_s=1)
    async with log.writer() as writer:
        for n in range(COUNT):
            await writer.append(b"%d" % n)
    return log


@pytest.mark.parametrize("deep", [False, True])
async def test_pieces_add_up_to_the_whole(whole, deep):
    """Each says where the next begins; the last says that it is the last."""
    total, start, sizes = Setsum(), None, []
    while True:
        piece = await whole.scrub(deep=deep, start=start, limits=Limits(max_files=10))
        assert piece.ok
        total, start = total + piece.setsum, piece.next_offset
        sizes.append(piece.records)
        if start is None:
            break
    assert COUNT == sum(sizes)
    assert {10, COUNT % 10} == set(sizes)
    assert total == (await whole.state()).setsum


async def test_a_limit_ends_a_piece(whole):
    """By bytes, by records, by offset."""
    assert 2 == (await whole.scrub(limits=Limits(max_bytes=1))).next_offset
    assert 6 == (await whole.scrub(limits=Limits(max_records=5))).next_offset
    assert 9 == (await whole.scrub(start=4, limits=Limits(limit_offset=9))).next_offset


async def test_damage_is_found_in_its_piece(whole, bucket):
    """And only there."""
    await bucket.delete(paths.fragment(15))
    first = await whole.scrub(deep=True, limits=Limits(max_files=10))
    second = await whole.scrub(deep=True, start=first.next_offset, limits=Limits(max_files=10))
    assert (True, False) == (first.ok, second.ok)
    assert [f"orders/{paths.fragment(15)}"] == [fault.where for fault in second.errors]


async def test_a_sample_reads_a_few_fragments_and_their_paths(memory, whole, hooked):
    """However large the log is; enough samples find any damage."""
    watched = hooked(memory)
    log = cordwood.Log(cordwood.Store.over(watched), "orders")
    report = await log.scrub(deep=True, sample=3)
    assert report.ok
    assert 1 <= report.fragments <= 3
    assert len(watched.calls) <= 1 + 3 * 3
    await memory.delete([f"orders/{paths.fragment(15)}"])
    found = [await log.scrub(deep=True, sample=COUNT) for _ in range(20)]
    assert any(not report.ok for report in found)


async def test_a_sample_of_an_empty_log_is_whole(log):
    """There is nothing to look at."""
    await log.create()
    report = await log.scrub(deep=True, sample=5)
    assert (True, 0) == (report.ok, report.fragments)


async def test_a_piece_that_was_collected_is_refused(whole):
    """The error says where to start."""
    await whole.cursors.init("c", 30)
    await whole.collect()
    with pytest.raises(CollectedError, match="30"):
        await whole.scrub(start=5)


@pytest.mark.parametrize("deep", [False, True])
async def test_what_is_collected_meanwhile_is_not_missed(memory, whole, hooked, deep):
    """A scrub that is overtaken by a collection finds nothing wrong, and its sum is right."""
    await whole.cursors.init("c", 50)
    is_first = True

    async def collect_first(call, key, *_):
        nonlocal is_first
        if is_first and "SNAPSHOT" in key:
            is_first = False
            report = await whole.collect()
            assert report.records > 40
        return await call()

    slow = cordwood.Log(cordwood.Store.over(hooked(memory, get=collect_first)), "orders")
    report = await slow.scrub(deep=deep)
    assert [] == report.errors
    assert not is_first
    assert report.setsum == (await whole.state()).setsum


async def test_behind_the_end(whole):
    """Nothing is not taken for something that is whole."""
    end = (await whole.state()).next_offset
    assert (await whole.scrub(start=end)).ok
    with pytest.raises(InvalidInputError, match="ends at"):
        await whole.scrub(start=end + 1)


@pytest.fixture
async def large(tmp_path, monkeypatch):
    """A log whose fragments are hashed in a thread, by turns; and a store that can be hooked."""
    monkeypatch.setattr("cordwood.log.fetch.has_vector_kernel", lambda: False)
    hooked = Hooked(MemoryStore())
    log = cordwood.Log(cordwood.Store.over(hooked), "large")
    async with log.writer(create=True) as writer:
        for seed in range(12):
            noise = np.random.default_rng(seed).bytes(400_000)
            await writer.append_many([noise[at : at + 1_000] for at in range(0, 400_000, 1_000)])
    return log, hooked


async def scrub_as_unit(log):
    """As a job does it."""
    return await cordwood.scrub_log(log, engine="local")


@pytest.mark.parametrize("scrub", [lambda log: log.scrub(deep=True), scrub_as_unit])
async def test_a_store_that_fails_for_many_at_once(large, scrub, caplog):
    """It is told once; no task goes on, and no error is left that nobody looked at."""
    log, hooked = large

    async def fail(call, key, *_):
        await asyncio.sleep(0)
        raise StoreError(f"{key} does not answer")

    hooked.hooks["get_range"] = fail
    with pytest.raises(StoreError, match="does not answer"):
        await scrub(log)
    assert {asyncio.current_task()} == asyncio.all_tasks()
    gc.collect()
    assert "" == caplog.text


@pytest.mark.parametrize("scrub", [lambda log: log.scrub(deep=True), scrub_as_unit])
async def test_cancelled_in_the_middle(large, scrub, caplog):
    """Whatever it was doing, no task goes on; and then it can be done again."""
    log, _ = large
    cancelled = 0
    for steps in range(0, 60, 3):
        work = asyncio.ensure_future(scrub(log))
        for _ in range(steps):
            await asyncio.sleep(0)
        # Where the thread that hashes is quick, and the loop is not, it may be over by then.
        was_under_way = work.cancel()
        (outcome,) = await asyncio.gather(work, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError) == was_under_way, steps
        assert {asyncio.current_task()} == asyncio.all_tasks(), steps
        cancelled += was_under_way
    assert 0 < cancelled
    assert (await scrub(log)).ok
    gc.collect()
    assert "" == caplog.text
