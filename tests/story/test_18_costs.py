"""Story 18: what a read costs in a log of 3,000 fragments, counted at the store."""

from __future__ import annotations

import asyncio
import json

import pytest

import cordwood
from cordwood import Limits, Options
from cordwood.log import paths
from cordwood.log.tree import FANOUT
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore

COUNT = 3_000
LEVELS = 4
"""FANOUT ** 4 > 3,000: no offset lies below more nodes than that."""


@pytest.fixture(scope="module")
def large():
    """A memory with a log of 3,000 fragments of one record each."""
    memory = MemoryStore()

    async def write():
        log = cordwood.Log(cordwood.Store.over(memory), "orders")
        options = Options(batch_bytes=1, in_flight=8)
        async with log.writer(create=True, options=options) as writer:
            for first in range(0, COUNT, 100):
                await asyncio.gather(*(writer.append(b"%d" % (first + i)) for i in range(100)))

    asyncio.run(write())
    return memory


@pytest.fixture
def counted(large, hooked):
    """The log, and the calls that reach its store."""
    store = hooked(large)
    return cordwood.Log(cordwood.Store.over(store), "orders"), store.calls


async def test_the_log_is_what_it_should_be(large, bucket_of):
    """3,000 slots, and a root that stays small."""
    bucket = bucket_of(large)
    assert COUNT == len(await bucket.slots())
    manifest = await bucket.manifest()
    assert COUNT == manifest["fragments"][-1]["seq_no"]
    assert 16_000 > len(await bucket.get(paths.MANIFEST))


async def test_reading_the_tail_reads_two_objects(counted):
    """The manifest and the newest fragment: no node."""
    log, calls = counted
    records = [record.body async for record in log.reader().read(COUNT)]
    assert [b"%d" % (COUNT - 1)] == records
    assert [
        ("get", "orders/manifest/MANIFEST"),
        ("get_range", f"orders/{paths.fragment(COUNT)}"),
    ] == calls


async def test_the_tail_costs_two_gets_at_a_metered_store(large):
    """The same, by the product's own meter."""
    metered = MeteredStore(large)
    log = cordwood.Log(cordwood.Store.over(metered), "orders")
    assert 1 == len([record async for record in log.reader().read(COUNT)])
    operations = metered.snapshot().operations
    assert (1, 1) == (operations["get"].requests, operations["get_range"].requests)
    assert 2 == metered.snapshot().requests


async def test_opening_a_writer_costs_two_gets(counted):
    """The manifest and the empty slot; the size of the log does not matter."""
    log, calls = counted
    async with log.writer():
        pass
    assert [
        ("get", "orders/manifest/MANIFEST"),
        ("get", f"orders/{paths.fragment(COUNT + 1)}"),
    ] == calls


async def test_state_costs_one_get_and_one_list(counted):
    """However large the log is."""
    log, calls = counted
    assert COUNT + 1 == (await log.state()).next_offset
    assert ["get", "list", "list"] == [operation for operation, _ in calls]


async def node_range(large, key):
    """The offsets that a node covers."""
    node = json.loads((await large.get(key)).data)
    children = node["snapshots"] or node["fragments"]
    return children[0]["start"]["offset"], children[-1]["limit"]["offset"]


@pytest.mark.parametrize("start", [1, 2, 511, 512, 513, 1500, 2047, 2048, 2990])
@pytest.mark.parametrize("length", [1, 20])
async def test_a_scan_reads_only_nodes_that_overlap(counted, large, start, length):
    """Each once, and none that holds nothing of the range."""
    log, calls = counted
    found = await log.reader().scan(start, Limits(max_records=length))
    limit = min(start + length, COUNT + 1)
    assert list(range(start, limit)) == [fragment.seq_no for fragment in found]
    assert {"get"} == {operation for operation, _ in calls}
    manifest, *nodes = [key for _, key in calls]
    assert "orders/manifest/MANIFEST" == manifest
    assert len(nodes) == len(set(nodes))
    for key in nodes:
        begin, end = await node_range(large, key)
        assert begin < limit
        assert start < end
    assert LEVELS + length // FANOUT + 2 >= len(nodes)


async def test_a_read_in_the_middle_fetches_only_its_fragments(counted):
    """One manifest, a few nodes, and exactly the fragments asked for."""
    log, calls = counted
    limits = Limits(max_records=10)
    assert 10 == len([record async for record in log.reader().read(1500, limits)])
    fetched = [key for _, key in calls if "FragmentSeqNo" in key]
    assert [f"orders/{paths.fragment(n)}" for n in range(1500, 1510)] == fetched


async def test_a_read_left_early_has_not_fetched_the_log(counted):
    """A reader runs a few files ahead of its consumer, not more."""
    log, calls = counted
    records = log.reader().read(1)
    async for _ in records:
        break
    await records.aclose()
    assert 20 > len([key for _, key in calls if "FragmentSeqNo" in key])


async def test_a_time_is_found_by_bisection(counted):
    """A look at the ends of a few files instead of a scan."""
    log, calls = counted
    async with log.reader() as reader:
        (record,) = [r async for r in reader.read(1500, Limits(max_records=1))]
        calls.clear()
        offset = await reader.offset_at(record.timestamp_us)
    assert 1500 >= offset
    looks = [key for operation, key in calls if operation == "get_range"]
    assert 13 >= len(looks)
    assert 13 * (LEVELS + 1) >= len(calls) - len(looks)


async def test_an_empty_read_fetches_no_fragment(counted):
    """A range without an offset costs the manifest alone."""
    log, calls = counted
    assert [] == [record async for record in log.reader().read(COUNT + 1)]
    limits = Limits(limit_offset=1500)
    assert [] == [record async for record in log.reader().read(1500, limits)]
    assert {"orders/manifest/MANIFEST"} == {key for _, key in calls}


async def test_a_deep_scrub_reads_everything_once(counted):
    """One GET per node and fragment, and one for the manifest."""
    log, calls = counted
    report = await log.scrub(deep=True)
    assert (True, COUNT) == (report.ok, report.records)
    assert 1 + report.nodes + COUNT == len(calls) == len({key for _, key in calls})
