"""What others do to a topic meanwhile: fork, delete it, make it again, retain it, follow it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import sync
from cordwood.base.errors import (
    ConflictError,
    CorruptionError,
    LimitError,
    NotFoundError,
    StateError,
)
from cordwood.journal import reading
from cordwood.journal.extent import open_extent
from cordwood.topics.rows import checked_row

FOLLOWERS = 40
"""More than a loop has threads."""


@pytest.fixture
def topics(tmp_path):
    """Topics in a directory, one of them made."""
    with sync.Topics(tmp_path / "wood") as made:
        made.create("shop", "clicks", extent_bytes=4096)
        yield made


def values(topics):
    """All records."""
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        return [record.value for record in consumer]


def test_a_child_forked_in_the_middle_of_a_send_can_send(topics):
    """Locks that threads of its parent hold at that moment are not there for it."""
    held, go_on = threading.Event(), threading.Event()
    partition = topics._engine.home.partition("shop", "clicks", 0)
    home = topics._engine.home

    def hold():
        locks = home._mutex, partition._mutex, partition._group.working
        with partition.journal.alone(), locks[0], locks[1], locks[2]:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with topics.producer("shop", "clicks") as producer:
                producer.send(b"child")
            code = 0
        finally:
            os._exit(code)
    go_on.set()
    thread.join()
    assert 0 == os.waitpid(child, 0)[1]
    assert [b"child"] == values(topics)


def test_an_interrupt_leaves_no_partition_at_work(topics, monkeypatch):
    """Whenever it comes: others would wait for that work for ever."""
    partition = topics._engine.home.partition("shop", "clicks", 0)
    monkeypatch.setattr(partition, "_append_alone", lambda _: 0)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    row = checked_row(b"1", None, None, None)
    for number in range(400):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + number * 0.000001)
            while True:
                partition.append_one(row)
        except KeyboardInterrupt:
            assert partition._group.is_idle
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_producer_of_a_deleted_topic_sends_nothing_to_the_next_of_its_name(topics, is_own):
    """Whoever deleted it, and whatever was asked of the new one since."""
    with topics.producer("shop", "clicks") as producer:
        producer.send(b"old")
        other = topics if is_own else sync.Topics(topics.name)
        other.delete("shop", "clicks")
        other.create("shop", "clicks")
        assert 0 == topics.describe("shop", "clicks").partitions[0].next
        with pytest.raises(NotFoundError, match="no topic shop/clicks"):
            producer.send(b"meant for the old one")
    assert [] == values(topics)


def test_followers_leave_threads_to_those_who_send(topics):
    """Many tasks that wait for records do not keep one from sending them."""

    async def story():
        async with cordwood.Topics(topics.name) as mine:

            async def follow():
                async with mine.consumer("shop", "clicks") as consumer:
                    async for record in consumer:
                        return record.value
                return None

            tasks = [asyncio.create_task(follow()) for _ in range(FOLLOWERS)]
            await asyncio.sleep(0)
            async with mine.producer("shop", "clicks") as producer:
                await producer.send(b"v")
            return await asyncio.gather(*tasks)

    assert [b"v"] * FOLLOWERS == asyncio.run(asyncio.wait_for(story(), 60))


def test_a_follower_ends_when_it_is_stopped(topics):
    """Also if it waits."""

    async def story():
        async with (
            cordwood.Topics(topics.name) as mine,
            mine.consumer("shop", "clicks") as consumer,
        ):
            asyncio.get_running_loop().call_later(0.01, consumer.stop)
            return [record async for record in consumer]

    assert [] == asyncio.run(asyncio.wait_for(story(), 60))


def test_makers_at_once_who_allow_for_each_other(tmp_path):
    """With `exist_ok`, none of them fails."""
    barrier = threading.Barrier(4)

    def make(name):
        barrier.wait()
        sync.Topics(tmp_path / "wood").create("shop", name, exist_ok=True)

    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            list(pool.map(make, [f"t{number}"] * 4))
    assert 20 == len(sync.Topics(tmp_path / "wood").list())


def test_an_extent_that_goes_while_it_is_opened(topics, monkeypatch):
    """A reader looks again; it does not say that there is no topic."""
    with topics.producer("shop", "clicks") as producer:
        for number in range(12):
            producer.send(b"%d" % number + bytes(900))
    oldest = Path(topics.name) / "shop/clicks/0/0.wal"

    def opened(disk, folder, base, **how):
        if base == 0:
            oldest.unlink(missing_ok=True)
        return open_extent(disk, folder, base, **how)

    monkeypatch.setattr(reading, "open_extent", opened)
    scan = topics._engine.home.partition("shop", "clicks", 0).scan(0)
    with pytest.raises(cordwood.CollectedError, match="0 is gone"):
        scan.take()


def test_a_newest_extent_that_is_missing_is_told_and_its_offsets_are_not_used_again(topics):
    """Whoever reads is told which; whoever sends goes on behind it."""
    # EVIDENCE-OF: G-91
    with topics.producer("shop", "clicks") as producer:
        for number in range(12):
            producer.send(b"%d" % number + bytes(900))
    topics.close()
    folder = Path(topics.name) / "shop/clicks/0"
    bases = sorted(int(path.stem) for path in folder.glob("*.wal"))
    (folder / f"{bases[-1]}.wal").unlink()
    later = sync.Topics(topics.name)
    with pytest.raises(CorruptionError, match=rf"{bases[-1]}\.wal .*missing"):
        values(later)
    with later.producer("shop", "clicks") as producer:
        assert 12 == producer.send(b"after").offset
    (warning,) = later.describe("shop", "clicks").warnings
    assert f"{bases[-1]}.wal" in warning


def test_a_line_that_is_there_waits_for_no_other(topics):
    """What comes through a pipe is sent when it comes."""
    command = "from cordwood.cli.main import main; main()"
    words = [sys.executable, "-c", command, "topic", "produce", topics.name, "shop/clicks"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"one\nand a ha")
        process.stdin.flush()
        with topics.consumer("shop", "clicks", timeout_s=60) as consumer:
            assert b"one" == next(iter(consumer)).value
        process.stdin.write(b"lf\n\nlast")
        process.stdin.close()
        assert b"sent 4 records" in process.stdout.read()
    assert [b"one", b"and a half", b"", b"last"] == values(topics)


def damaged(topics, partition, place):
    """Break some bytes of the first extent of a partition."""
    with open(f"{topics.name}/shop/two/{partition}/0.wal", "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 4)


def test_a_consumer_passes_over_damage_when_it_is_told_to(topics):
    """Other partitions are read meanwhile; nothing that is whole is left out."""
    # EVIDENCE-OF: G-91
    topics.create("shop", "two", partitions=2)
    with topics.producer("shop", "two") as producer:
        for number in range(6):
            producer.send(b"%d" % number, partition=number % 2)
    topics.close()
    damaged(topics, 0, 64 + 104 + 60)  # The second record of three.
    with topics.consumer("shop", "two", timeout_s=0) as consumer:
        found, skipped = [], []
        with pytest.raises(cordwood.StateError, match="no damage"):
            consumer.skip()
        with pytest.raises(CorruptionError, match="partition 0"):
            found.extend(record.value for record in consumer)
        skipped.append(consumer.skip())
        found.extend(record.value for record in consumer)
        assert [(0, 1, 2)] == skipped
        assert (0, 3, 3) == consumer.skip(0)  # Nothing more to pass over.
    assert [b"0", b"1", b"3", b"4", b"5"] == sorted(found)


def test_damage_in_a_shell(topics):
    """One line that names it; with --skip-damaged all the rest."""
    topics.create("shop", "two")
    with topics.producer("shop", "two") as producer:
        for number in range(3):
            producer.send(b"%d" % number)
    topics.close()
    damaged(topics, 0, 64 + 104 + 60)
    command = "from cordwood.cli.main import main; main()"
    words = [sys.executable, "-c", command, "topic", "consume", topics.name, "shop/two"]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (b"0\n", 1) == (done.stdout, done.returncode)
    assert b"0.wal is damaged at byte" in done.stderr
    done = subprocess.run([*words, "--skip-damaged"], capture_output=True, check=True)
    assert b"0\n2\n" == done.stdout
    assert b"1 to 1 were passed over" in done.stderr


def test_a_producer_with_a_name_goes_on_behind_damage(topics):
    """What can be read of what it sent is not sent again; the rest of the topic does not matter."""
    # EVIDENCE-OF: G-91, G-94
    topics.create("shop", "two")
    with topics.producer("shop", "two", name="importer") as producer:
        for number in range(5):
            producer.send(b"%d" % number, sequence=number)
    topics.close()
    damaged(topics, 0, 64 + 120 + 60)
    with sync.Topics(topics.name).producer("shop", "two", name="importer") as producer:
        assert (0, 4) == producer.send(b"4", sequence=4)
        with pytest.raises(cordwood.ConflictError, match="comes after"):
            producer.send(b"1", sequence=1)
        assert (0, 5) == producer.send(b"5", sequence=5)


def test_a_producer_with_a_name_is_not_disturbed_by_retention(topics):
    """What others sent, and retention deleted, since it last sent something."""
    topics.create("shop", "two", extent_bytes=4096, retention_bytes=4096)
    with topics.producer("shop", "two", name="importer") as producer:
        producer.send(b"0", sequence=0)
        with sync.Topics(topics.name, retains=False).producer("shop", "two") as other:
            for _ in range(20):
                other.send(bytes(900))
        assert topics.retain("shop", "two").partitions[0].records > 5
        assert (0, 21) == producer.send(b"1", sequence=1)


def test_what_a_killed_process_did_not_flush_is_seen_all_the_same(topics):
    """By a consumer that was there before, when it is late; nobody else has to send anything."""
    topics.create("shop", "two", ack="flush", flush_period_s=0.05)
    code = """
import os, sys
from cordwood import sync
from cordwood.topics import partition
partition.LocalPartition._flush_soon = lambda self: None
with sync.Topics(sys.argv[1]).producer("shop", "two") as producer:
    producer.send(b"left behind")
    os.kill(os.getpid(), 9)
"""
    with topics.consumer("shop", "two", timeout_s=0) as consumer:
        assert [] == list(consumer)
        done = subprocess.run([sys.executable, "-c", code, topics.name], check=False)
        assert -9 == done.returncode
        consumer._timeout_s = 60
        assert b"left behind" == next(iter(consumer)).value


def test_many_at_once_fit_into_small_extents(topics):
    """Records that fit are sent, however many share a batch, and whatever their headers are."""
    rng = np.random.default_rng(5)

    def headers():
        return {f"n{at}": b"v" for at in range(rng.integers(60))} if rng.random() < 0.5 else None

    async def send_all():
        async with cordwood.Topics(topics.name) as own, own.producer("shop", "clicks") as producer:
            for _ in range(5):
                sends = [
                    producer.send(bytes(rng.integers(900)), headers=headers()) for _ in range(30)
                ]
                await asyncio.gather(*sends)

    asyncio.run(send_all())
    with topics.producer("shop", "clicks") as producer:
        # Two of the records have all the headers.
        wide = [{"n": bytes(3000)} if at in (3, 7) else {} for at in range(100)]
        producer.send_many([b"x"] * 100, headers=wide)
        with pytest.raises(LimitError, match="does not fit"):
            producer.send_many([*[bytes(2000)] * 5, bytes(5000)])
    assert 5 * 30 + 100 == len(values(topics))


def test_a_member_of_a_group_of_a_deleted_topic_moves_no_position_of_the_next(topics):
    """Offsets of the one mean nothing in the other."""
    other = sync.Topics(topics.name)
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"old"] * 5)
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        assert 5 == len(list(consumer))
        other.delete("shop", "clicks")
        other.create("shop", "clicks")
        with other.producer("shop", "clicks") as producer:
            producer.send_many([b"new"] * 9)
        with other.consumer("shop", "clicks", group="g", timeout_s=0) as later:
            next(iter(later))
        with pytest.raises(ConflictError):
            consumer.commit()
    with other.consumer("shop", "clicks", group="g", timeout_s=0) as later:
        assert 9 == len(list(later))
    other.close()


def test_a_producer_that_is_closed_while_others_send(tmp_path):
    """They are told so, whenever it happens, and by nothing else."""
    others = []
    with sync.Topics(tmp_path / "wood") as topics:
        topics.create("shop", "clicks", partitions=8, extent_bytes=1 << 16)
        keys = [b"%d" % number for number in range(16)]
        for _ in range(20):
            producer = topics.producer("shop", "clicks").__enter__()
            begun = threading.Event()

            def send(producer=producer, begun=begun):
                try:
                    while True:
                        producer.send_many(keys, keys=keys)
                        begun.set()
                except StateError:
                    pass
                except Exception as error:
                    others.append(error)
                    begun.set()

            threads = [threading.Thread(target=send) for _ in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            producer.close()
            for thread in threads:
                thread.join()
    assert [] == others
