"""Lost answers, late puts, several at once, damage, no store: what push and pull withstand."""

from __future__ import annotations

import asyncio
import threading

import pytest
from volume_flavours import World, page, seen, write

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import (
    Code,
    CollectedError,
    ContendedError,
    CorruptionError,
    DivergedError,
    StoreError,
)
from cordwood.store.disk import Disk
from cordwood.testing.faults import Fault, FaultyStore
from cordwood.testing.hooked import Hooked
from cordwood.volume import paths
from cordwood.volume.desk import open_desk


async def commits(world):
    """The commits in the store, of all logs."""
    return [meta.key async for meta in world.back.list("logs/") if "/commits/" in meta.key]


# Answers.


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.ZOMBIE])
@pytest.mark.parametrize("number", range(3))
async def test_an_answer_lost_at_each_put(world, fault, number):
    """Pack or commit: the next push knows its own again, and there is one version."""
    # EVIDENCE-OF: G-111
    await world.made(versions=1)
    faulty = FaultyStore(world.back, SeededEntropy(1), world.clock)
    volume = world.at("b", store=faulty)
    await write(volume, {1: "mine"})
    faulty.script("put", *[Fault.NONE] * number, fault)
    try:
        assert 2 == await volume.push()
    except StoreError:
        assert number < 2
    faulty.heal()
    await faulty.drain()
    again = await volume.push()
    assert again in (None, 2)
    assert 2 == len(await commits(world))
    assert ["mine"] == await seen(world.at("c"))
    assert not (await volume.status()).uncertain


@pytest.mark.parametrize("verb", ["push", "pull", "reset", "rebase"])
async def test_a_put_that_lands_late_is_the_same_commit(world, verb):
    """The process died waiting; the next one, in the same directory, has done this and that since.

    Whatever it did, it put the same bytes first: so it is published, and what lands is that.
    """
    # EVIDENCE-OF: G-111
    await world.made(versions=1)
    late = []

    async def put(call, key, data, mode):
        if "/commits/" in key:
            late.append((key, data, mode))
            raise StoreError("the line is dead", code=Code.STORE_UNREACHABLE, applied=True)
        return await call()

    first = world.at("b", store=Hooked(world.back, put=put))
    await write(first, {1: "mine"})
    with pytest.raises(StoreError):
        await first.push("first")
    assert (await first.status()).uncertain
    await first.close()
    second = world.at("b")
    await getattr(second, verb)()
    assert ["mine"] == await seen(second)
    assert not (await second.status()).uncertain
    await write(second, {1: "more"})
    assert 3 == await second.push("second")
    with pytest.raises(Exception, match="exist"):
        await world.back.put(*late[0])
    assert ["second", "first", "version 1"] == [version.message for version in await second.log()]
    assert ["more"] == await seen(world.at("c"))


async def test_a_push_cut_off_that_another_overtook_is_dropped(world):
    """Its LSN is theirs for ever; what is local stays, and has diverged."""
    # EVIDENCE-OF: G-111, G-114
    a = await world.made(versions=1)

    async def put(call, key, *_):
        if "/commits/" in key:
            raise StoreError("the line is dead", code=Code.STORE_UNREACHABLE, applied=True)
        return await call()

    b = world.at("b", store=Hooked(world.back, put=put))
    await write(b, {2: "mine"})
    with pytest.raises(StoreError):
        await b.push()
    await write(a, {1: "theirs"})
    await a.push()
    await b.close()
    b = world.at("b")
    with pytest.raises(DivergedError):
        await b.push()
    assert not (await b.status()).uncertain
    assert ["v1", "mine"] == await seen(b)
    await b.rebase()
    assert 3 == await b.push()
    assert ["theirs", "mine"] == await seen(world.at("c"))


# Several at once.


async def test_processes_of_one_directory_push_and_pull_at_once(world):
    """Handles of their own on the same files: each transfer is published once."""
    # EVIDENCE-OF: G-111
    await world.made(versions=1)
    ones = [world.at("b") for _ in range(3)]

    async def work(volume, number):
        for turn in range(5):
            await write(volume, {number: f"{number} {turn}"})
            await (volume.pull if turn % 2 else volume.push)()
        await volume.push()

    await asyncio.gather(*(work(volume, n) for n, volume in enumerate(ones, 2)))
    expected = ["v1", "2 4", "3 4", "4 4"]
    assert expected == await seen(ones[0]) == await seen(world.at("c"))
    lsns = [version.lsn for version in await ones[1].log()]
    assert list(range(len(lsns), 0, -1)) == lsns


async def test_of_two_directories_one_is_first(world):
    """One version each; the other diverges, and finds its way."""
    # EVIDENCE-OF: G-114
    await world.made(versions=1)
    ones = [world.at(f"d{n}") for n in range(4)]
    for n, volume in enumerate(ones):
        await seen(volume)
        await write(volume, {n + 2: f"of {n}"}, [5])
    done = await asyncio.gather(*(v.push() for v in ones), return_exceptions=True)
    assert 1 == done.count(2)
    assert 3 == sum(isinstance(error, DivergedError) for error in done)
    assert 2 == len(await commits(world))


async def test_who_waits_for_a_transaction_does_not_stop_the_loop(world):
    """A pull meets an open transaction of the same process: it waits, and the other goes on."""
    a = await world.made(versions=1)
    b = world.at("b")
    await seen(b)
    await write(a, {1: "theirs"})
    await a.push()
    other = world.at("b")
    async with other.begin() as transaction:
        pulling = asyncio.create_task(b.pull())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not pulling.done()
        assert page("v1") == await transaction.read(1)
    assert (1, 2) == await pulling
    assert ["theirs"] == await seen(other)


async def test_what_is_committed_while_a_branch_is_made_stays(world):
    """The branch has what was there when it began; here nothing is given up."""
    # EVIDENCE-OF: G-114
    a = await world.made(versions=2)
    other = world.at("b")
    await seen(other)

    async def put(call, key, *_):
        if key == "tags/kept":
            await write(other, {2: "meanwhile"})
        return await call()

    b = world.at("b", store=Hooked(world.back, put=put))
    await write(b, {1: "mine"})
    await write(a, {1: "theirs"})
    await a.push()
    with pytest.raises(ContendedError, match="'kept'"):
        await b.branch("kept", unpushed=True)
    assert ["mine", "meanwhile"] == await seen(b)
    assert ["mine", "v2"] == await seen(world.at("c", "kept"))
    again = await b.branch("again", unpushed=True)
    assert ["mine", "meanwhile"] == await seen(again)
    assert ["theirs", "v2"] == await seen(b)


class Stuck(Disk):
    """A disk whose next sync takes as long as the test wants."""

    def __init__(self):
        self.go, self.reached = threading.Event(), threading.Event()
        self.is_slow = False

    def open(self, path, **rest):
        """Files whose sync waits."""
        file = super().open(path, **rest)
        if path.endswith(".wal"):
            whole = file.sync

            def sync():
                if self.is_slow:
                    self.reached.set()
                    assert self.go.wait(30)
                whole()

            return Synced(file, sync)
        return file


class Synced:
    """A file with another sync."""

    def __init__(self, file, sync):
        self._file = file
        self.sync = sync

    def __getattr__(self, name):
        return getattr(self._file, name)


async def test_a_commit_that_is_cancelled_is_over_before_the_next_begins(world):
    """The right to write is not let go while a thread still writes."""
    await world.made(versions=1)
    disk = Stuck()
    volume = world.at("b")
    volume._desk = await open_desk(
        world.store,
        "app",
        volume.directory,
        clock=world.clock,
        entropy=volume.entropy,
        disk=disk,
    )
    disk.is_slow = True
    task = asyncio.create_task(write(volume, {1: "cancelled"}))
    assert await asyncio.to_thread(disk.reached.wait, 30)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    desk = await volume.desk()
    with desk.local.snapshot() as view, pytest.raises(ContendedError):
        desk.local.begin(view)
    assert not task.done()
    disk.is_slow = False
    disk.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["cancelled"] == await seen(volume)
    await write(volume, {1: "next"})
    assert ["next"] == await seen(volume)


# Damage, and what is gone.


async def test_a_frame_damaged_here_is_fetched_again(world):
    """And a whole cache that was deleted, and all commits: nothing of it is needed."""
    # EVIDENCE-OF: G-112
    await world.made(versions=2)
    b = world.at("b")
    await b.hydrate()
    await b.close()
    for path in (world.folder / "b").glob("*/segments/*"):
        data = bytearray(path.read_bytes())
        data[-20:] = b"\xff" * 20
        path.write_bytes(data)
    b = world.at("b")
    assert ["v1", "v2"] == await seen(b)
    await write(b, {1: "mine"})
    await b.close()
    for part in ("segments", "commits", "commit-filter", "checkpoints"):
        for path in (world.folder / "b").glob(f"*/{part}/*"):
            path.unlink()
    for path in [*(world.folder / "b").glob("*/manifest"), *(world.folder / "b").glob("tags/*")]:
        path.unlink()
    b = world.at("b")
    assert ["mine", "v2"] == await seen(b)
    assert 3 == await b.push()


async def test_a_frame_damaged_in_the_store_is_named(world):
    """Never handed out; other pages are read as before."""
    a = await world.made(versions=2)
    packs = [meta.key async for meta in world.back.list(paths.PACKS)]
    data = bytearray((await world.back.get(packs[0])).data)
    data[40] ^= 1
    await world.back.put(packs[0], bytes(data), "overwrite")
    fresh = await world.at("b").snapshot()
    with pytest.raises(CorruptionError, match=r"frame 0"):
        await fresh.read(1)
    assert page("v2") == await fresh.read(2)
    await fresh.close()
    assert ["v1", "v2"] == await seen(a)


async def test_a_reader_goes_on_when_a_checkpoint_took_the_place_of_packs(world):
    """One that was open before, another that pulls, diff, hydrate and restore."""
    # EVIDENCE-OF: G-113
    a = await world.made()
    for n in range(1, 9):
        await write(a, {k: f"{k} of {n}" for k in range(1, 4 + n % 2)}, [4])
        await a.push()
    place = world.at("old")
    old = await place.snapshot()
    others = [world.at(f"r{n}") for n in range(3)]
    for volume in others:
        await volume.fetch()
    expected = await seen(a)
    await a.checkpoint()
    for _ in range(3):
        world.clock.pass_s(700)
        report = await a.collect(keep_s=0)
    assert report.due_s == 0
    assert 1 == len(await commits(world))
    assert page(expected[0]) == await old.read(1)
    await old.close()
    assert expected == await seen(place)
    assert 0 < await others[0].hydrate()
    assert expected == await seen(others[0])
    assert [] == list(await others[1].diff(8, 8))
    await write(others[2], {1: "changed"})
    assert 1 == await others[2].restore(8)
    with pytest.raises(CollectedError):
        await seen(place, 3)
    assert 0 == (await place.status()).behind


async def test_who_is_far_behind_still_knows_how_far(world):
    """The versions between were collected: status, pull and local commits work all the same."""
    a = await world.made(versions=2)
    b = world.at("b")
    await b.hydrate()
    await write(b, {1: "mine"})
    for n in range(3):
        await write(a, {1: f"later {n}"})
        await a.push()
    await a.checkpoint()
    for _ in range(2):
        world.clock.pass_s(700)
        await a.collect(keep_s=0)
    status = await b.status()
    assert (1, 3, True) == (status.ahead, status.behind, status.diverged)
    assert ["mine", "v2"] == await seen(b)
    with pytest.raises(DivergedError):
        await b.pull()
    assert ["mine", "v2"] == await seen(b)
    with pytest.raises(CollectedError):
        await b.rebase()
    kept = await b.branch("kept", unpushed=True)
    assert ["later 2", "v2"] == await seen(b)
    assert ["mine", "v2"] == await seen(kept) == await seen(world.at("c", "kept"))
    assert [1] == [version.lsn for version in await kept.log()]


async def test_who_is_far_behind_and_has_no_copy_is_told(world):
    """Pages of what local commits build upon are gone: nothing is given up unasked."""
    a = await world.made(versions=2)
    b = world.at("b")
    await write(b, {1: "mine"}, [4])
    for n in range(3):
        await write(a, {1: f"later {n}", 2: f"later {n}"})
        await a.push()
    await a.checkpoint()
    for _ in range(3):
        world.clock.pass_s(700)
        await a.collect(keep_s=0)
    with pytest.raises(CollectedError):
        await b.branch("kept", unpushed=True)
    assert "kept" not in await b.tags()
    assert 1 == (await b.status()).ahead
    await b.reset()
    assert ["later 2", "later 2"] == await seen(b)


# Without a store.


class Away:
    """A store that answers nothing."""

    def __getattr__(self, name):
        async def fail(*_):
            raise StoreError(f"{name}: no route", code=Code.STORE_UNREACHABLE, transient=True)

        async def fail_all(*_):
            raise StoreError(f"{name}: no route", code=Code.STORE_UNREACHABLE, transient=True)
            yield

        return fail_all if name == "list" else fail


@pytest.mark.parametrize("flavour", ["async", "blocking"])
async def test_everything_that_can_work_offline_does(tmp_path, flavour):
    """Open, read, write, look back, compare, restore; push says what is wrong; then one push."""
    # EVIDENCE-OF: G-112
    world = World(flavour, "file", tmp_path)
    await world.made(versions=3)
    b = world.at("b")
    await b.hydrate()
    await b.hydrate(at=1)
    await b.close()
    off = world.at("b", store=Away())
    assert ["v1", "v2", "v3"] == await seen(off)
    for day in range(30):
        world.clock.pass_s(86_400)
        await write(off, {1: f"day {day}", 4 + day % 3: "x"})
    assert ["v1"] == await seen(off, 1)
    assert [3, 2, 1] == [version.lsn for version in await off.log()]
    assert [2, 3] == list(await off.diff(1, 3))
    status = await off.status()
    assert (4, None, None, 1.0) == (
        status.ahead,
        status.behind,
        status.lag_s,
        status.cached_share,
    )
    await off.restore(3)
    assert ["v1", "v2", "v3"] == await seen(off)
    await write(off, {1: "back"})
    for verb in (off.push, off.pull, off.fetch, off.reset, off.rebase, off.checkpoint, off.tags):
        with pytest.raises(StoreError, match="no route"):
            await verb()
    with pytest.raises(StoreError, match="no route"):
        await off.branch("x", unpushed=True)
    await off.close()
    b = world.at("b")
    assert ["back", "v2", "v3"] == await seen(b)
    assert 4 == await b.push("a month")
    assert ["back", "v2", "v3"] == await seen(world.at("c"))
    for volume in world.open_ones:
        await volume.close()


async def test_an_empty_volume_is_known_offline(world):
    """Opened once, it opens again, without a version yet; a stranger is told."""
    await world.made()
    b = world.at("b")
    assert [] == await seen(b)
    await b.close()
    off = world.at("b", store=Away())
    await write(off, {1: "first"})
    assert ["first"] == await seen(off)
    with pytest.raises(StoreError):
        await world.at("never", store=Away()).snapshot()
