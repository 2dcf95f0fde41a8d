"""Where a job is done: the option that every command has which may use Spark."""

from __future__ import annotations

import click

from cordwood.pipeline.engine import AUTO

engine_option = click.option(
    "--engine",
    type=click.Choice([AUTO, "local", "spark"]),
    default=AUTO,
    show_default=True,
    help="Where the work is done; auto: here below 1 GB, on Spark above if it can run.",
)
