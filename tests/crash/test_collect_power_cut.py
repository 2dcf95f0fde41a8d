"""A collection relies on what somebody else wrote only when that would survive a power cut."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import cordwood
from cordwood.base.clock import SYSTEM_ENTROPY, SeededEntropy
from cordwood.log.garbage import apply, load_garbage
from cordwood.log.recovery import Tail, next_tag
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.handclock import FlyingClock
from cordwood.testing.powercut import log_on

SEEDS = range(8)


async def fill(log, cursor):
    """Twenty fragments and a cursor."""
    async with log.writer(create=True, options=cordwood.Options(batch_bytes=1)) as writer:
        await asyncio.gather(*(writer.append(b"%d" % n) for n in range(20)))
    return await log.cursors.init("jobs", cursor)


class Stalled:
    """Whoever writes meanwhile stops before the sync of this folder: seen, and not yet durable."""

    def __init__(self, disk, folder):
        """Not yet."""
        self.disk, self.folder = disk, folder

    def __enter__(self):
        """From now on."""
        sync = self.disk.fsync_dir
        self.disk.fsync_dir = lambda path: None if path.endswith(self.folder) else sync(path)

    def __exit__(self, *_):
        """Others do sync."""
        del self.disk.fsync_dir


async def collect(log):
    """All of it."""
    for _ in range(20):
        await log.collect(wait_s=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_manifest_that_a_stopped_writer_unlinked(seed):
    """Its swap is seen before it is durable; nothing goes that a power cut would bring back."""
    disk, clock = CrashDisk("posix"), FlyingClock()

    async def work():
        log = log_on(disk, clock=clock)
        await fill(log, 15)
        await log.mark()
        manifest, etag = await log.objects.load()
        smaller = apply(manifest, (await load_garbage(log.objects)).garbage)
        tag = next_tag(manifest, Tail.of(manifest), SYSTEM_ENTROPY)
        with Stalled(disk, "/manifest"):
            await log.objects.swap(msgspec.structs.replace(smaller, writer=str(tag)), etag)
        await collect(log_on(disk, clock=clock))

    asyncio.run(work())
    back = log_on(disk.power_cut(SeededEntropy(f"manifest-{seed}")), clock=clock)
    assert asyncio.run(back.scrub(deep=True)).ok
    assert 15 == asyncio.run(back.state()).oldest_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cursor_that_a_stopped_consumer_moved(seed):
    """A log never begins behind a cursor, whatever a power cut brings back."""
    disk, clock = CrashDisk("posix"), FlyingClock()

    async def work():
        log = log_on(disk, clock=clock)
        witness = await fill(log, 1)
        with Stalled(disk, "/cursor"):
            await log.cursors.save("jobs", 15, witness)
        await collect(log_on(disk, clock=clock))

    asyncio.run(work())
    back = log_on(disk.power_cut(SeededEntropy(f"cursor-{seed}")), clock=clock)
    assert 15 == asyncio.run(back.cursors.load("jobs")).offset
    assert 15 == asyncio.run(back.state()).oldest_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_a_version_that_a_stopped_consumer_put(seed):
    """Of a chain: the one before it is deleted only when it would survive in its place."""
    # EVIDENCE-OF: G-128
    disk, clock = CrashDisk("posix"), FlyingClock()

    async def work():
        log = log_on(disk, clock=clock)
        await log.create(protocol="chain")
        witness = await fill(log, 1)
        with Stalled(disk, "/cursor/jobs"):
            await log.cursors.save("jobs", 15, witness)
        unlink = disk.unlink

        def unlink_and_die(path):
            unlink(path)
            if "/cursor/jobs/" in path:
                raise PowerCut

        disk.unlink = unlink_and_die
        await collect(log_on(disk, clock=clock))

    with pytest.raises(PowerCut):
        asyncio.run(work())
    back = log_on(disk.power_cut(SeededEntropy(f"version-{seed}")), clock=clock)
    assert 15 == asyncio.run(back.cursors.load("jobs")).offset
