"""What is nowhere else: it is named before a directory is deleted, and gets out of any trouble."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from volume_flavours import PAGE, seen, write

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    CordwoodError,
    CorruptionError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StoreError,
)
from cordwood.store.disk import Disk
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.testing.hooked import Hooked
from cordwood.testing.volumemodel import PAGE_BYTES, commit, page_of
from cordwood.volume import writing
from cordwood.volume.cache import _SparseFile
from cordwood.volume.local import Local
from cordwood.volume.recovery import is_ahead
from cordwood.volume.volume import Volume

DAY_S = 86_400


async def test_a_directory_with_another_volumes_commits_is_not_safe_to_delete(world):
    """Volumes and branches share a directory; what one has not published keeps all of it."""
    # EVIDENCE-OF: G-112
    volume = await world.made(versions=1)
    assert (await volume.status()).is_safe_to_delete
    branch = world.at("a", "trial")
    await volume.branch("trial")
    assert (await volume.status()).is_safe_to_delete
    await write(branch, {2: "mine"})
    for is_open in (True, False):
        if not is_open:
            await branch.close()
        status = await volume.status()
        assert (0, False) == (status.ahead, status.is_safe_to_delete)
        assert [(await branch.status()).log] == list(status.ahead_elsewhere)
    await branch.push()
    assert (await volume.status()).is_safe_to_delete
    assert () == (await volume.status()).ahead_elsewhere


async def test_a_volume_nobody_can_open_keeps_its_directory(world):
    """Whether something is lost with it, nobody knows."""
    volume = await world.made(versions=1)
    await volume.branch("trial")
    branch = world.at("a", "trial")
    await write(branch, {2: "mine"})
    folder = (await branch.desk()).folder
    await branch.close()
    path = os.path.join(folder, "wal", "wal0.wal")
    Disk().overwrite(path, b"rot", 3)
    status = await volume.status()
    assert not status.is_safe_to_delete
    assert [os.path.basename(folder)] == list(status.ahead_elsewhere)


async def test_a_directory_that_lost_its_head_is_refused(world):
    """Local commits would lie over a version that they were not made upon."""
    # EVIDENCE-OF: G-110
    volume = await world.made("a", versions=1)
    await write(volume, {1: "pushed"})
    await volume.push()
    await write(volume, {2: "mine"})
    folder = (await volume.desk()).folder
    await volume.close()
    other = world.at("b")
    await write(other, {1: "theirs"})
    await other.push()
    os.rename(os.path.join(folder, "head"), os.path.join(folder, "away"))
    with pytest.raises(CorruptionError, match="head"):
        await volume.snapshot()
    os.rename(os.path.join(folder, "away"), os.path.join(folder, "head"))
    assert ["pushed", "mine"] == await seen(volume)


async def test_a_directory_whose_client_is_damaged_goes_on(world):
    """It has a name of its own again; nothing depends on which."""
    # EVIDENCE-OF: G-112
    volume = await world.made(versions=1)
    await volume.close()
    Disk().overwrite(os.path.join(volume.directory, "client"), b"rot", 5)
    await write(volume, {1: "again"})
    assert 2 == await volume.push()


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_commits_to_a_log_that_was_deleted_get_out(world, is_cut_off):
    """Its name was taken away, and a collection removed it: what is here becomes a volume."""
    # EVIDENCE-OF: G-114
    await world.made("a", versions=2)
    faulty = FaultyStore(world.back, SeededEntropy(1), world.clock)
    volume = world.at("b", store=faulty)
    await volume.hydrate()
    await write(volume, {3: "mine"})
    if is_cut_off:
        faulty.script("put", Fault.NONE, Fault.ERROR_BEFORE)
        with pytest.raises(CordwoodError):
            await volume.push()
        faulty.heal()
        assert (await volume.status()).uncertain
    remover = world.at("c")
    await remover.snapshot()
    await remover.delete()
    for _ in range(3):
        world.clock.pass_s(2 * DAY_S)
        await remover.collect(keep_s=0)
    assert [] == [meta.key async for meta in world.back.list("logs/") if "manifest" in meta.key]
    with pytest.raises(CordwoodError):
        await volume.push()
    assert ["v1", "v2", "mine"] == await seen(volume)
    rescued = await volume.branch("rescued", unpushed=True)
    assert ["v1", "v2", "mine"] == await seen(rescued)
    await rescued.close()
    assert ["v1", "v2", "mine"] == await seen(world.at("d", "rescued"))


@pytest.mark.parametrize("lsn", [2_000, 10**9, 2**63])
async def test_a_version_far_ahead_is_asked_for_once(world, lsn):
    """Whoever hands in a time for an LSN is told at once, and not after a billion requests."""
    await world.made(versions=2)
    hooked = Hooked(world.back)
    volume = world.at("b", store=hooked)
    await volume.snapshot()
    before = len(hooked.calls)
    with pytest.raises(NotFoundError, match="LSN"):
        await volume.snapshot(at=lsn)
    assert len(hooked.calls) - before <= 4


@pytest.mark.parametrize(
    "at", ["9" * 400 + " weeks ago", "9" * 5000, "0001-01-01", "99 weeks ago", "0001-01-01T12:00Z"]
)
async def test_times_that_no_clock_has(world, at):
    """They are too early for any version, or refused as no time at all."""
    volume = await world.made(versions=1)
    with pytest.raises((InvalidInputError, NotFoundError), match="version"):
        await volume.snapshot(at)


async def test_what_is_published_frees_its_room(world):
    """The base goes, once everything in it is in the store."""
    volume = await world.made(versions=0)
    for number in range(6):
        await write(volume, {n: f"{number}/{n}" for n in range(1, 1500)})
    base = os.path.join((await volume.desk()).folder, "wal", "base")
    assert os.stat(base).st_size > 0
    await volume.push()
    assert 0 == os.stat(base).st_size
    assert "5/1" == (await seen(volume))[0]
    shutil.rmtree(os.path.join((await volume.desk()).folder, "segments"))
    assert "5/1499" == (await seen(volume))[-1]


@pytest.mark.parametrize("durable", [False, True])
async def test_pages_that_were_fetched_are_synced_if_that_is_asked_for(world, durable, monkeypatch):
    """Whoever goes offline may want them after a power cut as well."""
    await world.made("a", versions=2)
    synced = []
    monkeypatch.setattr(_SparseFile, "sync", lambda file: synced.append(file.is_usable))
    volume = Volume(
        world.store, "app", directory=world.folder / "b", durable_cache=durable, clock=world.clock
    )
    await volume.hydrate()
    branch = await volume.branch("trial")
    assert durable == branch.durable_cache
    assert durable == bool(synced)
    await volume.close()


async def test_a_name_whose_log_went_before_it_was_ever_opened_here(world):
    """The name was looked up, then moved, and its log removed: it is looked up again."""
    volume = await world.made("a", versions=1)
    hooked = Hooked(world.back)
    other = world.at("b", store=hooked)

    async def gone(call, key):
        if key.endswith("/manifest"):
            raise StoreError("no answer", operation="get", key=key)
        return await call()

    hooked.hooks["get"] = gone
    with pytest.raises(StoreError):
        await other.snapshot()
    hooked.hooks.clear()
    await volume.delete()
    for _ in range(3):
        world.clock.pass_s(2 * DAY_S)
        await volume.collect(keep_s=0)
    again = world.at("c")
    await again.create(page_size=PAGE)
    await write(again, {1: "again"})
    await again.push()
    assert ["again"] == await seen(other)


def test_a_look_says_what_an_open_volume_would():
    """Whatever was committed, drained, published and discarded, and by whom."""
    chance = np.random.default_rng(7)
    disk = CrashDisk()
    disk.mkdir("/v")
    local = Local.open("/v/log", PAGE_BYTES, disk=disk, switch_pages=4)
    answers = set()
    for number in range(150):
        with local.snapshot() as view:
            entry, count = view.entry, view.page_count
        what = chance.integers(6)
        if what < 3:
            commit(local, {int(chance.integers(1, 9)): page_of(1, number)}, 9)
        elif what == 3:
            local.publish(number, bytes(32), entry, count, own=True)
        elif what == 4:
            local.drain()
            local.reclaim()
        else:
            local.close()
            local = Local.open("/v/log", PAGE_BYTES, disk=disk, switch_pages=4)
        with local.snapshot() as view:
            assert (view.unpushed > 0) == is_ahead(disk, "/v/log"), number
            answers.add(view.unpushed > 0)
    assert {True, False} == answers


async def test_a_restore_that_is_too_large_says_what_to_do(world, monkeypatch):
    """It is refused before it fills the memory; nothing has changed, and a branch can be made."""
    volume = await world.made(versions=1)
    await write(volume, {n: f"old {n}" for n in range(1, 9)})
    await volume.push()
    await write(volume, {n: f"new {n}" for n in range(1, 9)})
    await volume.push()
    monkeypatch.setattr(writing, "TRANSACTION_BYTES_MAX", 5 * PAGE)
    with pytest.raises(LimitError, match="branch"):
        await volume.restore(2)
    with pytest.raises(LimitError, match="6 pages"):
        await write(volume, dict.fromkeys(range(1, 9), "more"))
    assert "new 1" == (await seen(volume))[0]
    await volume.branch("old", 2)
    assert "old 8" == (await seen(world.at("a", "old")))[7]
