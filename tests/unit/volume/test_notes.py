"""Collections against slow pushes: no pack of a commit is ever swept, by any schedule tried here.

Each remedy has a schedule that breaks a volume without it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from volume_flavours import World, seen, write

from cordwood.base.errors import CordwoodError, LimitError
from cordwood.testing.hooked import Hooked
from cordwood.volume import collect, notes, paths, push
from cordwood.volume.collect import Collector
from cordwood.volume.remote import Remote

GRACE_S = 600


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Three pages are many."""
    monkeypatch.setattr(push, "NOTE_PAGES", 2)


def collector(world, store=None):
    """Somebody who collects."""
    desk = Remote(store or world.back, world.clock, world.open_ones[0].entropy)
    return Collector(desk, keep_s=1e9)


def slow(world, step):
    """A way to the store on which `step(key)` happens before each put."""

    async def put(call, key, *_):
        await step(key)
        return await call()

    return Hooked(world.back, put=put)


async def keys(world, part):
    """What is in the store."""
    return [meta.key async for meta in world.back.list("") if part in meta.key]


async def push_through(world, pages, step):
    """Push so many pages, with something happening before each put; whether all is readable."""
    await world.made()
    volume = world.at("b", store=slow(world, step))
    await write(volume, {n: f"p{n}" for n in range(1, pages + 1)})
    with suppress(CordwoodError):
        await volume.push()
    try:
        return [f"p{n}" for n in range(1, pages + 1)] == await seen(world.at("fresh"))
    except CordwoodError:
        return False


def sweep_before_commit(world, wait_s=GRACE_S + 100):
    """A laptop sleeps right before the commit is put, and somebody collects meanwhile."""

    async def step(key):
        if "/commits/" in key:
            world.clock.pass_s(wait_s)
            await collector(world).sweep()

    return step


async def test_a_large_push_leaves_a_note_first(world):
    """Its packs are kept while it sleeps; the note is gone afterwards."""
    # EVIDENCE-OF: G-115
    put = []

    async def step(key):
        put.append(key.split("/")[-2])
        await sweep_before_commit(world)(key)

    assert await push_through(world, 3, step)
    assert ["pushes", "segments", "commits"] == put
    assert [] == await keys(world, "/pushes/")


async def test_without_the_note_it_would_be_swept(world, monkeypatch):
    """As above, and broken: neither note nor anybody who looks afterwards."""

    async def none(*_):
        return f"{0:032x}"

    monkeypatch.setattr(push, "put_note", none)
    assert not await push_through(world, 3, sweep_before_commit(world))


async def test_without_a_look_at_notes_it_would_be_swept(world, monkeypatch):
    """A sweep that does not ask for notes."""

    async def none(*_):
        return None

    monkeypatch.setattr(collect, "kept_since_us", none)
    assert not await push_through(world, 3, sweep_before_commit(world))


async def test_a_small_push_that_slept_starts_over_with_a_note(world):
    """Half the grace is gone before its commit: fresh packs, kept by a note."""
    # EVIDENCE-OF: G-115
    times = []

    async def step(key):
        if "segments/" in key:
            times.append(key)
            if len(times) == 1:
                world.clock.pass_s(GRACE_S / 2 + 1)
        await sweep_before_commit(world, GRACE_S + 100)(key)

    assert await push_through(world, 1, step)
    assert 2 == len(times)


async def test_a_small_push_whose_put_took_long_brings_its_packs_back(world):
    """From the local copy, when it sees how late it is."""
    # EVIDENCE-OF: G-115
    assert await push_through(world, 1, sweep_before_commit(world))
    assert [] == await keys(world, "/pushes/")


async def test_without_a_look_afterwards_they_would_be_gone(world, monkeypatch):
    """A push that does not know how late it is."""
    monkeypatch.setattr(push.Prepared, "is_late", False)
    assert not await push_through(world, 1, sweep_before_commit(world))


async def meet(folder, at, order=None, monkeypatch=None):
    """A sweep whose request number `at` waits until a push is done that slept before its commit.

    None if it has fewer requests; else whether all is readable afterwards.
    """
    world = World("async", "memory", folder)
    reached, go = asyncio.Event(), asyncio.Event()

    async def step(key):
        if "/commits/" in key:
            reached.set()
            await go.wait()

    task = asyncio.create_task(push_through(world, 3, step))
    await reached.wait()
    world.clock.pass_s(GRACE_S + 100)
    count = 0

    async def turn(call, *_):
        nonlocal count
        count += 1
        if count == at:
            go.set()
            await asyncio.wait([task])
        return await call()

    names = ("get", "put", "head", "list", "delete")
    await collector(world, Hooked(world.back, **dict.fromkeys(names, turn))).sweep()
    go.set()
    await task
    volume = world.at("later")
    try:
        is_whole = ["p1", "p2", "p3"] == await seen(volume)
    except CordwoodError:
        is_whole = False
    for volume in world.open_ones:
        await volume.close()
    return is_whole if count >= at else None


async def test_a_push_may_end_between_any_two_requests_of_a_sweep(tmp_path):
    """Packs are listed, then notes, then commits: one of them shows the push."""
    # EVIDENCE-OF: G-115
    answers = []
    while not answers or answers[-1] is not None:
        answers.append(await meet(tmp_path / str(len(answers)), len(answers) + 1))
    assert 10 < len(answers)
    assert {True} == set(answers[:-1])


async def test_in_another_order_it_would_break(tmp_path, monkeypatch):
    """Commits first, then notes: the push ends in between, and nobody has seen it."""
    found = []

    async def too_early(*args):
        found.append(await notes_survey(args[0]))
        return await notes.kept_since_us(*args)

    notes_survey = collect.survey

    async def late(remote):
        return found.pop() if found else await notes_survey(remote)

    monkeypatch.setattr(collect, "kept_since_us", too_early)
    monkeypatch.setattr(collect, "survey", late)
    answers = []
    while not answers or answers[-1] is not None:
        answers.append(await meet(tmp_path / str(len(answers)), len(answers) + 1))
    assert False in answers


async def test_a_push_that_died_keeps_its_packs_for_a_day(world):
    """Then the sweep takes both; a note that is younger keeps only what is younger still."""

    async def step(key):
        if "/commits/" in key:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await push_through(world, 3, step)
    assert 1 == len(await keys(world, "/pushes/")) == len(await keys(world, paths.PACKS))
    world.clock.pass_s(notes.NOTE_S - 10)
    await collector(world).sweep()
    assert 1 == len(await keys(world, "/pushes/")) == len(await keys(world, paths.PACKS))
    world.clock.pass_s(20)
    await collector(world).sweep()
    assert [] == await keys(world, "/pushes/") + await keys(world, paths.PACKS)
    # It was never published. Who comes next has the pages, and takes the place.
    assert 1 == await world.at("b").push()
    assert ["p1", "p2", "p3"] == await seen(world.at("fresh"))


async def test_a_push_that_died_and_whose_packs_are_gone_is_made_again(world):
    """Not even the local copy of its packs is left."""

    async def step(key):
        if "/commits/" in key:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await push_through(world, 1, step)
    world.clock.pass_s(GRACE_S + 100)
    await collector(world).sweep()
    assert [] == await keys(world, paths.PACKS)
    for pack in (world.folder / "b").glob("*/segments/*"):
        pack.unlink()
    volume = world.at("b")
    assert (await volume.status()).uncertain
    assert 1 == await volume.push("once more")
    assert ["p1"] == await seen(world.at("fresh"))
    assert ["once more"] == [version.message for version in await volume.log()]


async def test_half_a_day_is_too_long(world):
    """Even with a note; nothing is published, and nothing is left but packs."""

    async def step(key):
        if "segments/" in key:
            world.clock.pass_s(notes.NOTE_S / 2 + 1)

    await world.made()
    volume = world.at("b", store=slow(world, step))
    await write(volume, dict.fromkeys(range(1, 4), "x"))
    with pytest.raises(LimitError, match="12 hours"):
        await volume.push()
    assert [] == await keys(world, "/pushes/") + await keys(world, "/commits/")
    assert 3 == (await volume.status()).ahead


async def test_a_push_without_a_local_copy_of_its_packs_leaves_a_note(world, monkeypatch):
    """A disk without room for the copy: nothing could be brought back."""

    def full(*_):
        raise OSError(28, "No space left on device")

    put = []

    async def step(key):
        put.append(key.split("/")[-2])
        await sweep_before_commit(world)(key)

    monkeypatch.setattr("cordwood.volume.cache.PackCache.add", full)
    assert await push_through(world, 1, step)
    assert ["pushes", "segments", "commits"] == put


async def test_clocks_that_stand_still_or_jump(world):
    """A machine that slept, or whose clock was set: the longer time counts."""
    watch = notes.Watch(world.clock)
    world.clock.pass_s(5)
    assert 5 == pytest.approx(watch.elapsed_s)
    world.clock.now_us = lambda: 0
    assert 5 == pytest.approx(watch.elapsed_s)
