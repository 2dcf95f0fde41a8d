"""The command line: every verb, with and without --json, and errors in one line."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cordwood import sync
from cordwood.cli.main import cli


def test_a_log_from_create_to_scrub(run, url):
    """Create, append, read, show and scrub work together."""
    assert "created" in run("log", "create", url)
    assert "appended 3 records, offsets 1 to 3" in run("log", "append", url, stdin="a\nb\nc\n")
    assert run("log", "read", url) == "1\ta\n2\tb\n3\tc\n"
    assert run("log", "read", url, "--start", "2", "-n", "1") == "2\tb\n"
    assert "MANIFEST" in run("log", "show", url)
    assert "metadata is consistent: 3 records" in run("log", "scrub", url)
    assert "whole: 3 records" in run("log", "scrub", url, "--deep")


def test_a_log_that_exists_is_not_created(run, url):
    """With --exist-ok the command succeeds and says which it was."""
    assert f"created {url}\n" == run("log", "create", url, "--exist-ok")
    assert f"{url} exists already\n" == run("log", "create", url, "--exist-ok")
    assert run("log", "create", url, "--exist-ok", "--json") == {"created": False, "url": url}


@pytest.mark.timeout(60)
def test_no_records_are_printed_at_once(run, url):
    """`-n 0` ends without waiting for a record; a negative number is refused."""
    run("log", "append", url, "--create", stdin="a\n")
    for verb in ("tail", "read"):
        assert "" == run("log", verb, url, "-n", "0")
        assert "" == run("log", verb, url, "--start", "1", "-n", "0")
        run("log", verb, url, "-n", "-1", code=2)


def test_json_everywhere(run, url):
    """With --json a program gets objects."""
    assert run("log", "create", url, "--json") == {"created": True, "url": url}
    appended = run("log", "append", url, "--json", stdin="a\nb\n")
    assert appended == {"records": 2, "first_offset": 1, "last_offset": 2, "contiguous": True}
    rows = run("log", "read", url, "--json")
    assert [(1, "a"), (2, "b")] == [(row["offset"], row["body"]) for row in rows]
    shown = run("log", "show", url, "--json")
    assert (1, 3, 2) == (shown["oldest_offset"], shown["next_offset"], shown["records"])
    scrubbed = run("log", "scrub", url, "--deep", "--json")
    assert scrubbed["ok"]
    assert scrubbed["setsum"] == shown["setsum"]
    tailed = run("log", "tail", url, "--start", "1", "-n", "2", "--json")
    assert [1, 2] == [row["offset"] for row in tailed]


def test_append_forms(run, url, tmp_path):
    """Lines, JSON lines with a key, and a whole file."""
    run("log", "append", url, "--create", "--as", "jsonl", "--key", "id", stdin='{"id":"x"}\n\n')
    rows = run("log", "read", url, "--json")
    assert ("x", '{"id":"x"}') == (rows["key"], rows["body"])
    (tmp_path / "whole.bin").write_bytes(b"one\ntwo\n")
    run("log", "append", url, tmp_path / "whole.bin", "--as", "file")
    assert run("log", "read", url, "--start", "2", "--json")["body"] == "one\ntwo\n"
    output = run("log", "append", url, "--as", "jsonl", stdin="{broken\n", code=1)
    assert "line 1 is not JSON" in output
    output = run("log", "append", url, "--as", "jsonl", "--key", "no", stdin="{}\n", code=1)
    assert "no field 'no'" in output
    assert "nothing to append" in run("log", "append", url, stdin="")


def test_read_into_files(run, url, tmp_path):
    """Parquet and JSON lines hold the same records."""
    run("log", "append", url, "--create", stdin="a\nb\n")
    assert "wrote 2 records" in run("log", "read", url, "-o", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert [b"a", b"b"] == table.column("body").to_pylist()
    run("log", "read", url, "-o", tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert ["a", "b"] == [json.loads(line)["body"] for line in lines]
    assert ".parquet or .jsonl" in run("log", "read", url, "-o", tmp_path / "out.csv", code=1)


def shown(run, url, tmp_path):
    """The records of a log in all ways in which they are shown as JSON."""
    run("log", "read", url, "-o", "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    run("log", "compact", url, "--into", "wood/rows", "--create", "--engine", "local")
    return run("log", "read", url, "--json"), lines, run("table", "read", "wood/rows", "--json")


def test_bytes_that_are_no_text_are_told_apart(run, url, tmp_path):
    """In JSON they are base64, under a name of their own: nothing is changed on the way."""
    (tmp_path / "in").write_bytes(b"\\xff\n\xff\n")
    run("log", "append", url, "in", "--create")
    for rows in shown(run, url, tmp_path):
        assert ("\\xff", None) == (rows[0]["body"], rows[0].get("body_base64"))
        assert (None, "/w==") == (rows[1].get("body"), rows[1]["body_base64"])


def test_headers_that_are_no_text_are_told_apart(run, url, tmp_path):
    """Each by itself, wherever records are shown as JSON."""
    with sync.Log.from_url(url).writer(create=True) as writer:
        writer.append(b"a", key=b"k", headers={"text": b"\\xff", "other": b"\xff"})
        writer.append(b"b", key=b"l", headers={"text": b""})
        writer.append(b"c", key=b"m")
    for rows in shown(run, url, tmp_path):
        assert ({"text": "\\xff"}, {"other": "/w=="}) == (
            rows[0]["headers"],
            rows[0]["headers_base64"],
        )
        assert ({"text": ""}, None) == (rows[1]["headers"], rows[1].get("headers_base64"))
        assert (None, None) == (rows[2].get("headers"), rows[2].get("headers_base64"))


def test_logs_are_listed(run, url):
    """All of a store, or those that a pattern means."""
    place = url.removesuffix("/orders")
    assert f"{place} has no logs\n" == run("log", "list", place)
    assert [] == run("log", "list", place, "--json")
    run("log", "append", url, "--create", stdin="a\nb\n")
    run("log", "create", f"{place}/eu/clicks")
    run("log", "seal", url)
    clicks, orders = run("log", "list", place).splitlines()
    assert clicks == "eu/clicks: 0 records, 0 B"
    assert orders.startswith("orders: 2 records, ")
    assert orders.endswith(", sealed")
    rows = run("log", "list", place, "--json")
    assert [("eu/clicks", 0, False), ("orders", 2, True)] == [
        (row["log"], row["records"], row["sealed"]) for row in rows
    ]
    assert [url] == [row["url"] for row in rows if row["log"] == "orders"]
    assert run("log", "list", place, "o*", "--json")["log"] == "orders"
    assert f"{place} has no logs of these names\n" == run("log", "list", place, "x*")


def test_a_log_that_cannot_be_read_is_listed_with_its_error(run, url, tmp_path):
    """And holds up no other."""
    place = url.removesuffix("/orders")
    run("log", "create", f"{place}/a")
    run("log", "append", url, "--create", stdin="a\n")
    (manifest,) = (tmp_path / "wood" / "a").glob("**/MANIFEST")
    manifest.write_bytes(b"{")
    first, second = run("log", "list", place, "--json", code=1)
    assert first["error"] == "not_a_log"
    assert second["records"] == 1
    assert "orders: 1 records" in run("log", "list", place, code=1)
    assert "no-such: " in run("log", "list", place, "no-such", code=1)


def test_raw_bodies_are_those_bytes_and_no_others(run, url):
    """What is read one by one is what was appended."""
    run("log", "append", url, "--create", "--as", "file", stdin=b"\xff\n\x1b[1m\0")
    run("log", "append", url, stdin=b"two\n")
    result = CliRunner().invoke(cli, ["log", "read", url, "--raw"])
    assert result.stdout_bytes == b"\xff\n\x1b[1m\0two"
    for other in ("--json", "-o=x.jsonl"):
        run("log", "read", url, "--raw", other, code=1)


def test_read_by_time(run, url):
    """A range of time leaves the rest out."""
    run("log", "append", url, "--create", stdin="a\n")
    assert run("log", "read", url, "--since", "2000-01-01", "--until", "2100-01-01") == "1\ta\n"
    assert run("log", "read", url, "--until", "2000-01-01T00:00:00Z") == ""
    assert run("log", "read", url, "--since", "0001-01-02") == "1\ta\n"
    assert "is not a time" in run("log", "read", url, "--since", "yesterday", code=1)


def test_errors_are_one_line_and_an_exit_code(run, url, tmp_path):
    """A missing log, a second create, a bad URL: clear, and never a traceback."""
    missing = run("log", "read", url, code=1)
    assert missing.startswith("cordwood: there is no log")
    assert run("log", "read", url, "--json", code=1)["error"] == "no_such_log"
    run("log", "create", url)
    assert "exists already" in run("log", "create", url, code=1)
    assert "does not name a log" in run("log", "show", "orders", code=1)
    assert run("log", "show", "ftp://host/x/log", code=1).startswith("cordwood: ")
    run("log", "frobnicate", code=2)


def test_show_says_what_holds_a_log_and_that_it_ended(run, url):
    """Cursors, pins and the seal; what looks like markup in a reason is shown as it is."""
    run("log", "append", url, "--create", stdin="a\n")
    run("log", "pin", "add", url, "audit", "1", "2")
    run("log", "cursor", "set", url, "billing", "1")
    run("log", "seal", url, "--reason", "[/moved]", "--moved-to", "next")
    shown = run("log", "show", url)
    assert "pin audit" in shown
    assert "cursor billing at 1" in shown
    assert "sealed, goes on in next: [/moved]" in shown


def test_a_file_that_cannot_be_written_is_told_in_a_line(run, url, tmp_path):
    """Which, and why."""
    run("log", "append", url, "--create", stdin="a\n")
    for name in ("out.parquet", "out.jsonl"):
        said = run("log", "read", url, "-o", tmp_path / "none" / name, code=1)
        assert said.startswith("cordwood: ")
        assert 1 == len(said.splitlines())
        assert f"none/{name}: No such file or directory\n" in said


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_a_file_is_written_whole_or_not_at_all(run, url, tmp_path, name):
    """If a later fragment is damaged there is no half of a file, and an older one stays."""
    for line in ("a\n", "b\n"):
        run("log", "append", url, "--create", stdin=line)
    fragments = sorted((tmp_path / "wood" / "orders").glob("log/*/*.parquet"))
    fragments[-1].write_bytes(b"not a fragment")
    (tmp_path / name).write_text("older")
    assert "damaged" in run("log", "read", url, "-o", tmp_path / name, code=1)
    assert "older" == (tmp_path / name).read_text()
    assert [] == list(tmp_path.glob("*.tmp"))


def test_a_pipe_and_a_link_stay_what_they_are(run, url, tmp_path):
    """Who reads a pipe gets the lines; a link still names its file."""
    run("log", "append", url, "--create", stdin="a\n")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit((tmp_path / "pipe.jsonl").read_text)
        run("log", "read", url, "-o", "pipe.jsonl")
        assert "a" == json.loads(reading.result(60))["body"]
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    run("log", "read", url, "-o", "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert "a" == json.loads((tmp_path / "real.jsonl").read_text())["body"]


def test_scrub_names_the_damage(run, url, tmp_path):
    """A damaged fragment makes the exit code 1 and is named."""
    run("log", "append", url, "--create", stdin="abc\n")
    (fragment,) = (tmp_path / "wood" / "orders").glob("log/*/*.parquet")
    data = bytearray(fragment.read_bytes())
    data[len(data) // 2] ^= 1
    fragment.write_bytes(data)
    output = run("log", "scrub", url, "--deep", code=1)
    assert fragment.name in output
    assert "DAMAGED" in output
    report = run("log", "scrub", url, "--deep", "--json", code=1)
    assert not report["ok"]
    assert fragment.name in report["errors"][0]["where"]


def test_scrub_claims_no_more_than_it_looked_at(run, url, tmp_path):
    """Only a deep scrub of everything says that a log is whole."""
    for body in ("a\n", "b\n", "c\n"):
        run("log", "append", url, "--create", stdin=body)
    scrub = ("log", "scrub", url)
    assert "whole: 3 records" in run(*scrub, "--deep", "--max-files", "5")
    assert "all" == run(*scrub, "--deep", "--json")["scope"]
    for part in (["--sample", "1"], ["--max-files", "1"], ["--start", "3"]):
        told = run(*scrub, "--deep", *part)
        assert "no damage in a part: 1 of 3 records" in told
        assert "whole" not in told
        assert "part" == run(*scrub, *part, "--json")["scope"]
    for fragment in (tmp_path / "wood" / "orders").glob("log/*/*.parquet"):
        fragment.unlink()
    told = run(*scrub)
    assert "whole" not in told
    assert "data files were not read" in told
    assert "metadata" == run(*scrub, "--json")["scope"]
    assert "DAMAGED in 3 places" in run(*scrub, "--deep", code=1)


def test_demo(run, tmp_path):
    """The demonstration runs, twice in the same place, and refuses somebody else's directory."""
    words = ("demo", "--engine", "local", "--directory", tmp_path / "demo")
    first = run(*words, "--json")
    assert first["logs_ok"]
    assert first["equal"]
    assert (22_800, 10_800, 200) == (first["records"], first["rows"], first["left"])
    assert "table equal to what the writers said last" in run(*words)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "choose another" in run("demo", "--directory", tmp_path / "other", code=1)
    refused = run("demo", "--directory", tmp_path / "other", "--json", code=1)
    assert "already_exists" == refused["error"]


def test_demo_without_java(run, tmp_path, monkeypatch):
    """It says what is missing, and runs the same jobs in this process."""
    monkeypatch.setattr("cordwood.spark.engine.active", lambda: None)
    monkeypatch.setattr("cordwood.spark.engine.missing", lambda: "Spark needs a Java runtime")
    found = run("demo", "--json", "--directory", tmp_path / "demo")
    assert ("local", "Spark needs a Java runtime") == (found["engine"], found["missing"])
    assert found["equal"]


def test_store_probe(run, tmp_path):
    """A directory keeps every promise."""
    assert "can hold logs" in run("store", "probe", f"file://{tmp_path}/store")
    assert run("store", "probe", f"file://{tmp_path}/store", "--json")["ok"]


def test_bench_commands_run_briefly(run):
    """Each benchmark runs and prints its figures as JSON."""
    brief = ("log", "bench", "latency", "--rate", 500, "--put-latency-ms", 5, "--seconds", 0.5)
    both = run(*brief, "--protocol", "both", "--svg", "latency.svg", "--json")
    assert (250, 0) == (both["chain"]["appends"], both["chain"]["errors"])
    assert Path("latency.svg").read_text().count("polyline") == 3
    latency = run(*brief, "--json")
    assert "cas" == latency["protocol"]
    names = {"p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms", "appends", "errors"}
    assert names | {"puts_per_s", "cpu_cores", "protocol"} <= latency.keys()
    assert (250, 0) == (latency["appends"], latency["errors"])
    brief = ("log", "bench", "latency", "--rate", 200, "--seconds", 0.2, "--histogram")
    shown = run(*brief, "--protocol", "chain")
    assert "p50" in shown
    assert 'append_histogram_bucket{protocol="chain",le="' in shown
    shards = run("log", "bench", "shards", "--fragments", 24, "--json")
    assert [1, 2, 4, 8, 12] == [one["shards"] for one in shards["runs"]]
    speeds = [one["fragments_read_per_s"] for one in shards["runs"]]
    assert speeds[0] < speeds[2] < speeds[4]
    assert run("log", "bench", "memory", "--logs", 5, "--json")["logs"] == 5
    throughput = run(
        *(
            "log",
            "bench",
            "throughput",
            "--rate",
            2000,
            "--batch-rate",
            20000,
            "--plain-batch-rate",
            9000,
        ),
        *("--put-latency-ms", 5, "--seconds", 0.5, "--json"),
    )
    assert throughput["append"]["full"]["errors"] == 0
    scan = run("log", "bench", "scan", "--mixed", "--megabytes", 8, "--repeats", 1, "--json")
    assert scan["mixed"]
    assert scan["none"]["unverified"]["ratio"] > 0
