"""Compaction topics: the last record of each key stays, and is found, whatever happens."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import CorruptionError, InvalidInputError, StateError
from cordwood.topics.rewriting import Rewriting

SMALL = 16 << 10


@pytest.fixture
def topics(tmp_path):
    """Topics in a directory, one of them made, compacted only when that is asked for."""
    with sync.Topics(tmp_path / "topics", compacts=False, retains=False) as made:
        made.create("shop", "prices", compaction=True, extent_bytes=SMALL, tombstone_s=3600)
        yield made


def again(topics):
    """The same, as another process has them."""
    return sync.Topics(topics.name, compacts=False, retains=False)


def send(topics, records, topic="prices", **more):
    """Send (key, value) pairs, some at a time."""
    with topics.producer("shop", topic) as producer:
        for begin in range(0, len(records), 20):
            some = records[begin : begin + 20]
            columns = {
                "key": pa.array([key for key, _ in some], pa.binary()),
                "value": pa.array([value for _, value in some], pa.binary()),
            }
            columns |= {name: [what] * len(some) for name, what in more.items()}
            producer.send_arrow(pa.table(columns))


def drawn(seed, count=1500, keys=40, deleted=0.1):
    """Records of few keys, some of them deleted at times."""
    generator = np.random.default_rng(seed)
    picked = generator.integers(0, keys, count)
    gone = generator.random(count) < deleted
    return [
        (b"key %d" % key, None if is_gone else b"%d" % number + bytes(80))
        for number, (key, is_gone) in enumerate(zip(picked, gone, strict=True))
    ]


def state_of(records):
    """What is the newest, by a plain dict."""
    return {key: value for key, value in dict(records).items() if value is not None}


def consumed(topics, topic="prices"):
    """All records that are there."""
    with topics.consumer("shop", topic, timeout_s=0) as consumer:
        return list(consumer)


def found(topics, topic="prices"):
    """The newest state, by `latest_all`."""
    records = list(topics.latest_all("shop", topic))
    assert len(records) == len({record.key for record in records})
    return {record.key: record.value for record in records}


def check(topics, records, topic="prices"):
    """Everything that can be asked gives what was sent."""
    expected = state_of(records)
    assert expected == found(topics, topic)
    for key in {key for key, _ in records}:
        one = topics.latest("shop", topic, key)
        assert (None if one is None else one.value) == expected.get(key)
        assert one is None or one.key == key
    assert topics.latest("shop", topic, b"never sent") is None
    all_ = consumed(topics, topic)
    assert [record.offset for record in all_] == sorted({record.offset for record in all_})
    sent = dict(enumerate(records))
    assert all((record.key, record.value) == sent[record.offset] for record in all_)
    assert expected == state_of([(record.key, record.value) for record in all_])


@pytest.mark.parametrize("seed", range(4))
def test_the_last_record_of_each_key_stays(topics, seed):
    """In its place, with its offset; once and again, in this process and in another."""
    records = []
    for round_ in range(3):
        more = drawn(10 * seed + round_)
        records += more
        send(topics, more)
        check(topics, records)
        before = len(consumed(topics))
        report = topics.compact("shop", "prices").partitions[0]
        assert before - report.records == len(consumed(topics))
        assert report.extents >= 3
        assert report.bytes > 50_000
        assert [] == report.damaged
        check(topics, records)
        check(again(topics), records)
    left = len(consumed(topics))
    assert left < 40 * 5
    assert 0 == topics.compact("shop", "prices").partitions[0].extents


def test_nothing_is_dropped_where_every_key_comes_once(topics):
    """And nothing is written."""
    records = [(b"%d" % number, bytes(100)) for number in range(600)]
    send(topics, records)
    folder = f"{topics.name}/shop/prices/0"
    before = {name: os.stat(f"{folder}/{name}").st_ino for name in os.listdir(folder)}
    report = topics.compact("shop", "prices").partitions[0]
    assert (0, 0, 0) == (report.extents, report.records, report.bytes)
    after = {name: os.stat(f"{folder}/{name}").st_ino for name in os.listdir(folder)}
    assert before == {name: inode for name, inode in after.items() if name in before}
    check(topics, records)


def test_two_keys_with_one_hash_do_not_hide_each_other(topics, monkeypatch):
    """They are told apart by their bytes, in the table, in the index and by the compactor."""
    weak = lambda keys, count=-1: np.array([len(key) % 3 for key in keys], np.uint64)  # noqa: E731
    monkeypatch.setattr("cordwood.topics.keytable.key_hashes", weak)
    monkeypatch.setattr("cordwood.topics.latest.key_hashes", weak)
    records = drawn(5)
    send(topics, records)
    check(topics, records)
    topics.compact("shop", "prices")
    check(topics, records)
    check(again(topics), records)


def test_memory_for_few_entries_at_a_time(topics):
    """Range by range, and some extents at a time, the same comes out."""
    records = drawn(6, count=1500, keys=300)
    send(topics, records)
    engine = topics._engine
    rows = [batch for _, batch in engine.latest_batches("shop", "prices", memory_bytes=9000)]
    assert len(state_of(records)) == sum(batch.num_rows for batch in rows)
    engine.compact("shop", "prices", None, None, memory_bytes=9000)
    check(topics, records)
    assert 0 == topics.compact("shop", "prices").partitions[0].extents


def test_a_deleted_key_is_told_for_a_while(topics):
    """And longer, while an older record of it is there."""
    hour = 3600 * 1_000_000
    now_us = SYSTEM_CLOCK.now_us()
    fill = [(b"fill %d" % number, bytes(100)) for number in range(300)]
    send(topics, [(b"a", b"1"), *fill])
    send(topics, [(b"a", None), (b"b", None)], timestamp_us=now_us - 2 * hour)
    send(topics, [(b"c", None)], timestamp_us=now_us)
    send(topics, fill)
    deleted = lambda: {one.key for one in consumed(topics) if one.value is None}  # noqa: E731
    assert {b"a", b"b", b"c"} == deleted()
    topics.compact("shop", "prices")
    assert {b"a", b"c"} == deleted()  # An older record of `a` was there, and went just now.
    assert [b"a"] == [one.key for one in consumed(topics) if one.key == b"a"]
    topics.compact("shop", "prices")
    assert {b"c"} == deleted()
    topics.compact("shop", "prices")
    assert {b"c"} == deleted()
    assert topics.latest("shop", "prices", b"c") is None


def test_headers_and_times_stay(topics):
    """Those of records that were sent one by one, which become one batch, too."""
    with topics.producer("shop", "prices") as producer:
        for number in range(300):
            producer.send(
                b"%d" % number + bytes(100),
                key=b"%d" % (number % 7) if number % 50 else b"once %d" % number,
                headers={"n": b"%d" % number} if number % 3 else None,
                timestamp_us=number + 1,
            )
    topics.compact("shop", "prices")
    kept = consumed(topics)
    assert len(kept) < 250
    for record in kept:
        number = record.offset
        assert b"%d" % number + bytes(100) == record.value
        assert ({"n": b"%d" % number} if number % 3 else {}) == record.headers
        assert number + 1 == record.timestamp_us


def test_a_retry_is_not_doubled_after_a_compaction(topics):
    """Whose a record was stays known, also if the record itself went."""
    with topics.producer("shop", "prices", name="p") as producer:
        first = [
            producer.send(b"%d" % number + bytes(300), key=b"k", sequence=number)
            for number in range(200)
        ]
    topics.compact("shop", "prices")
    kept = consumed(topics)
    assert 0 < len(kept) < 100
    assert 199 == kept[-1].offset  # Whole extents have nothing but who sent what was in them.
    with again(topics).producer("shop", "prices", name="p") as producer:
        assert first == [producer.send(b"?", key=b"k", sequence=number) for number in range(200)]
    assert 199 == topics.latest("shop", "prices", b"k").offset


def test_readers_go_on_while_it_is_compacted(topics):
    """One that is in an old file sees all of it; one that comes to a place that is gone goes on."""
    records = drawn(7)
    send(topics, records)
    with topics.consumer("shop", "prices", timeout_s=0) as consumer:
        iterating = iter(consumer)
        seen = [next(iterating) for _ in range(10)]
        latest = topics.latest_all("shop", "prices")
        newest = [next(latest)]
        topics.compact("shop", "prices")
        seen += list(iterating)
        newest += list(latest)
    assert [record.offset for record in seen] == sorted({record.offset for record in seen})
    assert state_of(records) == state_of([(record.key, record.value) for record in seen])
    assert state_of(records) == {record.key: record.value for record in newest}
    with topics.consumer("shop", "prices", timeout_s=0) as consumer:
        list(consumer)
        consumer.seek(0, 1)  # It is gone; no record that counts is.
        assert state_of(records) == state_of([(one.key, one.value) for one in consumer])


def test_appending_reading_and_two_compactors_at_once(topics):
    """Nobody sees anything but a newest state."""
    stop, failures = threading.Event(), []
    values = {}

    def work(act):
        mine = again(topics)
        try:
            while not stop.is_set():
                act(mine)
        except BaseException as error:
            failures.append(error)
            raise

    def read(mine):
        one = mine.latest("shop", "prices", b"key 3")
        number = -1 if one is None else int(one.value.rstrip(b"\0"))
        assert number >= values.get("seen", -1)
        values["seen"] = number
        state = found(mine)
        assert state.keys() <= {b"key %d" % key for key in range(10)}
        assert len(state) >= values.get("keys", 0)
        values["keys"] = len(state)

    def compact(mine):
        mine.compact("shop", "prices")

    threads = [threading.Thread(target=work, args=(act,)) for act in (read, compact, compact)]
    for thread in threads:
        thread.start()
    records = drawn(8, count=3000, keys=10, deleted=0)
    send(topics, records)
    stop.set()
    for thread in threads:
        thread.join()
    assert [] == failures
    check(topics, records)


def test_by_itself_when_an_extent_is_full(tmp_path):
    """In a thread; whoever sends does not wait for it, and errors are told by `describe`."""
    with sync.Topics(tmp_path) as topics:
        topics.create("shop", "prices", compaction=True, extent_bytes=4 << 20)
        folder = topics._engine.home
        records = [(b"%d" % (number % 50), bytes(5000)) for number in range(3000)]
        send(topics, records)
        folder.background("shop", "prices").wait()
        assert len(consumed(topics)) < 2000
        assert state_of(records) == found(topics)
        assert [] == topics.describe("shop", "prices").warnings
        background = folder.background("shop", "prices")

        def fail(_):
            raise StateError("it went wrong")

        background.offer(0, fail)
        background.wait()
        assert ["it went wrong"] == topics.describe("shop", "prices").warnings


def test_an_index_that_cannot_be_written_does_not_keep_anybody_from_sending(topics):
    """`describe` tells of it; it is made later, by whoever needs it."""
    folder = f"{topics.name}/shop/prices/0"
    os.mkdir(f"{folder}/0.wal.index.new")
    records = drawn(13, count=300)
    send(topics, records)
    assert "not indexed" in "".join(topics.describe("shop", "prices").warnings)
    check(topics, records)
    os.rmdir(f"{folder}/0.wal.index.new")
    more = drawn(14, count=300)
    send(topics, more)
    check(topics, records + more)
    assert [] == topics.describe("shop", "prices").warnings
    assert "0.wal.index" in os.listdir(folder)


def test_closing_stops_a_compaction_under_way(tmp_path):
    """Between two batches; the next one begins anew."""
    topics = sync.Topics(tmp_path, compacts=False)
    topics.create("shop", "prices", compaction=True, extent_bytes=SMALL)
    records = drawn(9)
    send(topics, records)
    home = topics._engine.home
    home.compacts = True
    started = threading.Event()
    partition = home.partition("shop", "prices", 0)
    compactor = home.compactor

    def slow(one, pace):
        started.set()
        pace._rate = 1.0
        return compactor(one, pace)

    home.compactor = slow
    partition.when_closed()
    assert started.wait(30)
    topics.close()
    home.compactor = compactor
    check(again(topics), records)
    topics.compact("shop", "prices")
    check(again(topics), records)
    assert not [name for name in os.listdir(f"{topics.name}/shop/prices/0") if "compact." in name]


def test_misuse_is_told(topics):
    """An index nearly as large as its extent."""
    send(topics, [(b"%d" % (number % 20), bytes(2000)) for number in range(200)])
    state = topics.describe("shop", "prices")
    assert [] == state.warnings
    assert state.partitions[0].extents > 10
    assert state.partitions[0].bytes > 200 * 2000
    topics.create("shop", "misused", compaction=True, extent_bytes=SMALL)
    send(
        topics,
        [(b"a long key that comes but once %d" % number, b"") for number in range(1000)],
        "misused",
    )
    list(topics.latest_all("shop", "misused"))
    warnings = topics.describe("shop", "misused").warnings
    assert warnings
    assert all("wal.index" in one for one in warnings)


def test_a_topic_without_compaction_says_so(topics):
    """And so do wrong arguments."""
    topics.create("shop", "plain")
    for call in (
        lambda: topics.compact("shop", "plain"),
        lambda: topics.latest("shop", "plain", b"k"),
        lambda: list(topics.latest_all("shop", "plain")),
    ):
        with pytest.raises(StateError, match="no compaction topic"):
            call()
    with pytest.raises(InvalidInputError):
        topics.latest("shop", "prices", "text")
    with pytest.raises(InvalidInputError):
        topics.latest("shop", "prices", b"k", partition=1)
    with pytest.raises(InvalidInputError):
        topics.compact("shop", "prices", rate_bytes_s=0)
    assert {} == found(topics)
    assert topics.latest("shop", "prices", b"k") is None
    assert 0 == topics.compact("shop", "prices").partitions[0].extents


def test_the_rate_and_the_progress(topics):
    """What is read and written is counted; a clock that does not move lets it wait no time."""
    send(topics, drawn(3))
    seen = []
    topics.compact("shop", "prices", rate_bytes_s=1e12, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > SMALL


def test_for_tasks(topics):
    """The same without blocking the loop, by several partitions."""
    records = drawn(11)

    async def work():
        async with cordwood.Topics(topics.name, compacts=False) as mine:
            await mine.create("shop", "many", compaction=True, partitions=3, extent_bytes=SMALL)
            async with mine.producer("shop", "many") as producer:
                for key, value in records[:200]:
                    await producer.send(value, key=key)
            before = await mine.latest("shop", "many", b"key 1")
            await mine.compact("shop", "many")
            assert before == await mine.latest("shop", "many", b"key 1")
            batches = [batch.num_rows async for _, batch in mine.latest_batches("shop", "many")]
            return sum(batches), {
                record.key: record.value async for record in mine.latest_all("shop", "many")
            }

    count, state = asyncio.run(work())
    assert state_of(records[:200]) == state
    assert len(state) == count


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("place", [3, 12, 5000])
def test_damage_is_told_and_never_gives_an_old_record(topics, place, has_index):
    """What cannot be read is left as it is; what came behind it still answers."""
    # EVIDENCE-OF: G-91
    records = drawn(12, deleted=0.3)
    send(topics, records)
    folder = f"{topics.name}/shop/prices/0"
    bases = sorted(int(name[:-4]) for name in os.listdir(folder) if name.endswith(".wal"))
    path = f"{folder}/{bases[1]}.wal"
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 5)
    if not has_index:
        os.unlink(f"{path}.index")
    with open(path, "rb") as file:
        damaged = file.read()
    mine = again(topics)
    report = mine.compact("shop", "prices").partitions[0]
    assert [path] == report.damaged
    assert report.extents >= 3
    with open(path, "rb") as file:
        assert damaged == file.read()
    with pytest.raises(CorruptionError, match="wal"):
        list(mine.latest_all("shop", "prices"))
    expected = state_of(records)
    for key in {key for key, _ in records}:
        try:
            one = mine.latest("shop", "prices", key)
        except CorruptionError:
            continue
        assert (None if one is None else one.value) == expected.get(key)
    send(mine, [(b"new", b"1")])
    assert b"1" == mine.latest("shop", "prices", b"new").value
    if place < 64:
        assert any(path in warning for warning in mine.describe("shop", "prices").warnings)
        (told,) = mine.retain("shop", "prices").partitions[0].damaged
        assert path in told


def test_a_writer_takes_little_more_than_its_key_table(topics):
    """Two mebibytes, and 32 for the keys, however many there are."""
    code = """
import sys, tracemalloc
import numpy as np, pyarrow as pa, pyarrow.compute as pc
from cordwood import sync
topics = sync.Topics(sys.argv[1], compacts=False)
topics.create("shop", "large", compaction=True, extent_bytes=24 << 20, ack="flush")
values = pa.array([bytes(60)] * 2000, pa.binary())
tracemalloc.start()
with topics.producer("shop", "large") as producer:
    for begin in range(0, 400_000, 2000):
        names = pc.cast(pa.array(np.arange(begin, begin + 2000)), pa.string()).cast(pa.binary())
        producer.send_arrow(pa.table({"key": names, "value": values}))
print(tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, topics.name], check=True, capture_output=True, timeout=300
    )
    assert 0 < int(done.stdout) < (2 + 32) << 20
    again_ = again(topics)
    assert 399_999 == again_.latest("shop", "large", b"399999").offset
    folder = f"{topics.name}/shop/large/0"
    assert [name for name in os.listdir(folder) if name.endswith(".index")]


def test_retention_of_a_compaction_topic(topics):
    """Takes indexes with their extents, the first one be it empty; a compaction meanwhile ends."""
    hour = 3600 * 1_000_000
    topics.create("shop", "t", compaction=True, extent_bytes=SMALL, retention_s=3 * 3600)
    for number in range(1, 7):
        send(
            topics,
            [(b"%d" % (key % 50), bytes(150)) for key in range(100)],
            "t",
            timestamp_us=number * hour,
        )
    send(topics, [(b"only", b"once")], "t", timestamp_us=7 * hour)
    topics.compact("shop", "t")
    folder = f"{topics.name}/shop/t/0"
    assert "0.wal" in os.listdir(folder)
    assert os.path.getsize(f"{folder}/0.wal") < 200
    records = consumed(topics, "t")
    report = topics.retain("shop", "t", now_us=8 * hour)
    assert report.partitions[0].extents >= 1
    assert "0.wal" not in os.listdir(folder)
    assert records == consumed(topics, "t")
    assert 51 == len(found(topics, "t"))
    topics.retain("shop", "t", now_us=10 * hour)
    names = os.listdir(folder)
    for name in names:
        assert not name.endswith(".index") or name.removesuffix(".index") in names


def test_an_extent_that_retention_deletes_while_it_is_compacted(topics, monkeypatch):
    """Does not come back."""
    topics.create("shop", "t", compaction=True, extent_bytes=SMALL, retention_bytes=0)
    records = drawn(21, count=800)
    send(topics, records, "t")
    folder = f"{topics.name}/shop/t/0"
    copy = Rewriting.copy

    def delete_first(writing, frames):
        again(topics).retain("shop", "t")
        copy(writing, frames)

    monkeypatch.setattr(Rewriting, "copy", delete_first)
    report = topics.compact("shop", "t").partitions[0]
    assert 0 == report.extents
    assert 1 == len([name for name in os.listdir(folder) if name.endswith(".wal")])
    assert not [name for name in os.listdir(folder) if "compact." in name]
    left = consumed(topics, "t")
    assert state_of([(one.key, one.value) for one in left]) == found(topics, "t")


def test_kills_at_any_moment_lose_nothing(topics):
    """A process that appends and compacts dies, many times; the next goes on."""
    code = """
import sys
from cordwood import sync
topics = sync.Topics(sys.argv[1])
with topics.producer("shop", "prices") as producer:
    number = int(sys.argv[2])
    while True:
        for _ in range(20):
            producer.send(b"%d" % number + bytes(200), key=b"k%d" % (number % 10))
            print(number, flush=True)
            number += 1
        topics.compact("shop", "prices")
"""
    generator = np.random.default_rng(1)
    next_ = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", code, topics.name, str(next_)], stdout=subprocess.PIPE
        ) as child:
            for _ in range(int(generator.integers(30, 100))):
                last = int(child.stdout.readline())
            child.kill()
            rest = child.stdout.read().split(b"\n")
        last = max([last, *(int(line) for line in rest[:-1] if line)])
        state = {key: int(value.rstrip(b"\0")) for key, value in found(again(topics)).items()}
        assert 10 == len(state)
        assert last <= max(state.values()) <= last + 1
        newest = max(state.values())
        assert {b"k%d" % (n % 10): n for n in range(newest - 9, newest + 1)} == state
        next_ = newest + 1
