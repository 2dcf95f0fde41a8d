"""Compaction on a disk that loses power: what a cursor passed is in the table, and stays there."""

from __future__ import annotations

import asyncio
import functools

import pytest

from cordwood import Options, Table, compact
from cordwood.base.clock import SeededEntropy
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.dying import DeadError
from cordwood.testing.handclock import FlyingClock
from cordwood.testing.powercut import log_on, work_until_cut

SEEDS = range(8)
KEYS = 3


def bodies(round_):
    """What is appended in one round."""
    return [(b"%d" % (n % KEYS), b"%d-%d" % (round_, n)) for n in range(6)]


async def append(log, round_):
    """A fragment for every record or two."""
    async with log.writer(create=True, options=Options(batch_bytes=10)) as writer:
        pairs = bodies(round_)
        await asyncio.gather(*(writer.append(body, key=key) for key, body in pairs))


async def rows(table):
    """By offset."""
    found = (await table.to_arrow()).sort_by("offset").to_pylist()
    return {row["offset"]: row["body"] for row in found}


async def free(log):
    """Everything that the cursors let go."""
    for _ in range(10):
        await log.collect(wait_s=0)


def stalled(disk, folder):
    """Until `del disk.fsync_dir`, whoever writes stops before the sync of this folder."""
    sync = disk.fsync_dir
    disk.fsync_dir = lambda path: None if path.endswith(folder) else sync(path)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_that_is_seen_before_it_is_durable(seed):
    """Nobody moves the cursor behind it, and collects, before it would survive."""
    # EVIDENCE-OF: G-66
    disk, clock = CrashDisk("posix"), FlyingClock()

    async def work():
        log = log_on(disk, clock=clock)
        table = Table(log.store, "t")
        await table.create()
        await append(log, 0)
        await log.cursors.init("compaction", 1)
        stalled(disk, "/t")
        cursors = type(log.cursors)
        save = cursors.save
        # It dies behind its commit.
        cursors.save = _die
        try:
            with pytest.raises(DeadError):
                await compact(log, table, engine="local")
        finally:
            cursors.save = save
            del disk.fsync_dir
        other = log_on(disk, clock=clock)
        await compact(other, Table(other.store, "t"), engine="local")
        await free(other)

    asyncio.run(work())
    back = log_on(disk.power_cut(SeededEntropy(f"table-{seed}")), clock=clock)
    state = asyncio.run(back.state())
    assert (7, 7) == (state.cursors["compaction"], state.oldest_offset)
    expected = dict(enumerate((body for _, body in bodies(0)), 1))
    assert expected == asyncio.run(rows(Table(back.store, "t")))


async def _die(*_):
    raise DeadError


async def _work(disk, mode, done):
    """Two rounds of append, compact, collect."""
    log = log_on(disk)
    table = Table(log.store, "t")
    await table.create(mode=mode, exist_ok=True)
    for round_ in range(2):
        await append(log, round_)
        done.append(("appended", round_))
        await compact(log, table, engine="local")
        done.append(("compacted", round_))
        await log.collect(wait_s=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_power_cuts_at_any_step(mode):
    """What was compacted stays compacted; the next compaction goes on, and doubles nothing."""
    # EVIDENCE-OF: G-66, G-77
    disk = CrashDisk("posix")
    work_until_cut(disk, functools.partial(_work, disk, mode, []))
    steps = disk.steps
    assert steps > 100
    for step in range(1, steps, 5):
        disk, done = CrashDisk("posix"), []
        disk.cut_after(step)
        work_until_cut(disk, functools.partial(_work, disk, mode, done))
        after = disk.power_cut(SeededEntropy(f"{mode}-{step}"))
        asyncio.run(_check(after, mode, done))


async def _check(disk, mode, done):
    log = log_on(disk)
    table = Table(log.store, "t")
    await table.create(mode=mode, exist_ok=True)
    await log.create(exist_ok=True)
    compacted = 6 * sum(word == "compacted" for word, _ in done)
    before = await rows(table)
    if mode == "append":
        assert set(range(1, compacted + 1)) <= set(before)
    else:
        assert len(before) == KEYS or not compacted
        assert min(before, default=compacted) > compacted - KEYS
    await compact(log, table, engine="local")
    found = await rows(table)
    limit = (await log.state()).next_offset
    assert 6 * sum(word == "appended" for word, _ in done) < limit
    if mode == "append":
        assert list(range(1, limit)) == sorted(found)
    else:
        assert min(KEYS, limit - 1) == len(found)
    assert [] == await table.scrub()
    assert (await log.scrub(deep=True)).ok
