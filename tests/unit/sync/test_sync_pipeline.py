"""The blocking twins of tables, jobs and the pipeline do what the async ones do."""

from __future__ import annotations

import pytest

from cordwood import Policy, sync


@pytest.fixture
def store(tmp_path):
    """A directory."""
    return sync.Store(f"file://{tmp_path}/wood")


def test_a_table_from_create_to_sweep(store):
    """Every method works."""
    log = sync.Log(store, "orders")
    with log.writer(create=True) as writer:
        writer.append_many([b"a", b"b"])
    table = sync.Table.from_url(f"{store.url}/table")
    assert (store, "table") == (table.store, table.name)
    table.create()
    told = []
    report = sync.compact(log, table, engine="local", progress=lambda *done: told.append(done))
    assert (2, True) == (report.records, report.committed)
    assert told
    assert 2 == table.state().rows == table.files()[0].rows
    assert [b"a", b"b"] == table.to_arrow(["body"]).column("body").to_pylist()
    assert [2] == [part.num_rows for part in table.scan()]
    assert [] == table.scrub()
    assert 0 == table.sweep().dropped
    assert "sync.Table" in repr(table)


def test_delta(store):
    """Every method works."""
    log = sync.Log(store, "orders")
    with log.writer(create=True) as writer:
        writer.append(b"a")
    table = sync.Delta.from_url(f"{store.url}/table")
    assert (store, "table") == (table.store, table.name)
    table.create(mode="append")
    assert sync.compact([log], table, engine="local").committed
    assert 1 == len(table.files()) == table.to_arrow().num_rows
    assert table.url in repr(table)


def test_jobs(store):
    """Scrub, collect, roll-up."""
    with sync.Fleet(store, "m1", create=True) as fleet:
        fleet.append_many("a", [b"x", b"y"])
    assert ["a"] == [one.dirty.log for one in _rolled_up(store).selected]
    log = sync.Log(store, "a")
    assert log.scrub(deep=True) == sync.scrub_log(log, engine="local")
    log.cursors.init("jobs", 3)
    assert [2] == [one.records for one in sync.collect_logs(store, ["a"])]


def _rolled_up(store):
    return sync.roll_up_fleet(store, policy=Policy(min_records=1))


def test_a_pipeline(store):
    """Run, again and again, and looked at."""
    with sync.Fleet(store, "m1", create=True) as fleet:
        fleet.append("a", b"x")
        pipeline = sync.Pipeline(store, policy=Policy(min_records=1), engine="local")
        assert 1 == len(pipeline.run(dry_run=True).chosen)
        assert 1 == pipeline.run().records
        fleet.append("a", b"y")
        runs = pipeline.every(0.01)
        assert 1 == next(runs).records
        runs.close()
    assert [1, 1] == [run.records for run in pipeline.status().runs]
    assert (store, store) == (pipeline.store, pipeline.tables)
    table = pipeline.table_of("a")
    assert isinstance(table, sync.Table)
    assert 2 == table.state().rows
    assert isinstance(sync.Pipeline(store, table_format="delta").table_of("a"), sync.Delta)
