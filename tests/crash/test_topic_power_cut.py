"""Power cuts and failing disks under topics, at every step of all that is done to one."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count

import pyarrow as pa
import pytest

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.base.errors import NotFoundError, StoreError
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.topics.batch import Columns, iter_topic_records
from cordwood.topics.config import TopicConfig
from cordwood.topics.folder import Folder

CONFIGS = [TopicConfig(namespace="shop", topic="clicks", partitions=2, extent_bytes=4096)] * 2
RECORDS = 12


class Story:
    """What is done to a topic, and how much of it was acknowledged."""

    def __init__(self, disk, seed):
        self.home = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(seed))
        self.is_made = False
        self.sent = 0
        self.tried = 0
        self.committed = 0
        self.committing = 0
        self.is_deleted = False
        self.is_deleting = False

    def run(self):
        """All of it."""
        self.home.create(CONFIGS)
        self.go_on()

    def go_on(self):
        """With a topic that is there."""
        self.is_made = True
        partition = self.home.partition("shop", "clicks", 1)
        self.sent = self.tried = partition.bounds().next
        for number in range(self.sent, RECORDS):
            self.tried = number + 1
            # Large enough that extents are closed on the way.
            values = pa.array([b"%d" % number + bytes(900)], pa.binary())
            assert number == partition.append(Columns(values))
            self.sent = number + 1
        member = self.home.join("shop", "clicks", "g")
        try:
            assert {0, 1} == member.owned()
            for position in (3, 5, 8):
                self.committing = position
                member.commit({1: position})
                self.committed = position
        finally:
            member.leave()

    def end(self):
        """And then it is deleted."""
        self.is_deleting = True
        self.home.delete("shop", "clicks")
        self.is_deleted = True


def fresh(model):
    """A disk with a folder."""
    disk = CrashDisk(model)
    disk.mkdir("/wood")
    disk.fsync_dir("/")
    return disk


def numbers(home):
    """The records that are there."""
    scan, found = home.partition("shop", "clicks", 1).scan(0), []
    while batches := scan.take():
        for batch in batches:
            found += [int(one.value[:2].strip(b"\0")) for one in iter_topic_records(1, batch)]
    return found


def check(disk, story, seed):
    """What is found fits what was acknowledged; and the topic works, or can be made again."""
    home = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(seed))
    if ("shop", "clicks") not in home.topics():
        assert not story.is_made or story.is_deleting
        home.create(CONFIGS)
        assert [] == numbers(home)
        return
    assert not story.is_deleted
    found = numbers(home)
    assert found == list(range(len(found)))
    assert story.sent <= len(found) <= story.tried
    at = home.groups("shop", "clicks").get("g", {}).get(1, 0)
    assert at in (story.committed, story.committing)
    member = home.join("shop", "clicks", "g")
    assert {0, 1} == member.owned()
    assert ({1: at} if at else {}) == member.positions()
    member.commit({1: 11})
    assert {1: 11} == home.groups("shop", "clicks")["g"]
    values = pa.array([b"99" + bytes(900)], pa.binary())
    assert len(found) == home.partition("shop", "clicks", 1).append(Columns(values))
    assert [*found, 99] == numbers(home)
    home.delete("shop", "clicks")
    with pytest.raises(NotFoundError):
        home.partition("shop", "clicks", 1)


def steps(*, deletes):
    """How many steps the story has."""
    disk = fresh("posix")
    before, story = disk.steps, Story(disk, 1)
    story.run()
    if deletes:
        story.end()
    return disk.steps - before


@pytest.mark.parametrize("model", ["posix", "ext4"])
@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_every_step(model, seed):
    """Acknowledged is acknowledged; the rest is there or not, and nothing is in between."""
    # EVIDENCE-OF: G-88, G-89
    for cut in range(steps(deletes=True)):
        disk = fresh(model)
        disk.cut_after(cut)
        story = Story(disk, seed)
        with suppress(PowerCut):
            story.run()
            story.end()
        check(disk.power_cut(SeededEntropy(f"{seed}-{cut}")), story, f"later-{cut}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failure_at_every_step(number):
    """One clear error, and what was acknowledged stays; later everything works again."""
    # EVIDENCE-OF: G-88, G-90
    for step in range(1, steps(deletes=False) + 1):
        disk = fresh("posix")
        disk.fail(step, number)
        story = Story(disk, 3)
        with suppress(StoreError):
            story.run()
        check(disk, story, f"later-{step}")


def relayed(disk):
    """Whoever comes next does the rest, as often as the disk fails."""
    for seed in count(2):
        story = Story(disk, seed)
        try:
            if ("shop", "clicks") not in story.home.topics():
                story.home.create(CONFIGS)
            story.go_on()
        except StoreError:
            continue
        return story
    raise AssertionError


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_what_a_dead_one_left_is_durable_before_others_build_upon_it(model):
    """A process dies at every step; the next goes on; then the power fails."""
    # EVIDENCE-OF: G-88
    for cut in range(steps(deletes=False)):
        disk = fresh(model)
        disk.cut_after(cut)
        with suppress(PowerCut):
            Story(disk, 1).run()
        disk.revive()
        story = relayed(disk)
        check(disk.power_cut(SeededEntropy(f"relay-{cut}")), story, f"later-{cut}")


def test_what_a_sync_failed_for_is_not_taken_for_durable():
    """The system forgets what it could not write, and the next sync succeeds."""
    # EVIDENCE-OF: G-88, G-90
    for step in range(1, steps(deletes=False) + 1):
        disk = fresh("posix")
        disk.fail(step, errno.EIO)
        story = relayed(disk)
        check(disk.power_cut(SeededEntropy(f"forgotten-{step}")), story, f"later-{step}")


def test_a_flush_that_fails_is_told_to_who_sends_next():
    """What was acknowledged before it is lost: that is said, once, and then it goes on."""
    disk = fresh("posix")
    home = Folder("/wood", disk=disk, clock=SYSTEM_CLOCK, entropy=SeededEntropy(1))
    config = TopicConfig(
        namespace="shop", topic="clicks", ack="flush", flush_period_s=3600, extent_bytes=1 << 16
    )
    home.create([config])
    part = home.partition("shop", "clicks", 0)
    values = [Columns(pa.array([b"%d" % number], pa.binary())) for number in range(4)]
    assert 0 == part.append(values[0])
    part._flush_now()
    assert 1 == part.append(values[1])
    disk.fail(1, errno.EIO)
    part._flush_now()
    with pytest.raises(StoreError, match="since the last flush is lost"):
        part.append(values[2])
    assert "lost" in part.trouble
    assert 1 == part.append(values[3])
    part.flush()
    scan, found = part.scan(0), []
    while batches := scan.take():
        found += [one.value for batch in batches for one in iter_topic_records(0, batch)]
    assert [b"0", b"3"] == found
    part.close()
