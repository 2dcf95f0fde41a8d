"""The stress test finds what it is made to find, and nothing where there is nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cordwood import sync
from cordwood.base.errors import NotFoundError
from cordwood.cli.main import cli
from cordwood.cli.stress import run as stress_run
from cordwood.cli.stress import work
from cordwood.cli.stress.streams import MARKER, Follower, after, begin, choose, record
from cordwood.cli.stress.work import Plan


def chain(stream, count):
    """The first records of a stream."""
    place, bodies = begin(stream), []
    for _ in range(count):
        bodies.append(record(stream, place))
        place = after(place)
    return bodies


def complaints(bodies):
    """What a follower says of these records."""
    follower = Follower()
    found = [follower.check(i, body) for i, body in enumerate(bodies, 1)]
    return [i for i, wrong in enumerate(found) if wrong is not None], follower


def test_two_streams_in_order_are_right():
    """However they are mixed; markers belong to none."""
    a, b = chain("a", 3), chain("b", 2)
    wrong, follower = complaints([a[0], b[0], MARKER + b"x", a[1], b[1], a[2]])
    assert [] == wrong
    assert {"a": 3, "b": 2} == {name: place.number for name, place in follower.places.items()}


@pytest.mark.parametrize(
    "broken",
    [
        lambda a: [a[0], a[2]],
        lambda a: [a[0], a[0], a[1]],
        lambda a: [a[1], a[0]],
        lambda a: [a[0], a[1][:-1] + b"!"],
    ],
    ids=["lost", "doubled", "out of order", "changed"],
)
def test_anything_else_is_a_violation(broken):
    """Lost, doubled, out of order, changed."""
    wrong, _ = complaints(broken(chain("a", 3)))
    assert wrong


def test_the_end_is_watched_as_well():
    """What was durable and is not there at all is missed."""
    _, follower = complaints(chain("a", 2))
    assert [] == follower.behind({"a": 2})
    assert ["stream a: 3 records were durable, 2 were read"] == follower.behind({"a": 3})
    assert 1 == len(follower.behind({"b": 1}))


def test_some_streams_are_popular():
    """The first tenth of the streams gets more than half of the records."""
    chosen = [choose(100, i / 1000) for i in range(1000)]
    assert {0, 99} <= set(chosen)
    assert 500 < sum(stream < 10 for stream in chosen)


async def run_in_memory(name, seconds=4.0, protocol="cas"):
    """A short stress test without processes."""
    plan = Plan(f"memory:{name}/log", 20, 400.0, "seed")
    stress = stress_run.Stress(
        plan, writers=2, readers=2, kill=False, progress=lambda _: None, protocol=protocol
    )
    return await stress.run(seconds)


@pytest.mark.parametrize("protocol", ["cas", "chain"])
async def test_a_sound_log_has_no_violations(monkeypatch, protocol):
    """Records are appended, read and collected, and every one was what it must be."""
    monkeypatch.setattr(work, "KEPT_RECORDS", 50)
    report = await run_in_memory(f"stress-sound-{protocol}", protocol=protocol)
    assert [] == report.examples
    assert 0 < report.collected < report.appended
    assert report.read == report.verified > 0


async def test_a_map_that_comes_too_late_is_noticed(monkeypatch):
    """A collection that is revealed before its map is written leaves readers without a start."""

    async def forget(*_):
        """Write no map."""

    monkeypatch.setattr(work, "KEPT_RECORDS", 50)
    monkeypatch.setattr(work, "_save_map", forget)
    report = await run_in_memory("stress-late")
    assert any("too early" in example for example in report.examples)


async def test_lost_records_are_noticed(monkeypatch):
    """A writer that skips a record that its log said was durable is caught by every reader."""
    real = work.after

    def skipping(place):
        """Lose one in twenty."""
        return real(real(place)) if place.number % 20 == 19 else real(place)

    monkeypatch.setattr(work, "after", skipping)
    report = await run_in_memory("stress-lost")
    assert report.violations > 0
    assert "expected" in report.examples[0]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["cas", "chain"])
def test_killed_writers_and_collectors_break_nothing(tmp_path, protocol):
    """Real processes, really killed; the command says so in JSON and by its exit code."""
    # EVIDENCE-OF: G-1
    command = ["log", "stress", f"file://{tmp_path}/log", "--seconds", "8", "--kill", "--json"]
    result = CliRunner().invoke(cli, [*command, "--protocol", protocol])
    report = json.loads(result.stdout)
    assert (0, 0) == (result.exit_code, report["violations"])
    assert report["faults"] == report["kills"] > 0
    assert report["verified"] > 0


WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "cordwood", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_stopped_it_says_what_it_saw(tmp_path):
    """Ctrl-C at a terminal, for all of its processes: a report, and no complaint of any of them."""
    url = f"file://{tmp_path}/log"
    command = [sys.executable, "-c", WITH_CTRL_C, "log", "stress", url, "--seconds", "0", "--json"]
    pipe = subprocess.PIPE
    log = sync.Log.from_url(url)
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        while process.poll() is None:
            try:
                if log.state().next_offset > 100:
                    break
            except NotFoundError:
                continue
        os.killpg(process.pid, signal.SIGINT)
        said, complaint = process.communicate(timeout=120)
    report = json.loads(said)
    assert (0, b"", 0) == (process.returncode, complaint, report["violations"])
    assert report["appended"] > 0


def test_a_log_with_other_records_is_left_alone(tmp_path):
    """One clear line, and nothing is written."""
    url = f"file://{tmp_path}/orders"
    runner = CliRunner()
    assert 0 == runner.invoke(cli, ["log", "append", url, "--create"], input=b"mine\n").exit_code
    result = runner.invoke(cli, ["log", "stress", url, "--seconds", "1"])
    assert 1 == result.exit_code
    assert "holds records of its own" in result.stderr


def test_a_memory_store_has_no_processes_to_kill():
    """One clear line."""
    result = CliRunner().invoke(cli, ["log", "stress", "memory:x/log", "--kill"])
    assert 1 == result.exit_code
    assert "no processes to kill" in result.stderr
