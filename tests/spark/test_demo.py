"""The demonstration on Spark gives what it gives without."""

from __future__ import annotations

import json

from click.testing import CliRunner

from cordwood.cli.main import cli


def test_demo_on_spark(spark, tmp_path):
    """Compaction, query and proof by Spark."""
    result = CliRunner().invoke(cli, ["demo", "--json", "--directory", str(tmp_path / "demo")])
    assert 0 == result.exit_code, result.output
    found = json.loads(result.stdout)
    assert ("spark", True, True) == (found["engine"], found["logs_ok"], found["equal"])
    assert (22_800, 10_800, 200) == (found["records"], found["rows"], found["left"])
