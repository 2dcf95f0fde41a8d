"""What somebody else wrote, on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from cordwood import sync
from cordwood.base.errors import NotFoundError

BODY = b"a\tb \x1b[31mred\x1b[0m\x07 \xc2\x9b1m \xff"
PATIENCE_S = 60


@pytest.fixture
def log(url):
    """A log whose one record would colour a terminal."""
    log = sync.Log.from_url(url)
    log.create()
    with log.writer() as writer:
        writer.append(BODY)
    return log


def on_terminal(*words, **environment):
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cordwood", *words]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, env=os.environ | environment
    ) as process:
        os.close(theirs)
        found = b""
        try:
            while data := os.read(ours, 65_536):
                found += data
        except OSError:  # That is how a terminal ends.
            pass
        assert 0 == process.wait(PATIENCE_S)
    os.close(ours)
    return found.replace(b"\r\n", b"\n")


def asked(words, act):
    """Run a command that asks on a terminal, and act on it then; its exit code."""
    ours, theirs = pty.openpty()
    # As in the foreground of a shell: Ctrl-C is not ignored.
    begun = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    begun += "runpy.run_module('cordwood', run_name='__main__')"
    command = [sys.executable, "-c", begun, *words]
    with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE) as process:
        said = b""
        while b"[y/N]" not in said:
            said += process.stderr.read1() or pytest.fail(said.decode())
        act(process, ours)
        rest = process.stderr.read()
        code = process.wait(PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    assert b"Traceback" not in rest
    return code


def stop(process, _):
    """Press Ctrl-C until it is noticed: one just before the wait for an answer is not."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda _, terminal: os.write(terminal, b"n\n"), 1),
        (stop, 130),
        (lambda _, terminal: os.write(terminal, b"y\n"), 0),
    ],
    ids=["no", "Ctrl-C", "yes"],
)
def test_destroy_asks_first(log, act, code):
    """And leaves everything as it is unless the answer is yes."""
    assert code == asked(["log", "destroy", log.url], act)
    if code:
        assert 1 == log.state().records
    else:
        with pytest.raises(NotFoundError):
            log.state()


def in_pipe(*words):
    """What it prints where a program reads it."""
    command = [sys.executable, "-m", "cordwood", *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout


def test_a_pipe_gets_every_byte_of_a_text(log):
    """Escape sequences are data; only what is no UTF-8 is printed in other words."""
    expected = b"1\t" + BODY.replace(b"\xff", rb"\xff") + b"\n"
    assert expected == in_pipe("log", "read", log.url)
    assert expected == in_pipe("log", "tail", log.url, "--start", "1", "-n", "1")


def test_a_terminal_obeys_no_record(log):
    """Control characters other than tabs are shown."""
    expected = rb"a\tb \x1b[31mred\x1b[0m\x07 \x9b1m \xff".replace(rb"\t", b"\t")
    assert b"1\t" + expected + b"\n" == on_terminal("log", "read", log.url)
    (line,) = on_terminal("log", "read", log.url, "--json").splitlines()
    assert b"\x1b" not in line
    assert 1 == json.loads(line)["offset"]


def test_a_topic_is_shown_alike(tmp_path):
    """Its values are bytes in a pipe; as JSON they are the same on both."""
    place = str(tmp_path / "wood")
    with sync.Topics(place) as topics:
        topics.create("shop", "clicks")
        with topics.producer("shop", "clicks") as producer:
            producer.send(BODY)
            producer.send("\x9b".encode())
    words = ("topic", "consume", place, "shop/clicks")
    assert BODY + b"\n\xc2\x9b\n" == in_pipe(*words)
    first, second = on_terminal(*words).splitlines()
    assert b"\\x1b[31mred" in first
    assert rb"\x9b" == second
    _, second = on_terminal(*words, "--json").splitlines()
    assert b"\xc2\x9b" not in second
    assert "\x9b" == json.loads(second)["value"]


@pytest.mark.parametrize("columns", ["0", "1"])
def test_a_terminal_without_a_width_shows_a_table_all_the_same(log, columns):
    """Somebody's shell may say that it has no columns."""
    log.cursors.init("billing", 1)
    assert b"billing" in on_terminal("log", "cursor", "list", log.url, COLUMNS=columns)


def test_a_table_in_a_pipe_has_whole_names(log):
    """However long they are; and it is not as wide as it might be."""
    name = "c" * 120
    log.cursors.init(name, 1)
    shown = in_pipe("log", "cursor", "list", log.url).decode()
    assert name in shown
    assert all(len(line) < 200 for line in shown.splitlines())


def test_who_is_to_type_lines_is_told(log):
    """A command that waits for a terminal looks as if it hung; a file is not waited for."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cordwood", "log", "append", log.url]
    with subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert b"reading lines from the terminal; Ctrl-D ends" in process.stderr.readline()
        os.write(ours, b"typed\n\x04")
        assert b"appended 1 record, offset 2\n" == process.stdout.read()
        assert (b"", 0) == (process.stderr.read(), process.wait(PATIENCE_S))
    os.close(ours)
    os.close(theirs)
