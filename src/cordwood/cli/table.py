"""`cordwood table`: look at tables, read them, prove them, delete what nobody needs."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec
import pyarrow.parquet as pq
from rich.table import Table as Drawing

from cordwood.base.errors import InvalidInputError
from cordwood.cli.output import (
    as_text,
    byte_progress,
    command,
    console,
    count_progress,
    print_json,
    print_line,
    printing_command,
    size,
    text_of,
    whole_file,
)
from cordwood.pipeline.columns import SCHEMA
from cordwood.sync import Table

FILES_MAX = 20
"""Files that are shown; `--json` gives all."""


@click.group()
def table() -> None:
    """Work with tables that compactions made."""


@table.command()
@click.argument("url")
@command
def show(url: str, *, as_json: bool) -> None:
    """Show what the table at URL holds: how much of which logs, in which files."""
    named = Table.from_url(url)
    doc = named.state()
    if as_json:
        print_json({"url": named.url, "rows": doc.rows} | msgspec.to_builtins(doc))
        return
    screen = console()
    screen.print(f"[bold]{named.url}[/]  {doc.mode}")
    screen.print(f"{doc.rows:,} rows in {len(doc.files):,} files, {size(doc.bytes)}")
    if doc.dropped:
        screen.print(f"{len(doc.dropped):,} files were replaced and wait for their readers")
    for position in sorted(doc.positions.values(), key=lambda one: one.log):
        screen.print(f"log {position.log}: offsets [{position.first:,}, {position.limit:,})")
    drawing = Drawing("file", "rows", "size", "setsum")
    for file in doc.files[:FILES_MAX]:
        drawing.add_row(file.path, f"{file.rows:,}", size(file.bytes), file.setsum[:8])
    screen.print(drawing)
    if len(doc.files) > FILES_MAX:
        screen.print(f"and {len(doc.files) - FILES_MAX:,} more; --json lists them all")


@table.command()
@click.argument("url")
@click.option("-n", "--limit", type=click.IntRange(0), help="End after so many rows.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A .parquet file.")
@printing_command
def read(url: str, *, limit: int | None, output: Path | None, as_json: bool) -> None:
    """Print the rows of the table at URL, or write them into one Parquet file."""
    named = Table.from_url(url)
    if output is not None:
        if output.suffix != ".parquet" or limit is not None:
            raise InvalidInputError(f"{output}: a .parquet file gets all rows")
        total = sum(file.rows for file in named.files())
        with (
            count_progress("read", shown=not as_json) as advance,
            whole_file(output) as draft,
            pq.ParquetWriter(draft, SCHEMA) as writer,
        ):
            count = 0
            for part in named.scan():
                writer.write_table(part)
                count += part.num_rows
                advance(count, total)
        if as_json:
            print_json({"rows": count, "output": str(output)})
        else:
            click.echo(f"wrote {count:,} rows into {output}")
        return
    left = limit
    for part in named.scan():
        rows = part if left is None else part.slice(0, left)
        left = None if left is None else left - rows.num_rows
        for row in rows.to_pylist():
            if as_json:
                row["timestamp"] = row["timestamp"].isoformat()
                headers = row.pop("headers")
                named_headers = {h["name"]: h["value"] for h in headers or ()}
                found = row | {"headers": named_headers if headers is not None else None}
                kept = {name: value for name, value in found.items() if value is not None}
                print_json(as_text(kept, "body", "key", "headers"))
            else:
                key = "" if row["key"] is None else text_of(row["key"])
                print_line(f"{row['log']}\t{row['offset']}\t{key}\t{text_of(row['body'])}")
        if left == 0:
            return


@table.command()
@click.argument("url")
@command
def scrub(url: str, *, as_json: bool) -> None:
    """Read every file of the table at URL, and compare it with its checksum and its setsum."""
    named = Table.from_url(url)
    with byte_progress("scrub", 0, shown=not as_json) as progress:
        faults = named.scrub(progress)
    if as_json:
        print_json({"ok": not faults, "errors": faults})
    else:
        for fault in faults:
            click.echo(f"  {fault}", err=True)
        click.echo(f"DAMAGED in {len(faults)} places" if faults else "whole: every row checked")
    if faults:
        sys.exit(1)


@table.command()
@click.argument("url")
@command
def sweep(url: str, *, as_json: bool) -> None:
    """Delete the files of the table at URL that nobody needs any more."""
    report = Table.from_url(url).sweep()
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        click.echo(
            f"deleted {report.dropped:,} replaced files and {report.orphans:,} that nobody named, "
            f"{size(report.bytes)}; {report.waiting:,} wait for their readers, "
            f"{report.young:,} may still be named"
        )
