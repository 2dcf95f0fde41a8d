"""Commands around Spark: so far, how fast logs are read into it."""

from __future__ import annotations

import click

from cordwood.cli.bench.commands import print_nested
from cordwood.cli.bench.sparkread import read
from cordwood.cli.output import command


@click.group()
def spark() -> None:
    """Logs and Spark."""


@spark.group()
def bench() -> None:
    """Measure the connector, each figure beside Spark's own reader in the same run."""


@bench.command("read")
@click.option("--record", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--megabytes", type=click.IntRange(1), default=768, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@command
def bench_read(*, record: int, megabytes: int, repeats: int, as_json: bool) -> None:
    """Read a log, and the same files as plain Parquet."""
    print_nested("read", read(record, megabytes, repeats), as_json=as_json)
