"""A scrub in units finds what `log.scrub(deep=True)` finds, neither more nor less."""

from __future__ import annotations

import msgspec
import pytest

import cordwood
from cordwood import (
    Code,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    scrub_log,
    scrub_logs,
)
from cordwood.base.clock import SeededEntropy
from cordwood.pipeline import divide, kept
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
    job = Scrub(Scrub.settings_type(log.store.url, ("a",)), [log.store])
    units = await job.plan(LocalEngine())
    assert len(units) > 5
    assert "offsets [1, " in units[0].title
    assert "of 'a'" in units[0].title
    assert (await log.state()).bytes == await job.weigh() == sum(unit.num_bytes for unit in units)


# Samples, and many logs.


async def test_a_sample(log, memory):
    """The fragments that `log.scrub` would take with the same chances, and what is wrong there."""
    # EVIDENCE-OF: G-75
    for spoiled in (False, True):
        if spoiled:
            for fragment in await log.reader().scan():
                await spoil(memory, f"a/{fragment.path}")
        found = await scrub_log(log, sample=5, entropy=SeededEntropy(7), engine="local")
        twin = cordwood.Log(log.store, "a", entropy=SeededEntropy(7))
        assert facts(await twin.scrub(deep=True, sample=5)) == facts(found)
        assert spoiled != found.ok
        assert 0 < found.fragments + len(found.errors) <= 5


async def test_many_logs(log, store, append, memory):
    """In one job; each is by itself, and keeps its place."""
    # EVIDENCE-OF: G-76
    logs = [log, cordwood.Log(store, "none")]
    logs += [await append(f"b/{number}", [(None, b"x" * 50)] * 10) for number in range(3)]
    fragment = (await logs[3].reader().scan())[0]
    await spoil(memory, f"b/1/{fragment.path}")
    found = await scrub_logs(logs, engine="local")
    assert ["a", "none", "b/0", "b/1", "b/2"] == [one.log for one in found]
    assert [True, False, True, False, True] == [one.ok for one in found]
    assert "there is no log named 'none'" in found[1].errors[0]
    assert f"fragment b/1/{fragment.path} is damaged" in found[3].errors[0]
    assert (60, 60) == (found[0].records, found[0].fragments)
    assert found[0].bytes == (await log.state()).bytes
    sampled = await scrub_logs(logs, sample=2, engine="local")
    assert [one.log for one in found] == [one.log for one in sampled]
    assert all(0 <= one.fragments <= 2 for one in sampled)
    assert [] == await scrub_logs([])
    elsewhere = cordwood.Log(cordwood.Store("memory:"), "c")
    with pytest.raises(InvalidInputError, match="one store"):
        await scrub_logs([log, elsewhere])


async def test_a_store_that_refuses_one_object(log, append, memory, monkeypatch):
    """Is told of its log; the others are proved."""
    # EVIDENCE-OF: G-76
    other = await append("b", [(None, b"x")] * 5)
    get_range = memory.get_range

    async def refuse(key, *rest):
        if key.startswith("a/log/"):
            raise StoreError("403", code=Code.STORE_DENIED)
        return await get_range(key, *rest)

    monkeypatch.setattr(memory, "get_range", refuse)
    found = await scrub_logs([log, other], engine="local")
    assert [("a", False), ("b", True)] == [(one.log, one.ok) for one in found]
    assert "403" in found[0].errors[0]


async def test_a_dry_run_reads_no_fragment(log, memory, monkeypatch):
    """It says how much there is, and what is wrong with the metadata."""
    monkeypatch.setattr(memory, "get_range", None)
    (found,) = await scrub_logs([log], dry_run=True, engine="local")
    state = await log.state()
    assert (True, 60, 60, state.bytes) == (found.ok, found.records, found.fragments, found.bytes)
    (sampled,) = await scrub_logs([log], sample=3, dry_run=True)
    assert 0 < sampled.fragments <= 3


# Going on.


@pytest.fixture
def reads(monkeypatch):
    """The fragments that were read."""
    found = []
    work = Scrub.work

    async def noted(self, unit):
        found.extend(fragment.path for fragment in unit.fragments)
        return await work(self, unit)

    monkeypatch.setattr(Scrub, "work", noted)
    monkeypatch.setattr(kept, "UNITS_PER_SLOT", 1)
    return found


@pytest.fixture
def cut_off(monkeypatch):
    """`await cut_off(log, file)`: a scrub that dies after its first groups."""

    async def work(log, file):
        note = Scrub.note
        groups = []

        async def die(self, units, results):
            await note(self, units, results)
            groups.append(units)
            if len(groups) == 3:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Scrub, "note", die)
            with pytest.raises(KeyboardInterrupt):
                await scrub_log(log, resume=file, engine="local")

    return work


async def test_a_scrub_that_was_cut_off_goes_on(log, reads, cut_off, tmp_path):
    """Nothing is read twice, the report is that of the whole, and the file is gone."""
    # EVIDENCE-OF: G-75
    file = tmp_path / "scrub.jsonl"
    await cut_off(log, file)
    before = len(reads)
    assert 0 < before < 60
    found = await scrub_log(log, resume=file, engine="local")
    assert sorted(f.path for f in await log.reader().scan()) == sorted(reads)
    assert facts(await log.scrub(deep=True)) == facts(found)
    assert not file.exists()


async def test_what_was_wrong_is_read_again(log, memory, reads, cut_off, tmp_path):
    """Only what was found whole is kept."""
    file = tmp_path / "scrub.jsonl"
    fragment = (await log.reader().scan())[0]
    await spoil(memory, f"a/{fragment.path}")
    await cut_off(log, str(file))
    found = await scrub_log(log, resume=str(file), engine="local")
    assert 2 == reads.count(fragment.path)
    assert facts(await log.scrub(deep=True)) == facts(found)
    assert [f"a/{fragment.path}"] == [error.where for error in found.errors]


async def test_a_log_that_grew_and_was_collected(log, append, clock, reads, cut_off, tmp_path):
    """What the file says of fragments that are gone, or lie in other units now, is not believed."""
    file = tmp_path / "scrub.jsonl"
    await cut_off(log, file)
    await append("a", [(None, b"more")] * 30)
    await log.cursors.init("jobs", 4)
    await log.collect(wait_s=0)
    found = await scrub_log(log, resume=file, engine="local")
    assert facts(await log.scrub(deep=True)) == facts(found)
    assert found.ok


async def test_two_at_once_and_gaps(log, reads, tmp_path):
    """What two scrubs noted counts once; what lies around it is noted for itself."""
    file = tmp_path / "scrub.jsonl"
    fragments = await log.reader().scan()
    kept_file = kept.Kept(file, log.url)
    incarnation = (await log.manifest()).incarnation
    assert [] == kept_file.proved(incarnation, fragments)
    kept_file.add([fragments[10:20], fragments[10:15], [*fragments[:5], *fragments[30:40]]])
    proved = kept_file.proved(incarnation, fragments)
    wanted = [*fragments[:5], *fragments[10:20], *fragments[30:40]]
    assert sorted(f.start for f in wanted) == sorted(f.start for f in proved)
    found = await scrub_log(log, resume=file, engine="local")
    assert facts(await log.scrub(deep=True)) == facts(found)
    assert 60 - len(wanted) == len(reads)


async def test_half_a_line_is_none(log, reads, cut_off, tmp_path):
    """A crash in the middle of a write costs the unit."""
    file = tmp_path / "scrub.jsonl"
    await cut_off(log, file)
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:20])
    del reads[:]
    await cut_off(log, file)
    assert all(line.startswith(b"{") for line in file.read_bytes().splitlines())
    assert (await scrub_log(log, resume=file, engine="local")).ok
    first = msgspec.json.decode(lines[1])
    assert 60 - (first["limit"] - first["start"]) == len(reads)


async def test_the_file_of_something_else(log, append, reads, cut_off, tmp_path):
    """Is refused, and stays."""
    file = tmp_path / "scrub.jsonl"
    await cut_off(log, file)
    other = await append("b", [(None, b"x")])
    with pytest.raises(
        InvalidInputError, match=r"keeps the progress of the log .*a, as it was once"
    ):
        await scrub_log(other, resume=file, engine="local")
    file.write_bytes(b"notes of mine\n")
    with pytest.raises(InvalidInputError, match="keeps the progress of no scrub"):
        await scrub_log(log, resume=file, engine="local")
    assert b"notes of mine\n" == file.read_bytes()
    with pytest.raises(InvalidInputError, match="by samples"):
        await scrub_log(log, resume=file, sample=1)
