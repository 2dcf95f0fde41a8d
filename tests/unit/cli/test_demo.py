"""The demonstration where Spark does not start: the same jobs, in this process."""

from __future__ import annotations

from cordwood import StateError
from cordwood.spark.engine import SparkEngine


def test_demo_where_spark_does_not_start(run, monkeypatch):
    """It says so in a line and goes on."""

    async def fail(self):
        raise StateError("Spark does not start")

    monkeypatch.setattr(SparkEngine, "missing", "")
    monkeypatch.setattr(SparkEngine, "start", fail)
    shown = run("demo", "--directory", "shop")
    assert "Spark does not start. The same jobs run in this process instead." in shown
    assert "compact with engine local" in shown
    assert "table equal to what the writers said last" in shown
