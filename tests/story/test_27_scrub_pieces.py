"""Story 27: a scrub piece by piece, by samples, and beside a collection."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import CollectedError, Limits, Setsum
from cordwood.log import paths
from cordwood.log.tree import FANOUT

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
