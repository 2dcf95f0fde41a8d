"""`cordwood store`: is this a store one can build on?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from cordwood.base import portal
from cordwood.cli.output import command, console, plain, print_json
from cordwood.store.probe import probe
from cordwood.store.url import Store


@click.group()
def store() -> None:
    """Look at a store."""


@store.command("probe")
@click.argument("url")
@command
def probe_store(url: str, *, as_json: bool) -> None:
    """Check that the store at URL keeps its promises: conditional puts, reads after writes, lists.

    It writes a few small objects under a name of its own and deletes them again.
    """
    report = portal.current().run(probe(Store(url)))
    if as_json:
        print_json({"url": url, "ok": report.ok, **_fields(report)})
    else:
        table = Table(title=plain(f"store {url}"), title_justify="left")
        table.add_column("promise")
        table.add_column("kept")
        table.add_column("seen")
        for check in report.checks:
            table.add_row(check.name, "[green]yes" if check.ok else "[red]NO", plain(check.detail))
        console().print(table)
        console().print(
            "[green]This store can hold logs." if report.ok else "[red]Do not keep logs here."
        )
    if not report.ok:
        sys.exit(1)


def _fields(report: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if name != "ok"}
