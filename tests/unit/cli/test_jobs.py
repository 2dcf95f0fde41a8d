"""Jobs, tables and the pipeline on the command line, with and without --json."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from cordwood import sync
from cordwood.pipeline.local import LocalEngine


@pytest.fixture
def table(tmp_path):
    """Where the table of a test lies."""
    return f"file://{tmp_path}/wood/tables/orders"


@pytest.fixture
def fleet(tmp_path):
    """A store with a fleet of three logs."""
    url = f"file://{tmp_path}/fleet"
    with sync.Fleet(url, "m1", create=True) as made:
        for number in range(3):
            made.append_many(f"logs/{number}", [b"x"] * 10)
    return url


def test_compact_from_create_to_nothing_new(run, url, table):
    """What is new, what was done, and the proof."""
    run("log", "append", url, "--create", stdin="a\nb\nc\n")
    assert "no table named" in run("log", "compact", url, "--into", table, code=1)
    dry = run("log", "compact", url, "--into", table, "--create", "--dry-run", code=1)
    assert "no table named" in dry
    shown = run("log", "compact", url, "--into", table, "--create")
    assert "orders: 3 records, offsets [1, 4)" in shown
    assert "3 rows in 1 files" in shown
    assert "read 3 records, as the logs say: setsum" in shown
    assert "nothing is new" in run("log", "compact", url, "--into", table)
    run("log", "append", url, stdin="d\n")
    dry = run("log", "compact", url, "--into", table, "--dry-run")
    assert "orders: 1 records, offsets [4, 5)" in dry
    found = run("log", "compact", url, "--into", table, "--json")
    assert (1, True, False) == (found["records"], found["committed"], found["dry_run"])
    assert 64 == len(found["setsum"])


def test_compact_by_key(run, url, table):
    """A line with a key that comes again replaces the one before."""
    lines = "".join(json.dumps({"id": n % 2, "n": n}) + "\n" for n in range(6))
    run("log", "append", url, "--create", "--as", "jsonl", "--key", "id", stdin=lines)
    run("log", "compact", url, "--into", table, "--create", "--mode", "upsert")
    rows = run("table", "read", table, "--json")
    assert {"0": 4, "1": 5} == {row["key"]: json.loads(row["body"])["n"] for row in rows}
    run("log", "append", url, stdin="no key\n")
    shown = run("log", "compact", url, "--into", table, code=1)
    assert shown.startswith("cordwood: the record 7 of log 'orders' has no key")


def test_compact_into_delta(run, url, table):
    """The same command."""
    run("log", "append", url, "--create", stdin="a\nb\n")
    found = run("log", "compact", url, "--into", table, "--create", "--format", "delta", "--json")
    assert 2 == found["kept"]
    assert 2 == sync.Delta.from_url(table).to_arrow().num_rows


def test_a_table_is_shown_and_read(run, url, table, tmp_path):
    """For people, for programs, into a file."""
    run("log", "append", url, "--create", stdin="a\nb\nc\n")
    run("log", "compact", url, "--into", table, "--create")
    shown = run("table", "show", table)
    assert "3 rows in 1 files" in shown
    assert "log orders: offsets [1, 4)" in shown
    state = run("table", "show", table, "--json")
    assert (3, "append") == (state["rows"], state["mode"])
    assert "orders\t1\t\ta\norders\t2\t\tb\n" == run("table", "read", table, "-n", "2")
    assert [1, 2, 3] == [row["offset"] for row in run("table", "read", table, "--json")]
    assert "wrote 3 rows" in run("table", "read", table, "-o", tmp_path / "x.parquet")
    assert 3 == pq.read_table(tmp_path / "x.parquet").num_rows
    assert 3 == run("table", "read", table, "-o", tmp_path / "y.parquet", "--json")["rows"]
    assert ".parquet" in run("table", "read", table, "-o", tmp_path / "x.csv", code=1)
    assert "whole" in run("table", "scrub", table)
    assert "deleted 0" in run("table", "sweep", table)
    assert 0 == run("table", "sweep", table, "--json")["orphans"]


def test_a_damaged_table_is_told(run, url, table, tmp_path):
    """By the file, with an exit code."""
    run("log", "append", url, "--create", stdin="a\nb\nc\n")
    run("log", "compact", url, "--into", table, "--create")
    (file,) = (tmp_path / "wood" / "tables" / "orders" / "data").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert file.name in run("table", "scrub", table, code=1)
    assert not run("table", "scrub", table, "--json", code=1)["ok"]
    assert "is damaged" in run("table", "read", table, code=1)


def test_scrub_by_an_engine(run, url, monkeypatch):
    """The same answer; what Spark cannot do is said."""
    run("log", "append", url, "--create", stdin="a\nb\nc\n")
    here = run("log", "scrub", url, "--deep", "--engine", "local", "--json")
    units = []
    work = LocalEngine.work

    async def counted(self, job, found, progress):
        units.extend(found)
        return await work(self, job, found, progress)

    monkeypatch.setattr(LocalEngine, "work", counted)
    assert here == run("log", "scrub", url, "--deep", "--json")
    assert 1 == len(units)
    assert "deep scrub of a whole log" in run("log", "scrub", url, "--engine", "spark", code=1)


def test_the_pipeline_once(run, fleet):
    """What waits, what would be done, what was done."""
    policy = ("--min-records", "10")
    assert "not yet" in run("pipeline", "status", fleet)
    shown = run("pipeline", "status", fleet, *policy)
    assert "size" in shown
    assert "no run has left a report" in shown
    dry = run("pipeline", "run", fleet, *policy, "--dry-run", "--engine", "local")
    assert "3 of 3 dirty logs would be compacted" in dry
    done = run("pipeline", "run", fleet, *policy, "--once", "--engine", "local")
    assert "3 of 3 dirty logs chosen; 30 records compacted into 3 tables" in done
    assert "3 logs wait for their grace interval" in done
    status = run("pipeline", "status", fleet)
    assert "nothing waits for compaction" in status
    assert "last runs" in status
    assert "to collect again: logs/0, logs/1, logs/2" in status
    found = run("pipeline", "status", fleet, "--json")
    assert [30] == [sum(one["records"] for one in r["compacted"]) for r in found["runs"]]
    again = run("pipeline", "run", fleet, *policy, "--json", "--engine", "local")
    assert ([], {}) == (again["chosen"], again["errors"])


def test_a_pipeline_with_errors(run, fleet, tmp_path):
    """They are told, and the exit code says so; the rest is done."""
    for fragment in (tmp_path / "fleet" / "logs" / "1" / "log").rglob("*.parquet"):
        fragment.write_bytes(b"spoiled")
    words = ("pipeline", "run", fleet, "--min-records", "1", "--engine", "local")
    shown = run(*words, code=1)
    assert "20 records compacted into 2 tables" in shown
    assert "logs/1: compact of 1 fragments" in shown


def test_bad_input_is_one_line(run, fleet, url, table, tmp_path):
    """Never a traceback."""
    run("pipeline", "run", fleet, "--every", "0", code=2)
    run("pipeline", "run", fleet, "--every", "5", "--dry-run", code=2)
    run("log", "compact", "--into", table, code=2)
    assert "cannot name a table" in run("pipeline", "run", fleet, "--table", "a//b", code=1)
    assert "cordwood:" in run("pipeline", "status", "nonsense://x", code=1)
    run("log", "append", url, "--create", stdin="a\n")
    elsewhere = f"file://{tmp_path}/other/log"
    assert "one store" in run("log", "compact", url, elsewhere, "--into", table, code=1)
    assert "no table named" in run("table", "show", table, code=1)
    assert "does not name a table" in run("table", "show", "x", code=1)
