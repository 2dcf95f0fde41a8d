"""The pipeline: a whole fleet from marks to tables, resumed by the next run wherever it ended."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import cordwood
from cordwood import (
    CordwoodWarning,
    InvalidInputError,
    NotFoundError,
    Pipeline,
    Policy,
    StoreError,
    Table,
)
from cordwood.pipeline import reports
from cordwood.pipeline.reports import RunReport, last_runs, left_behind, save
from cordwood.pipeline.run import Pipeline as AsyncPipeline

PAST_GRACE_S = 1_000
EVERYTHING = Policy(min_records=1)


@pytest.fixture
def pipeline(store, clock):
    """One that takes every log with something new."""

    def make(**given):
        facts = {"policy": EVERYTHING, "quiet_s": 0.0, "clock": clock, "engine": "local"}
        return Pipeline(store, **facts | given)

    return make


@pytest.fixture
async def fleet(store, clock):
    """Somebody who writes."""
    async with cordwood.Fleet(store, "m1", create=True, clock=clock) as made:
        yield made


async def write(fleet, logs=3, records=10):
    """Some records into each log."""
    for number in range(logs):
        await fleet.append_many(f"logs/{number}", [b"%d" % n for n in range(records)])


async def tables(store, logs=3):
    """How many rows each log's table has."""
    return [(await Table(store, f"tables/logs/{n}").state()).rows for n in range(logs)]


async def test_a_run_does_everything(store, fleet, pipeline, clock):
    """Compacted, collected, scrubbed; a later run deletes what had to wait."""
    # EVIDENCE-OF: G-76
    await write(fleet)
    report = await pipeline().run()
    assert (3, 3, 30, {}) == (report.dirty, len(report.chosen), report.records, report.errors)
    assert [10, 10, 10] == await tables(store)
    assert [10, 10, 10] == [one.records for one in report.collected]
    assert [True] * 3 == [one.ok for one in report.scrubbed]
    assert ("logs/0", "logs/1", "logs/2") == report.waiting
    clock.pass_s(PAST_GRACE_S)
    again = await pipeline().run()
    assert (0, 0, ()) == (again.dirty, again.records, again.waiting)
    assert all(one.deleted for one in again.collected)
    assert () == (await pipeline().run()).collected
    await write(fleet, logs=1)
    assert 10 == (await pipeline(scrub="deep").run()).records
    assert [20, 10, 10] == await tables(store)


async def test_one_table_for_all(store, fleet, pipeline):
    """In one commit."""
    await write(fleet)
    report = await pipeline(table="tables/all", mode="append").run()
    assert 1 == len(report.compacted)
    assert 30 == (await Table(store, "tables/all").state()).rows


async def test_tables_elsewhere(fleet, pipeline):
    """In another store."""
    other = cordwood.Store("memory:")
    await write(fleet)
    await pipeline(tables=other, scrub="off").run()
    assert [10, 10, 10] == await tables(other)


async def test_only_what_is_worth_it(store, fleet, pipeline, clock):
    """By size and by age."""
    await write(fleet, logs=1, records=50)
    await fleet.append("logs/1", b"x")
    picky = pipeline(policy=Policy(min_records=50, max_age_s=3_600))
    assert ["logs/0"] == [one.log for one in (await picky.run()).chosen]
    clock.pass_s(3_600)
    assert [("logs/1", ("age",))] == [(c.log, c.reasons) for c in (await picky.run()).chosen]


async def test_one_bad_log_holds_up_nothing(store, fleet, pipeline, memory):
    """It is in the report, with the reason."""
    # EVIDENCE-OF: G-76
    await write(fleet)
    (fragment,) = await cordwood.Log(store, "logs/1").reader().scan()
    await memory.put(f"logs/1/{fragment.path}", b"spoiled")
    report = await pipeline().run()
    assert ["logs/1"] == list(report.errors)
    assert f"logs/1/{fragment.path}" in report.errors["logs/1"]
    assert [10, 0, 10] == await tables(store)


async def test_a_run_that_died_is_resumed(store, fleet, pipeline, monkeypatch, clock):
    """Whatever it had compacted and not collected is collected by the next one."""
    # EVIDENCE-OF: G-77

    async def die(self, report, engine, progress):
        raise KeyboardInterrupt

    await write(fleet)
    for step in ("_collect", "_compact"):
        with monkeypatch.context() as patched:
            patched.setattr(AsyncPipeline, step, die)
            with pytest.raises(KeyboardInterrupt):
                await pipeline().run()
    status = await pipeline().status()
    assert [False, False] == [run.is_done for run in status.runs]
    assert ("logs/0", "logs/1", "logs/2") == status.to_collect
    report = await pipeline().run()
    assert [10, 10, 10] == [one.records for one in report.collected]
    assert [10, 10, 10] == await tables(store)
    assert report.waiting == (await pipeline().status()).to_collect


async def test_files_wait_for_their_readers(store, fleet, pipeline, clock, memory):
    """What an upsert replaced is deleted by a later run, although nothing is new then."""
    upsert = pipeline(mode="upsert")
    for number in range(3):
        await fleet.append("logs/0", b"%d" % number, key=b"k")
        assert 0 == (await upsert.run()).swept
    clock.pass_s(PAST_GRACE_S)
    report = await upsert.run()
    assert (0, 2, ()) == (len(report.chosen), report.swept, report.unswept)
    assert 1 == (await Table(store, "tables/logs/0").state()).rows


async def test_a_dry_run_changes_nothing(fleet, pipeline, memory):
    """It says what would be done, and leaves no report."""
    await write(fleet)
    before = dict(memory._objects)
    report = await pipeline().run(dry_run=True)
    assert (3, ["logs/0", "logs/1", "logs/2"]) == (
        report.dirty,
        [one.log for one in report.chosen],
    )
    assert before == memory._objects


async def test_two_pipelines_at_once(store, fleet, pipeline):
    """Everything is in the tables once."""
    await write(fleet)
    await asyncio.gather(*(pipeline().run() for _ in range(3)))
    await pipeline().run()
    assert [10, 10, 10] == await tables(store)


async def test_again_and_again(store, fleet, pipeline):
    """A report each time, and the steps are told."""
    steps = []
    await write(fleet)
    runs = pipeline().every(0.001, progress=lambda step, done, total: steps.append((step, total)))
    found = [await anext(runs)]
    await write(fleet)
    found.append(await anext(runs))
    await runs.aclose()
    assert [30, 30] == [report.records for report in found]
    assert {("roll up", 1), ("compact", 3), ("collect", 3)} <= set(steps)
    assert "scrub" in {step for step, _ in steps}
    with pytest.raises(InvalidInputError, match="an interval"):
        await anext(pipeline().every(0))


async def test_a_store_that_fails_for_a_while(fleet, pipeline, memory, monkeypatch):
    """Ends a run, not the loop."""
    await write(fleet)
    runs = pipeline().every(0.001)

    def fail(*_):
        raise StoreError("nobody answers", transient=True)

    with monkeypatch.context() as patched:
        patched.setattr(memory, "list", fail)
        report = await anext(runs)
    assert ({"custom:": "nobody answers"}, False) == (report.errors, report.is_done)
    assert 30 == (await anext(runs)).records
    await runs.aclose()


async def test_status(fleet, pipeline, memory, clock):
    """What waits, what is due, what was done; damage is shown, not raised."""
    await write(fleet)
    picky = pipeline(policy=Policy(min_records=50))
    status = await picky.status()
    assert (3, {}, ()) == (len(status.waiting), status.due, status.runs)
    assert 3 == len((await pipeline().status()).due)
    await pipeline().run()
    await memory.put("logs/0/manifest/MANIFEST", b"spoiled")
    status = await pipeline().status(runs=1)
    assert (1, 30) == (len(status.runs), status.runs[0].records)
    assert {"logs/0"} == set(status.errors)


async def test_bad_input(store, pipeline):
    """What cannot be meant is refused before anything is done."""
    with pytest.raises(NotFoundError, match="no fleet in custom:"):
        await pipeline().run()
    with pytest.raises(NotFoundError, match="no fleet in custom:"):
        await pipeline().run(dry_run=True)
    for wrong in ({"scrub": "gently"}, {"table_format": "csv"}, {"table": "a//b"}):
        with pytest.raises(InvalidInputError):
            pipeline(**wrong)


# Reports.


def run_report(number, **given):
    """A report."""
    return RunReport(id=f"{number:032x}", begun_us=number, **given)


async def test_reports_are_kept_in_order_and_not_for_ever(store, monkeypatch):
    """The newest first; a report is replaced by its own later state."""
    for number in (3, 1, 2, 12):
        await save(store, run_report(number))
    await save(store, run_report(2, ended_us=5, dirty=7))
    found = await last_runs(store, 3)
    assert [(12, False), (3, False), (2, True)] == [(run.begun_us, run.is_done) for run in found]
    await reports.prune(store, 2)
    assert [12, 3] == [run.begun_us for run in await last_runs(store, 9)]
    assert [] == await last_runs(store, 0)


async def test_what_lies_among_the_reports(store, fleet, pipeline, memory):
    """Is told, left alone, and holds up nothing; a report that is damaged as well."""
    strange, damaged = f"{reports.PREFIX}README", run_report(7).key
    await write(fleet)
    await memory.put(strange, b"hi")
    await memory.put(damaged, b"spoiled")
    with pytest.warns(CordwoodWarning) as told:
        assert 30 == (await pipeline().run()).records
    said = {str(one.message).partition(" ")[0] for one in told}
    assert {strange, damaged} == said
    await memory.delete([damaged])
    with pytest.warns(CordwoodWarning, match="README lies among"):
        assert 1 == len((await pipeline().status()).runs)
    with pytest.warns(CordwoodWarning):
        await reports.prune(store, 1)
    assert b"hi" == (await memory.get(strange)).data


def chosen(*logs):
    """Logs that a run took in hand."""
    return tuple(reports.Chosen(log, 1, 1, ()) for log in logs)


def test_what_runs_left_behind():
    """Of those that died everything they had chosen, and what the last that ended left."""
    older = run_report(1, ended_us=2, waiting=("x",))
    ended = run_report(3, ended_us=4, waiting=("b",), chosen=chosen("a"))
    died = run_report(5, chosen=chosen("c"), waiting=("b",))
    assert ["b", "c"] == left_behind([died, ended, older])
    assert ["b"] == left_behind([ended, older])
    assert [] == left_behind([])
    assert run_report(1).key < run_report(2).key < run_report(10).key


def test_a_run_that_another_one_overtook_counts():
    """The one that ended cannot have known what it did afterwards."""
    # EVIDENCE-OF: G-77
    overtaken = run_report(1, chosen=chosen("a"), unswept=("t",))
    quick = run_report(2, ended_us=3, waiting=("b",))
    assert ["a", "b"] == left_behind([quick, overtaken])
    assert ["t"] == reports.left_unswept([quick, overtaken], "")
    late = msgspec.structs.replace(overtaken, ended_us=4, waiting=("a",))
    assert ["a", "b"] == left_behind([quick, late])
    after = run_report(5, ended_us=6)
    assert [] == left_behind([after, quick, late])
    assert ["a"] == left_behind([after, quick, overtaken])
    a_day_later = run_report(2 + reports.DEAD_US, ended_us=3 + reports.DEAD_US)
    assert [] == left_behind([a_day_later, after, quick, overtaken])


def test_tables_of_another_store_are_not_ours():
    """They stay with the pipeline that writes there."""
    theirs = run_report(1, ended_us=2, unswept=("t",), tables="memory:theirs")
    ours = run_report(3, ended_us=4, unswept=("u",), tables="memory:ours")
    assert ["t"] == reports.left_unswept([ours, theirs], "memory:theirs")
    assert ["u"] == reports.left_unswept([ours, theirs], "memory:ours")


async def test_a_run_without_an_end_is_not_pruned(store):
    """It may be at work."""
    for number in range(1, 6):
        await save(store, run_report(number, ended_us=0 if number == 2 else number))
    spared = {run.key for run in reports.open_runs(await last_runs(store))}
    await reports.prune(store, 1, spared)
    assert [5, 2] == [run.begun_us for run in await last_runs(store)]
