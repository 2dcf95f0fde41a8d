"""Roll-ups: what they keep, drop and leave; one regression for each known way to go wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import cordwood
from cordwood import ContendedError, Fleet, StoreError, survey
from cordwood.base.clock import LoopClock
from cordwood.base.errors import NotFoundError
from cordwood.fleet.dirty import STABLE_PREFIX, DirtyLog
from cordwood.fleet.marks import Mark
from cordwood.fleet.rollup import QUIET_REINSERTS, roll_up
from cordwood.log import paths
from cordwood.store.memory import MemoryStore
from cordwood.testing.simloop import simulate


@pytest.fixture
async def fleet(store, clock):
    """A member that writes."""
    async with Fleet(store, "m1", create=True, clock=clock) as opened:
        yield opened


async def marks(store, member="m1"):
    """What a dirty log says behind its cursor."""
    dirty_log = DirtyLog(store, member)
    witness = await dirty_log.cursor()
    return (await dirty_log.read(witness.offset if witness else None)).marks


def now(fleet, **options):
    """A roll-up that does not wait for a log to be quiet."""
    return fleet.roll_up(**{"quiet_s": 0.0, **options})


async def test_one_mark_stands_for_many_fragments(fleet, store):
    """As long as nobody else writes the log."""
    # EVIDENCE-OF: G-51
    for _ in range(20):
        await fleet.append("a", b"x")
    assert [("a", 1)] == [(mark.log, mark.offset) for mark in await marks(store)]


async def test_a_dirty_log_is_kept_with_its_age(fleet, store, clock):
    """Written again at the end, one reinsertion more, the same first time."""
    await fleet.append("a", b"x")
    (first,) = await marks(store)
    for count in range(1, 4):
        clock.later_s += 10
        report = await now(fleet)
        assert ["a"] == [one.log for one in report.dirty]
        assert [first._replace(reinserts=count)] == await marks(store)


async def test_what_is_compacted_is_dropped(fleet, store, compact):
    """And found again when it is written again, by the same open writer."""
    # EVIDENCE-OF: G-51, G-54
    await fleet.append("a", b"x")
    await fleet.append("b", b"x")
    await compact("a")
    report = await now(fleet)
    assert (["a"], ["b"]) == (report.dropped, [one.log for one in report.dirty])
    assert ["b"] == [mark.log for mark in await marks(store)]
    assert 2 == await fleet.append("a", b"y")
    assert ["a", "b"] == sorted(one.log for one in (await now(fleet)).dirty)


async def test_a_young_mark_waits_until_its_log_is_quiet(fleet, store, compact, clock):
    """Its writer would lose a swap; once it is old it goes."""
    await fleet.append("a", b"x")
    await compact("a")
    assert [] == (await fleet.roll_up(quiet_s=60.0)).dropped
    assert 1 == len(await marks(store))
    clock.later_s = 61.0
    assert ["a"] == (await fleet.roll_up(quiet_s=60.0)).dropped


async def test_a_clock_that_is_ahead_does_not_keep_a_mark_for_ever(fleet, store, compact, clock):
    """After some roll-ups it goes whatever the clocks say."""
    clock.later_s = 86_400.0
    await fleet.append("a", b"x")
    await compact("a")
    clock.later_s = 0.0
    dropped = [(await fleet.roll_up()).dropped for _ in range(QUIET_REINSERTS + 1)]
    assert [[]] * QUIET_REINSERTS + [["a"]] == dropped


async def test_a_record_named_between_look_and_fence_keeps_its_mark(fleet, memory, store, compact):
    """The fence loses, and the mark stays."""
    # EVIDENCE-OF: G-51, G-54
    await fleet.append("a", b"x")
    await compact("a")

    async def overtake(key):
        if key == f"a/{paths.MANIFEST}":
            memory.before_put = None
            await fleet.append("a", b"y")

    memory.before_put = overtake
    assert [] == (await now(fleet)).dropped
    assert ["a"] == [one.log for one in (await now(fleet)).dirty]


async def test_a_writer_fenced_before_it_names_marks_again(fleet, memory, store, compact):
    """A roll-up between a fragment and its manifest: the writer loses, marks, and goes on."""
    # EVIDENCE-OF: G-51, G-52
    await fleet.append("a", b"x")
    await compact("a")
    rolled = []

    async def overtake(key):
        if key == f"a/{paths.MANIFEST}":
            memory.before_put = None
            async with DirtyLog(store, "m1") as dirty_log:
                rolled.append(await roll_up(dirty_log, quiet_s=0.0))

    memory.before_put = overtake
    assert 2 == await fleet.append("a", b"y")
    assert [["a"]] == [report.dropped for report in rolled]
    assert ["a"] == [mark.log for mark in await marks(store)]


# Known ways to go wrong (facts about wal3, section 7), each a regression.


async def orphan(store, memory, member="m0"):
    """A log with a fragment in its slot that nobody named: its writer died in between."""
    dying = Fleet(store, member)
    await cordwood.Log(store, "a").create()
    before = asyncio.all_tasks()
    is_near = asyncio.Event()

    async def die(key):
        if key == f"a/{paths.MANIFEST}":
            is_near.set()
            await asyncio.Event().wait()

    memory.before_put = die
    work = asyncio.ensure_future(dying.append("a", b"orphan"))
    await is_near.wait()
    memory.before_put = None
    tasks = asyncio.all_tasks() - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    with suppress(asyncio.CancelledError, cordwood.CordwoodError):
        await work


async def test_who_adopts_an_orphan_marks_it(store, memory):
    """The lost dirty bit on recovery: the first mark may be gone when the orphan is named."""
    # EVIDENCE-OF: G-52
    await orphan(store, memory)
    async with DirtyLog(store, "m0") as dirty_log:
        assert ["a"] == (await roll_up(dirty_log, quiet_s=0.0)).dropped
    async with Fleet(store, "m1") as fleet, fleet.writer("a"):
        pass
    assert 2 == (await cordwood.Log(store, "a").manifest()).next_offset
    assert [("a", 1)] == [(mark.log, mark.offset) for mark in await marks(store, "m1")]


async def test_a_mark_without_a_fragment_ends(store, memory):
    """Marked, then died before anything was named: nobody loops on it for ever."""
    # EVIDENCE-OF: G-54
    await orphan(store, memory)
    async with DirtyLog(store, "m0") as dirty_log:
        report = await roll_up(dirty_log, quiet_s=0.0)
    assert (["a"], []) == (report.dropped, report.dirty)
    assert [] == await marks(store, "m0")


async def test_roll_ups_converge(fleet, store, compact):
    """A dirty log holds one mark for each dirty log, however often it is rolled up."""
    # EVIDENCE-OF: G-54
    for n in range(30):
        await fleet.append(f"log-{n}", b"x")
    for _ in range(10):
        assert 30 == len((await now(fleet)).dirty)
        assert 30 == len(await marks(store))
    for n in range(30):
        await compact(f"log-{n}")
    assert 30 == len((await now(fleet)).dropped)
    assert 0 == (await now(fleet)).marks


async def test_the_cursor_advances_when_everything_goes(fleet, store, compact):
    """Also when nothing is left to write again; and then all of it is collected."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await compact("a")
    report = await now(fleet)
    assert (1, 2) == (report.start, report.limit)
    state = await cordwood.Log(store, "fleet/m1/dirty").state()
    assert (2, 2, 0) == (state.cursors[STABLE_PREFIX], state.next_offset, state.records)
    await fleet.append("b", b"x")
    assert ["b"] == [one.log for one in (await now(fleet)).dirty]


async def test_a_missing_cursor_is_made_before_everything(fleet, store):
    """Nothing is collected without it, so nothing was missed."""
    await fleet.append("a", b"x")
    with pytest.raises(NotFoundError):
        await cordwood.Log(store, "fleet/m1/dirty").cursors.load(STABLE_PREFIX)
    assert 1 == (await now(fleet)).start


async def test_trickle_writes_do_not_stay_eligible(fleet, store, compact, clock):
    """A log that always has a little, and is compacted often, is never old."""
    # EVIDENCE-OF: G-55
    policy = cordwood.Policy(max_age_s=100.0, max_reinserts=5)
    for n in range(1, 30):
        await fleet.append("a", b"x")
        await fleet.append("a", b"x")
        await compact("a", to=2 * n)
        clock.later_s += 30.0
        report = await now(fleet)
        assert ["a"] == [one.log for one in report.dirty]
        assert [] == cordwood.select(report.dirty, clock.now_us(), policy)


async def test_a_log_that_hopped_ends_in_both_dirty_logs(fleet, store, compact):
    """Two members wrote it; one compaction, and both forget it."""
    # EVIDENCE-OF: G-54
    async with Fleet(store, "m2", create=True) as other:
        for n in range(3):
            await fleet.append("a", b"%d" % n)
            await other.append("a", b"%d" % n)
        for one in (fleet, other):
            assert ["a"] == [d.log for d in (await now(one)).dirty]
        (found,) = (await survey(store)).dirty
        assert ("m1", "m2") == found.members
        await compact("a")
        assert [["a"], ["a"]] == [(await now(one)).dropped for one in (fleet, other)]
        assert [[], []] == [await marks(store, name) for name in ("m1", "m2")]


async def test_every_roll_up_reads_the_cursors_again(fleet, compact):
    """A stale cursor would report a log for ever."""
    await fleet.append("a", b"x")
    assert 1 == len((await now(fleet)).dirty)
    await compact("a")
    assert [] == (await now(fleet)).dirty


async def test_the_cost_is_that_of_the_logs_written(fleet, memory, compact):
    """Five of two hundred logs were written: five are looked at."""
    # EVIDENCE-OF: G-55
    for n in range(200):
        await fleet.append(f"log-{n}", b"x")
        await compact(f"log-{n}")
    await now(fleet)
    for n in range(5):
        await fleet.append(f"log-{n}", b"x")
    memory.calls.clear()
    assert 5 == len((await now(fleet, collect=False)).dirty)
    assert 10 == sum(key.startswith("log-") for _, key in memory.calls)
    assert 20 >= len(memory.calls)


# Damage.


async def test_a_roll_up_stops_at_what_it_cannot_read(fleet, memory, store):
    """The cursor stays before it, and what lies behind it is still found."""
    # EVIDENCE-OF: G-54
    for name in ("a", "b", "c"):
        await fleet.append(name, b"x")
    await memory.put(f"fleet/m1/dirty/{paths.fragment(2)}", b"spoiled")
    for _ in range(3):
        report = await now(fleet)
        assert 2 == report.limit
        assert {"a", "c"} == {one.log for one in report.dirty}
        assert paths.fragment(2) in report.damage
    (found,) = (await survey(store)).members
    assert (2, True) == (found.marks, paths.fragment(2) in found.damage)


async def test_a_record_of_another_kind_stops_a_roll_up(fleet, store):
    """A newer version may have written it: only that one knows what it means."""
    await fleet.append("a", b"x")
    async with cordwood.Log(store, "fleet/m1/dirty").writer() as writer:
        await writer.append(b"\x07 something that is new here")
    report = await now(fleet)
    assert (2, True) == (report.limit, "neither a mark" in report.damage)


async def test_a_log_that_cannot_be_looked_at_keeps_its_mark(fleet, memory, store):
    """It is reported, the others go on; a purge ends it."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await fleet.append("b", b"x")
    await memory.put(f"a/{paths.MANIFEST}", b"spoiled")
    report = await now(fleet)
    assert (["a"], ["b"]) == (list(report.errors), [one.log for one in report.dirty])
    assert ["a", "b"] == sorted(mark.log for mark in await marks(store))
    await fleet.purge("a")
    assert ["a"] == (await now(fleet)).dropped
    assert ["b"] == [mark.log for mark in await marks(store)]


async def test_a_log_that_is_gone_is_dropped(fleet, memory, store):
    """Nothing is left to compact."""
    await fleet.append("a", b"x")
    await memory.delete([meta.key async for meta in memory.list("a/")])
    assert ["a"] == (await now(fleet)).dropped


async def test_a_purge_ends_the_marks_before_it(fleet, store):
    """A log that nobody will compact is forgotten, until it is written again."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await fleet.purge("a")
    assert ["a"] == (await now(fleet)).dropped
    await fleet.append("a", b"y")
    assert ["a"] == [one.log for one in (await now(fleet)).dirty]


async def test_a_purge_does_not_end_what_is_written_after_it(fleet, store):
    """Although the mark that stands for it came before."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await fleet.purge("a")
    await fleet.append("a", b"y")
    report = await now(fleet)
    assert [("a", 2, 3)] == [(one.log, one.start, one.limit) for one in report.dirty]


# Crashes, and two at once.


async def test_a_crash_before_the_cursor_moves_only_doubles_marks(fleet, memory, store):
    """Nothing is lost, and the next roll-up makes one of two."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await now(fleet)

    async def fail(key):
        if key.endswith("stable_prefix.json"):
            raise StoreError("gone")

    memory.before_put = fail
    with pytest.raises(StoreError):
        await now(fleet)
    memory.before_put = None
    assert 2 == len(await marks(store))
    assert 1 == len((await now(fleet)).dirty)
    assert 1 == len(await marks(store))


async def test_a_crash_before_the_marks_are_written_again_changes_nothing(fleet, memory, store):
    """The cursor has not moved."""
    await fleet.append("a", b"x")

    async def fail(key):
        if key.startswith("fleet/m1/dirty/log/"):
            raise StoreError("gone")

    await now(fleet)
    before = await marks(store)
    memory.before_put = fail
    with pytest.raises(StoreError):
        await now(fleet)
    memory.before_put = None
    assert before == await marks(store)


async def test_of_two_roll_ups_one_is_told(fleet, memory, store):
    """The other one's marks are there twice; nothing is lost."""
    # EVIDENCE-OF: G-54
    await fleet.append("a", b"x")
    await now(fleet)

    async def overtake(key):
        if key.endswith("stable_prefix.json"):
            memory.before_put = None
            await now(fleet)

    memory.before_put = overtake
    with pytest.raises(ContendedError):
        await now(fleet)
    assert {"a"} == {mark.log for mark in await marks(store)}
    assert ["a"] == [one.log for one in (await now(fleet)).dirty]


async def test_a_bounded_roll_up_goes_on_where_it_ended(fleet, store):
    """So many marks at a time; each is read once a round."""
    for n in range(10):
        await fleet.append(f"log-{n}", b"x")
    seen = set()
    for _ in range(5):
        report = await now(fleet, max_marks=2)
        assert 2 == report.marks
        seen |= {one.log for one in report.dirty}
    assert 10 == len(seen)
    assert 10 == len(await marks(store))


def test_the_dirty_log_is_collected():
    """What lies before its cursor leaves the log, and after the grace interval the store."""

    async def main():
        memory = MemoryStore(clock=LoopClock())
        store = cordwood.Store.over(memory)
        async with Fleet(store, "m1", create=True, clock=LoopClock()) as fleet:
            for n in range(20):
                await fleet.append(f"log-{n}", b"x")
                await asyncio.sleep(700)
                await now(fleet)
        state = await cordwood.Log(store, "fleet/m1/dirty").state()
        slots = [meta.key async for meta in memory.list("fleet/m1/dirty/log/")]
        return state, len(slots)

    state, num_slots = simulate(1, main)
    # A roll-up collects what the one before it left.
    assert 20 + 19 >= state.records >= 20
    assert state.oldest_offset > 150
    assert 6 > num_slots


async def test_a_member_that_never_wrote_is_not_found(fleet):
    """Another one's name may be wrong; our own is just new."""
    assert 0 == (await fleet.roll_up()).marks
    with pytest.raises(NotFoundError):
        await fleet.roll_up("nobody")


async def test_a_mark_by_hand(fleet, store, compact):
    """For a log that was forked, or whose cursor was moved back."""
    await fleet.append("a", b"x")
    await compact("a")
    await now(fleet)
    await compact("a", to=1)
    await fleet.mark("a")
    assert ["a"] == [one.log for one in (await now(fleet)).dirty]


async def test_marks_of_many_logs_share_a_fragment(store):
    """A hundred logs opened at once cost a few fragments of the dirty log."""
    async with Fleet(store, "m1", create=True) as fleet:
        await asyncio.gather(*(fleet.append(f"log-{n}", b"x") for n in range(100)))
    found = await cordwood.Log(store, "fleet/m1/dirty").reader().scan()
    assert 10 > len(found)
    assert 100 == len(await marks(store))


async def test_marks_keep_their_order():
    """A mark is a plain value: what is appended is what is read."""
    store = cordwood.Store("memory:")
    some = [Mark(f"log-{n}", n, n, n, is_purge=n % 3 == 0) for n in range(1, 50)]
    async with DirtyLog(store, "m1") as dirty_log:
        await dirty_log.append(some[:20])
        await dirty_log.append(some[20:])
        assert some == (await dirty_log.read(None)).marks
        assert some[30:] == (await dirty_log.read(31)).marks
