"""The parts of a collection: runs of slots, what is held, the pace of deletes, the phases."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import CorruptionError
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.log import deletion, tree
from cordwood.log.collect import Collector, CollectReport
from cordwood.log.deletion import Deleter, Held, Slots
from cordwood.log.format import NodePointer, Position, decode, encode
from cordwood.log.garbage import Phase, load_garbage
from cordwood.log.holds import Hold
from cordwood.log.objects import LogObjects
from cordwood.store.api import Object
from cordwood.store.memory import MemoryStore

RUNS = st.lists(st.builds(Slots, st.integers(0, 40), st.integers(0, 40)), max_size=8)


def numbers(runs):
    """The slots of some runs."""
    return {n for run in runs for n in range(run.first_seq_no, run.limit_seq_no)}


@given(RUNS)
def test_merged_runs_are_the_same_slots(runs):
    """In order, and none touches the next; so merging again changes nothing."""
    merged = deletion._merged(runs)
    assert numbers(runs) == numbers(merged)
    assert all(a.limit_seq_no < b.first_seq_no for a, b in pairwise(merged))
    assert merged == deletion._merged(merged)


@given(RUNS, RUNS)
def test_what_is_kept_is_taken_out(runs, kept):
    """Exactly."""
    merged = deletion._merged(runs)
    left = deletion._without(merged, deletion._merged(kept))
    assert numbers(left) == numbers(runs) - numbers(kept)
    assert sum(map(len, left)) == len(numbers(left))


# The object.


LOG = "a" * 32
PAST = msgspec.structs.replace(
    tree.empty(tree.WriterTag(LOG, "b" * 32, LOG, 0)),
    initial_offset_position=Position(2_000),
    initial_seq_no=2_000,
)


def node(number):
    """A pointer; there is no such object."""
    name = f"{number:064x}"
    return NodePointer(
        name, f"snapshot/SNAPSHOT.{name}", 1, Position(number), Position(number + 8), 1
    )


def test_the_bytes_of_held():
    """Runs of slots and pointers of nodes."""
    held = Held(log=LOG, slots=(Slots(3, 9),), nodes=(node(1),))
    data = encode(held, "x")
    assert decode(Held, data, "x") == held
    assert data.startswith(
        b'{"format":1,"log":"' + LOG.encode() + b'",'
        b'"slots":[{"first_seq_no":3,"limit_seq_no":9}],"nodes":[{"setsum":'
    )


@pytest.mark.parametrize(
    "wrong",
    [
        Held(log=LOG, slots=(Slots(9, 3),), nodes=()),
        Held(log=LOG, slots=(Slots(-1, 3),), nodes=()),
        Held(format=2, log=LOG, slots=(), nodes=()),
        Held(
            log=LOG,
            slots=(),
            nodes=(NodePointer("0" * 64, "manifest/MANIFEST", 1, Position(1), Position(2), 1),),
        ),
    ],
)
def test_a_held_that_cannot_be_is_refused(wrong):
    """It could have anything deleted."""
    with pytest.raises(CorruptionError):
        encode(wrong, "x")


# Deleting.


class Remembering(MemoryStore):
    """A memory that remembers what was deleted, with a log that is past slot 2,000."""

    def __init__(self):
        """Nothing yet."""
        super().__init__()
        self.batches = []

    async def get(self, key):
        """The manifest is always there."""
        if key == "log/manifest/MANIFEST":
            return Object(encode(PAST), "etag")
        return await super().get(key)

    async def delete(self, keys):
        """Note it."""
        self.batches.append(list(keys))
        await super().delete(self.batches[-1])


@pytest.fixture
def held_by(monkeypatch):
    """`held_by(hold, …)`: these holds count from now on."""

    def install(*holds):
        async def found(objects, entropy):
            return list(holds)

        monkeypatch.setattr(deletion, "live_holds", found)

    return install


async def test_deletes_come_in_batches_with_progress(held_by):
    """Five hundred at a time, and the key of HELD at last."""
    held_by()
    store, seen = Remembering(), []
    deleter = Deleter(
        LogObjects(store, "log"),
        SYSTEM_ENTROPY,
        progress=lambda done, total: seen.append((done, total)),
    )
    await deleter.delete(Held(log=LOG, slots=(Slots(1, 1_101),), nodes=(node(1),)), "nonce")
    assert [500, 500, 101, 1] == [len(batch) for batch in store.batches]
    assert [(500, 1101), (1000, 1101), (1101, 1101)] == seen
    assert 1101 == deleter.done.count


async def test_a_rate_waits_between_steps(held_by, monkeypatch):
    """No step is larger than a second's worth, and nothing is waited for after the last."""
    held_by()
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(deletion.asyncio, "sleep", sleep)
    store = Remembering()
    deleter = Deleter(LogObjects(store, "log"), SYSTEM_ENTROPY, rate=10.0)
    await deleter.delete(Held(log=LOG, slots=(Slots(1, 26),), nodes=()), "nonce")
    assert [10, 10, 5, 1] == [len(batch) for batch in store.batches]
    assert [1.0, 1.0] == slept


async def test_what_is_held_is_written_down_before_anything_goes(held_by):
    """Slots by number, nodes by what they cover."""
    held_by(Hold("pin 'a'", 5, 9, 5, 9), Hold("pin 'b'", 7, 12, 7, 12), Hold("far", 90, 99, 90, 99))
    store = Remembering()
    deleter = Deleter(LogObjects(store, "log"), SYSTEM_ENTROPY)
    await deleter.delete(Held(log=LOG, slots=(Slots(1, 20),), nodes=(node(1), node(12))), "n")
    written = json.loads((await store.get("log/gc/HELD-n")).data)
    assert [{"first_seq_no": 5, "limit_seq_no": 12}] == written["slots"]
    assert [node(1).path] == [n["path_to_snapshot"] for n in written["nodes"]]
    assert ["pin 'a'", "pin 'b'"] == deleter.done.held
    assert 19 - 7 + 1 == deleter.done.count


async def test_what_is_held_whole_is_written_down_too(held_by):
    """Then nothing goes at all."""
    held_by(Hold("pin", 1, 100, 1, 100))
    store = Remembering()
    deleter = Deleter(LogObjects(store, "log"), SYSTEM_ENTROPY)
    await deleter.delete(Held(log=LOG, slots=(Slots(1, 20),), nodes=()), "n")
    assert [] == store.batches
    assert b"HELD" not in (await store.get("log/gc/HELD-n")).data
    await deleter.delete_held("")
    assert [] == store.batches
    held_by()
    await deleter.delete_held("n")
    assert [] == store.batches  # its own sweep is under way
    await deleter.delete_held("another")
    assert [19, 1] == [len(batch) for batch in store.batches]
    assert [] == [meta.key async for meta in store.list("log/gc/")]


# Phases.


@pytest.fixture
async def log():
    """A log of twenty fragments with a cursor."""
    log = cordwood.Log(cordwood.Store.over(MemoryStore()), "log")
    await log.create(grace_s=600)
    async with log.writer(options=cordwood.Options(batch_bytes=1)) as writer:
        await asyncio.gather(*(writer.append(b"x") for _ in range(20)))
    await log.cursors.init("jobs", 11)
    return log


@pytest.fixture
def collector(log):
    """Its collector."""
    return Collector(log.objects, SYSTEM_CLOCK, SYSTEM_ENTROPY)


async def test_marking_twice_is_marking_once(collector):
    """The second finds what is written."""
    first = await collector.mark()
    assert first == await collector.mark()
    assert Phase.MARKED is first.phase


async def test_unlinking_twice_is_unlinking_once(log, collector):
    """The manifest is replaced once."""
    await collector.mark()
    first = await collector.unlink()
    etag = (await log.objects.load()).etag
    assert first == await collector.unlink()
    assert etag == (await log.objects.load()).etag


async def test_unlinking_and_sweeping_nothing(log, collector):
    """Nothing happens, nothing is written."""
    before = [meta.key async for meta in log.store.list("")]
    assert Phase.EMPTY is (await collector.unlink()).phase
    assert CollectReport() == (await collector.sweep())[1]
    assert before == [meta.key async for meta in log.store.list("")]


async def test_the_states_of_one_garbage_share_its_nonce(log, collector):
    """And the next has another."""
    marked = await collector.mark()
    assert marked.nonce == (await collector.unlink()).nonce
    await collector._put(
        (await load_garbage(log.objects)).garbage.in_phase(Phase.CANCELLED),
        (await load_garbage(log.objects)).etag,
    )
    # Cancelled, but applied already: it counts as unlinked.
    assert Phase.UNLINKED is (await collector.unlink()).phase


async def test_a_cancelled_garbage_is_finished_by_anybody(log, collector):
    """Whoever meets it has the manifest replaced and empties it."""
    marked = await collector.mark()
    seen = await load_garbage(log.objects)
    await collector._put(marked.in_phase(Phase.CANCELLED), seen.etag)
    etag = (await log.objects.load()).etag
    ended = await collector.unlink()
    assert Phase.EMPTY is ended.phase
    assert marked.nonce != ended.nonce
    assert etag != (await log.objects.load()).etag
    assert 1 == (await log.state()).oldest_offset


async def test_a_collection_that_gave_up_says_so(log, monkeypatch):
    """Which is not the same as one that found nothing to free."""

    async def does_not_fit(self, garbage):
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "_replace_manifest", does_not_fit)
        report = await log.collect(wait_s=0)
        assert (0, True) == (report.records, report.gave_up)
    report = await log.collect(wait_s=0)
    assert (10, False) == (report.records, report.gave_up)
    assert not (await log.collect(wait_s=0)).gave_up
