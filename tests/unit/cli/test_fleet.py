"""`cordwood fleet`: members, what needs compaction and why; errors in one line."""

from __future__ import annotations

import pytest

from cordwood import sync


@pytest.fixture
def wood(tmp_path):
    """A store in a directory with two members: one large log, one small, one that both wrote."""
    url = f"file://{tmp_path}/wood"
    with sync.Fleet(url, "m1", create=True) as one, sync.Fleet(url, "m2", create=True) as two:
        one.append_many("large", [b"x"] * 50)
        one.append("both", b"x")
        two.append("both", b"y")
        two.append("small", b"x")
    return url


def test_status_shows_members_logs_and_reasons(run, wood):
    """A table for people, oldest first."""
    shown = run("fleet", "status", wood, "--min-records", 50)
    assert "m1  2 marks: 2 logs with something to compact, 0 without" in shown
    assert "m2  2 marks" in shown
    (large,) = [line for line in shown.splitlines() if "large" in line]
    assert "size" in large
    assert "████" in large
    (small,) = [line for line in shown.splitlines() if "small" in line]
    assert "not yet" in small
    assert "age" in run("fleet", "status", wood, "--max-age-s", 0)


def test_status_as_json(run, wood):
    """The same for programs: each log once, with every member that marked it."""
    found = run("fleet", "status", wood, "--min-records", 50, "--json")
    assert ["m1", "m2"] == [member["member"] for member in found["members"]]
    logs = {log["log"]: log for log in found["logs"]}
    assert {"large", "both", "small"} == set(logs)
    assert (["size"], 50) == (logs["large"]["reasons"], logs["large"]["num_records"])
    assert (["m1", "m2"], 2, []) == (
        logs["both"]["members"],
        logs["both"]["num_records"],
        logs["both"]["reasons"],
    )
    assert 0 <= logs["small"]["age_s"]
    assert [2, 2] == [member["dirty"] for member in found["members"]]


def test_status_of_one_member(run, wood):
    """Only what it has marked."""
    found = run("fleet", "status", wood, "--member", "m2", "--json")
    assert {"both", "small"} == {log["log"] for log in found["logs"]}


def test_status_after_compaction(run, wood):
    """What was compacted is no longer listed."""
    log = sync.Log.from_url(f"{wood}/large")
    log.cursors.init("compaction", 51)
    shown = run("fleet", "status", wood)
    assert "m1  2 marks: 1 logs with something to compact, 1 without" in shown
    assert "large" not in shown


def test_status_says_what_is_damaged(run, wood, tmp_path):
    """A log, or a dirty log, that cannot be read is named, and the rest is shown."""
    (tmp_path / "wood" / "large" / "manifest" / "MANIFEST").write_bytes(b"spoiled")
    shown = run("fleet", "status", wood)
    assert "large:" in shown
    assert "small" in shown
    for fragment in (tmp_path / "wood" / "fleet" / "m2").rglob("*.parquet"):
        fragment.write_bytes(b"spoiled")
    assert "cannot be rolled up" in run("fleet", "status", wood)


def test_status_without_a_fleet(run, tmp_path):
    """Nothing is an answer too."""
    assert "no member" in run("fleet", "status", f"file://{tmp_path}/empty")
    assert {"members": [], "logs": []} == run(
        "fleet", "status", f"file://{tmp_path}/empty", "--json"
    )


def test_errors_are_one_clear_line(run, wood):
    """A member that is not there, a URL that is none, a number that cannot be."""
    shown = run("fleet", "status", wood, "--member", "m9", code=1)
    assert "cordwood: the fleet has no member 'm9'" in shown
    assert (
        "no_such_log" == run("fleet", "status", wood, "--member", "m9", "--json", code=1)["error"]
    )
    assert "cordwood:" in run("fleet", "status", "nonsense://x", code=1)
    assert "min_records" in run("fleet", "status", wood, "--min-records", -1, code=1)
    assert "cannot name a member" in run("fleet", "status", wood, "--member", "a/b", code=1)


def test_bench_says_what_a_fleet_costs(run):
    """An open, idle log costs less than 100 kB, and three requests at most to open and close."""
    # EVIDENCE-OF: G-53
    result = run("fleet", "bench", "--logs", 100, "--json")
    assert result["bytes_per_open_log"] <= result["limit_bytes"]
    assert 2 == result["requests_to_open_and_close"]
    assert (100, True) == (result["marks"], result["bytes_per_mark"] <= 48)
    assert "bytes_per_mark" in run("fleet", "bench", "--logs", 3)
