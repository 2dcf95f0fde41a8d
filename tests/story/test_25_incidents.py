"""Story 25: what went wrong with collection elsewhere, class by class, does not go wrong here.

The classes are those of wal3's public history. Some are told in other stories already:

==========================================  =====================================================
a lost answer writes records twice          test_15_lost_answer.py
an empty GARBAGE that looks like another    test_24_remedies.py
the tree changed shape between the phases   test_22_collect.py, test_24_remedies.py
a lower bound was not passed on             test_22_collect.py: keep_from
readers get holes after a collection        test_22_collect.py: readers
a busy writer and a collection              test_24_remedies.py: the unlink intent
==========================================  =====================================================
"""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

import cordwood
from cordwood import CorruptionError, UncertainError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.setsum import Setsum
from cordwood.log import paths, tree
from cordwood.log.collect import Collector
from cordwood.log.format import Fragment, Manifest, encode
from cordwood.log.garbage import Phase
from cordwood.store.memory import MemoryStore
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.simloop import simulate

GARBAGE = f"orders/{paths.GARBAGE}"


@pytest.fixture
def store(time):
    """A memory with the test's clock."""
    return MemoryStore(clock=time)


@pytest.mark.parametrize("seed", range(8))
def test_racing_collectors_do_each_others_work(seed):
    """Five at once, in any order: one log, collected once, nothing lost and nothing left."""
    # EVIDENCE-OF: G-37, G-59

    async def main():
        clock = LoopClock()
        ground = MemoryStore(clock=clock)
        slow = FaultyStore(ground, SeededEntropy(seed), clock, latency=Latency(0.02, 0.3))
        logs = [
            cordwood.Log(
                cordwood.Store.over(slow),
                "orders",
                clock=clock,
                entropy=SeededEntropy(f"{seed}-{n}"),
            )
            for n in range(5)
        ]
        await logs[0].create(grace_s=5)
        async with logs[0].writer(options=cordwood.Options(batch_bytes=1)) as writer:
            await asyncio.gather(*(writer.append(b"%d" % n) for n in range(1, 61)))
        await logs[0].cursors.init("jobs", 41)
        reports = await asyncio.gather(
            *(log.collect(wait_s=60) for log in logs), return_exceptions=True
        )
        assert [] == [r for r in reports if not isinstance(r, cordwood.log.collect.CollectReport)]
        assert 41 == (await logs[0].state()).oldest_offset
        slots = [paths.fragment_seq_no(m.key) async for m in ground.list("orders/log/")]
        assert list(range(41, 61)) == slots
        assert (await logs[0].scrub()).ok
        assert 20 == len([r async for r in logs[0].reader().read()])

    simulate(seed, main)


async def test_nothing_is_deleted_before_the_manifest_was_replaced(store, time, numbers, bucket_of):
    """A sweep of what is only marked does nothing, however old it is."""
    log = await numbers(store, 40)
    await log.cursors.init("jobs", 21)
    await log.mark()
    time.pass_s(10**6)
    report = await log.sweep()
    assert (Phase.MARKED, 0) == (report.phase, report.deleted)
    assert list(range(1, 41)) == await bucket_of(store).slots()


async def test_a_garbage_that_nobody_applied_is_not_swept(store, time, numbers, bucket_of):
    """Even if GARBAGE says that it was: the manifest decides (hazard c)."""
    log, bucket = await numbers(store, 40), bucket_of(store)
    await log.cursors.init("jobs", 21)
    await log.mark()
    document = json.loads(await bucket.get(paths.GARBAGE))
    document["cordwood"]["phase"] = "unlinked"
    await bucket.put(paths.GARBAGE, json.dumps(document).encode())
    time.pass_s(10**6)
    with pytest.raises(CorruptionError, match="nothing was deleted"):
        await log.sweep()
    assert list(range(1, 41)) == await bucket.slots()


async def test_numbers_go_on_after_everything_was_collected_again_and_again(
    store, numbers, collected, bucket_of, bodies
):
    """Offsets and slots never start anew, whoever opens the log."""
    log = await numbers(store, 9)
    jobs = await log.cursors.init("jobs", 1)
    for end in range(10, 60, 10):
        jobs = await log.cursors.save("jobs", end, jobs)
        await collected(log)
        state = await log.state()
        assert (end, end) == (state.oldest_offset, state.next_offset)
        manifest = await bucket_of(store).manifest()
        assert end == manifest["initial_seq_no"]
        await numbers(store, 10)
        assert end == (await bucket_of(store).slots())[0]
        assert b"%d" % end == (await bodies(log))[0]


@pytest.mark.parametrize("key", [GARBAGE, f"orders/{paths.MANIFEST}", f"orders/{paths.CLOCK}"])
async def test_a_writer_is_not_held_up_by_a_collection_that_hangs(
    store, time, numbers, hooked, key
):
    """Whichever put the collector never comes back from."""
    log = await numbers(store, 40)
    await log.cursors.init("jobs", 21)
    stuck = asyncio.Event()

    async def hang(call, put_key, *_):
        if put_key == key:
            stuck.set()
            await asyncio.Event().wait()
        return await call()

    hanging = cordwood.Log(cordwood.Store.over(hooked(store, put=hang)), "orders")
    collecting = asyncio.ensure_future(hanging.collect(wait_s=0))
    await stuck.wait()
    async with log.writer() as writer:
        assert list(range(41, 51)) == [await writer.append(b"x") for _ in range(10)]
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    await log.collect(wait_s=0)
    time.pass_s(61)
    assert 20 <= (await log.collect(wait_s=0)).oldest_offset <= 21


async def test_sums_balance_after_every_collection(store, numbers, collected):
    """What is collected and what is there add up to the log, at every size of step."""
    log = await numbers(store, 200)
    jobs = await log.cursors.init("jobs", 1)
    total = (await log.state()).setsum
    gone = Setsum()
    for end in (2, 3, 8, 9, 17, 64, 65, 66, 130, 199, 201):
        jobs = await log.cursors.save("jobs", end, jobs)
        report = await log.collect(wait_s=0)
        gone = gone + report.setsum
        await collected(log)
        state = await log.state()
        assert (total, gone) == (state.setsum, state.collected)
        assert (await log.scrub(deep=True)).ok


@pytest.mark.parametrize("field", ["setsum_to_discard", "first_to_keep"])
async def test_a_garbage_whose_sum_is_wrong_is_never_applied(
    store, numbers, collected, bucket_of, bodies, field
):
    """It is cancelled, and the next one is right."""
    log, bucket = await numbers(store, 40), bucket_of(store)
    await log.cursors.init("jobs", 21)
    await log.mark()
    document = json.loads(await bucket.get(paths.GARBAGE))
    document[field] = Setsum().insert(b"x").hexdigest() if "sum" in field else {"offset": 18}
    await bucket.put(paths.GARBAGE, json.dumps(document).encode())
    report = await log.unlink()
    assert (Phase.EMPTY, 1) == (report.phase, report.oldest_offset)
    assert 40 == len(await bodies(log))
    assert 20 <= (await collected(log)).oldest_offset <= 21


async def test_a_stale_writer_is_not_told_that_a_collected_slot_counts(
    store, numbers, collected, bodies
):
    """Its put of a deleted slot succeeds, and the proof is gone: it says so (hazard b)."""

    class Standing(cordwood.base.clock.SystemClock):
        def monotonic_s(self):
            return 0.0

    log = await numbers(store, 1)
    await log.cursors.init("jobs", 1)
    # Its clock stands still, so it does not look at the log again before it writes.
    stale = cordwood.Log(cordwood.Store.over(store), "orders", clock=Standing())
    async with stale.writer() as writer:
        await numbers(store, 30)
        await log.cursors.save("jobs", 31, await log.cursors.load("jobs"))
        await collected(log)
        with pytest.raises(UncertainError):
            await writer.append(b"late")
        assert 32 == await writer.append(b"next")
    assert [b"31", b"next"] == (await bodies(log))[-2:]
    assert (await log.scrub(deep=True)).ok


async def test_a_node_of_another_shape_under_the_name_that_a_cut_needs(
    store, numbers, collected, bucket_of, bodies
):
    """Names are sums (hazard d): the cut keeps a fragment more instead of failing."""
    log, bucket = await numbers(store, 60), bucket_of(store)
    await log.cursors.init("jobs", 22)
    await log.mark()
    made = json.loads(await bucket.get(paths.GARBAGE))["snapshots_to_make"]
    assert 1 <= len(made)
    # Another collection gave up, and something else lies under the names now.
    await bucket.delete(paths.GARBAGE)
    for node in made:
        await bucket.put(node["path"], b"{}")
    report = await collected(log)
    assert 15 <= report.oldest_offset < 22
    assert [b"%d" % n for n in range(report.oldest_offset, 61)] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.parametrize("max_fragments", [100, 1_000, 5_000])
async def test_a_million_fragments_are_never_taken_at_once(store, max_fragments):
    """Nodes of 2,048 fragments, as wal3 makes them: a pass stays near its bound all the same."""
    log = cordwood.Log(cordwood.Store.over(store), "orders")
    nodes = []
    for number in range(12):
        first = 1 + number * 2048
        node = tree.make_node([fragment(n) for n in range(first, first + 2048)], "wal3")
        await store.put(f"orders/{node.path}", encode(node))
        nodes.append(node.pointer())
    last = fragment(12 * 2048 + 1)
    manifest = Manifest(
        setsum_hex=Setsum.sum([p.setsum_hex for p in (*nodes, last)]).hexdigest(),
        acc_bytes=1,
        writer="wal3",
        nodes=tuple(nodes),
        fragments=(last,),
    )
    await store.put(f"orders/{paths.MANIFEST}", encode(manifest))
    await log.cursors.init("jobs", last.start)
    garbage = await Collector(log.objects, *CLOCKS).mark(max_fragments=max_fragments)
    assert 0 < garbage.drop_limit - garbage.drop_start <= 2 * max_fragments
    assert len(msgspec.json.encode(garbage)) < 1_000_000


CLOCKS = (cordwood.base.clock.SYSTEM_CLOCK, cordwood.base.clock.SYSTEM_ENTROPY)


def fragment(number):
    """A pointer; there is no such object."""
    setsum = Setsum().insert(b"%d" % number).hexdigest()
    return Fragment.of(paths.fragment(number), number, number, number + 1, 100, setsum)
