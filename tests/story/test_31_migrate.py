"""Story 31: a log moves, and goes on elsewhere with the next offset.

First the seal, then the new log: at no moment can something be appended to both. A crash between
the two leaves a sealed log that says where it is going; to migrate again finishes it.
"""

from __future__ import annotations

import pytest

import cordwood
from cordwood import AlreadyExistsError, Code, InvalidInputError, NotFoundError, StateError
from cordwood.log.format import WriterTag
from cordwood.store.memory import MemoryStore


class Killed(BaseException):
    """The process died."""


@pytest.fixture
def other(log):
    """Where the log goes: another name in the same store."""
    return cordwood.Log(log.store, "orders2")


async def fill(log, *bodies):
    """Append these, one after the other; their offsets."""
    async with log.writer() as writer:
        return [await writer.append(body) for body in bodies]


async def test_the_new_log_goes_on_where_the_old_one_ends(log, other, read):
    """Offsets, times and the grace interval go on; the old log says where."""
    # EVIDENCE-OF: G-43
    await log.create(grace_s=60)
    await fill(log, b"a", b"b")
    await log.migrate(other)
    seal = (await log.state()).seal
    assert ("moved", "orders2") == (seal.reason, seal.moved_to)
    state = await other.state()
    assert (3, 3, 60, False) == (
        state.oldest_offset,
        state.next_offset,
        state.grace_s,
        state.sealed,
    )
    assert [3, 4] == await fill(other, b"c", b"d")
    records = [*await read(log), *await read(other)]
    assert [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")] == [(r.offset, r.body) for r in records]
    times = [record.timestamp_us for record in records]
    assert sorted(times) == times
    assert (await other.scrub(deep=True)).ok
    with pytest.raises(StateError, match="moved to 'orders2'"):
        await log.writer().open()


async def test_times_do_not_go_back_in_the_new_log(log, other, read):
    """A writer of the new log whose clock is behind goes on from the old one's last time."""
    await log.create()
    await fill(log, b"a")
    await log.migrate(other)

    class Behind:
        """A clock of long ago."""

        def now_us(self):
            """1970."""
            return 1

        def monotonic_s(self):
            """It does not go."""
            return 0.0

    behind = cordwood.Log(other.store, other.name, clock=Behind())
    await fill(behind, b"b")
    assert [(await read(log))[0].timestamp_us] == [r.timestamp_us for r in await read(other)]


@pytest.mark.cas
async def test_another_store_is_named_by_its_url(log):
    """Where the stores differ, the seal has the URL, which can be followed as it is."""
    await log.create()
    target = cordwood.Log(cordwood.Store("memory:story31"), "orders")
    await log.migrate(target)
    moved_to = (await log.state()).seal.moved_to
    assert "memory:story31/orders" == moved_to
    assert [1] == await fill(cordwood.Log.from_url(moved_to), b"a")


async def test_to_migrate_again_changes_nothing(log, other, bucket_of, memory):
    """Right away, after appends to the new log, after its collection, and after its seal."""
    # EVIDENCE-OF: G-43
    await log.create()
    await fill(log, b"a", b"b")
    new = bucket_of(memory, "orders2")

    async def again():
        before = await bucket_of(memory).manifest(), await new.manifest()
        await log.migrate(other)
        assert before == (await bucket_of(memory).manifest(), await new.manifest())

    await log.migrate(other, reason="larger house")
    await again()
    await fill(other, b"c", b"d", b"e")
    await again()
    await other.cursors.init("consumer", 5)
    await other.collect()
    assert 5 == (await other.state()).oldest_offset
    await again()
    await log.cursors.init("consumer", 3)
    await log.collect()
    assert 3 == (await log.state()).oldest_offset
    await again()
    third = cordwood.Log(log.store, "orders3")
    await other.migrate(third)
    await again()
    assert [6] == await fill(third, b"f")


async def test_a_crash_between_the_two_steps_is_finished_by_the_next(
    log, other, memory, hooked, bodies
):
    """The log is sealed and its successor missing; nobody can append; then it is created."""
    # EVIDENCE-OF: G-43
    await log.create()
    await fill(log, b"a")

    async def die(call, key, data, mode):
        if key.startswith("orders2/"):
            raise Killed
        return await call()

    # One back end, two views: the hook makes the stores differ, so it hooks both.
    dying = cordwood.Store.over(hooked(memory, put=die))
    with pytest.raises(Killed):
        await cordwood.Log(dying, "orders").migrate(cordwood.Log(dying, "orders2"))
    assert "orders2" == (await log.state()).seal.moved_to
    with pytest.raises(StateError, match="orders2"):
        await log.writer().open()
    with pytest.raises(NotFoundError):
        await other.state()
    await log.migrate(other)
    assert [2] == await fill(other, b"b")
    assert [b"a"] == await bodies(log)


@pytest.mark.cas
async def test_two_migrate_at_once(log, other, memory, hooked):
    """Both finish; there is one successor, and whoever came second leaves it as it is."""
    # EVIDENCE-OF: G-43
    await log.create()
    await fill(log, b"a")
    before_seal, before_create = [1], [1]

    async def overtaken(call, key, data, mode):
        if key == "orders/manifest/MANIFEST" and before_seal:
            before_seal.clear()
            await log.seal("moved", "orders2")
        if key == "orders2/manifest/MANIFEST" and before_create:
            before_create.clear()
            await log.migrate(other)
            assert [2] == await fill(other, b"b")
        return await call()

    slow = cordwood.Store.over(hooked(memory, put=overtaken))
    await cordwood.Log(slow, "orders").migrate(cordwood.Log(slow, "orders2"))
    assert not before_seal
    assert not before_create
    assert 3 == (await other.state()).next_offset


async def test_a_name_that_is_taken_costs_nothing(log, other):
    """If the other log exists the old one is not sealed, even if they look alike."""
    # EVIDENCE-OF: G-43
    await log.create()
    await other.create()
    with pytest.raises(AlreadyExistsError, match="does not continue"):
        await log.migrate(other)
    assert not (await log.state()).sealed
    assert [1] == await fill(log, b"a")


async def test_a_name_taken_after_the_seal_is_refused(log, other, memory, hooked):
    """Somebody creates a log of this name at the last moment: it is not taken for the successor."""
    await log.create()

    async def taken(call, key, data, mode):
        if key.startswith("orders2/"):
            await other.create()
        return await call()

    slow = cordwood.Store.over(hooked(memory, put=taken))
    with pytest.raises(AlreadyExistsError):
        await cordwood.Log(slow, "orders").migrate(cordwood.Log(slow, "orders2"))
    await other.destroy()
    await log.migrate(other)
    assert [1] == await fill(other, b"a")


async def test_a_log_moves_once(log, other):
    """A log that was sealed for another reason, or moved elsewhere, does not move."""
    await log.create()
    with pytest.raises(InvalidInputError):
        await log.migrate(cordwood.Log(log.store, "orders"))
    await log.seal("enough", "elsewhere")
    with pytest.raises(StateError, match=r"enough.*elsewhere") as caught:
        await log.migrate(other)
    assert Code.SEALED is caught.value.code
    with pytest.raises(NotFoundError):
        await other.state()


@pytest.mark.cas
async def test_what_a_destroyed_successor_left_is_not_adopted(log, other, memory, bodies):
    """Migrated again after its successor was destroyed, the new successor passes over old slots."""
    await log.create()
    await fill(log, b"a")
    await log.migrate(other)
    incarnation = WriterTag.parse((await other.manifest()).writer).incarnation
    async with other.writer() as writer:
        await writer.append(b"b")
        # A slow put of the old successor's: it arrives when all is over.
        slot = [meta.key async for meta in memory.list("orders2/log/")]
        data = (await memory.get(slot[0])).data
    await other.destroy()
    await memory.put(slot[0], data)
    await log.migrate(other)
    assert incarnation == WriterTag.parse((await other.manifest()).writer).incarnation
    assert [2] == await fill(other, b"c")
    assert [b"c"] == await bodies(other)


async def test_an_empty_log_moves(other):
    """The new log begins at 1, in a store of its own."""
    log = cordwood.Log(cordwood.Store.over(MemoryStore()), "empty")
    await log.create()
    await log.migrate(other)
    assert [1] == await fill(other, b"a")
