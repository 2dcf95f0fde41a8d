"""What is done with a volume, on memory and in a directory, awaited and blocking."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from volume_flavours import PAGE, ZEROS, World, opened, page, seen, write

import cordwood
from cordwood import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    DivergedError,
    InvalidInputError,
    NotFoundError,
    StateError,
)


@pytest.fixture(params=["async-memory", "blocking-memory", "async-file", "blocking-file"])
async def world(request, tmp_path):
    """Each flavour on each store."""
    flavour, _, kind = request.param.partition("-")
    made = World(flavour, kind, tmp_path)
    yield made
    for volume in made.open_ones:
        await volume.close()


async def test_a_commit_is_seen_here_and_after_a_push_everywhere(world):
    """Two states: locally committed, and published."""
    # EVIDENCE-OF: G-111
    a = await world.made()
    await write(a, {1: "one", 3: "three"})
    assert ["one", None, "three"] == await seen(a)
    b = world.at("b")
    assert [] == await seen(b)
    assert 1 == await a.push("first")
    assert None is await a.push()
    assert [] == await seen(b)
    assert (0, 1) == await b.pull()
    assert ["one", None, "three"] == await seen(b)
    assert ["one", None, "three"] == await seen(world.at("c"))


async def test_a_snapshot_stays_as_it_is(world):
    """Commits, pushes and pulls after it do not show."""
    a = await world.made(versions=1)
    before = await a.snapshot()
    b = world.at("b")
    await write(b, {1: "theirs"})
    await b.push()
    await a.pull()
    await write(a, {1: "mine"})
    assert page("v1") == await before.read(1)
    assert (1, 1) == (before.lsn, before.num_pages)
    await before.close()
    with pytest.raises(StateError):
        await before.read(1)
    assert ["mine"] == await seen(a)


async def test_a_transaction_reads_what_it_wrote(world):
    """Over the snapshot; an error in the block, or a rollback, leaves nothing."""
    a = await world.made(versions=2)
    async with a.begin() as txn:
        txn.write(1, page("new"))
        txn.truncate(1)
        txn.truncate(2)
        assert (page("new"), ZEROS, ZEROS) == (
            bytes(await txn.read(1)),
            bytes(await txn.read(2)),
            bytes(await txn.read(9)),
        )
        txn.rollback()
    with pytest.raises(ZeroDivisionError):
        async with a.begin() as txn:
            txn.write(1, page("wrong"))
            raise ZeroDivisionError
    assert ["v1", "v2"] == await seen(a)
    async with a.begin() as txn:
        txn.truncate(1)
        txn.truncate(3)
    assert ["v1", None, None] == await seen(a)
    await a.push()
    assert ["v1", None, None] == await seen(world.at("b"))


async def test_many_commits_are_one_push(world):
    """Squashed, with one message; a month of them, offline, too."""
    # EVIDENCE-OF: G-111
    a = await world.made()
    for n in range(60):
        world.clock.pass_s(12 * 3600)
        await write(a, {1 + n % 7: f"day {n}"})
    assert 7 == (await a.status()).ahead
    assert 1 == await a.push("a month")
    assert ["a month"] == [version.message for version in await a.log()]
    assert [f"day {n}" for n in (56, 57, 58, 59, 53, 54, 55)] == await seen(world.at("b"))


async def test_versions_by_lsn_and_by_time(world):
    """An LSN, a datetime, ISO text, and so long ago; what is not there says so."""
    a = await world.made(versions=4)
    assert ["v1", "v2"] == await seen(a, 2) == await seen(a, "2")
    assert ["v1", "v2", "v3"] == await seen(a, "1 minute ago") == await seen(a, "60 seconds ago")
    moment = datetime.fromtimestamp(world.clock.us / 1e6 - 90, UTC)
    assert ["v1", "v2"] == await seen(a, moment) == await seen(a, moment.isoformat())
    assert [] == await seen(a, 0)
    with pytest.raises(NotFoundError):
        await a.snapshot("1 hour ago")
    with pytest.raises(NotFoundError):
        await a.snapshot(5)
    for wrong in ("yesterday", -1, True, 1.5, "", b"1", "-3 minutes ago"):
        with pytest.raises(InvalidInputError):
            await a.snapshot(wrong)


async def test_log_and_diff(world):
    """What was published, the newest first; the pages whose bytes differ."""
    a = await world.made(versions=3)
    assert [3, 2, 1] == [version.lsn for version in await a.log()]
    assert [3, 2] == [version.lsn for version in await a.log(limit=2)]
    newest = (await a.log(1))[0]
    assert ("version 3", 3, 1) == (newest.message, newest.num_pages, newest.pages_changed)
    assert newest.parent_hash == (await a.log())[1].hash
    assert [2, 3] == list(await a.diff(1, 3)) == list(await a.diff(3, 1)) == list(await a.diff(1))
    await write(a, {1: "v1", 2: "other"})
    await a.push()
    assert [2] == list(await a.diff(3, 4))
    assert [] == list(await a.diff(4, 4))
    with pytest.raises(InvalidInputError):
        await a.log(limit=-1)


async def test_fetch_learns_and_moves_nothing(world):
    """After a fetch the log knows more, and readers see what they saw."""
    a = await world.made(versions=1)
    b = world.at("b")
    assert ["v1"] == await seen(b)
    await write(a, {1: "next"})
    await a.push()
    assert (1, 2) == await b.fetch()
    assert ["v1"] == await seen(b)
    assert [2, 1] == [version.lsn for version in await b.log()]
    assert ["next"] == await seen(b, 2)
    assert 1 == (await b.status()).behind
    assert (1, 2) == await b.pull()
    assert (2, 2) == await b.pull()


async def test_status_says_how_it_stands(world):
    """Ahead, behind, both; what is cached; what may be deleted."""
    a = await world.made(versions=1)
    b = world.at("b")
    status = await b.status()
    assert (1, 0, 0, False, False) == (
        status.lsn,
        status.ahead,
        status.behind,
        status.diverged,
        status.uncertain,
    )
    assert (0.0, 0.0, True) == (status.cached_share, status.lag_s, status.is_safe_to_delete)
    assert 0 < await b.hydrate()
    assert 0 == await b.hydrate()
    assert 1.0 == (await b.status()).cached_share
    await write(a, {1: "theirs"})
    await a.push()
    world.clock.pass_s(30)
    await write(b, {2: "mine"})
    status = await b.status()
    assert (1, 1, True, False) == (
        status.ahead,
        status.behind,
        status.diverged,
        status.is_safe_to_delete,
    )
    assert 30 == status.lag_s
    assert (None, None) == (
        (await b.status(offline=True)).behind,
        (await b.status(offline=True)).lag_s,
    )


async def test_divergence_has_three_ways_out(world):
    """Push and pull say so and change nothing; then theirs, a branch, or on top."""
    # EVIDENCE-OF: G-114
    a = await world.made(versions=2)
    ways = [world.at(name) for name in ("reset", "branch", "rebase", "refused")]
    for volume in ways:
        await seen(volume)
        await write(volume, {2: "mine"})
    await write(ways[3], {1: "mine too"})
    await write(a, {1: "theirs"})
    await a.push()
    for volume in ways:
        for verb in (volume.push, volume.pull):
            with pytest.raises(DivergedError, match="diverged") as caught:
                await verb()
            assert "rebase" in caught.value.hint
        assert "mine" in await seen(volume)
    assert (2, 3) == await ways[0].reset()
    assert ["theirs", "v2"] == await seen(ways[0])
    kept = await ways[1].branch("mine", unpushed=True, message="kept")
    assert ["v1", "mine"] == await seen(kept)
    assert ["theirs", "v2"] == await seen(ways[1])
    assert "kept" == (await kept.log())[0].message
    assert (2, 3) == await ways[2].rebase()
    assert ["theirs", "mine"] == await seen(ways[2])
    with pytest.raises(ConflictError, match="page 1"):
        await ways[3].rebase()
    assert ["mine too", "mine"] == await seen(ways[3])
    assert 4 == await ways[2].push()
    assert ["theirs", "mine"] == await seen(world.at("fresh"))
    assert ["v1", "mine"] == await seen(world.at("fresh", "mine"))


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ({5: "grown"}, {1: "x"}, ["x", "v2", None, None, "grown"]),
        ({1: "x"}, {5: "grown"}, ["x", "v2", None, None, "grown"]),
        ({}, {1: "x"}, ["x", "v2"]),
        ({4: "grown"}, {3: "grown"}, None),
        ([1], {1: "x"}, None),
        ({1: "x"}, [1], None),
        ([1, 2], {3: "x"}, None),
    ],
)
async def test_rebase_is_refused_where_sizes_do_not_fit(tmp_path, mine, theirs, expected):
    """One side may grow; both, or a cut, may not. A list is what the volume is cut to."""
    world = World("async", "memory", tmp_path)
    a = await world.made(versions=2)
    b = world.at("b")
    await seen(b)

    async def change(volume, what):
        if isinstance(what, list):
            await write(volume, {}, what)
        elif what:
            await write(volume, what)

    await change(b, mine)
    await change(a, theirs)
    await a.push()
    before = await seen(b)
    if expected is None:
        with pytest.raises(ConflictError):
            await b.rebase()
        assert before == await seen(b)
    else:
        await b.rebase()
        assert expected == await seen(b)
        await b.push()
        assert expected == await seen(world.at("c"))


async def test_a_branch_from_any_version(world):
    """By LSN, by time, from what is here; it goes on alone, and its history is the parent's."""
    a = await world.made(versions=4)
    old = await a.branch("old", at=2)
    ago = await a.branch("ago", at="1 minute ago")
    here = await a.branch("here")
    assert ["v1", "v2"] == await seen(old)
    assert ["v1", "v2", "v3"] == await seen(ago)
    assert ["v1", "v2", "v3", "v4"] == await seen(here)
    await write(old, {1: "old"})
    assert 3 == await old.push()
    assert ["old", "v2"] == await seen(old)
    assert ["v1", "v2", "v3", "v4"] == await seen(a)
    history = await old.log()
    assert [3, 2, 1] == [version.lsn for version in history]
    assert [True, False, False] == [version.is_branch_point for version in history]
    assert ["v1"] == await seen(old, 1)
    second = await old.branch("second", at=1)
    assert ["v1"] == await seen(second)
    assert ["v1", "v2"] == await seen(old, "2 minutes ago")
    assert {"ago", "app", "here", "old", "second"} == set(await a.tags())
    with pytest.raises(AlreadyExistsError):
        await a.branch("old")
    with pytest.raises(AlreadyExistsError):
        await write(a, {1: "unpushed"})
        await a.branch("ago", unpushed=True)
    with pytest.raises(StateError):
        await a.branch("new")
    with pytest.raises(NotFoundError):
        await a.branch("new", at=9)
    with pytest.raises(InvalidInputError):
        await a.branch("new", at=1, unpushed=True)
    with pytest.raises(InvalidInputError):
        await old.branch("new", unpushed=True)
    assert "new" not in await a.tags()


async def test_a_branch_is_pulled_and_pushed_elsewhere(world):
    """Who never saw the parent opens a branch, works on it, and diverges like anywhere."""
    a = await world.made(versions=2)
    here = await a.branch("here")
    there = world.at("b", "here")
    assert ["v1", "v2"] == await seen(there) == await seen(here)
    await write(there, {2: "there"})
    await there.push()
    await write(here, {1: "here"})
    with pytest.raises(DivergedError):
        await here.pull()
    await here.rebase()
    assert 4 == await here.push()
    assert (3, 4) == await there.pull()
    assert ["here", "there"] == await seen(there)


async def test_restore_in_place(world):
    """An older version comes back as a local commit, whatever was done meanwhile."""
    a = await world.made(versions=3)
    await write(a, {1: "changed", 5: "grown"})
    await a.push()
    assert 1 == await a.restore(1)
    assert ["v1"] == await seen(a)
    assert 1 == (await a.status()).ahead
    await a.push("restored")
    assert ["v1"] == await seen(world.at("b"))
    await a.restore(4)
    assert ["changed", "v2", "v3", None, "grown"] == await seen(a)
    assert 6 == await a.push("and back")
    assert ["changed", "v2", "v3", None, "grown"] == await seen(world.at("c"))


async def test_restore_brings_back_what_was_cut_off_here(world):
    """A local cut that was never pushed; local pages; a version that is longer."""
    a = await world.made(versions=3)
    await write(a, {}, [1])
    assert ["v1"] == await seen(a)
    assert 2 == await a.restore(3)
    assert ["v1", "v2", "v3"] == await seen(a)
    await write(a, {2: "local"}, [0, 4])
    assert [None, "local", None, None] == await seen(a)
    await a.restore(2)
    assert ["v1", "v2"] == await seen(a)
    assert 4 == await a.push()
    assert ["v1", "v2"] == await seen(world.at("b"))
    assert 0 == await a.restore(4)


async def test_tags_are_created_swapped_and_forced(world):
    """A name is taken from what was seen, by force, or not at all."""
    a = await world.made(versions=1)
    other = await a.branch("other")
    log = (await a.tags())["app"]
    await a.tag("v1")
    await a.tag("v1")
    assert log == (await a.tags())["v1"]
    with pytest.raises(AlreadyExistsError):
        await other.tag("v1")
    with pytest.raises(ConflictError):
        await other.tag("v1", instead_of="0" * 32)
    await other.tag("v1", instead_of=log)
    assert (await a.tags())["other"] == (await a.tags())["v1"]
    await a.tag("v1", force=True)
    assert log == (await a.tags())["v1"]
    with pytest.raises(InvalidInputError):
        await a.tag("v1", force=True, instead_of=log)
    with pytest.raises(NotFoundError):
        await a.tag("nobody", instead_of=log)
    await (opened(world.flavour, world.store, "v1", world.folder / "z")).delete()
    assert "v1" not in await a.tags()


async def test_a_tag_moved_under_us(world):
    """Nothing is pushed where nobody would look; nothing local is lost by following."""
    # EVIDENCE-OF: G-116
    a = await world.made(versions=2)
    b = world.at("b")
    assert ["v1", "v2"] == await seen(b)
    other = await a.branch("other", at=1)
    await write(b, {1: "mine"})
    await other.tag("app", force=True)
    for verb in (b.push, b.pull, b.follow, b.delete):
        with pytest.raises(StateError):
            await verb()
    assert ["mine", "v2"] == await seen(b)
    kept = await b.branch("kept", unpushed=True)
    assert ["mine", "v2"] == await seen(kept)
    assert await b.follow()
    assert ["v1"] == await seen(b)
    assert not await b.follow()
    assert ["v1"] == await seen(world.at("b"))


async def test_a_name_used_again_is_the_new_volume(world):
    """A directory that knew a volume of the name takes the one that it made itself."""
    a = await world.made(versions=1)
    await seen(a)
    await a.branch("x")
    assert ["v1"] == await seen(world.at("a", "x"))
    await world.at("a", "x").delete()
    await write(a, {1: "later"})
    await a.push()
    await a.branch("x")
    assert ["later"] == await seen(world.at("a", "x"))
    await a.delete()
    with pytest.raises(NotFoundError):
        await world.at("a").snapshot()
    again = world.at("a")
    await again.create(page_size=PAGE)
    assert [] == await seen(again)


async def test_checkpoints_end_the_walk(world):
    """Made of any version, found by others; one that nobody announced is discovered."""
    a = await world.made(versions=5)
    with pytest.raises(StateError):
        empty = world.at("e", "empty")
        await empty.create(page_size=PAGE)
        await empty.checkpoint()
    made = await a.checkpoint(at=3)
    assert 3 == made.checkpoint.lsn
    fresh = world.at("b")
    assert ["v1", "v2", "v3", "v4", "v5"] == await seen(fresh)
    desk = await fresh.desk()
    assert (3,) == desk.history.manifest(desk.log).checkpoints
    key = f"logs/{desk.log}/manifest"
    before = (await world.store.get(key)).data
    await a.checkpoint()
    await world.store.put(key, before, "overwrite")
    world.clock.pass_s(700)  # before that its maker may be at it
    assert [5] == list(await fresh.discover())
    assert [] == list(await fresh.discover())
    assert ["v1", "v2", "v3", "v4", "v5"] == await seen(world.at("c"))


async def test_a_branch_whose_parent_is_collected_is_refused(world):
    """What is gone cannot be branched, read or restored; the rest goes on as it was."""
    # EVIDENCE-OF: G-113
    a = await world.made(versions=4)
    await a.checkpoint(at=3)
    world.clock.pass_s(60)
    marked = await a.collect(keep_s=0)
    assert marked.marked
    with pytest.raises(CollectedError):
        await a.branch("late", at=2)
    world.clock.pass_s(700)
    assert (await a.collect(keep_s=0)).collected
    b = world.at("b")
    for verb in (b.snapshot, b.restore):
        with pytest.raises(CollectedError):
            await verb(2)
    with pytest.raises(CollectedError):
        await b.branch("late", at=1)
    assert "late" not in await a.tags()
    assert [4, 3] == [version.lsn for version in await b.log()]
    assert ["v1", "v2", "v3", "v4"] == await seen(b)
    assert ["v1", "v2", "v3"] == await seen(await b.branch("fine", at=3))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../app", "a/b", "/app", "a\\b", "a\0b", "x" * 129, ".hidden", None, 7]
)
def test_names_that_are_paths(tmp_path, name):
    """Refused before anything is asked or made."""
    for kind in (cordwood.Volume, cordwood.sync.Volume):
        with pytest.raises(InvalidInputError):
            kind("memory:", name, directory=tmp_path / "d")
    assert [] == list(tmp_path.iterdir())


async def test_bad_input_gets_one_clear_error(world):
    """Pages, sizes, messages, names, graces."""
    a = await world.made(versions=1)
    with pytest.raises(AlreadyExistsError):
        await a.create(page_size=PAGE)
    await a.create(page_size=PAGE, exist_ok=True)
    for size in (0, 100, 513, 2**17, "512", True):
        with pytest.raises(InvalidInputError):
            await world.at("a", "other").create(page_size=size)
    for grace in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError):
            await world.at("a", "other").create(grace_s=grace)
    for name in ("../x", "", "a/b"):
        with pytest.raises(InvalidInputError):
            await a.branch(name)
        with pytest.raises(InvalidInputError):
            await a.tag(name)
    async with a.begin() as txn:
        for number, data in ((0, page("x")), (-1, page("x")), (2**32, page("x")), ("1", page("x"))):
            with pytest.raises(InvalidInputError):
                txn.write(number, data)
        for data in (b"", page("x") + b"x", "text", None):
            with pytest.raises(InvalidInputError):
                txn.write(1, data)
        for count in (-1, 2**32, 1.5, None):
            with pytest.raises(InvalidInputError):
                txn.truncate(count)
    assert ["v1"] == await seen(a)
    await write(a, {1: "x"})
    for message in (7, None, "x" * 70_000):
        with pytest.raises(InvalidInputError):
            await a.push(message)
        with pytest.raises(InvalidInputError):
            await a.branch("b", unpushed=True, message=message)
    assert 2 == await a.push("fine \ud800")
    with pytest.raises(InvalidInputError):
        await a.collect(keep_s=-1)
    snapshot = await a.snapshot()
    with pytest.raises(InvalidInputError):
        await snapshot.read(0)
    await snapshot.close()
    with pytest.raises(NotFoundError):
        await world.at("a", "nothing").snapshot()


async def test_a_large_push_goes_in_several_packs(tmp_path, monkeypatch):
    """Each page is read back, and progress was told."""
    monkeypatch.setattr("cordwood.volume.pack.PACK_BYTES_MAX", 64 * PAGE)
    world = World("async", "memory", tmp_path)
    a = await world.made()
    await write(a, {n: n for n in range(1, 301)})
    told = []
    await a.push(progress=lambda *done: told.append(done))
    assert [(64, 300), (128, 300), (192, 300), (256, 300), (300, 300)] == told
    assert [str(n) for n in range(1, 301)] == await seen(world.at("b"))
