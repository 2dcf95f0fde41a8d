"""Story 08: where a read starts and where it ends."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

import cordwood
from cordwood import CollectedError, InvalidInputError, Limits, Setsum
from cordwood.base.clock import SeededEntropy
from cordwood.log import paths

STAMP = 1_700_000_000_000_000
RECORDS_EACH = 5
NUM_FRAGMENTS = 20
LAST = RECORDS_EACH * NUM_FRAGMENTS


class HandClock:
    """Wall time is set by hand; durations are the event loop's."""

    def __init__(self):
        """The beginning."""
        self.wall_us = STAMP

    def now_us(self):
        """What the test says."""
        return self.wall_us

    def monotonic_s(self):
        """The loop's own."""
        return asyncio.get_running_loop().time()


@pytest.fixture
async def written(memory):
    """Twenty fragments of five records, a millisecond apart: records 1 to 100."""
    clock = HandClock()
    log = cordwood.Log(cordwood.Store.over(memory), "orders", clock=clock, entropy=SeededEntropy(8))
    async with log.writer(create=True) as writer:
        for n in range(NUM_FRAGMENTS):
            clock.wall_us = STAMP + 1_000 * n
            first = n * RECORDS_EACH
            await writer.append_many([b"%d" % (first + i + 1) for i in range(RECORDS_EACH)])
    return log


@pytest.fixture
def offsets(read):
    """`await offsets(log, start, limits)`: the offsets read, each checked against its body."""

    async def read_offsets(log, start=None, limits=None):
        records = await read(log, start, limits)
        assert [b"%d" % r.offset for r in records] == [r.body for r in records]
        return [r.offset for r in records]

    return read_offsets


# Starts.


@pytest.mark.parametrize("start", [None, 0, 1])
async def test_the_beginning_has_three_names(written, offsets, start):
    """Nothing, 0 and 1 all mean the first record of a log that was never collected."""
    assert list(range(1, LAST + 1)) == await offsets(written, start)


@pytest.mark.parametrize("start", [2, 5, 6, 7, 39, 40, 41, 99, 100])
async def test_a_read_starts_exactly_where_it_was_told(written, offsets, start):
    """Also in the middle of a fragment, below nodes and in the root."""
    assert list(range(start, LAST + 1)) == await offsets(written, start)


@pytest.mark.parametrize("start", [101, 102, 10**6, 2**63 - 1])
async def test_a_read_beyond_the_end_is_empty(written, offsets, start):
    """There is nothing yet; that is no error."""
    assert [] == await offsets(written, start)
    async with written.reader() as reader:
        assert [] == await reader.scan(start)


@pytest.mark.parametrize("start", [-1, 2**63, 2**64, "1", 1.0, True, b"1"], ids=repr)
async def test_an_offset_that_cannot_be_is_refused(written, offsets, start):
    """An offset is a whole number from 0 to 2^63 - 1."""
    with pytest.raises(InvalidInputError):
        await offsets(written, start)


async def test_a_start_that_was_collected_is_an_error(written, offsets, bucket):
    """Records below the oldest one are gone; the error says where the log begins now."""
    manifest = await written.manifest()
    kept = manifest.fragments
    first = kept[0]
    document = await bucket.manifest()
    gone = Setsum.from_hex(document["setsum"]) - Setsum.sum([f.setsum_hex for f in kept])
    document |= {
        "collected": gone.hexdigest(),
        "snapshots": [],
        "initial_offset": {"offset": first.start},
        "initial_seq_no": first.seq_no,
    }
    await bucket.put(paths.MANIFEST, json.dumps(document).encode())
    for start in (0, 1, first.start - 1):
        with pytest.raises(CollectedError, match=str(first.start)) as caught:
            await offsets(written, start)
        assert str(first.start) in caught.value.hint
    assert list(range(first.start, LAST + 1)) == await offsets(written, first.start)
    assert list(range(first.start, LAST + 1)) == await offsets(written)
    assert first.start == (await written.state()).oldest_offset


async def unlink_below(log, bucket, offset):
    """What a collector does first: the manifest forgets every fragment below the offset."""
    manifest = await log.manifest()
    async with log.reader() as reader:
        found = await reader.scan()
    gone = [f for f in found if f.limit <= offset]
    kept = found[len(gone) :]
    document = await bucket.manifest()
    document |= {
        "collected": Setsum.sum(
            [manifest.collected_hex, *(f.setsum_hex for f in gone)]
        ).hexdigest(),
        "snapshots": [],
        "fragments": [json.loads(msgspec.json.encode(f)) for f in kept],
        "initial_offset": {"offset": kept[0].start},
        "initial_seq_no": kept[0].seq_no,
    }
    await bucket.put(paths.MANIFEST, json.dumps(document).encode())
    return gone


async def test_a_read_overtaken_by_a_collector_says_so(written, bucket):
    """Fragments deleted while it runs are collected, not damaged."""
    seen = []
    with pytest.raises(CollectedError, match="51"):
        async with written.reader() as reader:
            async for record in reader.read():
                if not seen:
                    for fragment in await unlink_below(written, bucket, 51):
                        await bucket.delete(fragment.path)
                seen.append(record.offset)
    assert list(range(1, len(seen) + 1)) == seen
    assert len(seen) < 51


async def test_a_read_overtaken_at_a_node_says_so(written, bucket, memory, hooked):
    """The same where the first thing missing is a node of the tree."""
    before = [key for key in await bucket.keys() if key.startswith("snapshot/")]
    unlinked = []

    async def collect_first(call, key):
        if "snapshot/" in key and not unlinked:
            unlinked.append(key)
            await unlink_below(written, bucket, 91)
            for node in before:
                await bucket.delete(node)
        return await call()

    store = hooked(memory, get=collect_first)
    late = cordwood.Log(cordwood.Store.over(store), "orders")
    with pytest.raises(CollectedError, match="91"):
        _ = [record async for record in late.reader().read(1)]


# Limits.


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 50, 99, 100, 101, 10**9])
@pytest.mark.parametrize("start", [1, 3, 98])
async def test_max_records_is_exact(written, offsets, start, count):
    """Exactly so many records, or fewer at the end."""
    expected = list(range(start, LAST + 1))[:count]
    assert expected == await offsets(written, start, Limits(max_records=count))


@pytest.mark.parametrize("limit", [0, 1, 2, 6, 7, 50, 100, 101, 10**9])
async def test_limit_offset_is_the_first_one_not_wanted(written, offsets, limit):
    """Half open, exact, and harmless beyond the end."""
    expected = [n for n in range(3, LAST + 1) if n < limit]
    assert expected == await offsets(written, 3, Limits(limit_offset=limit))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 19, 20, 21])
async def test_max_files_counts_fragments(written, offsets, count):
    """So many whole fragments; at least one, so that a reader always gets on."""
    expected = list(range(1, RECORDS_EACH * max(1, min(count, NUM_FRAGMENTS)) + 1))
    assert expected == await offsets(written, 1, Limits(max_files=count))
    async with written.reader() as reader:
        found = await reader.scan(1, Limits(max_files=count))
    assert max(1, min(count, NUM_FRAGMENTS)) == len(found)


async def test_max_files_counts_from_the_start(written, offsets):
    """The fragment that holds the start is the first; its earlier records are not given."""
    assert [8, 9, 10, 11, 12, 13, 14, 15] == await offsets(written, 8, Limits(max_files=2))


async def test_max_bytes_counts_stored_bytes(written, offsets):
    """Fragments are given while they fit; at least one."""
    async with written.reader() as reader:
        sizes = [fragment.num_bytes for fragment in await reader.scan()]
    for count in (1, 2, 7, NUM_FRAGMENTS):
        room = sum(sizes[:count])
        expected = list(range(1, RECORDS_EACH * count + 1))
        assert expected == await offsets(written, 1, Limits(max_bytes=room))
        less = max(1, count - 1)
        assert expected[: RECORDS_EACH * less] == await offsets(
            written, 1, Limits(max_bytes=room - 1)
        )
    assert RECORDS_EACH == len(await offsets(written, 1, Limits(max_bytes=0)))


@pytest.mark.parametrize("n", [0, 1, 7, 19])
@pytest.mark.parametrize("shift", [-1, 0, 1])
async def test_times_select_whole_fragments(written, offsets, n, shift):
    """From the first record stamped at that time or later; up to, not including, the limit."""
    moment = STAMP + 1_000 * n + shift
    begins = RECORDS_EACH * (n + (shift > 0)) + 1
    expected = list(range(1, LAST + 1))
    assert expected[begins - 1 :] == await offsets(written, 1, Limits(start_time_us=moment))
    assert expected[: begins - 1] == await offsets(written, 1, Limits(limit_time_us=moment))
    async with written.reader() as reader:
        assert begins == await reader.offset_at(moment)


async def test_times_outside_the_log(written, offsets):
    """Before everything and after everything."""
    assert LAST == len(await offsets(written, 1, Limits(start_time_us=0)))
    assert [] == await offsets(written, 1, Limits(start_time_us=2**62))
    assert [] == await offsets(written, 1, Limits(limit_time_us=0))
    assert LAST == len(await offsets(written, 1, Limits(limit_time_us=2**62)))


async def test_a_time_is_found_in_an_empty_log(log):
    """The first offset is where the next record will be."""
    await log.create()
    async with log.reader() as reader:
        assert 1 == await reader.offset_at(STAMP)


async def test_all_limits_hold_together(written, offsets):
    """Whichever ends first."""
    limits = Limits(
        max_records=30,
        max_files=4,
        limit_offset=18,
        start_time_us=STAMP + 2_000,
        limit_time_us=STAMP + 9_000,
    )
    assert list(range(11, 18)) == await offsets(written, 1, limits)


async def test_max_records_counts_from_where_the_time_begins(written, offsets):
    """The start time moves the start; records are counted from there."""
    limits = Limits(start_time_us=STAMP + 2_000, max_records=3)
    assert [11, 12, 13] == await offsets(written, 1, limits)


async def test_a_limit_before_the_start_is_an_empty_read(written, offsets):
    """No error, no records, no fragments."""
    assert [] == await offsets(written, 50, Limits(limit_offset=20))
    async with written.reader() as reader:
        assert [] == await reader.scan(50, Limits(limit_offset=20))
        assert [] == await reader.scan(48, Limits(limit_offset=48))


# Shapes.


async def test_scan_gives_the_fragments_that_hold_the_range(written):
    """The first may begin earlier, the last may end later."""
    async with written.reader() as reader:
        found = await reader.scan(8, Limits(limit_offset=17))
    assert [(6, 11), (11, 16), (16, 21)] == [(f.start, f.limit) for f in found]


async def test_fetch_gives_a_verified_table(written):
    """A fragment's records with offsets, times and bodies; and its bytes as stored."""
    async with written.reader() as reader:
        (fragment,) = await reader.scan(8, Limits(max_files=1))
        table = await reader.fetch(fragment)
        raw = await reader.fetch_bytes(fragment)
    assert [6, 7, 8, 9, 10] == table.column("offset").to_pylist()
    assert fragment.setsum == Setsum.of_fragment(table)
    assert fragment.num_bytes == len(raw)


async def test_arrow_batches_are_cut_exactly(written):
    """One batch per fragment, none empty, and only the rows asked for."""
    async with written.reader() as reader:
        batches = [b async for b in reader.read_arrow(8, Limits(limit_offset=17))]
    assert [3, 5, 1] == [batch.num_rows for batch in batches]
    assert list(range(8, 17)) == [n for b in batches for n in b.column("offset").to_pylist()]


async def test_a_read_sees_the_log_as_it_was_when_it_began(written):
    """Records appended while it runs belong to the next read."""
    seen = []
    async with written.reader() as reader:
        async for record in reader.read(90):
            if not seen:
                async with written.writer() as writer:
                    await writer.append(b"101")
            seen.append(record.offset)
        assert list(range(90, LAST + 1)) == seen
        assert [LAST + 1] == [record.offset async for record in reader.read(LAST + 1)]


async def test_a_read_left_early_leaves_nothing_behind(written):
    """Breaking out of the loop is fine; the next read starts afresh."""
    async with written.reader() as reader:
        async for record in reader.read():
            if record.offset == 3:
                break
        assert [4] == [r.offset async for r in reader.read(4, Limits(max_records=1))]


async def test_an_empty_log_reads_as_nothing(log, bodies):
    """No records, no fragments, no error."""
    # EVIDENCE-OF: G-14
    await log.create()
    assert [] == await bodies(log)
    assert [] == await bodies(log, 1)
    async with log.reader() as reader:
        assert [] == await reader.scan()
        assert [] == [batch async for batch in reader.read_arrow()]
