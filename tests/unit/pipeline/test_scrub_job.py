"""A scrub in units finds what `log.scrub(deep=True)` finds, neither more nor less."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import Code, InternalError, NotFoundError, scrub_log
from cordwood.pipeline import divide
from cordwood.pipeline.local import LocalEngine
from cordwood.pipeline.scrub import Scrub


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    """A unit for every few fragments."""
    monkeypatch.setattr(divide, "READ_BYTES_MIN", 1)
    monkeypatch.setattr(divide, "READ_BYTES_MAX", 2_000)


@pytest.fixture
async def log(append):
    """Sixty fragments, some below nodes."""
    return await append("a", [(None, b"%d" % n) for n in range(60)], batch_bytes=1)


def facts(report):
    """What a report says, whatever the order of the faults."""
    errors = sorted((error.where, error.code, error.message) for error in report.errors)
    plain = {name: getattr(report, name) for name in ("deep", "records", "bytes", "fragments")}
    return plain | {"nodes": report.nodes, "setsum": str(report.setsum), "errors": errors}


async def agree(log):
    """Both scrubs say the same; what they say."""
    found, expected = await scrub_log(log, engine="local"), await log.scrub(deep=True)
    assert facts(expected) == facts(found)
    return found


async def spoil(memory, key):
    """Change one byte."""
    data = bytearray((await memory.get(key)).data)
    data[len(data) // 2] ^= 1
    await memory.put(key, bytes(data))


async def test_a_whole_log(log):
    """Every record, and the sum of the manifest."""
    # EVIDENCE-OF: G-75
    report = await agree(log)
    assert (60, True) == (report.records, report.ok)
    assert report.nodes > 0
    assert (await log.state()).setsum == report.setsum


async def test_what_is_wrong_is_named(log, memory):
    """A changed fragment, a missing one, one of another place; each by its key."""
    # EVIDENCE-OF: G-75
    fragments = await log.reader().scan()
    await spoil(memory, f"a/{fragments[3].path}")
    await memory.delete([f"a/{fragments[30].path}"])
    other = (await memory.get(f"a/{fragments[50].path}")).data
    await memory.put(f"a/{fragments[51].path}", other)
    report = await agree(log)
    assert [f"a/{fragments[n].path}" for n in (3, 30, 51)] == [e.where for e in report.errors]
    assert [Code.CORRUPT, Code.MISSING_OBJECT] == [e.code for e in report.errors[:2]]
    assert 57 == report.records


async def test_damaged_metadata(log, memory):
    """A node, then the manifest: what cannot be reached is not counted."""
    # EVIDENCE-OF: G-75
    node = (await log.manifest()).nodes[0]
    await spoil(memory, f"a/{node.path}")
    assert not (await agree(log)).ok
    await memory.put("a/manifest/MANIFEST", b"spoiled")
    assert [Code.NOT_A_LOG] == [error.code for error in (await agree(log)).errors]


async def test_an_empty_log_and_none(store):
    """Nothing is an answer; no log is an error."""
    empty = cordwood.Log(store, "empty")
    await empty.create()
    assert (await agree(empty)).ok
    with pytest.raises(NotFoundError):
        await scrub_log(cordwood.Log(store, "none"), engine="local")


async def test_what_is_collected_meanwhile_is_not_missed(log, monkeypatch, clock, memory):
    """Fragments that are gone because a cursor let them go are no fault; others are."""
    # EVIDENCE-OF: G-75
    fragments = await log.reader().scan()
    work = Scrub.work

    async def collect_first(self, unit):
        if (await log.state()).oldest_offset == 1:
            await log.cursors.init("jobs", 31)
            await log.collect(wait_s=0)
            clock.pass_s(1_000)
            assert 30 <= (await log.collect(wait_s=0)).deleted
            await memory.delete([f"a/{fragments[40].path}"])
        return await work(self, unit)

    monkeypatch.setattr(Scrub, "work", collect_first)
    report = await scrub_log(log, engine="local")
    assert [f"a/{fragments[40].path}"] == [error.where for error in report.errors]


async def test_a_fork(log, store, append):
    """Its first fragments lie with its parent."""
    fork = cordwood.Log(store, "b")
    await log.fork(fork)
    await append("b", [(b"k", b"more")])
    assert 61 == (await agree(fork)).records


async def test_a_unit_that_was_lost(log, monkeypatch):
    """Is noticed: a scrub never says that all is well of what nobody read."""
    finish = Scrub.finish
    monkeypatch.setattr(Scrub, "finish", lambda self, results: finish(self, results[1:]))
    with pytest.raises(InternalError, match="not all that there was"):
        await scrub_log(log, engine="local")


async def test_units_say_what_they_are(log):
    """For people; and how much there is decides the engine."""
    job = Scrub(Scrub.settings_type(log.store.url, "a"), [log.store])
    units = await job.plan(LocalEngine())
    assert len(units) > 5
    assert "offsets [1, " in units[0].title
    assert (await log.state()).bytes == await job.weigh() == sum(unit.num_bytes for unit in units)
