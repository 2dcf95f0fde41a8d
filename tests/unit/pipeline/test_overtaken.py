"""A compaction that sleeps while others compact, collect and sweep is overtaken: no damage."""

from __future__ import annotations

import pytest

from cordwood import CollectedError, CorruptionError, NotFoundError, Table, compact
from cordwood.pipeline.compact import PIN_S, Compact

MODES = ["append", "upsert"]


@pytest.fixture
async def log(append):
    """A log with something in it."""
    return await append("a", [(b"k%d" % n, b"x" * 100) for n in range(20)], batch_bytes=100)


@pytest.fixture
async def collected(log, clock):
    """`await collected()`: all that no cursor needs is gone, pins that were not renewed as well."""

    async def work():
        for _ in range(4):
            clock.pass_s(PIN_S + 1_000)
            report = await log.collect(wait_s=0)
        assert (21, []) == (report.oldest_offset, report.held)

    return work


def once(monkeypatch, owner, name, happens):
    """Let something happen before the first call of a method."""
    call = getattr(owner, name)

    async def wrapped(self, *args, **kwargs):
        monkeypatch.setattr(owner, name, call)
        await happens()
        return await call(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", ["work", "_losers", "_find", "_pin", "_move_up"])
async def test_what_it_reads_is_gone(store, log, rows, monkeypatch, collected, mode, step):
    """Somebody compacted it, and the log was collected: it says so, and nothing is changed."""
    # EVIDENCE-OF: G-66
    if (mode, step) == ("append", "_losers"):
        step = "finish"
    table = Table(store, "t")
    await table.create(mode=mode)

    async def overtake():
        assert (await compact(log, Table(store, "t"), engine="local")).committed
        await collected()

    once(monkeypatch, Compact, step, overtake)
    report = await compact(log, table, engine="local")
    assert (False, True) == (report.committed, report.superseded)
    assert [("a", 1, 21)] == [(r.log, r.start, r.limit) for r in report.ranges]
    assert 20 == len(await rows(table))
    assert not (await compact(log, table, engine="local")).superseded


async def test_what_it_looked_at_is_gone(store, log, rows, monkeypatch, collected):
    """Between a look at the table and one at the log: it looks again."""
    # EVIDENCE-OF: G-66
    table = Table(store, "t")
    await table.create()
    await compact(log, table, engine="local", max_bytes=3_000)
    look = Table.look

    async def slow(self):
        monkeypatch.setattr(Table, "look", look)
        seen = await look(self)
        while (await compact(log, table, engine="local")).committed:
            pass
        await collected()
        return seen

    monkeypatch.setattr(Table, "look", slow)
    report = await compact(log, table, engine="local")
    assert (False, False, ()) == (report.committed, report.superseded, report.ranges)
    assert 20 == len(await rows(table))


async def test_files_of_the_table_are_gone(store, append, log, clock, rows, monkeypatch):
    """Somebody else's upsert replaced them, and they were swept."""
    # EVIDENCE-OF: G-66
    table = Table(store, "t")
    await table.create(mode="upsert", grace_s=1)
    other = await append("b", [(b"k", b"1")])
    await compact([log, other], table, engine="local")
    await append("a", [(b"k1", b"2")])
    await append("b", [(b"k", b"2")])

    async def overtake():
        assert (await compact(other, Table(store, "t"), engine="local")).committed
        await table.sweep()
        clock.pass_s(10)
        assert 1 <= (await table.sweep()).dropped

    once(monkeypatch, Compact, "_losers", overtake)
    report = await compact(log, table, engine="local")
    assert (False, True) == (report.committed, report.superseded)
    assert (await compact(log, table, engine="local")).committed
    assert b"2" == (await rows(table))["a", b"k1"]


@pytest.mark.parametrize("step", ["work", "_find"])
async def test_what_is_missing_is_damage(store, log, memory, monkeypatch, step):
    """Where nobody compacted it; also if others did something to the table meanwhile."""
    # EVIDENCE-OF: G-73
    table = Table(store, "t")
    await table.create()
    fragment = (await log.reader().scan(7))[0]

    async def lose():
        await memory.delete([f"a/{fragment.path}"])
        await table.sweep()

    once(monkeypatch, Compact, step, lose)
    with pytest.raises(CorruptionError, match=rf"{fragment.path} is named by the log"):
        await compact(log, table, engine="local")
    assert [] == await table.files()


async def test_what_was_collected_is_missing(store, log, collected):
    """Where the table has not got it, that is an error; and so is a table that is not there."""
    table = Table(store, "t")
    await table.create()
    await compact(log, table, engine="local", max_bytes=3_000)
    cursors = log.cursors
    await cursors.save("compaction", 21, await cursors.load("compaction"))
    await collected()
    with pytest.raises(CollectedError, match="those between were collected"):
        await compact(log, table, engine="local")
    with pytest.raises(NotFoundError):
        await compact(log, Table(store, "none"), engine="local")
