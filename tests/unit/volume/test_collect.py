"""Collection: what nothing needs goes, what anything needs stays, whoever does what meanwhile."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
from turns import Turns, next_plan
from volume_desk import Desk, bytes_of

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import CollectedError, ConflictError, InvalidInputError, NotFoundError
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock
from cordwood.volume import branches, paths
from cordwood.volume.checkpoints import make_checkpoint
from cordwood.volume.collect import Collector
from cordwood.volume.history import History
from cordwood.volume.remote import Remote
from cordwood.volume.tags import delete_tag, set_tag

GRACE_S = 600.0


async def grown(desk, name="app", versions=6, checkpoint=4):
    """A volume of a few versions, each of which writes page 1 and one more; a checkpoint."""
    log = await desk.volume(name)
    for lsn in range(1, versions + 1):
        await desk.push(log, {1: bytes_of(lsn, 1), lsn + 1: bytes_of(lsn, lsn + 1)})
    if checkpoint:
        await make_checkpoint(desk.history, await desk.reader(log, checkpoint), log)
    return log


async def collected(desk, times=2, **options):
    """Collect until nothing is due."""
    reports = []
    for _ in range(times):
        reports.append(await Collector(desk.remote, **options).collect())
        desk.clock.pass_s(GRACE_S + 2)
    return reports


async def test_versions_before_the_window_go(desk):
    """Up to the newest checkpoint that is old enough; the rest is read as before."""
    log = await grown(desk)
    expected = {lsn: await desk.content(log, lsn) for lsn in (4, 5, 6)}
    first, second = await collected(desk, keep_s=0)
    assert {log: 4} == first.marked == second.collected
    assert GRACE_S == first.due_s
    keys = await desk.keys(f"logs/{log}/")
    assert [paths.commit(log, lsn) for lsn in (4, 5, 6)] == [k for k in keys if "commits" in k]
    fresh = Desk(os.path.join(desk.directory, "f"), desk.store, clock=desk.clock)
    assert expected == {lsn: await fresh.content(log, lsn) for lsn in (4, 5, 6)}
    with pytest.raises(CollectedError):
        await fresh.content(log, 3)
    # Page 1 of versions 1 to 3 is in packs that nothing names any more but for their other page.
    named = {pack.id for pack in (await fresh.remote.get_checkpoint(log, 4)).commit.packs}
    assert {k.removeprefix("segments/") for k in await desk.keys("segments/")} >= named


async def test_the_window_is_kept(desk):
    """What was the newest version at any moment of it."""
    log = await desk.volume()
    for lsn in range(1, 7):
        await desk.push(log, {1: bytes_of(lsn, 1)})
        await make_checkpoint(desk.history, await desk.reader(log, lsn), log)
        desk.clock.pass_s(100)
    # Version 4 was put 300 s ago, version 3 was the newest until then.
    (report,) = await collected(desk, 1, keep_s=350)
    assert {log: 3} == report.marked
    assert {} == (await collected(desk, 1, keep_s=1e9))[0].marked


async def test_a_branch_holds_its_parent(desk):
    """Until the branch itself was collected to a checkpoint of its own."""
    log = await grown(desk, versions=6, checkpoint=5)
    child = await desk.branch(log, 2, "branch")
    expected = await desk.content(child)
    assert {} == (await collected(desk, keep_s=0))[0].marked
    await delete_tag(desk.remote, "app")
    reports = await collected(desk, keep_s=0)
    assert [] == [log for report in reports for log in report.condemned + report.removed]
    assert expected == await Desk(os.path.join(desk.directory, "f"), desk.store).content(child)
    await desk.push(child, {9: bytes_of(3, 9)})
    expected = await desk.content(child)
    await make_checkpoint(desk.history, await desk.reader(child), child)
    removed = [log for report in await collected(desk, 5, keep_s=0) for log in report.removed]
    assert [log] == removed
    assert expected == await Desk(os.path.join(desk.directory, "g"), desk.store).content(child)


async def test_a_checkpoint_at_the_branch_point_frees_a_branch(desk):
    """A branch without commits of its own can be made independent as well."""
    log = await grown(desk)
    child = await desk.branch(log, 6, "branch")
    expected = await desk.content(child)
    await make_checkpoint(desk.history, await desk.reader(child), child)
    assert (6,) == desk.history.manifest(child).checkpoints
    await desk.push(child, {1: bytes_of(7, 1)})
    expected[1] = bytes_of(7, 1)
    await delete_tag(desk.remote, "app")
    await make_checkpoint(desk.history, await desk.reader(child), child)
    removed = [log for report in await collected(desk, 5, keep_s=0) for log in report.removed]
    assert [log] == removed
    assert expected == await Desk(os.path.join(desk.directory, "g"), desk.store).content(child)


async def test_nothing_goes_before_its_grace(desk):
    """Neither versions, nor logs, nor packs; a longer grace may be asked for, not a shorter one."""
    log = await grown(desk)
    gone = await grown(desk, "gone")
    await delete_tag(desk.remote, "gone")
    await Collector(desk.remote, keep_s=0).mark()
    before = await desk.keys()
    desk.clock.pass_s(GRACE_S - 3)
    report = await Collector(desk.remote, keep_s=0, grace_s=1).sweep()
    assert (0, 0) == (report.deleted, report.packs)
    assert 0 < report.due_s < 10
    desk.clock.pass_s(10)
    assert 0 == (await Collector(desk.remote, keep_s=0, grace_s=5_000).sweep()).deleted
    assert before == await desk.keys()
    report = await Collector(desk.remote, keep_s=0).sweep()
    assert ([gone], {log: 4}) == (report.removed, report.collected)
    assert [] == await desk.keys(f"logs/{gone}/")


async def test_a_checkpoint_by_an_old_reader_names_no_pack_that_is_gone(desk):
    """The reader's path led past a checkpoint that was made since, and packs went with it."""
    log = await desk.volume()
    for lsn, numbers in enumerate((range(1, 101), range(101, 201), range(101, 401)), 1):
        await desk.push(log, {n: bytes_of(lsn, n) for n in numbers})
    reader = await desk.reader(log)
    other = Desk(os.path.join(desk.directory, "o"), desk.store, seed=3, clock=desk.clock)
    await make_checkpoint(other.history, await other.reader(log, 2), log)
    before = set(await desk.keys("segments/"))
    await collected(other, 3, keep_s=0)
    assert 1 == len(before - set(await desk.keys("segments/")))
    made = await make_checkpoint(desk.history, reader, log)
    assert [] == await desk.remote.missing_packs(pack.id for pack in made.checkpoint.packs)
    fresh = Desk(os.path.join(desk.directory, "f"), desk.store, clock=desk.clock)
    assert bytes_of(1, 50) == (await fresh.content(log))[50]


async def test_a_damaged_commit_keeps_all_packs(desk):
    """What it names is not known: the report says so, and nothing is deleted."""
    log = await grown(desk)
    await desk.store.put(paths.commit(log, 6), b"damaged")
    desk.clock.pass_s(10_000)
    before = await desk.keys("segments/")
    await desk.store.put("segments/" + "e" * 32, b"an upload that nobody names")
    desk.clock.pass_s(10_000)
    report = await Collector(desk.remote).sweep()
    assert "is no commit" in report.skipped or "cannot be a commit" in report.skipped
    assert [*before, "segments/" + "e" * 32] == await desk.keys("segments/")


async def test_a_log_without_a_manifest_is_left_alone(desk):
    """Somebody may bring the manifest back."""
    log = await grown(desk)
    manifest = await desk.store.get(paths.manifest(log))
    expected = await desk.content(log)
    await desk.store.delete([paths.manifest(log)])
    assert [log] == (await collected(desk, 3, keep_s=0))[-1].headless
    await desk.store.put(paths.manifest(log), manifest.data)
    fresh = Desk(os.path.join(desk.directory, "f"), desk.store)
    assert expected == await fresh.content(log)


async def test_a_push_saves_a_condemned_log(desk):
    """And one that comes too late is told."""
    log = await grown(desk)
    await delete_tag(desk.remote, "app")
    await Collector(desk.remote).mark()
    assert (await desk.remote.load(log)).manifest.condemned_us is not None
    await desk.push(log, {1: bytes_of(7, 1)})
    assert (await desk.remote.load(log)).manifest.condemned_us is None
    before = await desk.history.fetch(log)
    late, _ = desk.sealed(log, before, {})
    await collected(desk, 3)
    with pytest.raises(NotFoundError, match="no log"):
        await desk.remote.put_commit(late)


async def test_a_checkpoint_nobody_announced_is_used(desk):
    """Its maker died before the manifest knew of it: a collection adds it, and cuts there."""
    log = await grown(desk)
    await desk.remote.swap(log, lambda now: msgspec.structs.replace(now, checkpoints=()))
    early, late, marking, sweeping = await collected(desk, 4, keep_s=0)
    assert ({}, {}) == (early.announced, early.marked)
    assert ({log: [4]}, {}) == (late.announced, late.marked)
    assert ({}, {log: 4}) == (marking.announced, marking.marked)
    assert {log: 4} == sweeping.collected


async def test_a_slow_makers_checkpoint_is_not_announced_by_others(desk):
    """It is put, and the packs are swept; who finds it then must not vouch for it."""
    log = await grown(desk)
    await desk.remote.swap(log, lambda now: msgspec.structs.replace(now, checkpoints=()))
    checkpoint = (await desk.remote.get_checkpoint(log, 4)).commit
    desk.clock.pass_s(GRACE_S + 2)
    await desk.store.delete([paths.pack(checkpoint.packs[-1].id)])
    first, second = await collected(desk, 2, keep_s=0)
    assert ({}, {}) == (first.announced, second.announced)


async def test_bad_times_are_refused(desk):
    """Before anything is asked of the store."""
    for wrong in ({"keep_s": -1}, {"keep_s": float("nan")}, {"grace_s": -1}):
        with pytest.raises(InvalidInputError):
            Collector(desk.remote, **wrong)


# All interleavings.


def is_gated(actor, operation, key):
    """The requests by which collection and others see each other; of a collection, its looks."""
    if operation == "list":
        return key == paths.LOGS
    return operation in {"get", "put"} and (key.endswith("/manifest") or key.startswith("tags/"))


def is_seldom_gated(actor, operation, key):
    """Fewer: of a collection only lists and swaps, each look at manifests and tags being one."""
    return is_gated(actor, operation, key) and not (actor == 1 and operation == "get")


class World:
    """A store in a state from which several go on at once."""

    def __init__(self, tmp_path, number, gate):
        self.clock = HandClock()
        self.inner = MemoryStore(self.clock)
        self.path = tmp_path
        self.desk = Desk(tmp_path / f"{number}", self.inner, clock=self.clock)
        self.turns = Turns(self.inner, gate)

    def remote(self, seed):
        return Remote(self.turns.store, self.clock, SeededEntropy(seed))


async def explore(tmp_path, prepare, gate, sample=0):
    """Play a scene in every order, or in some; what went wrong, and what results there were."""
    plan, number, wrong, outcomes = [], 0, [], set()
    rng = np.random.default_rng(7)

    def choose(step, ready):
        if sample:
            return int(rng.choice(ready))
        return plan[step] if step < len(plan) else ready[0]

    while plan is not None and (not sample or number < sample):
        world = World(tmp_path, number, gate)
        actors, check = await prepare(world)
        choices, results = await world.turns.run(actors, choose)
        outcomes.add(type(results[0]).__name__)
        try:
            await check(results)
        except (AssertionError, CollectedError, NotFoundError) as error:
            wrong.append(([chosen for chosen, _ in choices], repr(error)))
        plan = next_plan(choices)
        number += 1
        if sample:
            plan = []
    return wrong, number, outcomes


async def check_names(world, expected, results):
    """Whoever was told that it worked has a volume that can be read, now and after collections."""
    for collects in (0, 3):
        for _ in range(collects):
            await Collector(world.desk.remote, keep_s=0).collect()
            world.clock.pass_s(GRACE_S + 2)
        tags = await world.desk.remote.list_tags()
        fresh = History(world.desk.remote, world.desk.directory + f"-{collects}")
        for tag in tags.values():
            snapshot = await fresh.fetch(tag.log)
            for pack in {place.pack.id for n in range(1, 9) if (place := snapshot.find(n))}:
                await world.inner.head(paths.pack(pack))
        for result in results:
            if isinstance(result, branches.Manifest):
                assert "branch" in tags
                assert expected == (await fresh.fetch(tags["branch"].log)).page_count
            elif isinstance(result, Exception):
                assert "branch" not in tags
                assert isinstance(result, CollectedError | NotFoundError), result


async def branch_and_sweep(world):
    """Versions below 2 are marked, and due; somebody branches from version 1."""
    log = await grown(world.desk, versions=2, checkpoint=2)
    snapshot = await world.desk.history.fetch(log, 1)
    await Collector(world.desk.remote, keep_s=0).mark()
    world.clock.pass_s(GRACE_S + 2)
    one, other = world.remote(11), world.remote(12)
    return (
        lambda: branches.create_branch(one, log, snapshot, "branch"),
        lambda: Collector(other, keep_s=0).sweep(),
    ), lambda results: check_names(world, 2, results[:1])


async def branch_and_mark(world):
    """Nothing is marked yet: the mark, the grace and the sweep pass while somebody branches."""
    log = await grown(world.desk, versions=2, checkpoint=2)
    snapshot = await world.desk.history.fetch(log, 1)
    one, other = world.remote(11), world.remote(12)

    async def collect():
        await Collector(other, keep_s=0).mark()
        world.clock.pass_s(GRACE_S + 2)
        await Collector(other, keep_s=0).sweep()

    return (
        lambda: branches.create_branch(one, log, snapshot, "branch"),
        collect,
    ), lambda results: check_names(world, 2, results[:1])


async def tag_and_sweep(world):
    """A log that nothing names is condemned, and due; somebody gives it a name."""
    log = await grown(world.desk, versions=1, checkpoint=0)
    await delete_tag(world.desk.remote, "app")
    await Collector(world.desk.remote, keep_s=0).mark()
    world.clock.pass_s(GRACE_S + 2)
    one, other = world.remote(11), world.remote(12)

    async def check(results):
        assert isinstance(results[0], type(None) | CollectedError | NotFoundError), results
        assert (results[0] is None) == ("branch" in await world.desk.remote.list_tags())
        await check_names(world, 2, [])

    return (
        lambda: set_tag(one, "branch", log),
        lambda: Collector(other, keep_s=0).sweep(),
    ), check


async def push_and_sweep(world):
    """The same, and somebody pushes: published means that it can be read."""
    log = await grown(world.desk, versions=1, checkpoint=0)
    await delete_tag(world.desk.remote, "app")
    before = await world.desk.history.fetch(log)
    sealed, packs = world.desk.sealed(log, before, {1: bytes_of(2, 1)})
    await world.desk.remote.put_pack(packs[0])
    await Collector(world.desk.remote, keep_s=0).mark()
    world.clock.pass_s(GRACE_S + 2)
    one, other = world.remote(11), world.remote(12)

    async def check(results):
        if results[0] is None:
            fresh = Desk(world.desk.directory + "-x", world.inner)
            assert 2 == (await fresh.history.fetch(log)).lsn
            await fresh.remote.store.head(paths.pack(packs[0].pack.id))
        else:
            assert isinstance(results[0], CollectedError | NotFoundError | ConflictError), results

    return (
        lambda: one.put_commit(sealed),
        lambda: Collector(other, keep_s=0).sweep(),
    ), check


SCENES = [branch_and_sweep, branch_and_mark, tag_and_sweep, push_and_sweep]


@pytest.mark.parametrize("scene", SCENES)
async def test_collection_against_others_in_every_order(tmp_path, scene):
    """Nobody who was told that it worked loses a page; both outcomes occur. (One scene has many
    thousands of orders: some of them, by chance.)"""
    sample = 80 if scene is branch_and_mark else 0
    wrong, number, outcomes = await explore(tmp_path, scene, is_seldom_gated, sample)
    assert [] == wrong
    assert number > 5
    assert 2 <= len(outcomes)


@pytest.mark.parametrize("scene", SCENES)
async def test_collection_against_others_in_many_orders(tmp_path, scene):
    """The same with every single look of a collection as a step of its own, by chance."""
    wrong, _, _ = await explore(tmp_path, scene, is_gated, 50)
    assert [] == wrong


async def test_a_branch_that_does_not_look_again_is_caught(tmp_path, monkeypatch):
    """The test above can fail: without the second look at the parent a branch loses its past."""

    async def no_look(remote, parent):
        pass

    monkeypatch.setattr(branches, "_check_parent", no_look)
    wrong, _, _ = await explore(tmp_path, branch_and_sweep, is_seldom_gated, 60)
    assert [] != wrong


async def test_a_tag_that_does_not_look_again_is_caught(tmp_path, monkeypatch):
    """The same of a tag: without a look at the manifest its log is deleted under it."""

    async def no_look(self, log):
        return (await self.load(log)).manifest

    monkeypatch.setattr(Remote, "claim", no_look)
    wrong, _, _ = await explore(tmp_path, tag_and_sweep, is_seldom_gated, 60)
    assert [] != wrong
