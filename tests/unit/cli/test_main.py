"""The command itself: what it offers, what it loads, and what it says of a missing extra."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from cordwood import sync
from cordwood.base.errors import StateError
from cordwood.cli import later
from cordwood.cli.later import LaterGroup
from cordwood.cli.main import COMMANDS, cli


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_asked_for_help(name):
    """Each is found under its name, and says what it does."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"Usage: cli {name}" in result.output


def test_a_command_that_is_none_is_refused():
    """With a line, and the exit code of a wrong call."""
    result = CliRunner().invoke(cli, ["grab"])
    assert result.exit_code == 2
    assert "No such command 'grab'" in result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["log", "create"], "Missing argument 'URL'"),
        (["log", "create", "--frob", "x"], "--frob"),
        (["log", "create", "x", "--protocol", "paxos"], "'cas', 'chain'"),
        (["log", "create", "x", "--grace-s", "-1"], "-1 is not in the range x>=1"),
        (["log", "pin", "add", "x", "p", "1", "2", "--ttl-s", "0"], "0 is not in the range 1<=x<="),
        (["log", "create", "x", "--exist_ok"], "Did you mean '--exist-ok'? `"),
        (["log", "read", "x", "-n", "many"], "'many' is not a valid integer"),
        (["log", "frobnicate"], "No such command 'frobnicate'"),
        (["grep"], "give a PATTERN"),
        (["log", "bench", "latency", "--rate", "0"], "0.0 is not in the range x>0"),
        (["log", "bench", "scan", "--megabytes", "7"], "7 is not in the range x>=8"),
        (["log", "bench", "memory", "--logs", "0"], "0 is not in the range x>=1"),
        (["log", "stress", "--seconds", "-1"], "-1.0 is not in the range x>=0"),
        (["volume", "import", "file:///tmp/x/y", "/no/such/file"], "/no/such/file"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_call_is_one_line(words, expected, as_json):
    """On standard error, with an exit code; for a program it is an object, too."""
    result = CliRunner().invoke(cli, [*words, *(["--json"] if as_json else [])])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("cordwood: ")
    assert expected in line
    assert "--help" in line
    if as_json:
        assert "usage" == json.loads(result.stdout)["error"]
    else:
        assert "" == result.stdout


def test_an_error_is_one_line(tmp_path):
    """Message and hint, with and without --json."""
    words = ["log", "read", f"file://{tmp_path}/none"]
    for more in ([], ["--json"]):
        result = CliRunner().invoke(cli, [*words, *more])
        (line,) = result.stderr.splitlines()
        assert (1, True) == (result.exit_code, "no log named 'none'" in line)
        assert f"in file://{tmp_path}: none/" in line
        assert "create it first" in line
    assert "no_such_log" == json.loads(result.stdout)["error"]


def test_an_empty_url_is_told_in_a_sentence():
    """Message and hint are sentences."""
    result = CliRunner().invoke(cli, ["store", "probe", ""])
    assert result.stderr.startswith("cordwood: this is not a store URL. use a path, or ")


def test_a_bug_is_one_line(tmp_path, monkeypatch):
    """What nobody foresaw is told as one; with a variable set it shows where it is."""

    def break_down(*_):
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr(sync.Log, "state", break_down)
    monkeypatch.delenv("CORDWOOD_TRACEBACK", raising=False)
    words = ["log", "show", f"file://{tmp_path}/none", "--json"]
    result = CliRunner().invoke(cli, words)
    (line,) = result.stderr.splitlines()
    assert line.startswith("cordwood: ZeroDivisionError: by nothing. ")
    assert (1, "internal") == (result.exit_code, json.loads(result.stdout)["error"])
    monkeypatch.setenv("CORDWOOD_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(cli, words).exception, ZeroDivisionError)


def test_who_names_nothing_gets_the_help():
    """A noun without a verb is a question."""
    result = CliRunner().invoke(cli, ["log"])
    assert "scrub" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["spark.read_log", "spark.jobs.build_index", "sync.Log"])
def test_packages_are_there_with_the_first_import(name):
    """`import cordwood` is enough to say `cordwood.spark.read_log`."""
    code = f"import cordwood; assert callable(cordwood.{name})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_topics_need_no_extra():
    """They come with the base install; a volume names the extra that brings all it needs."""
    code = """
import sys
for name in "pyroaring ducer scipy google_crc32c apsw zstandard pyspark numba".split():
    sys.modules[name] = None
import cordwood, cordwood.cli.topic, cordwood.sync.topics
try:
    cordwood.Volume("memory:", "v")
except cordwood.StateError as error:
    assert "cordwood[sqlite]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_spark_without_pyspark_says_what_to_install():
    """The error names the extra."""
    code = """
import sys
sys.modules["pyspark"] = None
import cordwood
try:
    cordwood.spark.read_log(None, "memory:a/b")
except cordwood.StateError as error:
    assert "cordwood[spark]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_names_are_there_without_extras():
    """As in any package: to ask for one never fails, to use it says what to install."""
    code = """
import pickle, sys
for name in "pyroaring ducer scipy google_crc32c apsw zstandard pyspark numba deltalake".split():
    sys.modules[name] = None
import cordwood
from cordwood import *
from cordwood.sync import *
from cordwood.spark import *
from cordwood import Index, sync
for package in (cordwood, cordwood.sync, cordwood.spark):
    assert all(hasattr(package, name) for name in package.__all__)
    assert not hasattr(package, "nothing")
assert not isinstance(1, Index) and not hasattr(Index, "create")
absent = {"Collection": "search", "Index": "search", "Volume": "sqlite", "tend_volumes": "sqlite"}
for name, extra in absent.items():
    for package in (cordwood, sync):
        try:
            getattr(package, name)("/tmp/nothing", "x")
        except cordwood.StateError as error:
            assert f"cordwood[{extra}]" in str(error), error
            assert str(error) == str(pickle.loads(pickle.dumps(error)))
        else:
            raise AssertionError(name)
try:
    Index.create
except cordwood.StateError as error:
    assert "cordwood[search]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_missing_extra_is_named(monkeypatch):
    """The command that needs it says what to install; the list of commands is whole."""

    def missing(module, name):
        """As without `cordwood[search]`."""
        raise StateError(f"{name} needs ducer", hint="pip install 'cordwood[search]'")

    monkeypatch.setattr(later, "lazily", missing)
    result = CliRunner().invoke(cli, ["grep", "-i", "x", "--json"])
    assert result.exit_code == 1
    assert "cordwood[search]" in result.stdout
    assert "grep  " in CliRunner().invoke(cli, ["--help"]).output


def test_a_search_does_not_wait_for_the_rest():
    """What logs, Spark and building an index need is not loaded to look something up."""
    code = "import sys, cordwood.cli.main, cordwood.cli.grep; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = set(done.stdout.split())
    assert "cordwood.index.sources" in loaded
    assert set() == loaded & {"cordwood.log.log", "cordwood.spark", "obstore", "scipy", "numba"}


@pytest.mark.parametrize("words", ["", "log", "topic", "index", "volume"])
def test_what_a_list_says_of_a_command_is_what_the_command_says(words):
    """Though it is listed before it is loaded."""
    group = cli.get_command(click.Context(cli), words) if words else cli
    assert isinstance(group, LaterGroup)
    context = click.Context(group)
    for name, one in group.later.items():
        found = group.get_command(context, name)
        assert one.help == found.get_short_help_str(limit=1_000)
        assert found.name == name
    output = CliRunner().invoke(cli, [*words.split(), "--help"]).output
    listed = {line.split()[0] for line in output.splitlines() if line.startswith("  ")}
    assert set(group.list_commands(context)) <= listed


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ("", {"numpy", "pyarrow", "rich", "cordwood.log.log"}),
        (
            "log",
            {"pandas", "cordwood.cli.bench", "cordwood.pipeline.compact", "cordwood.fleet.fleet"},
        ),
        ("topic", {"pandas", "cordwood.cli.bench.topics", "cordwood.pipeline.compact"}),
        ("index", {"pandas", "cordwood.cli.bench.searching"}),
        ("volume", {"pandas", "cordwood.cli.bench.volume"}),
    ],
)
def test_help_does_not_wait_for_what_it_does_not_need(words, unwanted):
    """A list is there at once, and no command loads what another one needs."""
    code = f"""
import sys
from cordwood.cli.main import cli
try:
    cli.main({[*words.split(), "--help"]!r})
except SystemExit:
    print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert set() == set(done.stdout.split()) & unwanted
