"""The benchmarks of slow tails and of streams: small runs, and what they must show."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from cordwood.cli.bench.tail import tail
from cordwood.cli.main import cli
from cordwood.store.hedged import HEDGES_PER_S


@pytest.mark.parametrize("seed", [1, 2])
def test_hedging_halves_the_tail(seed):
    """A writer over a store of which one put in a hundred is late: p99 is at most half."""
    # EVIDENCE-OF: G-105
    result = tail(rate=400, body_bytes=100, seconds=60, seed=seed)
    assert result["p99_plain_over_hedged"] >= 2
    assert result["hedged"]["p50_ms"] <= 1.05 * result["plain"]["p50_ms"]
    assert 0 < result["hedged"]["hedges_per_s"] <= HEDGES_PER_S
    assert 24_000 == result["plain"]["appends"] == result["hedged"]["appends"]


def run(*arguments):
    """The JSON that a command prints."""
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert 0 == result.exit_code, result.output
    return json.loads(result.output)


def test_the_commands():
    """Small ones of both."""
    small = ("--rate", "100", "--seconds", "3")
    assert {"plain", "hedged"} < set(run("log", "bench", "tail", *small))
    sizes = ("--fragments", "60", "--streams", "300", "--per-fragment", "20", "--reads", "40")
    found = run("log", "bench", "streams", *sizes)
    assert found["fragments_touched"] <= 1.02 * found["fragments_that_hold_them"]
