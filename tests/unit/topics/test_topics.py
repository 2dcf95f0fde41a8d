"""Topics, wherever they live: what is sent is read, in order, once, by whoever should read it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import sync
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CordwoodWarning,
    CorruptionError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
)
from cordwood.journal import journal
from cordwood.log.records import HEADERS_TYPE
from cordwood.topics import names
from cordwood.topics.engine import Where

SMALL = 16 << 10


@pytest.fixture(params=["folder", "memory", "store"])
def place(request, tmp_path):
    """A directory, a store in memory, a directory as a store."""
    path = tmp_path / "topics"
    places = {"folder": lambda: path, "memory": lambda: cordwood.Store("memory:")}
    return places.get(request.param, lambda: cordwood.Store(f"file://{path}"))()


@pytest.fixture
def topics(place):
    """Topics, one of them made."""
    with sync.Topics(place) as made:
        made.place = place
        made.create("shop", "clicks", partitions=4, extent_bytes=SMALL)
        yield made


def again(topics):
    """The same, as another process has them."""
    return sync.Topics(topics.place)


def left(place):
    """What there is, be it of a topic or not."""
    if not isinstance(place, cordwood.Store):
        return os.listdir(place)

    async def keys():
        return [meta.key async for meta in place.list() if not meta.key.startswith("_")]

    return asyncio.run(keys())


in_folder = pytest.mark.parametrize("place", ["folder"], indirect=True)
in_files = pytest.mark.parametrize("place", ["folder", "store"], indirect=True)


def records(topics, topic="clicks", **how):
    """All records, as they come."""
    how.setdefault("timeout_s", 0)
    with topics.consumer("shop", topic, **how) as consumer:
        return list(consumer)


def test_a_record_comes_back_as_it_was_sent(topics):
    """With key, headers and time; and where it is is known."""
    with topics.producer("shop", "clicks") as producer:
        where = producer.send(b"v", key=b"k", headers={"h": b"x"}, timestamp_us=7)
        producer.send(b"")
    found = {record.value: record for record in records(topics)}
    assert (*where, 7, b"k", b"v", {"h": b"x"}) == tuple(found[b"v"])
    assert (None, {}) == (found[b""].key, found[b""].headers)
    assert found[b""].timestamp_us > 1_700_000_000_000_000


def test_records_of_a_key_are_in_one_partition_in_order(topics):
    """Whichever way they are sent, over many extents."""
    # EVIDENCE-OF: G-89
    keys = [b"key %d" % (number % 7) for number in range(700)]
    values = [b"%0100d" % number for number in range(700)]
    with topics.producer("shop", "clicks") as producer:
        sent = producer.send_many(values, keys=keys)
        table = pa.table({"value": values, "key": keys, "timestamp_us": [5] * 700})
        assert 700 == len(producer.send_arrow(table))
        last = producer.send(b"last", key=keys[0])
    assert last.partition == names.partition_of(keys[0], 4)
    assert sent[0] == Where(names.partition_of(keys[0], 4), sent[0].offset)
    for consumed in (records(topics), records(again(topics))):
        for partition in range(4):
            mine = [record for record in consumed if record.partition == partition]
            assert list(range(len(mine))) == [record.offset for record in mine]
            for key in set(keys):
                of_key = [int(one.value) for one in mine if one.key == key and one.value != b"last"]
                half = len(of_key) // 2
                assert of_key == [*sorted(of_key[:half]), *sorted(of_key[half:])]
                assert not of_key or names.partition_of(key, 4) == partition


def test_partitions_can_be_chosen_and_others_take_turns(topics):
    """By number, by a column, or one after the other for records without a key."""
    with topics.producer("shop", "clicks") as producer:
        assert 3 == producer.send(b"a", key=b"k", partition=3).partition
        table = pa.table({"value": [b"x", b"y"], "partition": [2, None]})
        assert 2 == producer.send_arrow(table)[0].partition
        assert {0, 1, 2, 3} == {producer.send(b"z").partition for _ in range(4)}
        for wrong in (4, -1):
            with pytest.raises(InvalidInputError, match="no partition"):
                producer.send(b"a", partition=wrong)
        with pytest.raises(InvalidInputError, match="no partition"):
            producer.send_arrow(pa.table({"value": [b"x"], "partition": [9]}))


def test_a_consumer_follows_what_is_sent(topics):
    """Until it is stopped; with a timeout, until nothing has come for so long."""
    seen, enough = [], threading.Event()

    def consume():
        with again(topics).consumer("shop", "clicks") as consumer:
            for record in consumer:
                seen.append(record.value)
                if len(seen) == 30:
                    enough.set()
                    consumer.stop()

    reading = threading.Thread(target=consume)
    reading.start()
    with topics.producer("shop", "clicks") as producer:
        for number in range(30):
            producer.send(b"%d" % number)
    assert enough.wait(30)
    reading.join()
    assert {b"%d" % number for number in range(30)} == set(seen)


def test_a_group_goes_on_where_it_committed(topics):
    """And a new one begins with the oldest, unless it is told otherwise."""
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"%d" % number for number in range(40)])
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        first = [record.value for record in islice(consumer, 15)]
        consumer.commit()
        next(iter(consumer))  # Not committed: it comes again.
    rest = [record.value for record in records(topics, group="g")]
    assert sorted(first + rest) == sorted(b"%d" % number for number in range(40))
    assert 40 == len(records(topics, group="other"))
    assert [] == records(topics, group="third", start="newest")
    assert [] == records(again(topics), group="fourth", start="newest")
    lag = topics.lag("shop", "clicks", "g")
    assert 40 - 15 == sum(one.records for one in lag)
    assert ["fourth", "g", "other", "third"] == topics.describe("shop", "clicks").groups
    topics.delete_group("shop", "clicks", "g")
    assert 40 == len(records(topics, group="g"))
    with pytest.raises(NotFoundError):
        topics.delete_group("shop", "clicks", "none")
    with pytest.raises(NotFoundError, match="no group"):
        topics.lag("shop", "clicks", "none")


def test_members_of_a_group_share_the_partitions(topics):
    """Each is read by one of them; whoever leaves gives up its own."""
    # EVIDENCE-OF: G-92
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"x"] * 40)
    one = topics.consumer("shop", "clicks", group="g", timeout_s=0)
    other = again(topics).consumer("shop", "clicks", group="g", timeout_s=0)
    with one:
        assert 40 == len(list(one))
        assert frozenset(range(4)) == one.assigned
        one.commit()
        with other:
            one._consuming._refreshed_s = float("-inf")
            assert [] == list(one)
            assert [] == list(other)
            assert 2 == len(one.assigned) == len(other.assigned)
            assert frozenset(range(4)) == one.assigned | other.assigned
            lost = next(iter(other.assigned))
            with pytest.raises(ConflictError, match="another member"):
                one.commit({lost: 0})
            with pytest.raises(StateError, match="members"):
                topics.delete_group("shop", "clicks", "g")
        one._consuming._refreshed_s = float("-inf")
        assert [] == list(one)
        assert frozenset(range(4)) == one.assigned


@in_folder
def test_a_member_that_is_killed_frees_its_partitions(topics):
    """At once; others go on from its last commit."""
    # EVIDENCE-OF: G-92
    with topics.producer("shop", "clicks") as producer:
        producer.send_arrow(pa.table({"value": [b"x"] * 40, "partition": [0, 1] * 20}))
    code = """
import sys
from cordwood import sync
with sync.Topics(sys.argv[1]).consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
    list(consumer)
    consumer.commit({0: 5})
    print(sorted(consumer.assigned), flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, topics.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as member:
        assert b"[0, 1, 2, 3]" == member.stdout.readline().strip()
        member.kill()
    assert 35 == len(records(topics, group="g"))


@pytest.mark.parametrize("ack", ["journal", "flush"])
def test_threads_and_tasks_share_a_sync(tmp_path, ack):
    """Everybody's records are there, once."""
    topics = sync.Topics(tmp_path)
    topics.create("shop", "busy", ack=ack, flush_period_s=0.01)
    with topics.producer("shop", "busy") as producer:

        def work(who):
            for number in range(50):
                producer.send(b"%d %d" % (who, number))

        threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def all_tasks():
        async with cordwood.Topics(tmp_path).producer("shop", "busy") as sender:
            return await asyncio.gather(
                *(sender.send(b"t %d" % number) for number in range(300)),
                sender.send_many([b"many"] * 10),
            )

    found = asyncio.run(all_tasks())
    assert 300 == len({where.offset for where in found[:300]})
    if ack == "flush":
        topics.close()
    values = [record.value for record in records(sync.Topics(tmp_path), "busy")]
    assert 400 + 300 + 10 == len(values)
    for who in range(8):
        mine = [value for value in values if value.startswith(b"%d " % who)]
        assert [b"%d %d" % (who, number) for number in range(50)] == mine


def test_large_sends_at_once_are_told_where_each_record_is(topics):
    """They go in parts, between which those of others are."""
    topics.create("shop", "large")
    told = {}

    def work(who):
        values = [b"%d %d" % (who, number) + bytes(1000) for number in range(1500)]
        for where, value in zip(producer.send_many(values), values, strict=True):
            told[where.offset] = value

    with topics.producer("shop", "large") as producer:
        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {one.offset: one.value for one in records(topics, "large")} == told


def test_async_consumers(topics):
    """The same as the blocking ones."""

    async def work():
        async with cordwood.Topics(topics.place) as mine:
            async with mine.producer("shop", "clicks") as producer:
                await producer.send_many([b"x"] * 20)
            async with mine.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
                found = [record async for record in consumer]
                await consumer.commit()
            async with mine.consumer("shop", "clicks", timeout_s=0) as consumer:
                rows = [one.batch.num_rows async for one in consumer.batches()]
            return len(found), sum(rows), await mine.lag("shop", "clicks", "g")

    count, rows, lag = asyncio.run(work())
    assert (20, 20, 0) == (count, rows, sum(one.records for one in lag))


def test_ids_stand_for_names(topics):
    """The 64-bit hash of the text."""
    state = topics.describe("shop", "clicks")
    assert (names.name_id("shop"), names.name_id("clicks")) == (state.namespace_id, state.topic_id)
    with topics.producer(state.namespace_id, state.topic_id) as producer:
        producer.send(b"x")
    with topics.consumer(state.namespace_id, "clicks", timeout_s=0) as consumer:
        assert 1 == len(list(consumer))
    with pytest.raises(NotFoundError):
        topics.describe(1, 2)


def test_an_id_that_two_names_have_is_refused(topics, monkeypatch):
    """Instead of mixing the records of two topics."""
    monkeypatch.setattr("cordwood.topics.folder.name_id", len)
    monkeypatch.setattr("cordwood.topics.shelf.name_id", len)
    with pytest.raises(AlreadyExistsError, match="same id"):
        topics.create("shop", "sounds")
    with pytest.raises(AlreadyExistsError, match="same id"):
        topics.create("cafe", "other")
    topics.create("shop", "other")


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "a b", "ä", "x" * 300, "a\0b", "a\nb", "a.b", 5, None, b"x"]
)
def test_names_that_cannot_be(topics, name):
    """One clear error, and nothing is made."""
    for namespace, topic in ((name, "t"), ("n", name)):
        with pytest.raises(InvalidInputError, match=r"name|text"):
            topics.create(namespace, topic)
    assert [("shop", "clicks")] == topics.list()


def test_properties_and_what_is_described(topics):
    """Those of the topic and those of each partition."""
    topics.create(
        "shop",
        "rich",
        partitions=2,
        properties={"owner": "a"},
        partition_properties={1: {"rack": "b"}},
        retention_s=None,
        retention_bytes=10,
    )
    state = again(topics).describe("shop", "rich")
    assert {"owner": "a"} == state.config.properties
    assert [{}, {"rack": "b"}] == [one.properties for one in state.partitions]
    assert (None, 10) == (state.config.retention_s, state.config.retention_bytes)
    assert [("shop", "clicks"), ("shop", "rich")] == topics.list()
    assert [] == topics.list("none")
    with pytest.raises(AlreadyExistsError):
        topics.create("shop", "rich")
    topics.create("shop", "rich", exist_ok=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 0},
        {"partitions": 1025},
        {"partitions": 1.5},
        {"ack": "maybe"},
        {"retention_s": -1},
        {"retention_s": "week"},
        {"retention_bytes": -1},
        {"flush_period_s": 0.001},
        {"extent_bytes": 100},
        {"properties": {"a": 1}},
        {"partition_properties": {7: {}}},
        {"partition_properties": {0: {"a": 5}}},
    ],
)
def test_topics_that_cannot_be(topics, wrong):
    """Say what is wrong."""
    with pytest.raises(InvalidInputError):
        topics.create("shop", "wrong", **wrong)
    assert [("shop", "clicks")] == topics.list()


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "text"},
        {"value": None},
        {"value": b"", "key": "text"},
        {"value": b"", "headers": [("a", b"b")]},
        {"value": b"", "headers": {"a": "b"}},
        {"value": b"", "headers": {"cordwood-a": b"b"}},
        {"value": b"", "timestamp_us": -1},
        {"value": b"", "timestamp_us": 1.5},
        {"value": b"", "sequence": 1},
    ],
)
def test_records_that_cannot_be(topics, wrong):
    """Are refused before anything is written."""
    with topics.producer("shop", "clicks") as producer:
        with pytest.raises(InvalidInputError):
            producer.send(**wrong)
        for rows in ("text", [1], [b"a", "b"]):
            with pytest.raises(InvalidInputError):
                producer.send_many(rows)
        with pytest.raises(InvalidInputError, match="2 values and 1 keys"):
            producer.send_many([b"a", b"b"], keys=[b"k"])
        ours = pa.array([[{"name": "cordwood-time", "value": b""}]], HEADERS_TYPE)
        with pytest.raises(InvalidInputError, match="not for records"):
            producer.send_many([b"a"], headers=[{"cordwood-null": b""}])
        with pytest.raises(InvalidInputError, match="not for records"):
            producer.send_arrow(pa.table({"value": [b"a"], "headers": ours}))
        for table in (pa.table({"x": [1]}), pa.table({"value": [1]}), "no table"):
            with pytest.raises(InvalidInputError):
                producer.send_arrow(table)
    assert [] == records(topics)


@in_folder
def test_a_record_larger_than_an_extent_is_refused(topics):
    """Those before it may be there, and nothing else."""
    with topics.producer("shop", "clicks") as producer:
        with pytest.raises(LimitError, match="does not fit"):
            producer.send(bytes(SMALL))
        with pytest.raises(LimitError, match="does not fit"):
            producer.send_many([b"a", bytes(SMALL), b"b"])
    assert all(record.value in (b"a", b"b") for record in records(topics))


def test_a_retry_is_not_doubled(topics):
    """By sequence number, in this process and after it; gaps are allowed, going back is not."""
    # EVIDENCE-OF: G-94
    with topics.producer("shop", "clicks", name="p") as producer:
        first = [producer.send(b"%d" % number, partition=1, sequence=number) for number in range(9)]
        again_ = [producer.send(b"?", partition=1, sequence=number) for number in range(9)]
    assert first == again_
    with again(topics).producer("shop", "clicks", name="p") as producer:
        assert first[4] == producer.send(b"?", partition=1, sequence=4)
        assert 9 == producer.send(b"9", partition=1, sequence=20).offset
        with pytest.raises(ConflictError, match="rise"):
            producer.send(b"?", partition=1, sequence=15)
    with again(topics).producer("shop", "clicks", name="q") as producer:
        assert 10 == producer.send(b"10", partition=1, sequence=4).offset
    values = [record.value for record in records(topics)]
    assert [b"%d" % number for number in range(11)] == values


def test_a_topic_that_is_deleted_is_gone(topics):
    """For everybody, with its groups, and its namespace if it was the last."""
    with topics.producer("shop", "clicks") as producer:
        producer.send(b"x")
        records(topics, group="g")
        other = again(topics)
        other.delete("shop", "clicks")
        with pytest.raises(NotFoundError):
            producer.send(b"y")
    for call in (topics.describe, topics.delete, again(topics).delete):
        with pytest.raises(NotFoundError, match="no topic"):
            call("shop", "clicks")
    assert [] == topics.list() == left(topics.place)
    topics.create("shop", "clicks")
    assert [] == records(topics)


def test_whoever_used_a_topic_that_was_made_again_is_told(topics):
    """Nothing goes to files that are gone, and no offset of the old is taken for one of the new."""
    with (
        topics.producer("shop", "clicks") as producer,
        again(topics).consumer("shop", "clicks", group="g", timeout_s=0) as consumer,
    ):
        producer.send(b"x", partition=0)
        assert 1 == len(list(consumer))
        other = again(topics)
        other.delete("shop", "clicks")
        other.create("shop", "clicks")
        with other.producer("shop", "clicks") as later:
            later.send(b"y")
        with pytest.raises(NotFoundError, match="no topic"):
            producer.send(b"z", partition=0)
        consumer._consuming._refreshed_s = float("-inf")
        with pytest.raises(NotFoundError, match="no topic"):
            next(iter(consumer))
    assert [b"y"] == [one.value for one in records(again(topics))]


@in_folder
def test_a_producer_of_a_deleted_topic_is_told_at_once(topics, monkeypatch):
    """By who deletes it: also if it has looked whether the folder is there a moment ago."""
    monkeypatch.setattr(journal, "LOOK_US", 1 << 63)
    other = again(topics)
    with (
        topics.producer("shop", "clicks") as producer,
        other.producer("shop", "clicks") as rival,
    ):
        rival.send(b"w", partition=0)
        for value in (b"x", b"y", b"z"):
            producer.send(value, partition=0)
        other.delete("shop", "clicks")
        other.create("shop", "clicks")
        with pytest.raises(NotFoundError, match="no topic"):
            producer.send(b"lost", partition=0)


@in_folder
@pytest.mark.parametrize("meanwhile", ["made", "deleted"])
def test_a_topic_that_comes_or_goes_is_not_taken_for_a_damaged_one(topics, monkeypatch, meanwhile):
    """While one looks why it was not there."""
    home, other = again(topics)._engine.home, again(topics)
    numbers = home._numbers

    def late(*names):
        monkeypatch.undo()
        if meanwhile == "made":
            other.create("shop", "orders")
            return numbers(*names)
        return [0, 1]  # And after that it was deleted.

    monkeypatch.setattr(home, "_numbers", late)
    with pytest.raises(NotFoundError, match="no topic"):
        home.partition("shop", "orders", 0)


@in_folder
def test_damaged_metadata_is_named(topics):
    """At every byte; nothing is guessed."""
    path = f"{topics.name}/shop/clicks/0/metadata"
    with open(path, "rb") as file:
        whole = file.read()
    for place in range(0, len(whole), 7):
        with open(path, "wb") as file:
            file.write(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        with pytest.raises(CorruptionError, match="metadata"):
            again(topics).describe("shop", "clicks")
    os.unlink(path)
    with pytest.raises(CorruptionError, match="missing"):
        again(topics).describe("shop", "clicks")


@in_folder
def test_records_that_went_before_they_were_read_are_told(topics):
    """The consumer goes on with the oldest, and says what it passed over."""
    with topics.producer("shop", "clicks") as producer:
        for number in range(300):
            producer.send(b"%d" % number + bytes(200), partition=0)
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        seen = [record.offset for record in islice(consumer, 3)]
        consumer.seek(0, 0)
        folder = f"{topics.name}/shop/clicks/0"
        bases = sorted(int(name[:-4]) for name in os.listdir(folder) if name.endswith(".wal"))
        os.unlink(f"{folder}/0.wal")
        with pytest.warns(CordwoodWarning, match=f"records 0 to {bases[1] - 1}"):
            rest = [record.offset for record in consumer]
    assert [0, 1, 2] == seen
    assert list(range(bases[1], 300)) == rest


def test_closed_and_unopened(topics):
    """Say so."""
    producer, consumer = topics.producer("shop", "clicks"), topics.consumer("shop", "clicks")
    with pytest.raises(StateError, match="not open"):
        producer.send(b"x")
    with pytest.raises(StateError, match="not open"):
        next(iter(consumer))
    with producer, consumer:
        with pytest.raises(StateError, match="group"):
            consumer.commit()
        with pytest.raises(StateError, match="not this consumer's"):
            consumer.seek(9, 0)
    with pytest.raises(StateError, match="closed"):
        producer.send(b"x")
    with (
        pytest.raises(InvalidInputError, match="oldest"),
        topics.consumer("shop", "clicks", start="middle"),
    ):
        pass
    with pytest.raises(NotFoundError), topics.consumer("shop", "none"):
        pass


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.integers(1, 1024))
def test_jump_hashing_moves_only_to_the_new_bucket(hashes, buckets):
    """One by one as all at once."""
    at = names.jump(np.array(hashes, np.uint64), buckets)
    assert [names.jump_one(one, buckets) for one in hashes] == at.tolist()
    grown = names.jump(np.array(hashes, np.uint64), buckets + 1)
    assert all(now in (before, buckets) for before, now in zip(at, grown, strict=True))


def test_partitions_are_divided_among_workers(topics):
    """Everybody gets the same answer, and one more worker takes only its own."""
    owners = [topics.owner("shop", "clicks", number, workers=3) for number in range(400)]
    assert {0, 1, 2} == set(owners)
    grown = [topics.owner("shop", "clicks", number, workers=4) for number in range(400)]
    assert all(now in (before, 3) for before, now in zip(owners, grown, strict=True))
    with pytest.raises(InvalidInputError, match="workers"):
        topics.owner("shop", "clicks", 0, workers=0)


@in_files
def test_forked_children_open_their_own(topics):
    """The producer of a parent is refused, the topics themselves go on working."""
    with topics.producer("shop", "clicks") as producer:
        producer.send(b"parent", partition=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    producer.send(b"x")
                except StateError:
                    with topics.producer("shop", "clicks") as mine:
                        mine.send(b"child", partition=0)
                    code = 0
            finally:
                os._exit(code)
        assert 0 == os.waitpid(child, 0)[1]
        producer.send(b"parent again", partition=0)
    assert [b"parent", b"child", b"parent again"] == [one.value for one in records(topics)]


@in_folder
def test_damage_is_told_by_who_describes_the_topic(topics):
    """The file is kept, and its name and place are in the warnings."""
    with topics.producer("shop", "clicks") as producer:
        for number in range(4):
            producer.send(b"%d" % number, partition=0)
    folder = f"{topics.name}/shop/clicks/0"
    os.unlink(f"{folder}/tail")
    with open(f"{folder}/0.wal", "r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff\xff")
    (warning,) = again(topics).describe("shop", "clicks").warnings
    assert "0.wal is damaged at byte" in warning


def test_a_value_is_anything_that_has_bytes(topics):
    """A view of other memory is taken as it is then; what has no bytes is refused."""
    with topics.producer("shop", "clicks") as producer:
        for value in (b"abc", bytearray(b"abc"), memoryview(b"-a-b-c")[1::2]):
            producer.send(value, partition=0)
        for value in ("abc", 5):
            with pytest.raises(InvalidInputError, match=r"value is bytes, not (str|int)"):
                producer.send(value)
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        assert [record.value for record in consumer] == [b"abc"] * 3
