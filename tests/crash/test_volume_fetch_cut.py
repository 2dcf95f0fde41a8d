"""Power cuts while a volume is fetched: whatever is left of the local copy, the pages are right."""

from __future__ import annotations

import asyncio
import errno

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import StoreError
from cordwood.store.memory import MemoryStore
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.handclock import HandClock
from cordwood.volume.branches import create_branch, create_volume
from cordwood.volume.cache import PackCache
from cordwood.volume.checkpoints import make_checkpoint
from cordwood.volume.format import NO_HASH, Commit, Provenance, seal
from cordwood.volume.history import History
from cordwood.volume.pack import PackBuilder
from cordwood.volume.pagesets import array_of, pages_of
from cordwood.volume.reader import PageReader
from cordwood.volume.remote import Remote

PAGE = 512
DIRECTORY = "/volumes"
SOME = [*range(1, 40), 150, 299, 300]


def remote_of(store, seed=1):
    """Volumes in a store."""
    return Remote(store, HandClock(), SeededEntropy(seed))


def on(disk, store, seed):
    """A client whose files are on this disk."""
    remote = remote_of(store, seed)
    return History(remote, DIRECTORY, disk), PackCache(remote, DIRECTORY, disk)


async def prepared():
    """A store with a volume of eight versions, a checkpoint and a branch; the log of the branch."""
    store = MemoryStore(HandClock())
    remote = remote_of(store)
    log = (await create_volume(remote, "app", page_size=PAGE)).log
    before, count = NO_HASH, 0
    for lsn in range(1, 9):
        pages = pages_of([1, lsn + 1] if lsn > 1 else range(1, 300))
        builder = PackBuilder(PAGE)
        numbers = array_of(pages)
        builder.add(numbers, b"".join(f"{n}@{lsn}".encode().ljust(PAGE) for n in numbers))
        built = builder.finish(remote.new_id(), log)
        await remote.put_pack(built)
        who = Provenance(remote.entropy.token(), 0, remote.entropy.token())
        sealed = seal(Commit(log, lsn, before, lsn, "", who, PAGE, 300, count, (built.pack,)))
        await remote.put_commit(sealed)
        before, count = sealed.commit.hash, 300
    history, cache = on(CrashDisk(), store, 2)
    await make_checkpoint(
        history, PageReader(await history.fetch(log, 1), history, cache, PAGE), log
    )
    branch = await create_branch(remote, log, await history.fetch(log), "branch")
    return store, branch.log


async def looked(disk, store, log, seed):
    """Fetch, read a page, hydrate, read all."""
    history, cache = on(disk, store, seed)
    reader = PageReader(await history.fetch(log), history, cache, PAGE)
    await reader.read(150)
    await reader.hydrate()
    return [await reader.read(page) for page in SOME]


@pytest.mark.parametrize("model", ["posix", "ext4"])
async def test_a_power_cut_at_every_step_of_a_fetch(model):
    """The next fetch finds torn files, and takes nothing in them for a page."""
    store, log = await prepared()
    whole = CrashDisk(model)
    expected = await looked(whole, store, log, 3)
    assert b"1@8" == expected[0].strip()
    for steps in range(1, whole.steps):
        disk = CrashDisk(model)
        disk.cut_after(steps)
        with pytest.raises(PowerCut):
            await looked(disk, store, log, 3)
        found = disk.power_cut(SeededEntropy(steps))
        assert expected == await looked(found, store, log, 4)


async def test_a_disk_that_fails_at_every_step_of_a_fetch():
    """It is said, or does not matter; with room again the same call succeeds."""
    store, log = await prepared()
    whole = CrashDisk()
    expected = await looked(whole, store, log, 3)
    told = []
    for step in range(1, whole.steps + 1):
        disk = CrashDisk()
        disk.fail(step, errno.ENOSPC)
        try:
            assert expected == await looked(disk, store, log, 3)
        except StoreError as error:
            told.append(error.code)
        assert expected == await looked(disk, store, log, 4)
    assert {"store_full"} == set(told)
    assert len(told) > whole.steps // 2


def test_a_killed_fetch_is_gone_on_with():
    """A process that dies leaves its files as they are; another one uses them."""

    async def play():
        store, log = await prepared()
        whole = CrashDisk()
        expected = await looked(whole, store, log, 3)
        for steps in range(1, whole.steps, 3):
            disk = CrashDisk()
            disk.cut_after(steps)
            with pytest.raises(PowerCut):
                await looked(disk, store, log, 3)
            disk.revive()
            assert expected == await looked(disk, store, log, 4)

    asyncio.run(play())
