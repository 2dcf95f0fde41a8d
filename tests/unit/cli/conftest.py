"""What the tests of the command line share: a way to run it, and a place for a log."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from cordwood.cli.main import cli


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in a directory of its own; text or JSON comes back."""
    monkeypatch.chdir(tmp_path)

    def invoke(*words, stdin=None, code=0):
        result = CliRunner().invoke(cli, [str(w) for w in words], input=stdin)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        if "--json" in words:
            lines = [json.loads(line) for line in result.stdout.splitlines()]
            return lines[0] if len(lines) == 1 else lines
        return result.output

    return invoke


@pytest.fixture
def url(tmp_path):
    """Where the log of a test lies."""
    return f"file://{tmp_path}/wood/orders"
