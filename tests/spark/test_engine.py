"""Spark as an engine: the same results as in this process, failures by their names."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pyarrow as pa
import pytest

import cordwood.spark
from cordwood import (
    CorruptionError,
    Delta,
    InvalidInputError,
    Pipeline,
    Policy,
    StateError,
    StoreError,
    Table,
    collect_logs,
    compact,
    roll_up_fleet,
    scrub_log,
    scrub_logs,
)
from cordwood.base.clock import SeededEntropy
from cordwood.pipeline import divide
from cordwood.pipeline.job import rebuild
from cordwood.spark.engine import SparkEngine, check_can_travel
from cordwood.spark.jobs import (
    Failure,
    UnitFailedError,
    _result,
    _rows,
    failure_in,
    is_passing,
    pack,
    unpack,
)


@pytest.fixture
def store(tmp_path):
    """A directory that tasks can reach."""
    return cordwood.Store(f"file://{tmp_path}/wood")


@pytest.fixture
def engine(spark):
    """Spark, in the session of the tests."""
    return SparkEngine(spark)


async def append(store, name, records, batch_bytes=200):
    """A fragment for every few records."""
    log = cordwood.Log(store, name)
    options = cordwood.Options(batch_bytes=batch_bytes)
    async with log.writer(create=True, options=options) as writer:
        await asyncio.gather(*(writer.append(body, key=key) for key, body in records))
    return log


async def rows(table):
    """Every row, in one order."""
    found = (await table.to_arrow()).sort_by([("log", "ascending"), ("offset", "ascending")])
    return found.to_pylist()


async def test_scrub_is_the_same(store, engine, monkeypatch):
    """Of a whole log and of a damaged one; progress comes to its end."""
    # EVIDENCE-OF: G-75
    monkeypatch.setattr(divide, "READ_BYTES_MIN", 1)
    monkeypatch.setattr(divide, "READ_BYTES_MAX", 2_000)
    log = await append(store, "a", [(None, b"%d" % n) for n in range(60)], batch_bytes=1)
    told = []
    found = await scrub_log(log, engine=engine, progress=lambda *done: told.append(done))
    assert await log.scrub(deep=True) == found
    assert found.ok
    assert told[-1][0] == told[-1][1] == found.bytes
    fragments = await log.reader().scan()
    for number in (7, 40):
        await store.put(f"a/{fragments[number].path}", b"spoiled")
    found = await scrub_log(log, engine=engine)
    expected = await log.scrub(deep=True)
    assert [f"a/{fragments[n].path}" for n in (7, 40)] == [error.where for error in found.errors]
    assert {error.message for error in expected.errors} == {e.message for e in found.errors}
    assert (expected.records, expected.setsum) == (found.records, found.setsum)


async def test_many_logs_are_the_same(store, engine, tmp_path):
    """Scrubbed whole or by samples, collected and rolled up: each as in this process."""
    # EVIDENCE-OF: G-75, G-76
    logs = [await append(store, name, [(None, b"x" * 100)] * 20) for name in ("a", "b")]
    fragment = (await logs[1].reader().scan())[0]
    await store.put(f"b/{fragment.path}", b"spoiled")
    everything = [*logs, cordwood.Log(store, "none")]
    here, there = [await scrub_logs(everything, engine=e) for e in ("local", engine)]
    assert here == there
    assert [True, False, False] == [one.ok for one in there]
    chance = {"sample": 3, "entropy": SeededEntropy(5)}
    sampled = await scrub_log(logs[0], engine="local", **chance | {"entropy": SeededEntropy(5)})
    assert sampled == await scrub_log(logs[0], engine=engine, **chance)
    resumed = await scrub_log(logs[0], resume=tmp_path / "kept", engine=engine)
    assert resumed == await logs[0].scrub(deep=True)
    for log in logs:
        await log.cursors.init("jobs", 11)
    names = ["a", "b", "none"]
    foreseen = [await collect_logs(store, names, dry_run=True, engine=e) for e in ("local", engine)]
    assert foreseen[0] == foreseen[1]
    done = await collect_logs(store, names, engine=engine)
    assert [one.records for one in foreseen[0]] == [one.records for one in done]
    assert "no log" in done[2].error
    async with cordwood.Fleet(store, "m1", create=True) as fleet:
        await fleet.append_many("dirty", [b"x"] * 10)
    rolled = await roll_up_fleet(store, engine=engine)
    assert (["m1"], ["dirty"]) == (
        [m.member for m in rolled.members],
        [d.log for d in rolled.dirty],
    )


async def test_a_whole_run(store, engine, spark):
    """Every heavy step on Spark, with the report of any other run."""
    async with cordwood.Fleet(store, "m1", create=True) as fleet:
        for number in range(2):
            await fleet.append_many(f"logs/{number}", [b"x" * 100] * 10)
    for number in range(2):
        await cordwood.Log(store, f"logs/{number}").cursors.init("slow", 1)
    report = await Pipeline(store, policy=Policy(min_records=1), engine="spark").run()
    assert ("spark", 20, {}) == (report.engine, report.records, report.errors)
    assert [True, True] == [one.ok for one in report.scrubbed]


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_compaction_is_the_same(store, engine, mode):
    """Two tables, one made by each engine, round by round."""
    # EVIDENCE-OF: G-79
    ours, theirs = Table(store, "ours"), Table(store, "theirs")
    for table in (ours, theirs):
        await table.create(mode=mode, keyless="keep")
    for number in range(3):
        logs = []
        for name in ("a", "b"):
            pairs = [
                (None if n % 9 == 0 else b"%d" % (n % 13), b"" if n % 5 == 0 else b"%d" % number)
                for n in range(60)
            ]
            logs.append(await append(store, name, pairs))
        here = await compact(logs, ours, engine="local")
        there = await compact(logs, theirs, engine=engine, cursor="spark")
        assert there.committed
        for name in ("records", "kept", "tombstones", "replaced", "setsum", "kept_setsum"):
            assert getattr(here, name) == getattr(there, name)
        assert await rows(ours) == await rows(theirs)
    assert [] == await theirs.scrub()


async def test_a_large_bitmap(store, engine):
    """More rows in a fragment than one bitmap of Spark's stands for."""
    # EVIDENCE-OF: G-79
    log, table = cordwood.Log(store, "a"), Table(store, "t")
    count = 70_000
    async with log.writer(create=True) as writer:
        keys = [b"%d" % (n % 40_000) for n in range(count)]
        await writer.append_arrow(pa.table({"key": keys, "body": [b"x"] * count}))
    await table.create(mode="upsert")
    report = await compact(log, table, engine=engine)
    assert 40_000 == report.kept
    found = (await table.to_arrow(["offset"])).column("offset").to_pylist()
    assert list(range(30_001, 70_001)) == found


async def test_into_delta(store, engine):
    """The same through Delta."""
    # EVIDENCE-OF: G-78, G-79
    table = Delta(store, "delta")
    await table.create(mode="upsert")
    for number in range(2):
        log = await append(store, "a", [(b"%d" % n, b"%d" % number) for n in range(20)])
        await compact(log, table, engine=engine)
    assert [b"1"] * 20 == [row["body"] for row in await rows(table)]


async def test_spark_reads_a_table(store, engine, spark):
    """As it reads any Parquet: offsets are BIGINT, times are timestamps."""
    table = Table(store, "t")
    await table.create()
    log = await append(store, "a", [(b"k", b"%d" % n) for n in range(10)])
    await compact(log, table, engine="local")
    frame = cordwood.spark.read_table(spark, table.url)
    assert {"log", "offset", "timestamp", "key", "headers", "stream", "body"} == set(frame.columns)
    assert "bigint" == dict(frame.dtypes)["offset"]
    assert "timestamp" == dict(frame.dtypes)["timestamp"]
    assert 10 == frame.where("offset between 1 and 10 and key = x'6b'").count()
    empty = Table(store, "empty")
    await empty.create()
    assert 0 == cordwood.spark.read_table(spark, empty.url).count()


@pytest.mark.parametrize("odd", ["with space", "day=1", "w[i]{l}d*?", "100%25", "süd"])
async def test_spark_reads_a_table_wherever_it_lies(tmp_path, spark, odd):
    """A path is neither a URL nor a pattern, and `=` makes no column."""
    wood = cordwood.Store(tmp_path / odd)
    table = Table(wood, "year=2026/t")
    await table.create()
    log = await append(wood, "a", [(b"k", b"%d" % n) for n in range(10)])
    await compact(log, table, engine="local")
    frame = cordwood.spark.read_table(spark, table.url)
    assert set(range(1, 11)) == {row.offset for row in frame.collect()}
    assert 7 == len(frame.columns)


async def test_a_unit_that_fails(store, engine):
    """The job fails with the unit's own error; nothing is changed."""
    # EVIDENCE-OF: G-73
    table = Table(store, "t")
    await table.create()
    log = await append(store, "a", [(None, b"x" * 100)] * 20, batch_bytes=100)
    fragment = (await log.reader().scan())[5]
    await store.put(f"a/{fragment.path}", b"spoiled")
    with pytest.raises(
        CorruptionError, match=rf"compact of .* of 'a' .*: fragment a/{fragment.path}"
    ):
        await compact(log, table, engine=engine)
    assert [] == await table.files()
    assert () == (await log.state()).pins


async def test_a_question_that_fails(store, engine):
    """As well."""
    table = Table(store, "t")
    await table.create(mode="upsert")
    log = await append(store, "a", [(b"k", b"x"), (None, b"x")])
    with pytest.raises(InvalidInputError, match="the record 2 of log 'a' has no key"):
        await compact(log, table, engine=engine)


async def test_a_store_that_does_not_travel(engine, tmp_path):
    """What lives in this process, or was opened with options, is refused before anything starts."""
    memory = cordwood.Store("memory:")
    log = await append(memory, "a", [(None, b"x")])
    with pytest.raises(StateError, match="no task of Spark can reach it"):
        await scrub_log(log, engine=engine)
    remote = cordwood.Store("s3://bucket/x", endpoint="http://127.0.0.1:1", region="x")
    with pytest.raises(StateError, match="do not travel"):
        check_can_travel(remote)
    assert "no task of Spark can reach it" in engine.refuses([log.store])
    assert "do not travel" in engine.refuses([cordwood.Store(f"file://{tmp_path}"), remote])
    assert "" == engine.refuses([cordwood.Store(f"file://{tmp_path}")])


async def test_an_error_of_spark_itself(engine, store, monkeypatch):
    """Is told in one line, and where the rest is."""
    log = await append(store, "a", [(None, b"x")])
    monkeypatch.setattr("cordwood.spark.jobs.FORMAT", "no_such_format")
    with pytest.raises(StoreError, match=r"scrub: Spark failed: .*no_such_format"):
        await scrub_log(log, engine=engine)


async def test_it_can_be_stopped(engine, store, spark):
    """Who stops waiting stops the work."""
    log = await append(store, "a", [(None, b"x")])
    work = asyncio.ensure_future(scrub_log(log, engine=engine))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (await scrub_log(log, engine=engine)).ok


@pytest.mark.parametrize("rows", [False, True])
def test_a_store_that_refuses_a_worker(rows, monkeypatch):
    """Credentials that only the driver has: which machine lacks them, and what to set there."""
    job = rebuild("collect", b'{"store": "s3://bucket/x", "logs": ["a"]}')
    (unit,) = asyncio.run(job.plan(None))
    denied = StoreError("denied", code=cordwood.Code.STORE_DENIED, hint="set AWS_ACCESS_KEY_ID")

    async def refuse(unit):
        raise denied

    async def refuse_rows(unit):
        raise denied
        yield

    monkeypatch.setattr(job, "work", refuse)
    monkeypatch.setattr(job, "rows", refuse_rows)
    if rows:
        with pytest.raises(UnitFailedError) as failed:
            next(_rows(job, unit))
        error = failure_in(str(failed.value))
    else:
        done, failure = _result(job, unit)
        assert not done
        error = failure.error()
    where = f"s3://bucket/x refused the worker on {socket.gethostname()}: denied"
    assert (where, cordwood.Code.STORE_DENIED) == (error.message, error.code)
    assert "every executor" in error.hint
    assert "AWS_ACCESS_KEY_ID" in error.hint


def test_a_store_that_a_worker_cannot_reach(monkeypatch):
    """The machine is named; Spark tries again elsewhere."""
    job = rebuild("collect", b'{"store": "s3://bucket/x", "logs": ["a"]}')
    (unit,) = asyncio.run(job.plan(None))

    async def fail(unit):
        raise StoreError("nobody answers", code=cordwood.Code.STORE_UNREACHABLE, transient=True)

    monkeypatch.setattr(job, "work", fail)
    with pytest.raises(UnitFailedError) as failed:
        _result(job, unit)
    error = failure_in(str(failed.value))
    assert f"the worker on {socket.gethostname()}: nobody answers" == error.message
    assert cordwood.Code.STORE_UNREACHABLE == error.code


# What travels.


def test_units_travel_as_text():
    """Small, and each by itself."""
    job = rebuild("collect", b'{"store": "memory:", "logs": ["a", "b"]}')
    units = asyncio.run(job.plan(None))
    assert [{"log": "a"}, {"log": "b"}] == [
        {"log": msgspec.json.decode(unit)["log"]} for unit in unpack(pack(units))
    ]


def test_errors_travel():
    """With class, code and hint, through whatever Spark makes of a message."""
    error = CorruptionError(
        "it is broken", where="x", code=cordwood.Code.MISSING_OBJECT, hint="mend"
    )
    text = f"org.apache.spark.SparkException: Traceback\n {UnitFailedError(error)}\n at Foo.java:1"
    found = failure_in(text)
    assert (CorruptionError, "it is broken", "missing_object", "mend") == (
        type(found),
        found.message,
        found.code,
        found.hint,
    )
    assert failure_in("nothing of ours") is None
    assert "NotFoundError" == Failure.of(cordwood.NotFoundError("x")).kind
    assert is_passing(StoreError("busy", transient=True))
    assert not is_passing(StoreError("denied"))
