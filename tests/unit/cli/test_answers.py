"""What a command says when its answer cannot be written, or nobody is there to read it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cordwood import sync

PATIENCE_S = 60
FULL = "/dev/full"
NO_SPACE = "the answer could not be written: No space left on device"

pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason=f"there is no {FULL}")


def full(*words, given=b""):
    """Run a command whose answer has no place; its exit code and what it says of that."""
    command = [sys.executable, "-m", "cordwood", *words]
    with open(FULL, "wb") as nowhere:
        done = subprocess.run(
            command,
            input=given,
            stdout=nowhere,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_S,
        )
    (line,) = done.stderr.decode().splitlines()
    return done.returncode, line.removeprefix("cordwood: ")


@pytest.fixture
def log(url):
    """A log with one record."""
    log = sync.Log.from_url(url)
    log.create()
    with log.writer() as writer:
        writer.append(b"a")
    return log


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_an_append_without_an_answer_says_its_offsets(log, json):
    """So nobody appends the same records again."""
    expected = f"appended 2 records, offsets 2 to 3; only {NO_SPACE}"
    assert (1, expected) == full("log", "append", log.url, *json, given=b"x\ny\n")
    assert 4 == log.state().next_offset


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_command_without_an_answer_is_done_all_the_same(log, json):
    """It says so in one line, and exits with 1."""
    done = f"the work was done, and only {NO_SPACE}"
    assert (1, done) == full("log", "cursor", "set", log.url, "c", "1", *json)
    assert {"c": 1} == log.state().cursors
    assert (1, done) == full("log", "show", log.url, *json)
    assert (1, NO_SPACE) == full("log", "read", log.url, *json)


def test_an_error_without_an_answer_is_the_same_error(log):
    """With --json it would be in the answer as well."""
    code, line = full("log", "read", log.url + "-not", "--json")
    assert (1, True) == (code, line.startswith("there is no log named"))
    code, line = full("log", "read", "--json")
    assert (2, True) == (code, line.startswith("Missing argument"))


def test_help_without_a_place(tmp_path):
    """What no command prints is told alike; a search has exit codes of its own."""
    assert (1, NO_SPACE) == full("log", "read", "--help")
    assert (1, NO_SPACE) == full("--version")
    (tmp_path / "a.txt").write_text("wood\n")
    assert (2, NO_SPACE) == full("grep", "wood", str(tmp_path))
    assert (2, NO_SPACE) == full("grep", "wood", str(tmp_path), "--no-index", "--json")


def test_help_that_nobody_reads_is_no_error():
    """As in `--help | true`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "cordwood", "log", "read", "--help"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
    )
    os.close(write)
    assert (0, b"") == (done.returncode, done.stderr)


def shell(line, *words):
    """What a shell says of a line, in which `cordwood` is followed by its words."""
    command = ["sh", "-c", line, sys.executable, "-m", "cordwood", *words]
    return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)


def test_a_closed_output_holds_up_nothing(log):
    """Whoever closes it wants no answer."""
    for verb in ("read", "show"):
        done = shell('"$0" "$@" >&-', "log", verb, log.url)
        assert (0, b"") == (done.returncode, done.stderr)


@pytest.mark.parametrize("words", [("log", "append"), ("topic", "produce", "wood")])
def test_a_closed_input_is_a_wrong_call(words, log):
    """In one line."""
    done = shell('"$0" "$@" <&-', *words, log.url)
    (line,) = done.stderr.decode().splitlines()
    assert (2, True) == (done.returncode, "standard input is closed" in line)
    assert 2 == log.state().next_offset


def test_ctrl_c_while_the_command_is_loaded_is_quiet(log):
    """However early: modules may be in the middle of anything."""
    begun = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from cordwood.cli import start
def guard(then=start.guard):
    threading.Timer(float(sys.argv.pop(1)), os.kill, [os.getpid(), signal.SIGINT]).start()
    then()
start.guard = guard
start.main()
"""
    for delay in ("0.001", "0.01", "0.03", "0.06"):
        command = [sys.executable, "-c", begun, delay, "log", "tail", log.url]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
        assert (130, b"") == (done.returncode, done.stderr)
