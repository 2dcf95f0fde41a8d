"""Compaction into a table: exactly once, newest by key, proved, and nothing of it half done."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood import (
    CorruptionError,
    InternalError,
    InvalidInputError,
    Setsum,
    Table,
    compact,
    scrub_log,
)
from cordwood.log.bulk import Token
from cordwood.log.pins import NAMES_MIN
from cordwood.pipeline import compact as module
from cordwood.pipeline import ranges
from cordwood.pipeline.compact import Compact, CompactSettings
from cordwood.pipeline.job import rebuild
from cordwood.pipeline.local import LocalEngine
from cordwood.pipeline.rewrite import Rewritten
from cordwood.store.memory import MemoryStore


@pytest.fixture
def make(store):
    """`await make(mode, keyless)`: a table."""

    async def work(mode="append", keyless="refuse", name="t"):
        table = Table(store, name)
        await table.create(mode=mode, keyless=keyless)
        return table

    return work


# Keeping everything.


async def test_every_record_becomes_a_row(append, make):
    """Unchanged, in order, with where it comes from; and nothing twice."""
    # EVIDENCE-OF: G-66
    table = await make()
    log = await append("a", [(b"k%d" % n if n % 2 else None, b"%d" % n) for n in range(100)])
    report = await compact(log, table, engine="local")
    assert (100, 100, True) == (report.records, report.kept, report.committed)
    found = (await table.to_arrow()).to_pylist()
    async with log.reader() as reader:
        expected = [record async for record in reader.read()]
    assert [(r.offset, r.key, r.body) for r in expected] == [
        (row["offset"], row["key"], row["body"]) for row in found
    ]
    assert {"a"} == {row["log"] for row in found}
    assert not (await compact(log, table, engine="local")).committed
    await append("a", [(None, b"more")])
    report = await compact(log, table, engine="local")
    assert (1, 101) == (report.records, (await table.state()).rows)


async def test_headers_and_streams_are_kept(store, make):
    """Every part of a record."""
    table = await make()
    log = cordwood.Log(store, "a")
    async with log.writer(create=True) as writer:
        await log.streams.open("web")
        await writer.append(b"x", key=b"k", headers={"h": b"1", "i": b""}, stream="web")
    await compact(log, table, engine="local")
    (row,) = (await table.to_arrow()).to_pylist()
    assert ({"h": b"1", "i": b""}, "web") == (
        {header["name"]: header["value"] for header in row["headers"]},
        row["stream"],
    )


async def test_several_logs_in_one_commit(append, make, rows):
    """Each with its own position."""
    table = await make()
    logs = [await append(name, [(None, name.encode())] * 10) for name in ("a", "b", "c")]
    report = await compact(logs, table, engine="local")
    assert (30, 3) == (report.records, len(report.ranges))
    assert {(log.name, n): log.name.encode() for log in logs for n in range(1, 11)} == await rows(
        table
    )
    await append("b", [(None, b"more")])
    report = await compact(logs, table, engine="local")
    assert [("b", 11, 12)] == [(r.log, r.start, r.limit) for r in report.ranges]
    assert {"a": 11, "b": 12, "c": 11} == {
        position.log: position.limit for position in (await table.state()).positions.values()
    }


async def test_the_report_proves_what_was_read(append, make):
    """Its setsum is the log's own; kept and left out are told apart."""
    # EVIDENCE-OF: G-71
    table = await make("upsert")
    log = await append("a", [(b"k%d" % (n % 4), b"%d" % n) for n in range(50)])
    report = await compact(log, table, engine="local")
    state = await log.state()
    assert state.setsum == report.setsum
    assert state.setsum == Setsum.from_hex(report.kept_setsum) + Setsum.from_hex(report.left_setsum)
    assert report.kept_setsum == Setsum.sum(f.setsum for f in await table.files()).hexdigest()
    assert (50, 4, 0) == (report.records, report.kept, report.tombstones)


async def test_limited_work_is_resumed(append, make, rows):
    """Each run takes about so much; together they take all of it."""
    table = await make()
    log = await append("a", [(None, b"x" * 50)] * 40, batch_bytes=50)
    runs = 0
    while (await compact(log, table, max_bytes=4_000, engine="local")).committed:
        runs += 1
    assert runs > 3
    assert 40 == len(await rows(table))


async def test_a_dry_run_changes_nothing(append, make, memory):
    """It says what is new; not an object is written."""
    table = await make()
    log = await append("a", [(None, b"x")] * 5)
    before = dict(memory._objects)
    report = await compact(log, table, dry_run=True)
    assert [("a", 1, 6)] == [(r.log, r.start, r.limit) for r in report.ranges]
    assert not report.committed
    assert before == memory._objects


async def test_small_files_are_put_together(append, make, rows):
    """A table that is compacted often does not get a file for each time."""
    table = await make()
    log = cordwood.Log(table.store, "a")
    for number in range(30):
        await append("a", [(None, b"%d" % number)])
        await compact(log, table, engine="local")
    assert {("a", n + 1): b"%d" % n for n in range(30)} == await rows(table)
    assert len(await table.files()) < 15
    assert [] == await table.scrub()


# By key.


async def test_the_newest_wins(append, make, rows):
    """Also over what the table has; files without a replaced key stay as they are."""
    # EVIDENCE-OF: G-72
    table = await make("upsert")
    log = await append("a", [(b"k1", b"1"), (b"k2", b"1"), (b"k1", b"2")])
    await compact(log, table, engine="local")
    assert {("a", b"k1"): b"2", ("a", b"k2"): b"1"} == await rows(table)
    (first,) = await table.files()
    await append("a", [(b"k3", b"1")])
    await compact(log, table, engine="local")
    assert first in await table.files()
    await append("a", [(b"k2", b"2")])
    report = await compact(log, table, engine="local")
    assert (1, 1) == (report.replaced, report.dropped)
    assert first not in await table.files()
    assert {("a", b"k1"): b"2", ("a", b"k2"): b"2", ("a", b"k3"): b"1"} == await rows(table)


async def test_a_tombstone_deletes(append, make, rows):
    """In the same compaction, in a later one, and what never was."""
    # EVIDENCE-OF: G-72
    table = await make("upsert")
    log = await append("a", [(b"k1", b"1"), (b"k2", b"1"), (b"k1", b""), (b"k9", b"")])
    report = await compact(log, table, engine="local")
    assert (2, 1) == (report.tombstones, report.kept)
    assert {("a", b"k2"): b"1"} == await rows(table)
    await append("a", [(b"k2", b"")])
    report = await compact(log, table, engine="local")
    assert (1, 0, 1, 0) == (report.tombstones, report.kept, report.replaced, report.files)
    assert report.committed
    assert {} == await rows(table)
    assert [] == await table.files()
    await append("a", [(b"k1", b"again")])
    await compact(log, table, engine="local")
    assert {("a", b"k1"): b"again"} == await rows(table)


async def test_a_key_belongs_to_its_log(append, make, rows):
    """Offsets of two logs cannot be compared, so the same key in both is two keys."""
    table = await make("upsert")
    one = await append("a", [(b"k", b"a1"), (b"k", b"a2")])
    two = await append("b", [(b"k", b"b1")])
    await compact([one, two], table, engine="local")
    await append("b", [(b"k", b"b2")])
    await compact([one, two], table, engine="local")
    assert {("a", b"k"): b"a2", ("b", b"k"): b"b2"} == await rows(table)


@pytest.mark.parametrize(
    ("keyless", "kept"), [("skip", {"k"}), ("keep", {"k", 2, 4}), ("refuse", None)]
)
async def test_records_without_a_key(append, make, rows, keyless, kept):
    """Are refused, skipped or kept, as the table was made."""
    # EVIDENCE-OF: G-72
    table = await make("upsert", keyless)
    log = await append("a", [(b"k", b"1"), (None, b""), (b"k", b"2"), (None, b"x")])
    if kept is None:
        with pytest.raises(InvalidInputError, match="the record 2 of log 'a' has no key"):
            await compact(log, table, engine="local")
        assert {} == await rows(table)
        return
    await compact(log, table, engine="local")
    found = await rows(table)
    assert kept == {key.decode() if isinstance(key, bytes) else key for _, key in found}


async def test_beginning_inside_a_fragment(append, make, rows, monkeypatch):
    """What lies before the start neither counts nor deletes, although it is read."""
    monkeypatch.setattr(ranges, "begin_of", lambda *_: 3)
    table = await make("upsert")
    log = await append("a", [(b"k1", b""), (b"k2", b"1"), (b"k3", b"1"), (b"k2", b"2")], 10**6)
    report = await compact(log, table, engine="local")
    assert (2, 2, 0) == (report.records, report.kept, report.tombstones)
    assert {("a", b"k3"): b"1", ("a", b"k2"): b"2"} == await rows(table)
    (position,) = (await table.state()).positions.values()
    assert (3, 5) == (position.first, position.limit)


KEYS = st.integers(0, 5)
RECORDS = st.lists(st.tuples(KEYS, st.booleans()), max_size=30)


@given(st.lists(RECORDS, min_size=1, max_size=5), st.integers(1, 60))
@settings(max_examples=40)
def test_against_a_dictionary(rounds, batch_bytes):
    """Whatever is appended and however it is cut, the table is what a dictionary would be."""
    # EVIDENCE-OF: G-72

    async def main():
        store = cordwood.Store.over(MemoryStore())
        log, table = cordwood.Log(store, "a"), Table(store, "t")
        await log.create()
        await table.create(mode="upsert")
        model = {}
        for number, records in enumerate(rounds):
            options = cordwood.Options(batch_bytes=batch_bytes)
            async with log.writer(options=options) as writer:
                pairs = [
                    (b"%d" % key, b"" if gone else b"%d-%d" % (number, i))
                    for i, (key, gone) in enumerate(records)
                ]
                await asyncio.gather(*(writer.append(body, key=key) for key, body in pairs))
            model |= dict(pairs)
            await compact(log, table, engine="local")
            found = (await table.to_arrow()).to_pylist()
            expected = {key: body for key, body in model.items() if body}
            assert expected == {row["key"]: row["body"] for row in found}
            assert len(expected) == len(found)
        assert [] == await table.scrub()

    asyncio.run(main())


# Faults.


async def test_a_damaged_fragment_fails_the_compaction(append, make, memory, rows):
    """It is named, and nothing is changed: no row is dropped in silence."""
    # EVIDENCE-OF: G-73
    table = await make()
    log = await append("a", [(None, b"x" * 100)] * 20, batch_bytes=100)
    await compact(log, table, engine="local")
    await append("a", [(None, b"y" * 100)] * 20, batch_bytes=100)
    fragment = (await log.reader().scan(30))[0]
    data = bytearray((await memory.get(f"a/{fragment.path}")).data)
    data[100] ^= 1
    await memory.put(f"a/{fragment.path}", bytes(data))
    with pytest.raises(
        CorruptionError, match=rf"compact of .* of 'a' .*: fragment a/{fragment.path}"
    ):
        await compact(log, table, engine="local")
    assert 20 == len(await rows(table))
    assert 21 == (await log.cursors.load("compaction")).offset
    assert () == (await log.state()).pins


async def test_a_damaged_file_of_the_table_is_found(append, make, memory):
    """Before its rows are written anew."""
    # EVIDENCE-OF: G-73
    table = await make("upsert")
    log = await append("a", [(b"k", b"1")])
    await compact(log, table, engine="local")
    (file,) = await table.files()
    data = bytearray((await memory.get(f"t/{file.path}")).data)
    data[60] ^= 1
    await memory.put(f"t/{file.path}", bytes(data))
    await append("a", [(b"k", b"2")])
    with pytest.raises(CorruptionError, match=file.path):
        await compact(log, table, engine="local")
    assert [file] == await table.files()


async def test_two_at_once(append, make, store, rows):
    """One commits, the other drops its work and says so; the table has everything once."""
    # EVIDENCE-OF: G-66
    table = await make()
    log = await append("a", [(None, b"x")] * 50)
    reports = await asyncio.gather(*(compact(log, table, engine="local") for _ in range(4)))
    assert [False, False, False, True] == sorted(report.committed for report in reports)
    assert 3 == sum(report.superseded or not report.ranges for report in reports)
    assert 50 == len(await rows(table))
    assert () == (await log.state()).pins


async def test_a_unit_done_twice(append, make, rows, monkeypatch):
    """As Spark may do: the second file is named by nobody."""
    # EVIDENCE-OF: G-66
    table = await make()
    log = await append("a", [(None, b"x")] * 10)
    once = Compact.work

    async def twice(self, unit):
        await once(self, unit)
        return await once(self, unit)

    monkeypatch.setattr(Compact, "work", twice)
    await compact(log, table, engine="local")
    assert (10, 1) == (len(await rows(table)), len(await table.files()))


async def test_a_lost_unit_is_noticed(append, make, monkeypatch):
    """Results that do not add up to what the log says are not committed."""
    # EVIDENCE-OF: G-71
    table = await make()
    log = await append("a", [(None, b"x" * 100)] * 20, batch_bytes=100)
    finish = Compact.finish

    async def forgetful(self, results):
        return await finish(self, [*results[:-1], _nothing(results[-1])])

    monkeypatch.setattr(Compact, "finish", forgetful)
    with pytest.raises(InternalError, match="read 0 records"):
        await compact(log, table, engine="local")
    assert [] == await table.files()


def _nothing(result):
    zero = "0" * 64
    facts = {"kept": 0, "kept_sum": zero, "left_sum": zero, "tombstones": 0, "replaced": 0}
    assert isinstance(result, Rewritten)
    return Rewritten(files=(), records=0, read=zero, full=zero, **facts)


@pytest.mark.parametrize("step", ["_find", "work"])
async def test_the_range_is_pinned_meanwhile(append, make, monkeypatch, clock, rows, step):
    """Collection goes past it, by another cursor's leave, and takes nothing away."""
    # EVIDENCE-OF: G-74
    table = await make()
    log = await append("a", [(None, b"x" * 100)] * 20, batch_bytes=100)
    work = getattr(Compact, step)
    seen = []

    async def collected_meanwhile(self, unit):
        cursors = log.cursors
        await cursors.save("compaction", 21, await cursors.load("compaction"))
        await log.collect(wait_s=0)
        clock.pass_s(1_000)
        seen.append((await log.collect(wait_s=0)).held)
        return await work(self, unit)

    monkeypatch.setattr(Compact, step, collected_meanwhile)
    assert (await compact(log, table, engine="local")).committed
    assert [True] == ["pin" in held[0] for held in seen]
    assert 20 == len(await rows(table))
    assert () == (await log.state()).pins


async def test_pins_do_not_pile_up(append, make, store):
    """An ended pin leaves its object behind: names are used again."""
    table = await make()
    log = cordwood.Log(store, "a")
    for _ in range(60):
        await append("a", [(None, b"x")])
        assert (await compact(log, table, engine="local")).committed
    assert len([meta.key async for meta in store.list("a/pin/")]) <= NAMES_MIN


async def test_pins_are_renewed(append, make, monkeypatch):
    """A long compaction keeps what it reads."""
    # EVIDENCE-OF: G-74
    table = await make()
    log = await append("a", [(None, b"x")])
    renewed = asyncio.Event()

    async def renew(self, ttl_s=None):
        renewed.set()

    async def patient(self, unit):
        await renewed.wait()
        return await work(self, unit)

    work = Compact.work
    monkeypatch.setattr(module, "PIN_S", 1)
    monkeypatch.setattr("cordwood.log.pins.Pin.renew", renew)
    monkeypatch.setattr(Compact, "work", patient)
    assert (await compact(log, table, engine="local")).committed


async def test_bad_input(append, make, store):
    """Each gets one clear error."""
    table = await make()
    log = await append("a", [(None, b"x")])
    other = cordwood.Log(cordwood.Store("memory:"), "b")
    for wrong in ([], [log, other]):
        with pytest.raises(InvalidInputError, match="all of one store"):
            await compact(wrong, table)
    with pytest.raises(InvalidInputError, match="no compression 'gzip9'"):
        await compact(log, table, compression="gzip9")
    with pytest.raises(InvalidInputError, match="max_bytes"):
        await compact(log, table, max_bytes=0)
    with pytest.raises(InvalidInputError, match="no engine 'hadoop'"):
        await compact(log, table, engine="hadoop")


async def test_a_fork_is_compacted(append, make, store, rows):
    """Its first records lie with its parent."""
    table = await make()
    log = await append("a", [(None, b"x")] * 10)
    fork = cordwood.Log(store, "b")
    await log.fork(fork)
    await append("b", [(None, b"y")])
    await compact(fork, table, engine="local")
    assert [b"x"] * 10 + [b"y"] == [body for _, body in sorted((await rows(table)).items())]


async def test_a_worker_needs_only_the_settings(append, make, store, tmp_path):
    """A unit is done by a job that was rebuilt from its name and its settings, as JSON."""
    wood = cordwood.Store(f"file://{tmp_path}")
    log, table = cordwood.Log(wood, "a"), Table(wood, "t")
    async with log.writer(create=True) as writer:
        await writer.append(b"x")
    await table.create()
    settings = CompactSettings(store=wood.url, logs=("a",), table_store=wood.url, table="t")
    async with Compact(settings, [wood], table) as job:
        (unit,) = await job.plan(LocalEngine())
        worker = rebuild("compact", msgspec.json.encode(settings))
        travelled = msgspec.json.decode(msgspec.json.encode(unit), type=worker.unit_type)
        result = await worker.work(travelled)
        travelled = msgspec.json.decode(msgspec.json.encode(result), type=job.result_type)
        assert (await job.finish([travelled])).committed


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_bulk_commits_are_compacted(append, make, store, rows, mode):
    """Their fragments count offsets from 0, and have other names."""
    table = await make(mode)
    log = await append("a", [(b"k1", b"1"), (b"k2", b"1")])
    parts = [{"key": [b"k1", b"k3"], "body": [b"2", b"2"]}, {"key": [b"k3"], "body": [b"3"]}]
    token = Token("job", 1)
    await log.commit([await log.stage(pa.table(part), token) for part in parts], token)
    report = await compact(log, table, engine="local")
    assert (5, (await log.state()).setsum) == (report.records, Setsum.from_hex(report.setsum))
    if mode == "append":
        assert list(range(1, 6)) == (await table.to_arrow(["offset"]))["offset"].to_pylist()
    else:
        expected = {("a", b"k1"): b"2", ("a", b"k2"): b"1", ("a", b"k3"): b"3"}
        assert expected == await rows(table)
    assert (await scrub_log(log, engine="local")).ok
    assert [] == await table.scrub()
