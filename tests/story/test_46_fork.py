"""A fork begins as another log's past, shares its files, and neither can harm the other."""

from __future__ import annotations

import json

import pytest

import cordwood
from cordwood.base.clock import SystemClock
from cordwood.log import paths
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill, names


@pytest.fixture
def log_of(place, over):
    """`log_of(name)`: a log in the store."""
    store = over(place)
    return lambda name: cordwood.Log(store, name)


@pytest.mark.cas
async def test_a_fork_has_the_past_and_a_future_of_its_own(log_of, place, bucket_of, bodies):
    """Offsets and slots go on; both can be appended to; no file was copied."""
    # EVIDENCE-OF: G-46
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 20)
    assert await parent.fork(child) is None
    assert ["manifest/MANIFEST"] == await bucket_of(place, "trial").keys()
    assert names(20) == await bodies(child)
    await fill(child, 20, "child")
    await fill(parent, 5, "parent")
    assert names(20) + names(20, "child") == await bodies(child)
    assert names(20) + names(5, "parent") == await bodies(parent)
    assert list(range(21, 41)) == await bucket_of(place, "trial").slots()
    assert (await child.scrub(deep=True)).ok
    assert (await parent.scrub(deep=True)).ok


@pytest.mark.cas
async def test_the_manifest_of_a_fork(log_of, place, bucket_of):
    """It names its ancestor, counts only what it shares, and takes over the features but a seal."""
    parent, child = log_of("orders"), log_of("trial")
    await parent.create(grace_s=77)
    async with parent.writer() as writer:
        await writer.append(b"oak", key=b"k")
    await parent.fork(child)
    was, now = await parent.manifest(), await child.manifest()
    assert {"columns", "fork", "grace"} == now.features
    assert 77 == now.grace_s
    assert [("../orders", 2, 2)] == [(a.log, a.limit, a.seq_no) for a in now.ancestors]
    assert (was.setsum_hex, was.acc_bytes) == (now.setsum_hex, now.acc_bytes)
    incarnation = now.writer.split()[1].removeprefix("log=")
    assert f"tail={incarnation}" in now.writer
    held = json.loads(await bucket_of(place, "orders").get(paths.fork(incarnation)))
    assert ("../trial", 1, 2, 1, 2) == tuple(
        held[name] for name in ("log", "start", "limit", "first_seq_no", "limit_seq_no")
    )
    state = await child.state()
    assert (1, 2, 1) == (state.oldest_offset, state.next_offset, state.records)


async def test_a_fork_from_an_offset_on(log_of, bodies):
    """It begins at the fragment with the offset, or one earlier; every offset will do."""
    parent = log_of("orders")
    await fill(parent, 40)
    for start in range(1, 42):
        child = log_of(f"from-{start}")
        await parent.fork(child, start)
        manifest = await child.manifest()
        assert start - 1 <= manifest.oldest_offset <= start
        assert manifest.collected_hex == "0" * 64
        assert names(40)[manifest.oldest_offset - 1 :] == await bodies(child)
        assert (await child.scrub(deep=True)).ok
    await fill(child, 1)
    assert [b"r0"] == await bodies(child)
    assert 41 == (await child.state()).oldest_offset


async def test_what_cannot_be_forked(log_of, free):
    """Each refusal comes before anything is written, and says what to do instead."""
    parent, child = log_of("orders"), log_of("trial")
    with pytest.raises(cordwood.NotFoundError):
        await parent.fork(child)
    await fill(parent, 6)
    elsewhere = cordwood.Log(cordwood.Store.over(MemoryStore()), "trial")
    with pytest.raises(cordwood.InvalidInputError, match="use copy"):
        await parent.fork(elsewhere)
    for start in (-1, 8, True, "1"):
        with pytest.raises(cordwood.InvalidInputError, match="from 1 to 7"):
            await parent.fork(child, start)
    with pytest.raises(cordwood.AlreadyExistsError):
        await parent.fork(parent)
    await free(parent, 4)
    with pytest.raises(cordwood.CollectedError, match="start from offset 4"):
        await parent.fork(child, 3)
    with pytest.raises(cordwood.NotFoundError):
        await child.state()


async def test_a_fork_of_nothing(log_of, free, bodies):
    """A fork of an empty log is empty, at the same offset, and holds nothing."""
    parent, child = log_of("orders"), log_of("trial")
    await parent.create()
    await parent.fork(child)
    await fill(child, 2)
    assert names(2) == await bodies(child)
    await fill(parent, 3)
    await free(parent, 4)
    late = log_of("late")
    await parent.fork(late)
    await fill(late, 1)
    assert 4 == (await late.state()).oldest_offset
    assert [b"r0"] == await bodies(late)
    assert [] == (await free(parent, 4)).held


# Collection on either side.


async def test_the_parent_collects_and_the_fork_still_reads(log_of, place, free, bucket_of, bodies):
    """What the fork shares stays when the parent is past it."""
    # EVIDENCE-OF: G-47
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 30)
    await parent.fork(child, 11)
    oldest = (await child.state()).oldest_offset
    await fill(parent, 10, "later")
    report = await free(parent, 41)
    assert ["fork 'trial'"] == report.held
    assert list(range(oldest, 31)) == await bucket_of(place, "orders").slots()
    assert names(30)[oldest - 1 :] == await bodies(child)
    assert (await child.scrub(deep=True)).ok
    await fill(child, 20, "child")
    assert names(30)[oldest - 1 :] + names(20, "child") == await bodies(child)
    assert (await child.scrub(deep=True)).ok


async def test_a_fork_that_collects_lets_go_and_deletes_nothing_of_its_parent(
    log_of, place, free, bucket_of, bodies
):
    """The parent's next collection frees what the fork no longer needs, and only that."""
    # EVIDENCE-OF: G-47
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 30)
    await parent.fork(child)
    await free(child, 12)
    assert list(range(1, 31)) == await bucket_of(place, "orders").slots()
    assert names(30) == await bodies(parent)
    await free(parent, 31)
    assert list(range(12, 31)) == await bucket_of(place, "orders").slots()
    assert names(30)[11:] == await bodies(child)
    await fill(child, 3, "child")
    await free(child, 33)
    assert [33] == await bucket_of(place, "trial").slots()
    await parent.collect(wait_s=0)
    kept = await bucket_of(place, "orders").keys()
    assert [] == [key for key in kept if key.startswith(("log/", "snapshot/", "gc/HELD"))]
    assert (await child.scrub(deep=True)).ok


async def test_a_fork_does_not_let_go_within_its_own_grace(log_of, place, time, bodies):
    """Its readers have the grace interval, also for files that lie with the parent."""
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 10)
    await parent.fork(child)
    for log in (parent, child):
        await log.cursors.init("done", 9)
    await parent.collect(wait_s=0)
    time.pass_s(601)
    async with child.reader() as reader:
        records = reader.read()
        assert b"r0" == (await anext(records)).body
        await child.collect(wait_s=0)
        await child.collect(wait_s=0)
        await parent.collect(wait_s=0)
        assert names(10)[1:] == [record.body async for record in records]


async def test_a_pin_on_a_fork_holds_in_the_parent(log_of, place, free, bucket_of, bodies):
    """What a pin of the fork holds of the parent's stays until it ends, and goes afterwards."""
    # EVIDENCE-OF: G-47
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 20)
    await parent.fork(child)
    pin = await child.pin("audit", 3, 6, ttl_s=86_400)
    await free(child, 20)
    await free(parent, 21)
    async with child.reader(pin="audit") as reader:
        assert names(20)[2:5] == [record.body async for record in reader.read()]
    await pin.release()
    await child.collect(wait_s=0)
    await parent.collect(wait_s=0)
    left = await bucket_of(place, "orders").slots()
    assert [20] == left
    assert [b"r19"] == await bodies(child)


@pytest.mark.cas
async def test_a_fork_that_is_gone_holds_nothing(log_of, place, free, bucket_of):
    """When the fork's manifest is gone, or is another log's, the parent frees what it held."""
    parent, child, other = log_of("orders"), log_of("trial"), log_of("other")
    await fill(parent, 12)
    await parent.fork(child)
    await parent.fork(other)
    await free(parent, 13)
    assert 12 == len(await bucket_of(place, "orders").slots())
    await bucket_of(place, "trial").delete(paths.MANIFEST)
    await bucket_of(place, "other").delete(paths.MANIFEST)
    await other.create()
    await parent.collect(wait_s=0)
    assert [] == [k for k in await bucket_of(place, "orders").keys() if k.startswith("log/")]


# Chains.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
async def test_three_generations(log_of, place, free, bucket_of, bodies, order):
    """Each reads its own past whoever collects first; nobody deletes in another's place."""
    # EVIDENCE-OF: G-47
    logs = [log_of(name) for name in ("oak", "elm", "ash")]
    for number, log in enumerate(logs):
        await fill(log, 12, f"g{number}-")
        if number < 2:
            await log.fork(logs[number + 1])
    past = [await bodies(log) for log in logs]
    assert [12, 24, 36] == [len(one) for one in past]
    for turn, index in enumerate(order):
        await free(logs[index], 9)
        past[index] = past[index][8:]
        for log, expected in zip(logs, past, strict=True):
            assert expected == await bodies(log)
            report = await log.scrub(deep=True)
            assert report.ok, (turn, report.errors)
    for log in logs:
        await free(log, (await log.state()).next_offset)
    for log in reversed(logs):
        await log.collect(wait_s=0)
    for name in ("oak", "elm", "ash"):
        left = [k for k in await bucket_of(place, name).keys() if k.startswith(("log/", "snap"))]
        assert [] == left


async def test_a_grandchild_reads_the_nodes_of_its_parent(log_of, free, bodies):
    """A node that a fork made over shared fragments serves its own forks too."""
    oak, elm, ash = log_of("oak"), log_of("elm"), log_of("ash")
    await fill(oak, 30)
    await oak.fork(elm, 5)
    await elm.fork(ash)
    assert [a.limit for a in (await ash.manifest()).ancestors] == [31, 31]
    await free(oak, 31)
    await fill(elm, 20, "elm")
    await free(elm, 40)
    expected = names(30)[(await ash.state()).oldest_offset - 1 :]
    assert expected == await bodies(ash)
    assert (await ash.scrub(deep=True)).ok
    assert (await elm.scrub(deep=True)).ok


async def test_an_ancestor_no_longer_needed_is_forgotten(log_of, bodies):
    """A fork that begins behind what its parent shared has one ancestor, and holds nothing else."""
    oak, elm, ash = log_of("oak"), log_of("elm"), log_of("ash")
    await fill(oak, 10)
    await oak.fork(elm)
    await fill(elm, 10, "elm")
    await elm.fork(ash, 15)
    assert ["../elm"] == [a.log for a in (await ash.manifest()).ancestors]
    assert names(10, "elm")[(await ash.state()).oldest_offset - 11 :] == await bodies(ash)


async def test_a_fork_of_a_fork_whose_ancestor_has_moved_on(log_of, free, bodies):
    """The files that the parent holds further up can be shared again, and stay when it lets go."""
    # EVIDENCE-OF: G-47
    oak, elm, ash = log_of("oak"), log_of("elm"), log_of("ash")
    await fill(oak, 10)
    await oak.fork(elm)
    await free(oak, 11)
    await elm.fork(ash)
    await free(elm, 11)
    await oak.collect(wait_s=0)
    assert names(10) == await bodies(ash)


# What lies in the slots.


@pytest.mark.cas
async def test_neither_adopts_from_the_other(log_of, place, bucket_of, bodies):
    """A fragment that the parent never named is not the fork's, nor the other way round."""
    # EVIDENCE-OF: G-46
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 3)
    before = await bucket_of(place, "orders").get(paths.MANIFEST)
    await fill(parent, 1, "orphan")
    await bucket_of(place, "orders").put(paths.MANIFEST, before)
    await parent.fork(child)
    async with child.writer():
        pass
    assert names(3) == await bodies(child)
    await fill(child, 1, "child")
    async with parent.writer():
        pass
    assert [*names(3), b"orphan0"] == await bodies(parent)
    assert [*names(3), b"child0"] == await bodies(child)


@pytest.mark.cas
async def test_what_an_earlier_fork_of_the_name_left_is_void(log_of, place, bucket_of, bodies):
    """Slots of a fork that is gone do not come back in the next fork of that name."""
    # EVIDENCE-OF: G-46
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 3)
    await parent.fork(child)
    await fill(child, 2, "gone")
    await bucket_of(place, "trial").delete(paths.MANIFEST)
    await parent.fork(child)
    await fill(child, 1, "new")
    assert [*names(3), b"new0"] == await bodies(child)
    assert (await child.scrub(deep=True)).ok


async def test_timestamps_do_not_go_back_across_the_fork(log_of, place, read):
    """The fork's first record is not older than the parent's last, whatever its clock says."""

    class Slow(SystemClock):
        def now_us(self):
            return 1_000_000

    parent = log_of("orders")
    await fill(parent, 2)
    child = cordwood.Log(parent.store, "trial", clock=Slow())
    await parent.fork(child)
    await fill(child, 1)
    stamps = [record.timestamp_us for record in await read(child)]
    assert sorted(stamps) == stamps


@pytest.mark.cas
async def test_a_fault_is_reported_under_the_parents_name(log_of, place, bucket_of):
    """A scrub of the fork names the object that is damaged, where it lies."""
    parent, child = log_of("orders"), log_of("trial")
    await fill(parent, 3)
    await parent.fork(child)
    await bucket_of(place, "orders").put(paths.fragment(2), b"rubbish")
    report = await child.scrub(deep=True)
    assert [f"orders/{paths.fragment(2)}"] == [fault.where for fault in report.errors]
