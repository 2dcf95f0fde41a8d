"""The command itself: `cordwood <noun> <verb>`."""

from __future__ import annotations

import click

from cordwood import __version__
from cordwood.cli.collection import collection
from cordwood.cli.demo import demo
from cordwood.cli.fleet import fleet
from cordwood.cli.index import index
from cordwood.cli.log import log
from cordwood.cli.pipeline import pipeline
from cordwood.cli.spark import spark
from cordwood.cli.store import store
from cordwood.cli.table import table


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cordwood")
def cli() -> None:
    """Ordered, verifiable logs in plain files on an object store.

    A store is named by a URL: file:///data/wood, s3://bucket/prefix, gs://bucket/prefix,
    az://container/prefix. A log is named by its store's URL, a slash, and its own name:
    file:///data/wood/orders.
    """


cli.add_command(collection)
cli.add_command(demo)
cli.add_command(fleet)
cli.add_command(index)
cli.add_command(log)
cli.add_command(pipeline)
cli.add_command(spark)
cli.add_command(store)
cli.add_command(table)


def main() -> None:
    """Run the command line."""
    cli(prog_name="cordwood")
