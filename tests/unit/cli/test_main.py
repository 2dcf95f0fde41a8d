"""The command itself: what it offers, what it loads, and what it says of a missing extra."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from cordwood.base.errors import StateError
from cordwood.cli import main
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


def test_a_missing_extra_is_named(monkeypatch):
    """The command that needs it says what to install; the list of commands is whole."""

    def missing(module, name):
        """As without `cordwood[search]`."""
        raise StateError(f"{name} needs ducer", hint="pip install 'cordwood[search]'")

    monkeypatch.setattr(main, "lazily", missing)
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
