"""`cordwood index bench`: the index beside other search engines."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cordwood.base.lazy import lazily
from cordwood.cli.output import command, console, print_json


@click.command()
@click.option(
    "--documents",
    "lengths",
    type=click.Choice(["short", "long", "both"]),
    default="both",
    show_default=True,
    help="Paragraphs, or whole files.",
)
@click.option(
    "--megabytes", type=click.IntRange(min=1), default=100, show_default=True, help="Of text."
)
@click.option("--queries", type=click.IntRange(min=1), default=40, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@command
def bench(*, lengths: str, megabytes: int, queries: int, repeats: int, as_json: bool) -> None:
    """Build and ask the index beside tantivy, SQLite FTS5 and bm25s, where they are installed.

    The text is that of this machine: the sources and documents of Python and of what is installed
    with it. Nothing is kept.
    """
    compare = lazily("cordwood.cli.bench.index", "compare")
    chosen = ("short", "long") if lengths == "both" else (lengths,)
    screen = Console(stderr=True)
    if as_json or not screen.is_terminal:
        result = compare(chosen, megabytes, queries, repeats, lambda _: None)
    else:
        with screen.status("starting") as status:
            result = compare(chosen, megabytes, queries, repeats, status.update)
    if as_json:
        print_json(result)
        return
    for length in chosen:
        _draw(length, result[length])
    table = _table("of tantivy's", "", "reached", "wanted")
    for name, bar in result["bars"].items():
        wanted = [f"{word} {bar[word]}" for word in ("at least", "at most") if word in bar]
        table.add_row(name, f"{bar['reached']:g}", *wanted)
    console().print(table)


def _draw(length: str, part: dict[str, Any]) -> None:
    """What one kind of documents gave."""
    facts = "  ".join(f"{name} {count:,}" for name, count in part["corpus"].items())
    console().print(f"{length} documents: {facts}")
    if part["missing"]:
        console().print(f"not installed: {', '.join(part['missing'])}")
    table = _table("building", "", "CPU s", "tokens/CPU s", "bytes/token", "of tantivy's speed")
    for name, figures in part["build"].items():
        numbers = (figures[key] for key in ("cpu_s", "tokens_per_cpu_s", "bytes_per_token"))
        speed = figures.get("speed_of_tantivys", "")
        table.add_row(name, *(f"{number:,}" for number in numbers), str(speed))
    console().print(table)
    rows = part["queries"]
    for group, title in (("best_us", "the ten best, µs"), ("sets_us", "without ranking, µs")):
        names = list(dict.fromkeys(name for row in rows.values() for name in row[group]))
        columns = [name.replace("_", " ") for name in names]
        is_best = group == "best_us"
        table = _table(title, "", *columns, *(["of tantivy's"] if is_best else []))
        for name, row in rows.items():
            cells = [str(row[group].get(key, "")) for key in names]
            if is_best:
                cells.append(str(row.get("of_tantivys", "")))
            table.add_row(name, *cells)
        console().print(table)
    for peer in part["build"]:
        counted = [
            row["equal_counts"][peer] for row in rows.values() if peer in row["equal_counts"]
        ]
        if counted:
            equal, asked = (sum(one[key] for one in counted) for key in ("equal", "of"))
            console().print(
                f"{peer} finds as many documents as we do for {equal} of {asked} queries"
            )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table
