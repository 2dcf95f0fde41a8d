"""Retention: whole extents go, the oldest first, and a topic that has nothing left."""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import threading
from contextlib import suppress
from itertools import product

import pyarrow as pa
import pytest

import cordwood
from cordwood import sync
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import CollectedError, NotFoundError, StoreError
from cordwood.journal.journal import SPARE, Journal
from cordwood.journal.reading import Reading
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.handclock import HandClock
from cordwood.topics.config import TopicConfig
from cordwood.topics.retention import Piece, expired, has_expired, retain

HOUR = 3600 * 1_000_000
SMALL = 16 << 10


def pieces(*times, size=100):
    """Extents whose newest records are of these hours."""
    return [Piece(place, size, hour * HOUR) for place, hour in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "now", "hours", "bytes_", "count"),
    [
        ((1, 2, 3, 4), 10, None, None, 0),
        ((1, 2, 3, 4), 10, 8, None, 1),
        ((1, 2, 3, 4), 10, 7.5, None, 2),
        ((1, 2, 3, 4), 100, 1, None, 3),  # Never the newest.
        ((1, 9, 1, 1), 10, 5, None, 1),  # No holes.
        ((50, 1, 1, 1), 10, 5, None, 0),
        ((1, 2, 3, 4), 0, 1, None, 0),  # A clock that jumped back.
        ((1, 2, 3, 4), 10, None, 400, 0),
        ((1, 2, 3, 4), 10, None, 399, 1),
        ((1, 2, 3, 4), 10, None, 0, 3),
        ((1, 2, 3, 4), 10, 7.5, 399, 2),  # Either suffices.
        ((1, 2, 3, 4), 10, 100, 250, 2),
        ((0, 0), 10, 5, None, 1),
        ((), 10, 5, 5, 0),
        ((1,), 10, 5, 5, 0),
    ],
)
def test_what_goes(times, now, hours, bytes_, count):
    """By time, by size, or by both."""
    found = expired(
        pieces(*times),
        now_us=now * HOUR,
        retention_s=None if hours is None else hours * 3600,
        retention_bytes=bytes_,
    )
    assert count == found


@pytest.fixture
def topics(tmp_path):
    """Topics in a directory."""
    with sync.Topics(tmp_path / "topics", retains=False) as made:
        yield made


def fill(topics, topic, hours):
    """Records of these hours, about an extent for each."""
    with topics.producer("shop", topic) as producer:
        for hour in hours:
            some = pa.table({"value": [bytes(150)] * 10, "timestamp_us": [hour * HOUR] * 10})
            for _ in range(10):
                producer.send_arrow(some)


def offsets(topics, topic):
    """All records that are there."""
    with topics.consumer("shop", topic, timeout_s=0) as consumer:
        return [record.offset for record in consumer]


def test_old_records_go_and_their_file_is_used_again(topics):
    """By the newest record's time, which the producer gave, whatever the files' times are."""
    topics.create("shop", "t", extent_bytes=SMALL, retention_s=3 * 3600)
    fill(topics, "t", range(1, 7))
    folder = f"{topics.name}/shop/t/0"
    before = {name for name in os.listdir(folder) if name.endswith(".wal")}
    report = topics.retain("shop", "t", now_us=6 * HOUR)
    after = {name for name in os.listdir(folder) if name.endswith(".wal")}
    (gone,) = report.partitions
    assert gone.extents == len(before - after) >= 2
    assert gone.bytes > 0
    assert not report.is_deleted
    assert SPARE in os.listdir(folder)
    kept = offsets(topics, "t")
    assert list(range(kept[0], 600)) == kept
    assert 100 < kept[0] <= 300
    assert kept[0] == topics.describe("shop", "t").partitions[0].oldest
    fill(topics, "t", [7, 8])
    assert SPARE not in os.listdir(folder)
    assert list(range(kept[0], 800)) == offsets(topics, "t")


def test_too_many_bytes_go(topics):
    """Until what is left is as small as was asked for."""
    topics.create("shop", "t", extent_bytes=SMALL, retention_s=None, retention_bytes=40_000)
    fill(topics, "t", range(6))
    topics.retain("shop", "t")
    folder = f"{topics.name}/shop/t/0"
    sizes = [os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder) if ".wal" in name]
    assert 40_000 >= sum(sizes) - SMALL
    assert len(sizes) >= 2


def test_a_record_from_the_future_does_not_keep_its_extent_for_ever(topics):
    """It was appended before the extent behind its own was made."""
    now_us = SYSTEM_CLOCK.now_us()
    topics.create("shop", "t", extent_bytes=SMALL, retention_s=3600)
    fill(topics, "t", [10_000_000, 1, 1, 1])
    assert 0 == topics.retain("shop", "t", now_us=now_us).partitions[0].extents
    assert 3 <= topics.retain("shop", "t", now_us=now_us + 2 * HOUR).partitions[0].extents


def test_a_topic_that_has_expired_is_cleaned_up(topics):
    """With its folders; not while it is young, nor if one partition has something to keep."""
    now_us = SYSTEM_CLOCK.now_us()
    topics.create("shop", "t", partitions=2, retention_s=3600)
    with topics.producer("shop", "t") as producer:
        producer.send(b"old", timestamp_us=5, partition=0)
        producer.send(b"new", timestamp_us=now_us + HOUR, partition=1)
        assert not topics.retain("shop", "t", now_us=now_us).is_deleted
        assert not topics.retain("shop", "t", now_us=now_us + HOUR + HOUR // 2).is_deleted
        assert topics.retain("shop", "t", now_us=now_us + 3 * HOUR).is_deleted
        with pytest.raises(NotFoundError):
            producer.send(b"late", partition=0)
    assert [] == topics.list()
    assert [] == os.listdir(topics.name)


def test_an_empty_topic_goes_when_it_is_old_and_one_without_retention_never(topics):
    """The time of its creation counts."""
    now_us = SYSTEM_CLOCK.now_us()
    topics.create("shop", "empty", retention_s=3600)
    topics.create("shop", "kept", retention_s=None)
    assert not topics.retain("shop", "empty").is_deleted
    assert topics.retain("shop", "empty", now_us=now_us + 2 * HOUR).is_deleted
    assert not topics.retain("shop", "kept", now_us=now_us + 2 * HOUR).is_deleted
    with pytest.raises(NotFoundError):
        topics.retain("shop", "empty")


def test_whoever_appends_meanwhile_keeps_the_topic(topics, monkeypatch):
    """It is decided while nobody can append."""
    topics.create("shop", "t", retention_s=3600)
    other = sync.Topics(topics.name, retains=False)
    folder = topics._engine.home
    decide = folder.delete_if

    def append_first(*args):
        with other.producer("shop", "t") as producer:
            producer.send(b"late", timestamp_us=SYSTEM_CLOCK.now_us() + 9 * HOUR)
        return decide(*args)

    monkeypatch.setattr(folder, "delete_if", append_first)
    assert not topics.retain("shop", "t", now_us=SYSTEM_CLOCK.now_us() + 2 * HOUR).is_deleted
    assert [0] == offsets(topics, "t")


def test_retention_while_others_append_and_read(topics):
    """Everybody goes on; two that retain at once delete each extent once."""
    topics.create("shop", "t", extent_bytes=SMALL, retention_s=None, retention_bytes=50_000)
    stop, gone = threading.Event(), []

    def work():
        mine = sync.Topics(topics.name, retains=False)
        while not stop.is_set():
            gone.append(mine.retain("shop", "t").partitions[0].extents)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    fill(topics, "t", range(8))
    stop.set()
    for thread in threads:
        thread.join()
    gone.append(topics.retain("shop", "t").partitions[0].extents)
    kept = offsets(topics, "t")
    assert list(range(kept[0], 800)) == kept
    names = [name for name in os.listdir(f"{topics.name}/shop/t/0") if name.endswith(".wal")]
    made = sorted(int(name[:-4]) for name in names)
    assert made[0] == kept[0]
    assert sum(gone) >= 4


def test_retention_for_tasks(topics):
    """The same, without blocking the loop."""

    async def work():
        async with cordwood.Topics(topics.name) as mine:
            await mine.create("shop", "t", retention_s=60)
            return await mine.retain("shop", "t", now_us=SYSTEM_CLOCK.now_us() + HOUR)

    assert asyncio.run(work()).is_deleted


# On a disk that fails.

FOLDER = "/j"
CONFIG = TopicConfig(namespace="n", topic="t", retention_s=3600, extent_bytes=4096)


def made(disk, seed=1):
    """A journal as a process has it that comes to it."""
    return Journal(FOLDER, disk, SYSTEM_CLOCK, SeededEntropy(seed), extent_bytes=600)


def filled(model="posix"):
    """A disk with a journal of old entries, and some new ones; the number of the first new one."""
    disk = CrashDisk(model)
    disk.mkdir(FOLDER)
    disk.fsync_dir("/")
    journal = made(disk)
    for number in range(40):
        with journal.turn() as turn:
            turn.append([b"entry %d" % number], time_us=HOUR if number < 25 else 9 * HOUR)
            turn.sync()
    return disk, journal


def numbers(journal):
    """All entries that are there."""
    reading, found = Reading(journal, journal.bases()[0]), []
    while frames := reading.take(100):
        found += [frame.number for frame in frames]
    return found


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_a_power_cut_at_every_step_leaves_no_hole(model):
    """Nor does it take what was to be kept."""
    disk, journal = filled(model)
    before = disk.steps
    assert 3 <= retain(journal, CONFIG, 0, 9 * HOUR).extents
    for cut in range(disk.steps - before):
        disk, journal = filled(model)
        disk.cut_after(cut)
        with pytest.raises(PowerCut):
            retain(journal, CONFIG, 0, 9 * HOUR)
        disk = disk.power_cut(SeededEntropy(cut))
        later = made(disk, seed=cut)
        found = numbers(later)
        assert list(range(found[0], 40)) == found
        assert found[0] <= 25
        retain(later, CONFIG, 0, 9 * HOUR)
        again = numbers(later)
        assert list(range(again[0], 40)) == again
        assert not has_expired(later, CONFIG, 9 * HOUR)


def test_a_file_is_used_again_only_when_its_old_name_is_gone_for_good():
    """Who deleted it died before that; the next one uses it; and then the power fails."""
    disk, journal = filled()
    disk.cut_after(1)
    with pytest.raises(PowerCut):
        retain(journal, CONFIG, 0, 9 * HOUR)
    disk.revive()
    whole = copy.deepcopy(disk)
    go_on(whole)
    for cut, seed in product(range(whole.steps - disk.steps), range(4)):
        found = copy.deepcopy(disk)
        found.cut_after(cut)
        with suppress(PowerCut):
            go_on(found)
        later = made(found.power_cut(SeededEntropy(f"{cut}-{seed}")), seed=9)
        there = numbers(later)
        assert 40 <= there[-1] + 1
        assert list(range(there[0], there[-1] + 1)) == there


def go_on(disk):
    """So many entries that another extent is needed."""
    journal = made(disk, seed=8)
    for number in range(9):
        with journal.turn() as turn:
            turn.append([b"more %d" % number], time_us=9 * HOUR)
            turn.sync()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step_is_told_and_overcome(number):
    """The next call does the rest."""
    disk, journal = filled()
    before = disk.steps
    retain(journal, CONFIG, 0, 9 * HOUR)
    expected = numbers(journal)
    for step in range(1, disk.steps - before + 1):
        disk, journal = filled()
        disk.fail(step, number)
        with pytest.raises(StoreError):
            retain(journal, CONFIG, 0, 9 * HOUR)
        retain(journal, CONFIG, 0, 9 * HOUR)
        assert expected == numbers(journal)


@pytest.mark.parametrize("hours", [10, 50])
def test_a_clock_that_was_back_for_a_while_makes_nothing_old(hours):
    """Not even what is in the extent before the one that was made then, however long that took."""
    disk = CrashDisk()
    disk.mkdir(FOLDER)
    clock = HandClock()
    journal = Journal(FOLDER, disk, clock, SeededEntropy(1), extent_bytes=600)

    def append_until(extents):
        while len(journal.bases() if disk.scan(FOLDER) else ()) < extents:
            with journal.turn() as turn:
                turn.append([b"entry"], time_us=clock.now_us())
                turn.sync()

    append_until(1)
    clock.pass_s(20 * 3600)
    with journal.turn() as turn:
        turn.append([b"young"], time_us=clock.now_us())
        turn.sync()
    now_us = clock.us
    clock.us = now_us - hours * HOUR
    append_until(2)
    clock.us = now_us
    append_until(5)
    before = numbers(journal)
    assert 0 == retain(journal, CONFIG, 0, now_us + 1).extents
    assert before == numbers(journal)
    assert 4 == retain(journal, CONFIG, 0, now_us + 2 * HOUR).extents


def test_a_reader_in_an_extent_that_is_deleted_is_told():
    """What it still gives is right."""
    _, journal = filled()
    reading = Reading(journal)
    assert 0 == reading.take(1)[0].number
    retain(journal, CONFIG, 0, 9 * HOUR)
    for _ in range(20):
        with journal.turn() as turn:
            turn.append([b"more"], time_us=9 * HOUR)
            turn.sync()
    seen = []
    with pytest.raises(CollectedError):
        while frames := reading.take(1):
            seen += [frame.number for frame in frames]
    assert seen == list(range(1, 1 + len(seen)))
