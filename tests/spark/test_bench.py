"""The benchmark of reads runs, and compares what it should."""

from __future__ import annotations

import json

from click.testing import CliRunner

from cordwood.cli.main import cli


def test_reads_are_measured_beside_sparks_own_reader(spark):
    """All three give the same records first; delta-encoded offsets are BIGINT for both."""
    words = ["spark", "bench", "read", "--megabytes", "8", "--repeats", "1", "--json"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["records"] == 8192
    assert found["unverified"]["reach"] == 0.9
    for name in ("parquet", "unverified", "verified"):
        assert found[name]["wall_s"] > 0
        assert found[name]["cpu_ratio"] > 0
