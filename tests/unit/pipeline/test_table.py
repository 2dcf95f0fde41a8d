"""A table: created once, changed by one swap at a time, and never without a file it needs."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import cordwood
from cordwood import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    ContendedError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StateError,
    Table,
    UncertainError,
)
from cordwood.pipeline.columns import SCHEMA, Builder
from cordwood.pipeline.tabledoc import Position, data_path
from cordwood.pipeline.target import Change
from cordwood.store.memory import MemoryStore

HOUR_S = 3_600


@pytest.fixture
async def table(store):
    """An empty table that forgets what it dropped after a minute, and orphans after an hour."""
    made = Table(store, "tables/t")
    await made.create(mode="upsert", keyless="keep", grace_s=60, orphan_s=HOUR_S)
    return made


async def put(table, token, offsets, log="a"):
    """A file of a table that nobody names yet."""
    rows = pa.Table.from_pylist(
        [{"log": log, "offset": n, "timestamp": n, "body": b"%d" % n} for n in offsets],
        schema=SCHEMA,
    )
    builder = Builder("none")
    builder.add(rows)
    file, data = builder.finish(data_path(token * 32))
    await table.store.put(f"{table.name}/{file.path}", data, "create")
    return file


def change(file, start, limit, since_us, drops=(), incarnation="inc-a", log="a"):
    """A compaction that brings `[start, limit)`."""
    return Change(
        positions={incarnation: Position(log, 1, limit)},
        begins={incarnation: start},
        adds=(file,) if file is not None else (),
        drops=tuple(drops),
        since_us=since_us,
    )


async def offsets(table):
    """What is in it."""
    return sorted((await table.to_arrow(["offset"])).column("offset").to_pylist())


async def test_create(store, table):
    """Once; one that would do something else with records is in the way."""
    assert ("upsert", "keep", 60) == (
        (await table.state()).mode,
        (await table.state()).keyless,
        (await table.state()).grace_s,
    )
    with pytest.raises(AlreadyExistsError, match="exists already, in mode upsert"):
        await table.create(mode="upsert")
    await table.create(mode="upsert", keyless="keep", exist_ok=True)
    for wrong in ({"mode": "append"}, {"mode": "upsert"}, {"mode": "upsert", "keyless": "skip"}):
        with pytest.raises(AlreadyExistsError, match="in mode upsert, keyless keep"):
            await table.create(**wrong, exist_ok=True)
    every = Table(store, "every")
    await every.create(keyless="skip")
    await every.create(exist_ok=True)


async def test_bad_input(store, table):
    """Each gets one clear error."""
    with pytest.raises(InvalidInputError, match="cannot name a table"):
        Table(store, "a//b")
    with pytest.raises(InvalidInputError, match="does not name a table"):
        Table.from_url("orders")
    for wrong in ({"mode": "never"}, {"keyless": "x"}, {"grace_s": 0}, {"orphan_s": 1.5}):
        with pytest.raises(InvalidInputError):
            await Table(store, "t2").create(**wrong)
    with pytest.raises(InvalidInputError, match="no column 'colour'"):
        await table.to_arrow(["colour"])
    with pytest.raises(NotFoundError, match="there is no table named 'none'"):
        await Table(store, "none").files()


async def test_a_table_is_a_name(tmp_path):
    """No I/O, by URL, picklable."""
    table = Table.from_url(f"file://{tmp_path}/wood/orders")
    assert (f"file://{tmp_path}/wood/orders", "orders") == (table.url, table.name)
    assert table.url == pickle.loads(pickle.dumps(table)).url
    assert "wood/orders" in repr(table)


async def test_a_commit_is_one_step(table):
    """Rows and position are there together; an older view does not commit again."""
    # EVIDENCE-OF: G-66
    seen, since = await table.look(), await table.begin()
    assert await table.commit(seen, change(await put(table, "1", range(1, 4)), 1, 4, since))
    assert [1, 2, 3] == await offsets(table)
    again = change(await put(table, "2", range(1, 4)), 1, 4, since)
    assert not await table.commit(seen, again)
    assert not await table.commit(await table.look(), again)
    assert [1, 2, 3] == await offsets(table)
    further = change(await put(table, "3", range(4, 6)), 4, 6, since)
    assert await table.commit(seen, further)
    assert [1, 2, 3, 4, 5] == await offsets(table)
    assert 6 == (await table.look()).position("inc-a").limit


async def test_others_may_commit_in_between(table):
    """Work on another log is kept; work on a file that is gone, or under a taken name, is not."""
    seen, since = await table.look(), await table.begin()
    mine = change(await put(table, "1", [1]), 1, 2, since)
    theirs = change(await put(table, "2", [1], "b"), 1, 2, since, incarnation="inc-b", log="b")
    assert await table.commit(seen, theirs)
    assert await table.commit(seen, mine)
    assert [1, 1] == await offsets(table)
    seen = await table.look()
    both = [data_path("1" * 32), data_path("2" * 32)]
    mine = change(await put(table, "3", [1, 2]), 2, 3, since, drops=both[:1])
    theirs = change(
        await put(table, "4", [1, 2], "b"), 2, 3, since, both, incarnation="inc-b", log="b"
    )
    assert await table.commit(seen, theirs)
    assert not await table.commit(seen, mine)
    reborn = change(await put(table, "5", [9]), 1, 9, since, incarnation="inc-c", log="b")
    assert not await table.commit(await table.look(), reborn)


class LosingStore(MemoryStore):
    """The answers to some puts of TABLE are lost."""

    lost = ()

    async def put(self, key, data, mode="overwrite"):
        """`before`: it never arrives. `after`: it does."""
        if not key.endswith("TABLE") or not self.lost:
            return await super().put(key, data, mode)
        first, *self.lost = self.lost
        if first == "after":
            await super().put(key, data, mode)
        raise UncertainError("nobody knows")


@pytest.mark.parametrize("lost", [["after"], ["before"], ["before", "after"], ["before"] * 3])
@pytest.mark.parametrize("has_file", [True, False])
async def test_a_lost_answer_is_found(lost, has_file):
    """A commit whose answer is lost is made once, and known to be."""
    # EVIDENCE-OF: G-66
    memory = LosingStore()
    table = Table(cordwood.Store.over(memory), "t")
    await table.create(mode="upsert")
    seen, since = await table.look(), await table.begin()
    file = await put(table, "1", [1]) if has_file else None
    memory.lost = list(lost)
    assert await table.commit(seen, change(file, 1, 2, since))
    assert has_file == bool((await table.state()).files)
    assert 2 == (await table.look()).position("inc-a").limit


async def test_what_was_dropped_waits_for_its_readers(table, clock, memory):
    """A reader of the state before has the grace interval; then the file goes."""
    # EVIDENCE-OF: G-69
    since = await table.begin()
    stays = await put(table, "0", [1])
    old = await put(table, "1", [2, 3])
    await table.commit(await table.look(), change(stays, 1, 2, since))
    await table.commit(await table.look(), change(old, 2, 4, since))
    reading = table.scan()
    assert 1 == (await anext(reading)).num_rows
    clock.pass_s(1_000)
    since = await table.begin()
    new = await put(table, "2", [3, 4])
    await table.commit(await table.look(), change(new, 4, 5, since, drops=[old.path]))
    clock.pass_s(30)
    assert (0, 0, 1) == _counts(await table.sweep())
    assert 2 == (await anext(reading)).num_rows
    clock.pass_s(29)
    assert (0, 0, 1) == _counts(await table.sweep())
    clock.pass_s(2)
    assert (1, 0, 0) == _counts(await table.sweep())
    assert [1, 3, 4] == await offsets(table)
    assert () == (await table.state()).dropped
    with pytest.raises(NotFoundError):
        await memory.get(f"tables/t/{old.path}")


def _counts(report):
    return report.dropped, report.orphans, report.waiting


async def test_a_late_reader_is_told(table, clock):
    """Its file is gone because it was replaced: that is no damage."""
    # EVIDENCE-OF: G-69
    old = await put(table, "1", [1])
    await table.commit(await table.look(), change(old, 1, 2, await table.begin()))
    reading = table._rows(old, None, verify=True)
    new = await put(table, "2", [1])
    await table.commit(await table.look(), change(new, 2, 2, await table.begin(), drops=[old.path]))
    await table.sweep()
    clock.pass_s(100)
    await table.sweep()
    with pytest.raises(CollectedError, match="read the table again"):
        await reading


async def test_a_scrub_does_not_miss_what_was_replaced(table, clock, monkeypatch):
    """A file that is replaced and swept while it is under way is no fault, and no end of it."""
    old = await put(table, "1", [1])
    await table.commit(await table.look(), change(old, 1, 2, await table.begin()))
    files = table.files

    async def late():
        """What there was, by somebody who is slow."""
        monkeypatch.setattr(table, "files", files)
        found = await files()
        new, since_us = await put(table, "2", [1]), await table.begin()
        await table.commit(await table.look(), change(new, 2, 2, since_us, drops=[old.path]))
        await table.sweep()
        clock.pass_s(100)
        await table.sweep()
        return found

    monkeypatch.setattr(table, "files", late)
    assert [] == await table.scrub()


async def test_orphans_go_by_age(table, clock, memory):
    """What no state names goes when it is old; what is not ours stays."""
    named = await put(table, "1", [1])
    await table.commit(await table.look(), change(named, 1, 2, await table.begin()))
    await put(table, "2", [1])
    await memory.put("tables/t/data/notes.txt", b"x")
    clock.pass_s(HOUR_S)
    await put(table, "3", [1])
    clock.pass_s(1)
    report = await table.sweep()
    assert ((0, 1, 0), 1) == (_counts(report), report.young)
    left = [meta.key async for meta in memory.list("tables/t/data/")]
    assert [f"tables/t/{data_path('1' * 32)}", f"tables/t/{data_path('3' * 32)}"] == left[:2]
    assert "tables/t/data/notes.txt" in left


async def test_a_commit_that_took_too_long_gives_up(table, clock):
    """Half of what an orphan may live; so that a sweep never takes what is about to be named."""
    # EVIDENCE-OF: G-68
    seen, since = await table.look(), await table.begin()
    file = await put(table, "1", [1])
    clock.pass_s(HOUR_S / 2)
    assert await table.commit(seen, change(file, 1, 2, since))
    seen, since = await table.look(), await table.begin()
    file = await put(table, "2", [2])
    clock.pass_s(HOUR_S / 2 + 2)
    with pytest.raises(StateError, match="more than 1800 s"):
        await table.commit(seen, change(file, 2, 3, since))


async def test_a_commit_that_slept_meets_the_sweep(table, clock):
    """One that had looked, then slept, and whose file was swept, does not name it."""
    # EVIDENCE-OF: G-68
    since = await table.begin()
    file = await put(table, "1", [1])
    seen = await table.look()
    wakes = change(file, 1, 2, since)
    clock.pass_s(2 * HOUR_S)
    assert 1 == (await table.sweep()).orphans
    with pytest.raises(StateError):
        await table.commit(seen, wakes)
    # Even had it looked at the clock before it slept: its swap is refused, and it looks again.
    fresh = wakes._replace(since_us=clock.now_us())
    with pytest.raises(ConflictError):
        await table._replace((seen.doc, seen.etag), lambda doc: doc)
    assert fresh.fits(await table.look())


async def test_a_sweep_beside_a_commit(table, memory, clock):
    """The sweep that loses its swap deletes nothing."""
    file = await put(table, "1", [1])
    clock.pass_s(2 * HOUR_S)
    put_object = memory.put

    async def commit_first(key, data, mode="overwrite"):
        if key.endswith("TABLE"):
            memory.put = put_object
            since = await table.begin()
            assert await table.commit(await table.look(), change(file, 1, 2, since))
        return await put_object(key, data, mode)

    memory.put = commit_first
    with pytest.raises(ContendedError):
        await table.sweep()
    assert [1] == await offsets(table)


async def test_scrub_names_what_is_wrong(table, memory):
    """A changed byte, another file in its place, a missing one."""
    # EVIDENCE-OF: G-70
    files = [await put(table, str(n), [n]) for n in range(1, 4)]
    since = await table.begin()
    for n, file in enumerate(files, 1):
        await table.commit(await table.look(), change(file, n, n + 1, since))
    assert [] == await table.scrub()
    key = f"tables/t/{files[0].path}"
    data = bytearray((await memory.get(key)).data)
    data[30] ^= 1
    await memory.put(key, bytes(data))
    await memory.delete([f"tables/t/{files[2].path}"])
    faults = await table.scrub()
    assert [files[0].path in faults[0], files[2].path in faults[1]] == [True, True]
    with pytest.raises(CorruptionError, match=files[0].path):
        await table.to_arrow()
    assert 2 == len(faults)
