"""Who is slow while others compact a collection and collect its log: overtaken, never in error."""

from __future__ import annotations

import asyncio

import pytest

from cordwood import Collection, Store
from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.base.errors import StateError
from cordwood.index.engine import Engine
from cordwood.pipeline import indexing, merging
from cordwood.pipeline.indexing import IndexLog
from cordwood.pipeline.merging import MergeIndex, MergeSettings
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock


class Scene:
    """A collection with some documents, a slow user of it and a quick one."""

    def __init__(self):
        self.clock = HandClock()
        self.store = Store.over(MemoryStore(clock=self.clock))
        self.slow, self.quick = (Collection(self.store, "docs") for _ in range(2))
        self.is_asleep = False

    async def fill(self):
        """Ten documents, each in a fragment of its own."""
        await self.slow.create(grace_s=1)
        for number in range(10):
            await self.slow.add(b"%d" % number, "word")

    async def overtake(self):
        """The quick one takes in everything and frees the log; once."""
        if not self.is_asleep:
            self.is_asleep = True
            await self.quick.add(b"more", "word")
            await self.quick.compact("local")
            for _ in range(3):
                await self.quick.log.collect(wait_s=0)
                self.clock.pass_s(5)

    async def look(self):
        """Everything is there, once."""
        for user in (self.slow, self.quick):
            found = await user.match("word")
            assert (11, 11) == (len(found), found.documents)
            assert 0 == (await user.state()).waiting
            assert (await user.check()).ok
            await user.close()


@pytest.fixture
async def scene():
    """Filled."""
    made = Scene()
    await made.fill()
    return made


async def test_what_a_compaction_reads_is_pinned(scene, monkeypatch):
    """It was told that the log was damaged, and to bring it back from a copy."""
    # EVIDENCE-OF: G-97
    work = IndexLog.work

    async def slowly(self, unit):
        await scene.overtake()
        return await work(self, unit)

    monkeypatch.setattr(IndexLog, "work", slowly)
    report = await scene.slow.compact("local")
    assert (True, 0) == (report.superseded, report.documents)
    await scene.look()
    assert () == (await scene.slow.log.state()).pins


async def test_a_long_compaction_renews_its_pin(scene, monkeypatch):
    """For as long as it takes."""
    renewed = asyncio.Event()

    async def renew(self, ttl_s=None):
        renewed.set()

    async def patient(self, unit):
        await renewed.wait()
        return await work(self, unit)

    work = IndexLog.work
    monkeypatch.setattr(indexing, "PIN_S", 1)
    monkeypatch.setattr("cordwood.log.pins.Pin.renew", renew)
    monkeypatch.setattr(IndexLog, "work", patient)
    assert 10 == (await scene.slow.compact("local")).documents


@pytest.mark.parametrize("step", ["manifest", "pin"])
async def test_a_compaction_that_is_overtaken_while_it_looks(scene, monkeypatch, step):
    """What it was about to read is gone, because the index has it: it looks again."""
    # EVIDENCE-OF: G-97
    await scene.slow.compact("local")
    await scene.slow.update(b"0", "word")
    job = IndexLog(
        indexing.IndexSettings(
            store=scene.store.url,
            log="docs/log",
            index="docs/index",
            tokenizer="words",
            frequencies=True,
        ),
        [scene.store],
    )
    real = getattr(type(scene.slow.log), step)

    async def late(self, *args, **options):
        if asyncio.current_task() is looking:
            await scene.overtake()
        return await real(self, *args, **options)

    looking = asyncio.current_task()
    original = scene.quick.compact

    async def elsewhere(*args):
        return await asyncio.ensure_future(original(*args))

    monkeypatch.setattr(scene.quick, "compact", elsewhere)
    monkeypatch.setattr(type(scene.slow.log), step, late)
    async with job:
        assert [] == await job.plan(None)
    await scene.look()


async def test_what_was_collected_before_it_was_taken_in(scene):
    """Somebody moved the cursor by hand: that is said, and what to do."""
    await scene.slow.compact("local")
    await scene.slow.add(b"lost", "word")
    await scene.slow.add(b"more", "word")
    cursors = scene.slow.log.cursors
    await cursors.save("index", 13, await cursors.load("index"))
    for _ in range(2):
        await scene.slow.log.collect(wait_s=0)
        scene.clock.pass_s(5)
    with pytest.raises(StateError, match="what lies between was collected"):
        await scene.slow.compact("local")


async def test_state_asked_while_the_log_is_collected(scene, monkeypatch):
    """It is asked again."""
    state = Engine.state

    def late(self):
        found = state(self)
        if not scene.is_asleep:
            asyncio.run_coroutine_threadsafe(scene.overtake(), loop).result()
        return found

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Engine, "state", late)
    assert 0 == (await scene.slow.state()).waiting
    await scene.look()


async def test_two_that_merge_the_same(scene, monkeypatch):
    """The slower one leaves it to the other, and goes on."""
    await scene.slow.compact("local")
    await scene.slow.add(b"more", "word")
    await scene.slow.compact("local")
    settings = MergeSettings(scene.store.url, "docs/index", tiered=False)
    quick, slow = (MergeIndex(settings, [scene.store]) for _ in range(2))
    choose = slow._choose

    def overtaken(views):
        if not quick._units:
            quick._begin()
        return choose(views)

    monkeypatch.setattr(slow, "_choose", overtaken)
    async with quick, slow:
        assert [] == await slow.plan(None)
        assert 0 == (await slow.finish([])).merges
        (unit,) = quick._units
        report = await quick.finish([await quick.work(unit)])
        assert (1, 2, 1) == (report.merges, report.segments_before, report.segments_after)
    await scene.look()


@pytest.mark.parametrize("is_marked", [False, True])
async def test_what_was_collected_by_force_is_said_by_all(scene, is_marked):
    """A search said that collection was too quick; a first compaction left documents out."""
    if is_marked:
        await scene.slow.compact("local")
    await scene.slow.add(b"lost", "word")
    await scene.slow.add(b"more", "word")
    cursors = scene.slow.log.cursors
    await cursors.save("index", 12, await cursors.load("index"))
    for _ in range(2):
        await scene.slow.log.collect(wait_s=0)
        scene.clock.pass_s(5)
    asked = (
        lambda: scene.slow.match("word"),
        lambda: scene.quick.search("word"),
        scene.slow.state,
        lambda: scene.quick.compact("local"),
        lambda: scene.quick.match("word"),
    )
    for ask in asked:
        with pytest.raises(StateError, match=r"begins at 12.*what lies between was collected"):
            await ask()
    for user in (scene.slow, scene.quick):
        await user.close()


@pytest.mark.parametrize("step", [indexing, merging])
async def test_a_compaction_that_took_days_is_begun_again(scene, monkeypatch, step):
    """What it uploaded at first may be gone by now: it is not committed."""
    await scene.slow.compact("local")
    for number in range(9):
        await scene.slow.delete(b"%d" % number)
    with monkeypatch.context() as patched:
        began = HandClock()
        began.us = int((SYSTEM_CLOCK.monotonic_s() - 86_401) * 1e6)
        patched.setattr(step, "SYSTEM_CLOCK", began)
        with pytest.raises(StateError, match="uploaded more than a day ago"):
            await scene.slow.compact("local")
    assert {b"9"} == set(await scene.slow.match("word"))
    await scene.slow.compact("local")
    assert {b"9"} == set(await scene.quick.match("word"))
    assert (await scene.quick.check()).ok
    for user in (scene.slow, scene.quick):
        await user.close()


async def test_one_writer_is_opened_however_many_add_at_first(scene, monkeypatch):
    """Each had one of its own, and all but the last were never closed."""
    opened = []
    make = scene.quick.log.writer

    def counted(**options):
        opened.append(make(**options))
        return opened[-1]

    monkeypatch.setattr(scene.quick.log, "writer", counted)
    await asyncio.gather(*(scene.quick.add(b"%d" % n, "again") for n in range(10)))
    assert 1 == len(opened)
    await opened[0].close()  # As one that broke down: the next change opens another.
    await scene.quick.add(b"11", "again")
    assert 11 == len(await scene.slow.match("again"))
    for user in (scene.slow, scene.quick):
        await user.close()
    assert [False, False] == [writer.is_open for writer in opened]
