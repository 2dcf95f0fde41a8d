"""Where a compaction begins: the table knows, and the cursor follows."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import CollectedError, NotFoundError, StateError, Table, compact
from cordwood.pipeline.ranges import find, move_up, range_of

CURSOR = "compaction"


@pytest.fixture
async def table(store):
    """An empty table."""
    made = Table(store, "t")
    await made.create()
    return made


@pytest.fixture
async def log(append):
    """Ten records, each a fragment."""
    return await append("a", [(None, b"%d" % n) for n in range(10)], batch_bytes=1)


async def bounds(log, table):
    """What is to be compacted."""
    found = await range_of(log, await table.look(), CURSOR)
    return found.start, found.limit


async def test_a_new_table_begins_at_the_oldest_record(log, table):
    """Wherever the cursor stands: another table may have moved it."""
    # EVIDENCE-OF: G-67
    assert (1, 11) == await bounds(log, table)
    await log.cursors.init(CURSOR, 4)
    assert (1, 11) == await bounds(log, table)


async def test_a_table_goes_on_where_it_ends(log, table, append):
    """Wherever the cursor stands, at it or before it; and what is left behind is moved up."""
    # EVIDENCE-OF: G-67
    await compact(log, table, engine="local")
    await append("a", [(None, b"more")])
    assert (11, 12) == await bounds(log, table)
    witness = await log.cursors.load(CURSOR)
    await log.cursors.save(CURSOR, 3, witness)
    assert (11, 12) == await bounds(log, table)
    report = await compact(log, table, engine="local")
    assert 1 == report.records
    assert 12 == (await log.cursors.load(CURSOR)).offset


async def test_a_cursor_is_moved_up_although_nothing_is_new(log, table):
    """A compaction died between its commit and its cursor."""
    # EVIDENCE-OF: G-67
    await compact(log, table, engine="local")
    await log.cursors.save(CURSOR, 5, await log.cursors.load(CURSOR))
    assert not (await compact(log, table, engine="local")).committed
    assert 11 == (await log.cursors.load(CURSOR)).offset
    await log.cursors.delete(CURSOR, await log.cursors.load(CURSOR))
    await compact(log, table, engine="local")
    assert 11 == (await log.cursors.load(CURSOR)).offset


async def test_a_cursor_ahead_leaves_nothing_out(log, table, append):
    """What lies between is compacted as long as it is there: the table knows where it ends."""
    # EVIDENCE-OF: G-67
    await compact(log, table, engine="local")
    await append("a", [(None, b"more")] * 3)
    await log.cursors.save(CURSOR, 13, await log.cursors.load(CURSOR))
    assert 3 == (await compact(log, table, engine="local")).records
    assert 14 == (await table.look()).position((await log.manifest()).incarnation).limit


async def test_a_second_table_gets_all_there_is(log, table, store, append):
    """Although the first one has moved the cursor; and then both go on."""
    # EVIDENCE-OF: G-67
    await compact(log, table, engine="local")
    second = Table(store, "second")
    await second.create()
    assert 10 == (await compact(log, second, engine="local")).records
    await append("a", [(None, b"more")] * 3)
    assert 3 == (await compact(log, second, engine="local")).records
    assert 3 == (await compact(log, table, engine="local")).records


async def test_what_was_collected_cannot_be_compacted(log, table, append):
    """Somebody deleted the cursor, and the log went on without the table."""
    await compact(log, table, engine="local")
    await append("a", [(None, b"more")] * 3)
    await log.cursors.delete(CURSOR, await log.cursors.load(CURSOR))
    await log.cursors.init("other", 14)
    await log.collect(wait_s=0)
    with pytest.raises(CollectedError, match="up to 11, and the log's oldest record is 14"):
        await compact(log, table, engine="local")


async def test_another_log_of_the_name(log, table, append):
    """Its offsets mean other records: it needs a table of its own."""
    await compact(log, table, engine="local")
    await log.destroy()
    await append("a", [(None, b"other")])
    with pytest.raises(StateError, match="another log that was named 'a'"):
        await compact(log, table, engine="local")


async def test_a_log_that_lost_its_end(log, table, store, memory, append):
    """It was restored from an older state: the table is ahead of it."""
    before = dict(memory._objects)
    await append("a", [(None, b"more")])
    await compact(log, table, engine="local")
    for key in ("a/manifest/MANIFEST", "a/cursor/compaction.json"):
        if key in before:
            memory._objects[key] = before[key]
    await log.cursors.save(CURSOR, 11, await log.cursors.load(CURSOR))
    with pytest.raises(StateError, match="up to 12, and the log ends at 11"):
        await compact(log, table, engine="local")


async def test_a_log_without_identity(log, table, memory):
    """wal3 wrote it last: nothing tells it from another log of its name."""
    key = "a/manifest/MANIFEST"
    data = (await memory.get(key)).data
    writer = (await log.manifest()).writer.encode()
    await memory.put(key, data.replace(writer, b"wal3"))
    with pytest.raises(StateError, match="has no identity"):
        await compact(log, table, engine="local")


async def test_no_such_log(store, table):
    """One clear error."""
    with pytest.raises(NotFoundError, match="no log named 'none'"):
        await compact(cordwood.Log(store, "none"), table, engine="local")


async def test_move_up_meets_others(log):
    """Whoever moves the cursor meanwhile, in the end it is there or further; never back."""
    await move_up(log, CURSOR, 3)
    save = log.cursors.save
    others = iter([5, 4])

    async def after_another(name, offset, witness):
        if (other := next(others, None)) is not None:
            await save(name, other, await log.cursors.load(name))
        return await save(name, offset, witness)

    log.cursors.save = after_another
    await move_up(log, CURSOR, 6)
    assert 6 == (await find(log, CURSOR)).offset
    await move_up(log, CURSOR, 2)
    assert 6 == (await find(log, CURSOR)).offset
