"""Cursors, pins and collection from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cordwood.cli.main import cli


@pytest.fixture
def url(tmp_path):
    """A log of five records, each in a fragment of its own, with a short grace."""
    url = f"file://{tmp_path}/orders"
    assert 0 == call("log", "create", url, "--grace-s", "1").exit_code
    for number in range(5):
        assert 0 == call("log", "append", url, given=f"{number}\n").exit_code
    return url


def call(*words, given=None):
    """Run a command."""
    return CliRunner().invoke(cli, list(words), input=given)


def answer(*words):
    """Run a command that must succeed; its JSON."""
    result = call(*words, "--json")
    assert result.exit_code == 0, result.stdout
    return json.loads(result.stdout)


def test_a_chain_log_is_made_shown_and_rebuilt(tmp_path):
    """With shards; its manifests are lost, and made anew from what lies in the shards."""
    # EVIDENCE-OF: G-125
    url = f"file://{tmp_path}/chained"
    made = ("log", "create", url, "--protocol", "chain", "--shards", "3")
    assert answer(*made)["created"]
    for number in range(4):
        assert 0 == call("log", "append", url, given=f"{number}\n").exit_code
    shown = answer("log", "show", url)
    assert ("chain", 5) == (shown["protocol"], shown["next_offset"])
    refused = call("log", "rebuild", url)
    assert (1, True) == (refused.exit_code, "can be opened" in refused.stderr)
    for path in (tmp_path / "chained" / "manifest").glob("MANIFEST*"):
        path.unlink()
    assert 1 == call("log", "show", url).exit_code
    report = answer("log", "rebuild", url)
    assert (4, []) == (report["records"], report["left_out"])
    assert "rebuilt" not in call("log", "rebuild", url).stdout
    assert "1\t0\n2\t1\n3\t2\n4\t3\n" == call("log", "read", url).stdout
    assert answer("log", "scrub", url, "--deep")["ok"]


def test_a_cursor_is_set_moved_and_deleted(url):
    """Set makes it, or moves it."""
    assert {"cursor": "c", "offset": 2} == answer("log", "cursor", "set", url, "c", "2")
    assert {"cursor": "c", "offset": 4} == answer("log", "cursor", "set", url, "c", "4")
    assert {"c": 4} == answer("log", "cursor", "list", url)
    assert "4" in call("log", "cursor", "list", url).stdout
    assert "stands at 5" in call("log", "cursor", "set", url, "c", "5").stdout
    assert "behind the end" in call("log", "cursor", "set", url, "c", "5000").stderr
    assert {"c": 5} == answer("log", "cursor", "list", url)
    assert answer("log", "cursor", "delete", url, "c")["deleted"]
    assert {} == answer("log", "cursor", "list", url)
    assert "no cursor named" in call("log", "cursor", "delete", url, "c").stderr


@pytest.mark.parametrize("words", [["list"], ["delete", "c"]])
def test_cursors_of_a_log_that_is_not_there(tmp_path, words):
    """It is the log that is missing, and that is said."""
    verb, *more = words
    refused = call("log", "cursor", verb, f"file://{tmp_path}/none", *more, "--json")
    assert (1, "no_such_log") == (refused.exit_code, json.loads(refused.stdout)["error"])


def test_a_collection_frees_what_lies_before_the_cursor(url):
    """And says what it did."""
    refused = call("log", "collect", url)
    assert 1 == refused.exit_code
    assert "no cursor" in refused.stderr
    answer("log", "cursor", "set", url, "c", "4")
    report = answer("log", "collect", url)
    assert (3, 4, "empty") == (report["records"], report["oldest_offset"], report["phase"])
    assert report["deleted"] >= 3
    assert 64 == len(report["setsum"])
    assert "0 records" in call("log", "collect", url).stdout
    assert "collected" in call("log", "cursor", "set", url, "d", "1").stderr


def test_what_is_not_due_is_left_for_the_next_collection(url):
    """The report says how long to wait."""
    answer("log", "cursor", "set", url, "c", "4")
    said = call("log", "collect", url, "--grace-s", "1000").stdout
    assert "0 objects deleted" in said
    assert "collect again then" in said
    report = answer("log", "collect", url)
    assert (0, "empty") == (report["records"], report["phase"])
    assert report["deleted"] >= 3


def test_a_collection_that_another_program_abandoned_is_taken_over(url):
    """Only when asked for; the refusal names the object and says how."""
    answer("log", "cursor", "set", url, "c", "4")
    garbage = Path(url.removeprefix("file://")) / "gc" / "GARBAGE"
    garbage.parent.mkdir()
    garbage.write_text(
        '{"snapshots_to_drop":[],"snapshots_to_make":[],"snapshot_for_root":null,'
        '"fragments_to_drop_start":1,"fragments_to_drop_limit":3,"fragments_are_uuids":false,'
        f'"setsum_to_discard":"{"0" * 64}","first_to_keep":{{"offset":3}}}}'
    )
    refused = call("log", "collect", url)
    assert 1 == refused.exit_code
    assert "gc/GARBAGE" in refused.stderr
    assert "--take-over" in refused.stderr
    report = answer("log", "collect", url, "--take-over")
    assert (3, 4, "empty") == (report["records"], report["oldest_offset"], report["phase"])


def test_a_pin_keeps_records_readable(url):
    """While it holds they are read through it; released, the next collection frees them."""
    made = answer("log", "pin", "add", url, "backup", "2", "4", "--ttl-s", "600")
    assert {"pin": "backup", "start": 2, "limit": 4, "ttl_s": 600} == made
    answer("log", "cursor", "set", url, "c", "5")
    assert "kept for pin 'backup'" in call("log", "collect", url).stdout
    assert "backup" in call("log", "pin", "list", url).stdout
    assert {"backup": {"start": 2, "limit": 4, "ttl_s": 600}} == answer("log", "pin", "list", url)
    assert "2\t1\n3\t2\n" == call("log", "read", url, "--pin", "backup").stdout
    assert 1 == len(call("log", "read", url).stdout.splitlines())
    assert "is released" in call("log", "pin", "release", url, "backup").stdout
    assert answer("log", "collect", url)["deleted"] >= 2
    assert "has ended" in call("log", "read", url, "--pin", "backup").stderr


# Ends and forks.


def test_a_sealed_log_is_read_and_takes_nothing(url):
    """Who appends is told why."""
    sealed = answer("log", "seal", url, "--reason", "done", "--moved-to", "elsewhere")
    assert (6, "done", "elsewhere") == (sealed["next_offset"], sealed["reason"], sealed["moved_to"])
    refused = call("log", "append", url, given="more\n")
    assert 1 == refused.exit_code
    assert "done" in refused.stderr
    assert 5 == len(call("log", "read", url).stdout.splitlines())
    assert "is sealed at offset 6" in call("log", "seal", url).stdout


def test_a_seal_that_would_have_to_change_is_refused(url):
    """The same again is a success, and another reason or another log is none."""
    for _ in range(2):
        assert (
            "done" == answer("log", "seal", url, "--reason", "done", "--moved-to", "new")["reason"]
        )
    for more in (["--reason", "other"], ["--moved-to", "elsewhere"], ["--moved-to", ""]):
        refused = call("log", "seal", url, *more, "--json")
        assert (1, "sealed") == (refused.exit_code, json.loads(refused.stdout)["error"])
        assert "was sealed before" in refused.stderr
    assert ("done", "new") == tuple(answer("log", "seal", url)[of] for of in ("reason", "moved_to"))


def test_a_migration_goes_on_with_the_next_offset(url, tmp_path):
    """One total order over both logs."""
    target = f"file://{tmp_path}/new"
    assert 6 == answer("log", "migrate", url, target)["offset"]
    assert 0 == call("log", "append", target, given="more\n").exit_code
    assert "6\tmore\n" == call("log", "read", target).stdout
    assert "goes on at offset 6" in call("log", "migrate", url, target).stdout


def test_a_fork_shares_the_past(url, tmp_path):
    """Both go on by themselves; the parent stays while it is needed."""
    target = f"file://{tmp_path}/experiment"
    made = answer("log", "fork", url, target, "--start", "2")
    assert made["next_offset"] == 6
    assert 0 == call("log", "append", target, given="mine\n").exit_code
    assert "6\tmine" == call("log", "read", target).stdout.splitlines()[-1]
    assert 5 == len(call("log", "read", url).stdout.splitlines())
    refused = call("log", "destroy", url, "--yes")
    assert 1 == refused.exit_code
    assert "fork" in refused.stderr
    assert answer("log", "destroy", target, "--yes")["objects"] > 0
    assert "is gone" in call("log", "destroy", url, "--yes").stdout
    assert "no log named" in call("log", "read", url).stderr


def test_a_copy_is_equal(url, tmp_path):
    """The same records at the same offsets, proved by their sum."""
    target = f"file://{tmp_path}/elsewhere/orders"
    made = answer("log", "copy", url, target)
    assert (5, 5) == (made["records"], made["fragments"])
    assert call("log", "read", url).stdout == call("log", "read", target).stdout
    assert made["setsum"] == answer("log", "scrub", target, "--deep")["setsum"]
    assert "exists" in call("log", "copy", url, f"file://{tmp_path}/orders").stderr


def test_it_is_said_where_whole_fragments_make_it_more(tmp_path):
    """Of a pin, a fork and a copy: they begin where a fragment begins."""
    url = f"file://{tmp_path}/two"
    call("log", "append", url, "--create", given="1\n2\n3\n")
    call("log", "append", url, given="4\n5\n")
    held = "pin p holds [1, 4) for 60 s\nasked for [2, 3): fragments are held whole\n"
    assert held == call("log", "pin", "add", url, "p", "2", "3", "--ttl-s", "60").stdout
    exact = call("log", "pin", "add", url, "q", "1", "4", "--ttl-s", "60").stdout
    assert "pin q holds [1, 4) for 60 s\n" == exact
    for verb, how in (("fork", "shared"), ("copy", "copied")):
        told = call("log", verb, url, f"{url}-{verb}-5", "--start", "5").stdout
        assert f"asked for 5, begins at 4: fragments are {how} whole" in told
        assert "asked" not in call("log", verb, url, f"{url}-{verb}-1", "--start", "1").stdout
        assert 4 == answer("log", verb, url, f"{url}-{verb}", "--start", "5")["oldest_offset"]


def test_destroy_asks_first(url):
    """Without a yes nothing goes; and a program that wants JSON gets it, not a question."""
    asked = call("log", "destroy", url, given="n\n")
    assert 1 == asked.exit_code
    assert "5 records" in asked.stderr
    refused = call("log", "destroy", url, "--json", given="y\n")
    assert 2 == refused.exit_code
    assert "--yes" in refused.stderr
    assert "usage" == json.loads(refused.stdout)["error"]
    assert 5 == len(call("log", "read", url).stdout.splitlines())
