"""What goes wrong in a run of the pipeline: it holds up nothing else, and is not forgotten."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import Log, NotFoundError, Pipeline, Policy, StateError, StoreError, Table
from cordwood.pipeline import compact as compact_module
from cordwood.pipeline import run as run_module
from cordwood.pipeline.local import LocalEngine

PAST_GRACE_S = 1_000


@pytest.fixture
def pipeline(store, clock):
    """One that takes every log with something new."""

    def make(**given):
        facts = {"policy": Policy(min_records=1), "quiet_s": 0.0, "clock": clock}
        return Pipeline(store, **facts | {"engine": "local", "scrub": "off"} | given)

    return make


@pytest.fixture
async def fleet(store, clock):
    """Somebody who writes."""
    async with cordwood.Fleet(store, "m1", create=True, clock=clock) as made:
        yield made


async def write(fleet, logs=1, records=10):
    """Some records into each log."""
    for number in range(logs):
        await fleet.append_many(f"logs/{number}", [b"%d" % n for n in range(records)])


class Once:
    """Fails the first call, then does what it stands for."""

    def __init__(self, call, when=lambda *_: True):
        self.call = call
        self.when = when
        self.failed = False

    async def __call__(self, *args, **given):
        if not self.failed and self.when(*args):
            self.failed = True
            raise StoreError("503 slow down", transient=True)
        return await self.call(*args, **given)


# One bad log.


@pytest.mark.parametrize("bad", [[2], [0, 4], [0, 1, 2, 3, 4]])
async def test_bad_logs_are_left_out_of_a_shared_table(store, fleet, pipeline, memory, bad):
    """The others go into it; each bad one is reported by its name, with the key of the damage."""
    # EVIDENCE-OF: G-76
    await write(fleet, logs=5)
    keys = {}
    for number in bad:
        name = f"logs/{number}"
        (fragment,) = await Log(store, name).reader().scan()
        keys[name] = f"{name}/{fragment.path}"
        await memory.put(keys[name], b"spoiled")
    for _ in range(2):
        report = await pipeline(table="all").run()
        assert keys.keys() == report.errors.keys()
        for name, key in keys.items():
            assert f"fragment {key} is damaged" in report.errors[name]
    found = await Table(store, "all").to_arrow(["log"])
    assert {f"logs/{n}" for n in range(5) if n not in bad} == set(found["log"].to_pylist())
    assert 10 * (5 - len(bad)) == found.num_rows


async def test_a_log_that_does_not_fit_is_left_out(store, fleet, pipeline):
    """One that was destroyed and made anew: the table has another one's records of its name."""
    # EVIDENCE-OF: G-76
    await write(fleet, logs=3)
    await pipeline(table="all").run()
    await Log(store, "logs/1").destroy()
    other = cordwood.Fleet(store, "m2", create=True)
    async with other:
        await write(other, logs=3)
        report = await pipeline(table="all").run()
    assert ["logs/1"] == list(report.errors)
    assert 20 == report.records


async def test_a_store_that_fails_is_not_asked_for_each_log(fleet, pipeline, monkeypatch):
    """It would fail for all of them, after every retry."""
    await write(fleet, logs=4)
    calls = []

    async def fail(logs, table, **_):
        calls.append(len(logs))
        raise StoreError("nobody answers", transient=True)

    monkeypatch.setattr(run_module, "compact", fail)
    report = await pipeline(table="all").run()
    assert [4] == calls
    assert {"all": "nobody answers"} == report.errors


async def test_a_table_that_cannot_be_used(store, fleet, pipeline, memory):
    """Is reported by its own name."""
    upsert = pipeline(table="all", mode="upsert", keyless="keep")
    for number in range(2):
        await fleet.append(f"logs/{number}", b"x", key=b"k")
    await upsert.run()
    (file,) = await Table(store, "all").files()
    await memory.put(f"all/{file.path}", b"spoiled")
    for number in range(2):
        await fleet.append(f"logs/{number}", b"y", key=b"k")
    report = await upsert.run()
    assert ["all"] == list(report.errors)
    assert file.path in report.errors["all"]
    await memory.put("all/TABLE", b"spoiled")
    report = await upsert.run()
    assert ["all"] == list(report.errors)


# Collection.


async def test_what_a_pin_holds_is_collected_when_it_ends(store, fleet, pipeline, clock, memory):
    """However many runs find it held."""
    # EVIDENCE-OF: G-77
    await write(fleet)
    pin = await Log(store, "logs/0").pin("reader", 1, 5, ttl_s=10**6)
    await pipeline().run()
    for _ in range(7):
        clock.pass_s(PAST_GRACE_S)
        report = await pipeline().run()
        assert (("logs/0",), ("pin 'reader'",)) == (report.waiting, report.collected[0].held)
    await pin.release()
    clock.pass_s(PAST_GRACE_S)
    assert () == (await pipeline().run()).waiting
    assert not [key for key in memory._objects if key.startswith("logs/0/log/")]


async def test_a_collection_that_failed_is_done_again(fleet, pipeline, monkeypatch):
    """By the next run, although that has nothing to compact."""
    # EVIDENCE-OF: G-77
    await write(fleet)
    once = Once(Log.collect, lambda log: log.name == "logs/0")

    async def collect(self, **given):
        return await once(self, **given)

    monkeypatch.setattr(Log, "collect", collect)
    report = await pipeline().run()
    assert ({"logs/0": "503 slow down"}, ("logs/0",)) == (report.errors, report.waiting)
    assert ("logs/0",) == (await pipeline().status()).to_collect
    assert [10] == [one.records for one in (await pipeline().run()).collected]


async def test_a_cursor_that_did_not_move(fleet, pipeline, monkeypatch):
    """After the commit: the next run moves it, and collects what the table has."""
    # EVIDENCE-OF: G-77
    await write(fleet)
    once = Once(compact_module.move_up, lambda log, cursor, offset: offset > 1)
    monkeypatch.setattr(compact_module, "move_up", once)
    assert ["logs/0"] == list((await pipeline().run()).errors)
    report = await pipeline().run()
    assert (0, {}) == (report.records, report.errors)
    assert [10] == [one.records for one in report.collected]


async def test_a_log_that_is_gone_is_not_waited_for(store, fleet, pipeline):
    """Nothing is left to collect."""
    await write(fleet, logs=2)
    await pipeline().run()
    await Log(store, "logs/0").destroy()
    report = await pipeline().run()
    assert (("logs/1",), {}) == (report.waiting, report.errors)


async def test_a_run_that_died_beside_another(fleet, pipeline, monkeypatch):
    """That began later and ended sooner: what it compacted after that is collected all the same."""
    # EVIDENCE-OF: G-77
    await write(fleet)
    compact = Pipeline._compact

    async def be_overtaken_and_die(self, report, engine, progress):
        patched.setattr(Pipeline, "_compact", compact)
        assert () == (await pipeline(policy=Policy(min_records=99)).run()).waiting
        await compact(self, report, engine, progress)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_compact", be_overtaken_and_die)
        with pytest.raises(KeyboardInterrupt):
            await pipeline().run()
    assert [10] == [one.records for one in (await pipeline().run()).collected]


async def test_the_tables_of_a_run_that_died_are_swept(store, fleet, pipeline, monkeypatch, clock):
    """Although no later run writes them."""
    # EVIDENCE-OF: G-77

    async def die(self, report):
        raise KeyboardInterrupt

    upsert = pipeline(mode="upsert")
    for _ in range(2):
        await fleet.append("logs/0", b"x", key=b"k")
        with monkeypatch.context() as patched:
            patched.setattr(Pipeline, "_sweep", die)
            with pytest.raises(KeyboardInterrupt):
                await upsert.run()
    clock.pass_s(PAST_GRACE_S)
    await upsert.run()
    clock.pass_s(PAST_GRACE_S)
    await upsert.run()
    assert () == (await Table(store, "tables/logs/0").state()).dropped


# The loop, and the engine.


async def test_the_loop_survives_what_is_not_the_stores_fault_either(store, clock):
    """There is no fleet yet; then there is one."""
    runs = Pipeline(store, policy=Policy(min_records=1), clock=clock, engine="local").every(0.001)
    assert ["custom:"] == list((await anext(runs)).errors)
    async with cordwood.Fleet(store, "m1", create=True, clock=clock) as fleet:
        await write(fleet)
    assert 10 == (await anext(runs)).records
    await runs.aclose()


async def test_a_report_that_could_not_be_saved(fleet, pipeline, monkeypatch):
    """Ends the run, not the loop."""
    await write(fleet)
    saves = []
    save = run_module.reports.save

    async def fail_second(store, report):
        saves.append(report)
        if len(saves) == 2:
            raise StoreError("503 slow down", transient=True)
        await save(store, report)

    monkeypatch.setattr(run_module.reports, "save", fail_second)
    runs = pipeline().every(0.001)
    assert {"custom:": "503 slow down"} == (await anext(runs)).errors
    report = await anext(runs)
    assert ({}, [10]) == (report.errors, [one.records for one in report.collected])
    await runs.aclose()


async def test_the_engine_is_chosen_once(store, fleet, pipeline, monkeypatch):
    """By what waits in all logs together, and used for every step."""
    await write(fleet, logs=3)
    await Log(store, "logs/0").cursors.init("slow", 1)
    asked, jobs = [], []

    class Counted(LocalEngine):
        async def work(self, job, units, progress):
            jobs.append(job.name)
            return await super().work(job, units, progress)

    async def choose(name, num_bytes, stores):
        asked.append((name, num_bytes, [store.url for store in stores]))
        return Counted()

    monkeypatch.setattr(run_module, "choose", choose)
    report = await pipeline(engine="auto", scrub="sample").run()
    assert [("auto", sum(one.num_bytes for one in report.chosen), ["custom:"] * 2)] == asked
    assert ["compact"] * 3 + ["collect", "scrub"] == jobs
    assert "local" == report.engine


async def test_an_engine_that_cannot_run(fleet, pipeline, monkeypatch):
    """Is told before anything is changed, also by the loop."""
    await write(fleet)

    def none(name):
        raise StateError("there is no Java")

    monkeypatch.setattr(run_module, "find_engine", none)
    with pytest.raises(StateError, match="no Java"):
        await pipeline(engine="spark").run()
    with pytest.raises(StateError, match="no Java"):
        await anext(pipeline(engine="spark").every(1))
    monkeypatch.undo()
    with monkeypatch.context() as patched:
        patched.setattr(LocalEngine, "refuses", lambda self, stores: "it cannot reach them")
        with pytest.raises(StateError, match="cannot reach them"):
            await pipeline().run()

    async def fail(self):
        raise StateError("it does not start")

    monkeypatch.setattr(LocalEngine, "start", fail)
    with pytest.raises(StateError, match="does not start"):
        await pipeline().run()
    assert () == (await pipeline().status()).runs


async def test_no_fleet_leaves_nothing(tmp_path):
    """A mistyped URL is an error, and makes no directory."""
    nowhere = tmp_path / "typo"
    for dry_run in (True, False):
        with pytest.raises(NotFoundError, match="there is no fleet"):
            await Pipeline(f"file://{nowhere}").run(dry_run=dry_run)
    assert not nowhere.exists()
