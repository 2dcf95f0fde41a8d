"""What is done by itself for topics that are open: retention; compaction, part of the time."""

from __future__ import annotations

import threading

import pytest

from cordwood import Store, sync
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, SeededEntropy
from cordwood.base.errors import NotFoundError, StoreError
from cordwood.topics import engine as engines
from cordwood.topics.compaction import Throttle
from cordwood.topics.keeping import Keeping

SMALL = 4096
LOOKS = 2000


def eventually(condition):
    """Whether it comes true, by and by."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.005) for _ in range(LOOKS))


def oldest(topics):
    """The first record that is left."""
    return topics.describe("shop", "clicks").partitions[0].oldest


def fill(topics, **how):
    """Several extents."""
    with topics.producer("shop", "clicks") as producer:
        for _ in range(20):
            producer.send(bytes(900), **how)


def test_a_producer_keeps_a_topic_small(tmp_path):
    """Whenever a file is full, and long before its period is over."""
    with sync.Topics(tmp_path) as topics:
        topics.create("shop", "clicks", extent_bytes=SMALL, retention_bytes=2 * SMALL)
        with topics.producer("shop", "clicks") as producer:
            for _ in range(20):
                producer.send(bytes(900))
            assert eventually(lambda: oldest(topics) >= 8)
        assert 20 == topics.describe("shop", "clicks").partitions[0].next


@pytest.mark.parametrize("is_store", [True, False])
def test_a_consumer_deletes_what_is_old_and_never_the_topic(tmp_path, monkeypatch, is_store):
    """Once in a period, as long as it is open."""
    monkeypatch.setattr(engines, "LOCAL_PERIOD_S", 0.02)
    monkeypatch.setattr(engines, "STORE_PERIOD_S", 0.02)
    place = Store(f"file://{tmp_path}") if is_store else tmp_path
    with sync.Topics(place) as topics:
        topics.create("shop", "clicks", extent_bytes=SMALL, retention_s=0.001)
        with topics.consumer("shop", "clicks"):
            fill(topics)
            assert eventually(lambda: oldest(topics) > 0)
        assert [("shop", "clicks")] == topics.list()


def test_who_does_not_want_it_says_so(tmp_path, monkeypatch):
    """Then only `retain` deletes."""
    monkeypatch.setattr(engines, "LOCAL_PERIOD_S", 0.0)
    with sync.Topics(tmp_path, retains=False) as topics:
        topics.create("shop", "clicks", extent_bytes=SMALL, retention_bytes=SMALL)
        with topics.consumer("shop", "clicks"):
            fill(topics)
        assert 0 == oldest(topics)
        topics.retain("shop", "clicks")
        assert oldest(topics) > 0


def kept(work, period_s=0.0):
    """Who looks after topics."""
    return Keeping(work, SYSTEM_CLOCK, SYSTEM_ENTROPY, period_s)


def threads():
    """How many are at it."""
    return sum(thread.name == "cordwood-retention" for thread in threading.enumerate())


def test_only_topics_that_are_open_are_looked_after():
    """Each as long as somebody has it open; without any the thread ends."""
    seen = []
    keeping = kept(lambda *topic: seen.append(topic))
    for _ in range(2):
        keeping.open(("a", "b"))
    keeping.close(("a", "b"))
    count = len(seen)
    assert eventually(lambda: len(seen) > count + 2)
    keeping.open(("c", "d"))
    keeping.close(("a", "b"))
    count = len(seen)
    assert eventually(lambda: ("c", "d") in seen[count + 2 :])
    assert ("a", "b") not in seen[count + 2 :]
    keeping.stop()
    assert eventually(lambda: not threads())


def test_a_topic_whose_file_is_full_comes_first():
    """It does not wait for its period."""
    done = threading.Event()
    keeping = kept(lambda *_: done.set(), period_s=3600)
    keeping.soon(("a", "b"))  # Nobody has it open.
    keeping.open(("a", "b"))
    assert not done.is_set()
    keeping.soon(("a", "b"))
    assert done.wait(60)
    keeping.stop()


def test_what_fails_is_told_and_tried_again(tmp_path, monkeypatch):
    """By who describes the topic; one that is gone is no failure."""
    errors = [NotFoundError("gone"), StoreError("the disk is tired")]

    def fails(*_):
        if errors:
            raise errors.pop(0)

    keeping = kept(fails)
    keeping.open(("a", "b"))
    assert eventually(lambda: not errors and not keeping.troubles)
    keeping.stop()
    monkeypatch.setattr(engines, "LOCAL_PERIOD_S", 0.0)
    with sync.Topics(tmp_path) as topics:
        topics.create("shop", "clicks")

        def tired(*_, **__):
            raise StoreError("the disk is tired")

        monkeypatch.setattr(engines, "retain", tired)
        with topics.producer("shop", "clicks"):
            assert eventually(lambda: topics.describe("shop", "clicks").warnings)
            (warning,) = topics.describe("shop", "clicks").warnings
        assert "the disk is tired" in warning


class Ticking:
    """A clock that a test moves."""

    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


class Resting(threading.Event):
    """Waits by moving the clock."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.waits = clock, []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        self.clock.now_s += timeout
        return False


def test_work_by_itself_takes_a_share_of_the_time():
    """It rests as long as it worked, or three times as long."""
    for share, rest in ((0.5, 1), (0.25, 3)):
        clock = Ticking()
        stop = Resting(clock)
        pace = Throttle(clock, None, stop, share=share)
        for _ in range(10):
            clock.now_s += 0.1
            pace.spend(1)
        assert pytest.approx([0.1 * rest] * 10) == stop.waits


def test_chance_spreads_the_turns():
    """Processes that start together do not all come at once."""
    keeping = Keeping(lambda *_: None, Ticking(), SeededEntropy(1), 100.0)
    found = {keeping._next_s() for _ in range(20)}
    assert len(found) > 10
    assert all(50 <= one <= 100 for one in found)
