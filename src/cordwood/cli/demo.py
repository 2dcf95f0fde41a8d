"""`cordwood demo`: the main job in half a minute, on a local directory."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from cordwood.cli.output import command, console, print_json, size
from cordwood.cli.tree import draw
from cordwood.log.reader import Limits
from cordwood.sync import Log, Store

ORDERS = 20_000
ORDERS_PER_BATCH = 250


def orders() -> Iterator[bytes]:
    """A sample data set that is the same every time: orders of a small shop."""
    goods = ("axe", "saw", "wedge", "maul", "gloves", "chain", "file", "rope")
    towns = ("Oslo", "Turku", "Umeå", "Riga", "Narvik")
    for number in range(1, ORDERS + 1):
        order = {
            "order": number,
            "item": goods[number * 7 % len(goods)],
            "town": towns[number * 3 % len(towns)],
            "price": round(40 + 25 * math.sin(number / 50), 2),
        }
        yield msgspec.json.encode(order)


def _program() -> str:
    """How this command was called, so that what we print can be copied."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "cordwood" else "python -m cordwood"


def _silence(_: object) -> None:
    """With --json only the result is printed."""


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cordwood-demo"),
    show_default=True,
    help="Where to put the demonstration's log; replaced if it is one of an earlier run.",
)
@command
def demo(directory: Path, *, as_json: bool) -> None:
    """Create a log in a directory, append a sample data set, read it back and prove it."""
    say = _silence if as_json else console().print
    marker = directory / "cordwood-demo.txt"
    if directory.exists() and any(directory.iterdir()):
        if not marker.exists():
            raise click.ClickException(f"{directory} is not a demonstration's: choose another")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text("Made by `cordwood demo`; may be deleted.\n", encoding="utf-8")

    store = Store(str(directory.resolve()))
    log = Log(store, "orders")
    say(f"[bold]1. Create[/] the log {log.url}")
    log.create()

    say(f"[bold]2. Append[/] {ORDERS:,} orders, {ORDERS_PER_BATCH} to an atomic batch")
    with log.writer() as writer:
        batch: list[bytes] = []
        for body in orders():
            batch.append(body)
            if len(batch) == ORDERS_PER_BATCH:
                writer.append_many(batch)
                batch = []

    say("[bold]3. Read[/] some of them back")
    with log.reader() as reader:
        for record in reader.read(start=10_000, limits=Limits(max_records=3)):
            say(f"   offset {record.offset}: {record.body.decode()}")

    say("[bold]4. Prove[/] that every record is as it was appended")
    report = log.scrub(deep=True)
    same = list(orders())
    with log.reader() as reader:
        equal = [record.body for record in reader.read()] == same
    say(
        f"   {report.records:,} records in {report.fragments} fragments, {size(report.bytes)}: "
        f"{'whole' if report.ok else 'DAMAGED'}, "
        f"{'equal to' if equal else 'DIFFERENT from'} what was appended"
    )
    say(f"   setsum {report.setsum.hexdigest()}")

    say("[bold]5. Look[/] at the manifest tree")
    say(draw(log, log.manifest(), depth=1))
    say(f"\nTry it yourself:\n  {_program()} log show {log.url}")
    say(f"  {_program()} log tail {log.url} --start 19990 -n 5")
    if as_json:
        print_json(
            {
                "url": log.url,
                "records": report.records,
                "fragments": report.fragments,
                "bytes": report.bytes,
                "setsum": report.setsum.hexdigest(),
                "whole": report.ok,
                "equal": equal,
            }
        )
    if not (report.ok and equal):
        raise click.ClickException("the demonstration failed")
