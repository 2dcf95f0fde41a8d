"""Story 32: a log is destroyed, with everything of it and nothing else.

It refuses while anything under its name is not its own, and while a fork shares its files. Killed
at any request, it is finished by the next call. What slow writers put after the end is void to a
later log of the same name.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import cordwood
from cordwood import Code, CollectedError, NotFoundError, Options, StateError
from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.log import format as log_format
from cordwood.log import holds, paths, tree
from cordwood.log.format import FORK, Ancestor, Extension, WriterTag
from cordwood.log.intents import Asker
from cordwood.log.seal import Sealer
from cordwood.store.memory import MemoryStore

MANIFEST = "orders/manifest/MANIFEST"


class Killed(BaseException):
    """The process died."""


def over(store, name="orders"):
    """The log as another process sees it."""
    return cordwood.Log(cordwood.Store.over(store), name)


async def furnish(log, memory):
    """A log with one object of every kind."""
    await log.create(grace_s=1)
    async with log.writer(options=Options(batch_bytes=1)) as writer:
        for n in range(20):
            await writer.append(b"%d" % n)
    await log.cursors.init("consumer", 5)
    await log.pin("audit", 1, 9)
    await log.mark()
    await log.unlink()
    await memory.put("orders/gc/HELD-" + "a" * 32, b"{}")
    await memory.put("orders/gc/CLOCK", b"now")
    await memory.put("orders/intent/turn-0-0", b"{}")
    uuid = "0190b3c4-0000-7000-8000-000000000000"
    await memory.put(f"orders/log/Uuid={uuid}.parquet", b"bulk")
    dead = holds.ForkRecord(
        log="../gone", start=1, limit=2, first_seq_no=1, limit_seq_no=2, writer="w"
    )
    await memory.put("orders/" + paths.fork("b" * 32), log_format.encode(dead, "fork"))


async def forked(memory, name, *, born, parent="orders"):
    """A fork by hand: an unborn or finished manifest, and its hold on the parent."""
    incarnation = SeededEntropy(name).token()
    tag = WriterTag(incarnation, SeededEntropy(name + "w").token(), incarnation, 0)
    ancestors = (Ancestor(f"../{parent}", 2, 2),) if born else ()
    extension = Extension(features=(FORK,), fork=ancestors)
    manifest = msgspec.structs.replace(tree.empty(tag), cordwood=extension)
    await memory.put(f"{name}/{paths.MANIFEST}", log_format.encode(manifest))
    record = holds.ForkRecord(
        log=f"../{name}", start=1, limit=2, first_seq_no=1, limit_seq_no=2, writer="w"
    )
    hold = f"{parent}/{paths.fork(incarnation)}"
    await memory.put(hold, log_format.encode(record, hold))
    return hold


@pytest.mark.cas
async def test_nothing_is_left(log, memory, bucket):
    """Objects of every kind go, of this log alone, and the count is right."""
    # EVIDENCE-OF: G-44
    neighbour = over(memory, "orders2")
    await neighbour.create()
    await furnish(log, memory)
    keys = await bucket.keys()
    kinds = {key.partition("/")[0] for key in keys}
    assert {"cursor", "fork", "gc", "intent", "log", "manifest", "pin", "snapshot"} == kinds
    seen = []
    deleted = await log.destroy(lambda done, total: seen.append((done, total)))
    assert [] == await bucket.keys()
    # The hold of a fork that is gone was ended before, not by the destruction.
    assert len(keys) - 1 == deleted
    assert (deleted, deleted) == seen[-1]
    assert sorted(seen) == seen
    assert 1 == (await neighbour.state()).next_offset
    with pytest.raises(NotFoundError) as caught:
        await log.destroy()
    assert Code.NO_SUCH_LOG is caught.value.code


@pytest.mark.cas
async def test_the_name_can_be_used_again(log, memory, bodies):
    """A new log of the same name works, although an old fragment is left in its first slot."""
    # EVIDENCE-OF: G-45
    async with log.writer(create=True) as writer:
        await writer.append(b"old")
    slot = f"orders/{paths.fragment(1)}"
    data = (await memory.get(slot)).data
    await log.destroy()
    await memory.put(slot, data, "create")
    with pytest.raises(NotFoundError, match=r"objects lie under its name.*FragmentSeqNo"):
        await log.destroy()
    async with log.writer(create=True) as writer:
        assert 1 == await writer.append(b"new")
    assert [b"new"] == await bodies(log)
    assert 3 == await log.destroy()
    assert [] == [meta.key async for meta in memory.list()]


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        "log/Bucket=0000000000001000/FragmentSeqNo=0000000000000001.parquet",
        "log/Uuid=1.parquet",
        "snapshot/SNAPSHOT.abc",
        "gc/OTHER",
        "cursor/a-b.json",
        "fork/somebody.json",
        "intent/manifest/MANIFEST.old",
        "manifest/MANIFEST.backup",
    ],
)
async def test_what_is_not_understood_stops_it(log, memory, bucket, path):
    """One strange object, and nothing is deleted, nor is the log sealed."""
    # EVIDENCE-OF: G-44
    await log.create()
    await memory.put(f"orders/{path}", b"?")
    before = await bucket.keys()
    with pytest.raises(StateError, match="nothing was deleted") as caught:
        await log.destroy()
    assert f"orders/{path}" in caught.value.message
    assert before == await bucket.keys()
    assert not (await log.state()).sealed


@pytest.mark.parametrize("name", ["orders/eu", "orders/log", "orders/intent", "orders/cursor/x"])
@pytest.mark.cas
async def test_a_log_below_it_stops_it(log, memory, name):
    """`orders/eu` is not part of `orders`; it can be destroyed itself, and then the upper one."""
    # EVIDENCE-OF: G-44
    below = over(memory, name)
    await below.create()  # first: below a log that is there, one of these names is refused
    await log.create()
    with pytest.raises(StateError, match=f"other logs lie below its name: {name}"):
        await log.destroy()
    assert 1 == (await below.state()).next_offset
    assert 1 == await below.destroy()
    assert 1 == await log.destroy()


@pytest.mark.parametrize("born", [True, False])
@pytest.mark.cas
async def test_a_fork_stops_it(log, memory, bucket, born):
    """A fork that shares files holds its parent; once it is destroyed, the parent can be."""
    # EVIDENCE-OF: G-44
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    await forked(memory, "copy", born=born)
    before = await bucket.keys()
    with pytest.raises(StateError, match="shared by fork 'copy'"):
        await log.destroy()
    assert before == await bucket.keys()
    assert not (await log.state()).sealed
    assert 1 == await over(memory, "copy").destroy()
    assert 2 == await log.destroy()
    assert [] == [meta.key async for meta in memory.list()]


async def test_a_fork_lets_its_parent_go(log, memory):
    """A finished fork deletes its hold on each ancestor, before its manifest."""
    # EVIDENCE-OF: G-44
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    hold = await forked(memory, "copy", born=True)
    await over(memory, "copy").destroy()
    assert hold not in [meta.key async for meta in memory.list()]
    assert 2 == (await log.state()).next_offset


@pytest.mark.cas
async def test_a_fork_at_the_last_moment_is_seen(log, memory, hooked, bucket):
    """It writes its hold before the seal: the second look finds it, and nothing is deleted."""
    # EVIDENCE-OF: G-44
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    before = await bucket.keys()

    async def fork_first(call, key, data, mode):
        if key == MANIFEST:
            await forked(memory, "copy", born=False)
        return await call()

    with pytest.raises(StateError, match="fork 'copy'"):
        await over(hooked(memory, put=fork_first)).destroy()
    assert set(before) < set(await bucket.keys())
    await over(memory, "copy").destroy()
    await log.destroy()
    assert [] == [meta.key async for meta in memory.list()]


@pytest.mark.cas
async def test_a_doomed_log_holds_nothing_for_anybody(log):
    """A cursor, pin or fork made after the fence withdraws: it reads the seal."""
    # EVIDENCE-OF: G-44
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    await Sealer(log.objects, SYSTEM_CLOCK, SeededEntropy("doom")).doom()
    for make in (log.cursors.init("late", 1), log.pin("late", 1, 2)):
        with pytest.raises(CollectedError, match="being destroyed"):
            await make
    assert {} == await log.cursors.list()
    assert () == (await log.state()).pins
    with pytest.raises(StateError, match=r"sealed \(destroyed\)"):
        await log.writer().open()


@pytest.mark.cas
async def test_a_moved_log_can_be_destroyed(log, memory):
    """Its seal then says "destroyed", and still where it went."""
    other = over(memory, "orders2")
    await log.create()
    await log.seal("moved", "orders2")
    await Sealer(log.objects, SYSTEM_CLOCK, SeededEntropy("doom")).doom()
    seal = (await log.state()).seal
    assert ("destroyed", "orders2") == (seal.reason, seal.moved_to)
    await log.destroy()
    await other.create()


def dying_at(memory, hooked, number):
    """A store that dies at write `number // 2`: before it if `number` is even, else after it."""
    count = [0]

    async def write(call, *_):
        count[0] += 1
        if count[0] == number // 2 + 1:
            if number % 2:
                await call()
            raise Killed
        if count[0] > number // 2:
            raise Killed
        return await call()

    return hooked(memory, put=write, delete=write), count


async def test_killed_anywhere_the_next_one_finishes(hooked):
    """Before or after each write: the log is whole, or sealed and destroyed by the next call."""
    # EVIDENCE-OF: G-45
    number = 0
    while True:
        memory = MemoryStore()
        log = over(memory)
        await furnish(log, memory)
        parent = over(memory, "parent")
        await parent.create()
        store, count = dying_at(memory, hooked, number)
        try:
            await over(store).destroy()
        except Killed:
            pass
        else:
            break
        left = [meta.key async for meta in memory.list("orders/")]
        if left:
            assert MANIFEST in left
            await log.destroy()
        assert ["parent/manifest/MANIFEST"] == [meta.key async for meta in memory.list()]
        number += 1
    assert number > 14
    assert count[0] * 2 == number


@pytest.mark.cas
async def test_a_live_writer_is_fenced(log, memory, hooked, bucket):
    """A writer at work is told that the log was destroyed; what it puts meanwhile goes, too."""
    # EVIDENCE-OF: G-45
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
        late = []

        async def put_first(call, keys):
            if keys == [MANIFEST]:
                future = writer.append(b"late")
                late.append(future)
                await asyncio.wait([future])
            return await call()

        await over(hooked(memory, delete=put_first)).destroy()
        with pytest.raises(StateError, match="destroyed"):
            await late[0]
        with pytest.raises(StateError, match="destroyed"):
            writer.append(b"later")
    assert [] == await bucket.keys()


@pytest.mark.cas
async def test_a_second_destruction_that_comes_late_spares_the_new_log(log, memory, hooked, bodies):
    """It was overtaken by another one and a new log of the name: it notices, and stops."""
    # EVIDENCE-OF: G-45
    async with log.writer(create=True) as writer:
        await writer.append(b"old")
    once = [1]

    async def overtaken(call, key):
        # Between its second look and its first deletion.
        if key == MANIFEST and once and await bucket_is_doomed():
            once.clear()
            await log.destroy()
            async with log.writer(create=True) as fresh:
                await fresh.append(b"new")
        return await call()

    async def bucket_is_doomed():
        state = await log.state()
        return state.sealed

    assert 0 == await over(hooked(memory, get=overtaken)).destroy()
    assert not once
    assert [b"new"] == await bodies(log)


@pytest.mark.cas
async def test_a_new_log_after_the_manifest_went_is_spared(log, memory, hooked, bodies):
    """Created while the old one's leftovers are looked for, it is left alone."""
    # EVIDENCE-OF: G-45
    async with log.writer(create=True) as writer:
        await writer.append(b"old")

    async def quick(call, keys):
        await call()
        if keys == [MANIFEST]:
            async with log.writer(create=True) as fresh:
                await fresh.append(b"new")

    await over(hooked(memory, delete=quick)).destroy()
    assert [b"new"] == await bodies(log)


@pytest.mark.cas
async def test_an_intent_left_by_the_fence_goes(log, bucket, memory):
    """Whoever asked for a turn, dead or alive, leaves nothing behind."""
    await log.create()
    asker = Asker(log.objects, SYSTEM_CLOCK, SeededEntropy("asker"))
    asking = asyncio.ensure_future(asker.ask())
    while not any(key.startswith("intent/") for key in await bucket.keys()):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert 2 == await log.destroy()
    assert [] == await bucket.keys()
