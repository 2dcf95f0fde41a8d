"""Jobs, tables and the pipeline on the command line, with and without --json."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from cordwood import sync
from cordwood.pipeline import engine
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
    assert "no table named" in run("log", "compact", url, "--into", table, "--dry-run", code=1)
    dry = run("log", "compact", url, "--into", table, "--create", "--dry-run")
    assert "orders: 3 records, offsets [1, 4)" in dry
    assert f"would go into {table}; nothing was changed" in dry
    words = ("log", "compact", url, "--into", table, "--create", "--dry-run", "--json")
    for more in ((), ("--format", "delta"), ("--mode", "upsert")):
        found = run(*words, *more)
        assert (table, 3, False) == (
            found["table"],
            found["ranges"][0]["limit"] - 1,
            found["committed"],
        )
    assert "no table named" in run("table", "show", table, code=1)
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


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_compact_into_memory(run, url, table_format):
    """Nothing of it would outlive the command: it is refused, and the cursor stays."""
    run("log", "append", url, "--create", stdin="a\nb\n")
    into = ("--into", "memory:x/t", "--create", "--format", table_format)
    shown = run("log", "compact", url, *into, code=1)
    assert "in memory" in shown
    assert {} == run("log", "show", url, "--json")["cursors"]


def test_keyless_of_a_table_that_exists(run, url, table):
    """What it does with records without a key is not changed by asking, and not ignored."""
    run("log", "append", url, "--create", stdin="a\n")
    made = ("log", "compact", url, "--into", table, "--create", "--mode", "upsert", "--keyless")
    run(*made, "skip")
    assert "in mode upsert, keyless skip" in run(*made, "keep", code=1)
    run(*made, "skip")


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
    assert "only a deep scrub" in run("log", "scrub", url, "--engine", "spark", code=1)
    assert "only a deep scrub" in run("log", "scrub", url, "--resume", "x", code=1)
    assert here == run("log", "scrub", url, "--deep", "--resume", "kept", "--json")
    sampled = run("log", "scrub", url, "--deep", "--sample", "1", "--json")
    assert (True, 3) == (sampled["ok"], sampled["records"])


def test_many_logs(run, fleet, tmp_path):
    """Rolled up, scrubbed, collected: by a name or a pattern, first dry, then done."""
    due = ("pipeline", "rollup", fleet, "--min-records", "1")
    assert "3 of 3 dirty logs are due" in run(*due, "--dry-run")
    assert ["size"] == run(*due, "--json")["selected"][0]["reasons"]
    dry = run("pipeline", "scrub", fleet, "logs/*", "--dry-run")
    assert "logs/1: metadata is consistent, 10 records in 1 fragments to read" in dry
    assert "logs/1: whole, 10 records in 1 fragments checked" in run(
        "pipeline", "scrub", fleet, "logs/*"
    )
    found = run("pipeline", "scrub", fleet, "logs/0", "logs/2", "--sample", "1", "--json")
    assert "part" == found["scope"]
    assert [("logs/0", True), ("logs/2", True)] == [
        (one["log"], one["ok"]) for one in found["scrubbed"]
    ]
    run("log", "cursor", "set", f"{fleet}/logs/0", "jobs", "11")
    collect = ("pipeline", "collect", fleet)
    assert "10 records" in run(*collect, "logs/0", "--dry-run")
    assert [10] == [one["records"] for one in run(*collect, "logs/0", "--json")["collected"]]
    assert "0 records (0 B) taken out, 0 objects deleted; more in" in run(*collect, "logs/0")
    shown = run(*collect, "logs/*", code=1)
    assert "logs/1: log 'logs/1' has no cursor" in shown
    (fragment,) = (tmp_path / "fleet" / "logs" / "1" / "log").rglob("*.parquet")
    fragment.write_bytes(b"spoiled")
    shown = run("pipeline", "scrub", fleet, "logs/1", code=1)
    assert "logs/1: DAMAGED" in shown
    assert "fragment logs/1/log/" in shown
    assert "no log that matches nothing*" in run(*collect, "nothing*", code=1)


def test_a_mistyped_store(run, tmp_path):
    """Is an error, and makes nothing."""
    nowhere = tmp_path / "typo"
    for words in (("run",), ("run", "--dry-run"), ("rollup",), ("rollup", "--dry-run")):
        shown = run("pipeline", words[0], nowhere, *words[1:], code=1)
        assert "there is no fleet in" in shown
    assert not nowhere.exists()


def test_a_stray_file_among_the_reports(run, fleet, tmp_path):
    """Is told once, on standard error, and holds up nothing."""
    (tmp_path / "fleet" / "pipeline" / "runs").mkdir(parents=True)
    (tmp_path / "fleet" / "pipeline" / "runs" / "README").write_text("hi", encoding="utf-8")
    done = run("pipeline", "run", fleet, "--min-records", "1", "--engine", "local")
    assert "cordwood: pipeline/runs/README lies among the reports of runs and is none" in done
    assert 1 == done.count("README")
    assert 1 == len(run("pipeline", "status", fleet, "--json")["runs"])


def test_auto_says_why_it_stays_here(run, url, table, monkeypatch):
    """In one line."""
    run("log", "append", url, "--create", stdin="a\nb\n")

    async def fastest(stores):
        return LocalEngine(), "Spark needs a Java runtime"

    monkeypatch.setattr(engine, "LOCAL_BYTES_MAX", 1)
    monkeypatch.setattr(engine, "fastest", fastest)
    shown = run("log", "compact", url, "--into", table, "--create")
    assert "cordwood: 0.0 GB are worked on in this process: Spark needs a Java runtime\n" in shown
    assert "2 rows in 1 files" in shown


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
