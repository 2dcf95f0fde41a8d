"""Topics on a store: lost answers, writers that die, leases that lapse, retention, deletion."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CordwoodError,
    CordwoodWarning,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.log.records import HEADERS_TYPE
from cordwood.store.memory import MemoryStore
from cordwood.testing.dying import DeadError, dying
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked
from cordwood.topics.batch import Columns
from cordwood.topics.config import TopicConfig
from cordwood.topics.reserved import origins, shown, stored
from cordwood.topics.shelf import Shelf


def run(work):
    """A coroutine, where the shelf's own run."""
    return portal.current().run(work)


def made(backend, **how):
    """Topics over a back end, with one of one partition."""
    topics = sync.Topics(cordwood.Store.over(backend))
    topics.create("shop", "clicks", exist_ok=True, **how)
    return topics


def values(backend, **how):
    """What is in the topic, in order."""
    topics = sync.Topics(cordwood.Store.over(backend))
    with topics.consumer("shop", "clicks", timeout_s=0, **how) as consumer:
        return [record.value for record in consumer]


def config(**how):
    """Of a topic with one partition."""
    return [TopicConfig(namespace="shop", topic="clicks", **how)]


# How records lie in a log.


def test_what_a_log_has_no_column_for_travels_in_headers():
    """Times, deleted keys, sequence numbers; consumers see none of them."""
    rng = np.random.default_rng(6)
    count = 50
    texts = [None if rng.random() < 0.3 else rng.bytes(5) for _ in range(count)]
    headers = [
        None if rng.random() < 0.3 else [("h", b"x"), ("i", rng.bytes(3))][: rng.integers(3)]
        for _ in range(count)
    ]
    times = rng.integers(0, 2**60, count)
    columns = Columns(
        pa.array(texts, pa.binary()),
        pa.array([b"k"] * count, pa.binary()),
        pa.array(headers, HEADERS_TYPE),
        times,
    )
    kept = stored(columns.slice(5, 40), 2**64 - 1, np.arange(7, 47, dtype=np.uint64))
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(101, 141), pa.uint64()),
            "timestamp_us": pa.array([1] * 40, pa.uint64()),
            **{name: kept.column(name) for name in kept.schema.names},
        }
    )
    found = shown(batch)
    assert texts[5:45] == found.column("value").to_pylist()
    assert times[5:45].tolist() == found.column("timestamp_us").to_pylist()
    assert list(range(100, 140)) == found.column("offset").to_pylist()
    pairs = [
        [(one["name"], one["value"]) for one in row] for row in found.column("headers").to_pylist()
    ]
    assert [row or [] for row in headers[5:45]] == pairs
    whose = origins(batch)
    assert {2**64 - 1} == set(whose.producers.tolist())
    assert list(range(7, 47)) == whose.sequences.tolist()
    assert list(range(100, 140)) == whose.offsets.tolist()


def test_a_header_of_ours_that_we_did_not_write():
    """Somebody appended to the log itself."""
    headers = pa.array([[("cordwood-time", b"short")]], HEADERS_TYPE)
    batch = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([1], pa.uint64()),
            "timestamp_us": pa.array([1], pa.uint64()),
            "body": pa.array([b"x"]),
            "headers": headers,
        }
    )
    with pytest.raises(CorruptionError, match="not as topics write it"):
        shown(batch)


def test_a_deleted_key_is_told_with_its_time():
    """A record without a value, by all ways to send it."""
    topics = made(MemoryStore())
    with topics.producer("shop", "clicks") as producer:
        producer.send(None, key=b"k", timestamp_us=5)
        producer.send_many([None, b"v"], keys=[b"k", b"k"], headers=[{"a": b"b"}, None])
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        found = list(consumer)
    assert [None, None, b"v"] == [one.value for one in found]
    assert 5 == found[0].timestamp_us < found[1].timestamp_us
    assert [{}, {"a": b"b"}, {}] == [one.headers for one in found]


# Two of us, and answers that are lost.


def test_creators_at_once():
    """One wins, the others are told; the topic is the winner's."""
    store = cordwood.Store.over(MemoryStore())

    async def all_at_once():
        creations = (
            Shelf(store)._create(config(partitions=count) * count) for count in range(1, 5)
        )
        return await asyncio.gather(*creations, return_exceptions=True)

    results = run(all_at_once())
    assert 3 == sum(isinstance(one, AlreadyExistsError) for one in results)
    state = sync.Topics(store).describe("shop", "clicks")
    assert results.index(None) + 1 == len(state.partitions)
    sync.Topics(store).delete("shop", "clicks")


@pytest.mark.parametrize("seed", range(8))
def test_numbered_records_are_there_once_whatever_is_lost(seed):
    """Two processes send the same records through a store that loses answers, and late puts."""
    # EVIDENCE-OF: G-95
    memory = MemoryStore()
    topics = made(memory)
    entropy = SeededEntropy(seed)
    faults = {Fault.ERROR_AFTER: 0.15, Fault.ERROR_BEFORE: 0.1, Fault.ZOMBIE: 0.1}
    faulty = [FaultyStore(memory, entropy, SYSTEM_CLOCK, write_faults=faults) for _ in range(2)]

    async def send(which):
        mine = cordwood.Topics(cordwood.Store.over(faulty[which]))
        async with mine.producer("shop", "clicks", name="p") as producer:
            number = 0
            while number < 60:
                sends = [producer.send(b"%d" % (number + n), sequence=number + n) for n in range(6)]
                found = await asyncio.gather(*sends, return_exceptions=True)
                failed = [one for one in found if isinstance(one, BaseException)]
                assert all(isinstance(one, StoreError | UncertainError) for one in failed)
                if not failed:
                    assert [number + n for n in range(6)] == [one.offset for one in found]
                    number += 6

    async def both():
        await asyncio.gather(send(0), send(1))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, both()).result()
    run(asyncio.wait_for(faulty[0].drain(), 10))
    assert [b"%d" % number for number in range(60)] == values(memory)
    topics.close()


def test_a_record_that_a_dead_writer_left_is_not_doubled():
    """It lies in its slot, and no manifest names it, when another sends it again."""
    memory = MemoryStore()
    alive = made(memory)
    deaths = []

    async def put(call, key, *_):
        if deaths or key.endswith("/MANIFEST"):
            deaths.append(key)
            raise StoreError("the process is dead", applied=False)
        return await call()

    with alive.producer("shop", "clicks", name="p") as producer:
        assert 0 == producer.send(b"0", sequence=0).offset
        dying = sync.Topics(cordwood.Store.over(Hooked(memory, put=put)))
        with (
            dying.producer("shop", "clicks", name="p") as other,
            pytest.raises(CordwoodError),
        ):
            other.send(b"1", sequence=1)
        assert deaths
        assert 1 == producer.send(b"not this", sequence=1).offset
        assert 2 == producer.send(b"2", sequence=2).offset
    assert [b"0", b"1", b"2"] == values(memory)


def test_an_answer_that_is_lost_is_looked_for():
    """A record without a number: it is there once, or nobody knows and it is said."""
    memory = MemoryStore()
    faulty = FaultyStore(memory, SeededEntropy(1), SYSTEM_CLOCK)
    topics = made(faulty)
    with topics.producer("shop", "clicks") as producer:
        producer.send(b"0")
        faulty.script("put", Fault.ERROR_AFTER)
        assert 1 == producer.send(b"1").offset
        faulty.script("put", Fault.NONE, Fault.ERROR_AFTER)
        assert 2 == producer.send(b"2").offset
        faulty.script("put", Fault.ZOMBIE)
        with pytest.raises((UncertainError, StoreError)):
            producer.send(b"3")
        run(faulty.drain())
        producer.send(b"4")
    found = values(memory)
    assert found in ([b"0", b"1", b"2", b"4"], [b"0", b"1", b"2", b"3", b"4"])


def test_a_number_that_is_on_its_way_is_waited_for():
    """The same record twice at once, in one process: it is written once."""
    memory = MemoryStore()
    made(memory)

    async def twice():
        topics = cordwood.Topics(cordwood.Store.over(memory))
        async with topics.producer("shop", "clicks", name="p") as producer:
            sends = [producer.send(b"%d" % (n // 2), sequence=n // 2) for n in range(20)]
            found = await asyncio.gather(*sends)
            with pytest.raises(ConflictError, match="rise"):
                await asyncio.gather(
                    producer.send(b"", sequence=30), producer.send(b"", sequence=20)
                )
            return [where.offset for where in found]

    with ThreadPoolExecutor(1) as pool:
        assert [n // 2 for n in range(20)] == pool.submit(asyncio.run, twice()).result()
    assert [b"%d" % n for n in range(10)] == values(memory)[:10]


# Groups.


class Peers:
    """Consumers of one group, on a store whose clock the test has in hand."""

    def __init__(self):
        self.clock = HandClock()
        self.memory = MemoryStore(clock=self.clock)
        self.backend = self.memory
        topics = sync.Topics(cordwood.Store.over(self.memory), clock=self.clock)
        topics.create("shop", "clicks", partitions=4)
        self.topics = topics

    def member(self, backend=None):
        """One more."""
        store = cordwood.Store.over(backend or self.memory)
        return Shelf(store, clock=self.clock).join("shop", "clicks", "g")

    def position(self, partition):
        """Where the group goes on."""
        return Shelf(cordwood.Store.over(self.memory)).groups("shop", "clicks")["g"].get(partition)

    def sleep(self, member):
        """A member that hears and says nothing any more."""
        member._lease._work.cancel()


def test_members_agree_and_hand_over():
    """Nobody takes what another has not given up, and positions go along."""
    peers = Peers()
    one = peers.member()
    assert {0, 1, 2, 3} == one.owned()
    one.commit({0: 10, 3: 13})
    other = peers.member()
    assert set() == other.owned()
    mine = one.owned()
    theirs = other.owned()
    assert (2, 2, {0, 1, 2, 3}) == (len(mine), len(theirs), mine | theirs)
    assert {0: 10, 3: 13} == one.positions() | other.positions()
    lost = min(theirs)
    with pytest.raises(ConflictError, match="another member's"):
        one.commit({lost: 99})
    assert 99 != peers.position(lost)
    one.leave()
    one.leave()
    assert {0, 1, 2, 3} == other.owned()
    other.leave()
    assert [] == [key for key in peers.memory._objects if "/members/" in key]


def test_a_member_that_slept_too_long_commits_nothing():
    """Its partitions are others', with the positions that it had committed."""
    # EVIDENCE-OF: G-95
    peers = Peers()
    asleep, awake = peers.member(), peers.member()
    mine = asleep.owned()
    asleep.commit(dict.fromkeys(mine, 5))
    peers.sleep(asleep)
    peers.clock.pass_s(10)
    run(awake._lease._renew())
    assert len(mine) + len(awake.owned()) == 4  # Its lease still holds for others.
    peers.clock.pass_s(10)
    run(awake._lease._renew())
    assert {0, 1, 2, 3} == awake.owned()
    assert dict.fromkeys(mine, 5) == {n: awake.positions()[n] for n in mine}
    awake.commit(dict.fromkeys(mine, 6))
    for partition in mine:
        with pytest.raises(ConflictError, match="not committed"):
            asleep.commit({partition: 7})
        assert 6 == peers.position(partition)
    assert set() == asleep.owned()  # It is back, as a new one, with nothing.
    run(awake._lease._renew())
    awake.owned()
    assert 2 == len(asleep.owned())


def test_a_commit_is_fenced_even_if_a_member_trusts_its_lease():
    """Its clock stood still: the store decides, not the clock."""
    peers = Peers()
    asleep = peers.member()
    asleep.owned()
    peers.sleep(asleep)
    peers.clock.pass_s(20)
    awake = peers.member()
    assert {0, 1, 2, 3} == awake.owned()
    asleep._lease._renewed_s = peers.clock.monotonic_s()
    with pytest.raises(ConflictError, match="not committed"):
        asleep.commit({0: 7})
    assert peers.position(0) is None


def test_commits_whose_answers_are_lost():
    """Are found to be there, or made again; and none that is late undoes a later one."""
    peers = Peers()
    faulty = FaultyStore(peers.memory, SeededEntropy(3), SYSTEM_CLOCK)
    member = peers.member(faulty)
    member.owned()
    for number, fault in enumerate((Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.THROTTLED), 1):
        faulty.script("put", fault)
        member.commit({0: number})
        assert number == peers.position(0)
    faulty.script("put", Fault.ZOMBIE)
    with suppress(ConflictError):
        member.commit({0: 8})
    run(faulty.drain())
    assert 8 == peers.position(0)
    faulty.script("put", *[Fault.THROTTLED] * 9)
    with pytest.raises(StoreError):
        member.commit({1: 9})


def test_groups_that_cannot_be(tmp_path):
    """A group is named as a topic is, wherever it is kept."""
    for place in (tmp_path, cordwood.Store("memory:")):
        topics = sync.Topics(place)
        topics.create("shop", "clicks")
        for wrong in ("../up", "", "a b"):
            with (
                pytest.raises(InvalidInputError, match="group"),
                topics.consumer("shop", "clicks", group=wrong),
            ):
                pass
            with pytest.raises(InvalidInputError, match="group"):
                topics.delete_group("shop", "clicks", wrong)


# Retention and the end.


def test_retention_by_time_and_by_size():
    """Whoever comes too late is told, and groups hold back nothing."""
    clock = HandClock()
    memory = MemoryStore(clock=clock)
    shelf = Shelf(cordwood.Store.over(memory), clock=clock)
    topics = sync.Topics(cordwood.Store.over(memory), clock=clock)
    topics.create("shop", "clicks", retention_s=3600)
    with topics.producer("shop", "clicks") as producer:
        for number in range(6):
            producer.send(b"%d" % number)
            clock.pass_s(1000)
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        next(iter(consumer))
        consumer.commit()
        assert 3 == shelf.retain("shop", "clicks")
        assert 0 == shelf.retain("shop", "clicks")
        assert (3, 6) == shelf.partition("shop", "clicks", 0).bounds()
        with pytest.warns(CordwoodWarning, match="records 1 to 2 were deleted"):
            assert [b"3", b"4", b"5"] == [record.value for record in consumer]
    clock.pass_s(99_999)
    shelf.retain("shop", "clicks")
    assert (6, 6) == shelf.partition("shop", "clicks", 0).bounds()
    clock.pass_s(1000)
    shelf.retain("shop", "clicks")
    assert [] == [key for key in memory._objects if "/log/" in key]
    with topics.producer("shop", "clicks") as producer:
        assert 6 == producer.send(b"6").offset
    topics.create("shop", "small", retention_s=None, retention_bytes=2500)
    with topics.producer("shop", "small") as producer:
        for number in range(9):
            producer.send(b"%d" % number)
    assert 9 > shelf.retain("shop", "small") > 3
    topics.close()


def test_a_deletion_that_was_cut_off_is_finished():
    """In every request, by whoever deletes it again, or makes it anew; until then it is gone."""
    steps = 0
    for cut in range(1, 200):
        for takes_effect in (False, True):
            memory = MemoryStore()
            topics = made(memory, partitions=2)
            with topics.producer("shop", "clicks") as producer:
                producer.send_many([b"x"] * 4)
            topics.close()
            store = cordwood.Store.over(dying(memory, cut, takes_effect=takes_effect))
            try:
                sync.Topics(store).delete("shop", "clicks")
            except DeadError:
                steps += 1
            else:
                assert steps > 30
                assert [] == list(memory._objects)
                return
            fresh = sync.Topics(cordwood.Store.over(memory))
            if cut % 2:
                wanted = 2 if fresh.list() else 1  # Not even begun, or made anew.
                fresh = made(memory)
                assert wanted == len(fresh.describe("shop", "clicks").partitions)
            with suppress(NotFoundError):
                fresh.delete("shop", "clicks")
            assert [] == list(memory._objects)
            assert [] == fresh.list()


def test_a_creation_that_was_cut_off_leaves_no_topic():
    """In every request; the next one makes it, as it wants to have it."""
    for cut in range(1, 100):
        for takes_effect in (False, True):
            memory = MemoryStore()
            store = cordwood.Store.over(dying(memory, cut, takes_effect=takes_effect))
            try:
                Shelf(store).create(config(partitions=3) * 3)
            except DeadError:
                pass
            else:
                assert cut > 10
                return
            fresh = sync.Topics(cordwood.Store.over(memory))
            if fresh.list():
                assert takes_effect
                assert 3 == len(fresh.describe("shop", "clicks").partitions)
                continue
            fresh.create("shop", "clicks", partitions=1)
            assert 1 == len(fresh.describe("shop", "clicks").partitions)
            with fresh.producer("shop", "clicks") as producer:
                assert (0, 0) == producer.send(b"x")
            fresh.close()


def test_compaction_topics_live_in_a_directory():
    """It is said when one is made."""
    with pytest.raises(InvalidInputError, match="directory"):
        made(MemoryStore(), compaction=True)


# Processes that are killed.

SENDER = """
import sys
from cordwood import Store, sync
topics = sync.Topics(Store(sys.argv[1]))
with topics.producer("shop", "clicks", name="p") as producer:
    for number in range(int(sys.argv[2]), 10_000):
        offset = producer.send(b"%d" % number, sequence=number).offset
        print(number, offset, flush=True)
"""


def test_producers_that_are_killed_lose_and_double_nothing(tmp_path):
    """Each goes on with the first record whose answer was not heard."""
    url = f"file://{tmp_path}"
    rng = np.random.default_rng(6)
    sync.Topics(cordwood.Store(url)).create("shop", "clicks")
    heard = {}
    for _ in range(4):
        command = [sys.executable, "-c", SENDER, url, str(len(heard))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(rng.integers(5, 30)):
                number, offset = map(int, child.stdout.readline().split())
                assert offset == heard.setdefault(number, offset)
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines(keepends=True)
            heard |= {
                int(line.split()[0]): int(line.split()[1]) for line in rest if line[-1] == "\n"
            }
    with sync.Topics(cordwood.Store(url)) as topics:
        with topics.producer("shop", "clicks", name="p") as producer:
            producer.send(b"%d" % len(heard), sequence=len(heard))
        with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
            found = {int(record.value): record.offset for record in consumer}
    assert list(range(len(found))) == list(found)
    assert all(found[number] == offset for number, offset in heard.items())


def test_partitions_are_asked_at_once():
    """A consumer that waits sends one HEAD for each, and none waits for another's answer."""
    asked, most = [], 0
    flying = 0

    async def head(call, key):
        nonlocal flying, most
        asked.append(key)
        flying += 1
        most = max(most, flying)
        for _ in range(50):
            await asyncio.sleep(0)
        flying -= 1
        return await call()

    memory = MemoryStore()
    topics = made(memory, partitions=8)
    with topics.producer("shop", "clicks") as producer:
        for partition in range(8):
            producer.send(b"%d" % partition, partition=partition)
    watched = sync.Topics(cordwood.Store.over(Hooked(memory, head=head)))
    with watched.consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [b"%d" % number for number in range(8)] == [one.value for one in consumer]
        assert [] == list(consumer)
        asked.clear()
        assert [] == list(consumer)
        assert 8 == len([key for key in asked if key.endswith("MANIFEST")])
        assert 1 < most <= 16
        with topics.producer("shop", "clicks") as producer:
            producer.send(b"more", partition=5)
        assert [b"more"] == [one.value for one in consumer]
    topics.close()


def test_a_producer_of_a_deleted_topic_of_chains_harms_no_new_one():
    """Its logs leave their last manifests, so that no name of theirs is used twice."""
    # EVIDENCE-OF: G-127
    store = cordwood.Store.over(MemoryStore(), "gs://bucket")
    topics, other = sync.Topics(store), sync.Topics(store)
    topics.create("shop", "clicks")
    with topics.producer("shop", "clicks") as producer:
        producer.send(b"old")
        other.delete("shop", "clicks")
        assert [] == list(other.list())
        other.create("shop", "clicks")
        with other.producer("shop", "clicks") as later:
            later.send(b"new")
        with pytest.raises(NotFoundError, match="no topic"):
            producer.send(b"late")
    with sync.Topics(store).consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [b"new"] == [record.value for record in consumer]
    log = sync.Log(store, "shop/clicks/0")
    assert ("chain", True) == (log.state().protocol, log.scrub(deep=True).ok)
