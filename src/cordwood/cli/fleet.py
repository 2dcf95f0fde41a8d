"""`cordwood fleet`: which logs of a store need compaction, and what a fleet costs."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.table import Table

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.fleet import fleet as fleet_bench
from cordwood.cli.bench.harness import run
from cordwood.cli.output import command, console, plain, print_json, size
from cordwood.fleet.select import DEFAULT_POLICY, Dirty, Policy, reasons
from cordwood.fleet.survey import Survey
from cordwood.store.url import Store
from cordwood.sync.fleet import survey

ROWS_MAX = 50
"""Logs that a table shows; `--json` gives all."""

BAR_WIDTH = 12


@click.group()
def fleet() -> None:
    """Look after many logs of one store."""


@fleet.command()
@click.argument("store_url")
@click.option("--member", "names", multiple=True, help="Only this member; may be repeated.")
@click.option("--min-records", type=int, default=DEFAULT_POLICY.min_records, show_default=True)
@click.option("--min-bytes", type=int, default=DEFAULT_POLICY.min_bytes, show_default=True)
@click.option("--max-age-s", type=float, default=DEFAULT_POLICY.max_age_s, show_default=True)
@click.option("--max-reinserts", type=int, default=DEFAULT_POLICY.max_reinserts, show_default=True)
@command
def status(
    store_url: str,
    *,
    names: tuple[str, ...],
    min_records: int,
    min_bytes: int,
    max_age_s: float,
    max_reinserts: int,
    as_json: bool,
) -> None:
    """Show the members that write to the store at STORE_URL and which logs need compaction.

    A log is due because of its size, its age, or the roll-ups it has outlasted. Nothing is changed.
    """
    policy = Policy(
        min_records=min_records,
        min_bytes=min_bytes,
        max_age_s=max_age_s,
        max_reinserts=max_reinserts,
    )
    found = survey(Store(store_url), names or None)
    now_us = SYSTEM_CLOCK.now_us()
    if as_json:
        print_json(_facts(found, policy, now_us))
    else:
        _draw(found, policy, now_us)


@fleet.command()
@click.option("--logs", type=click.IntRange(min=1), default=1000, show_default=True)
@command
def bench(*, logs: int, as_json: bool) -> None:
    """Memory of open, idle logs, requests to open one, and the size of a mark."""
    result = run(lambda: fleet_bench(logs))
    if as_json:
        print_json(result)
        return
    table = Table(title=f"{logs:,} logs", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in result.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
    console().print(table)


def _facts(found: Survey, policy: Policy, now_us: int) -> dict[str, Any]:
    return {
        "members": [
            {
                "member": one.member,
                "marks": one.marks,
                "dirty": len(one.dirty),
                "clean": one.clean,
                "errors": one.errors,
                "damage": one.damage,
            }
            for one in found.members
        ],
        "logs": [
            {
                **msgspec.to_builtins(dirty),
                "num_records": dirty.num_records,
                "age_s": _age_s(dirty, now_us),
                "reasons": [str(reason) for reason in reasons(dirty, policy, now_us)],
            }
            for dirty in found.dirty
        ],
    }


def _draw(found: Survey, policy: Policy, now_us: int) -> None:
    screen = console()
    if not found.members:
        screen.print("no member of a fleet has written to this store")
        return
    for one in found.members:
        screen.print(
            f"[bold]{one.member}[/]  {one.marks:,} marks: {len(one.dirty):,} logs with something "
            f"to compact, {len(one.clean):,} without"
        )
        if one.damage:
            screen.print(f"  [red]cannot be rolled up:[/] {plain(one.damage)}")
        for name, why in sorted(one.errors.items()):
            screen.print(f"  [red]{plain(name)}:[/] {plain(why)}")
    dirty = found.dirty
    if not dirty:
        screen.print("nothing needs compaction")
        return
    table = Table(title="to compact, oldest first", title_justify="left")
    table.add_column("log")
    for column in ("records", "about", "age", "roll-ups"):
        table.add_column(column, justify="right")
    table.add_column("size")
    table.add_column("due because of")
    for one_log in dirty[:ROWS_MAX]:
        table.add_row(
            one_log.log,
            f"{one_log.num_records:,}",
            size(one_log.num_bytes),
            _span(_age_s(one_log, now_us)),
            f"{one_log.reinserts:,}",
            _bar(one_log, policy),
            ", ".join(reasons(one_log, policy, now_us)) or "[dim]not yet",
        )
    screen.print(table)
    if len(dirty) > ROWS_MAX:
        screen.print(f"and {len(dirty) - ROWS_MAX:,} more; --json lists them all")


def _age_s(dirty: Dirty, now_us: int) -> float:
    return max(0.0, (now_us - dirty.first_us) / 1_000_000)


def _bar(dirty: Dirty, policy: Policy) -> str:
    """How far a log is on its way to being due by size."""
    full = max(
        dirty.num_records / max(1, policy.min_records), dirty.num_bytes / max(1, policy.min_bytes)
    )
    filled = min(BAR_WIDTH, int(full * BAR_WIDTH))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


def _span(seconds: float) -> str:
    """A duration for people: 3.5 h."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
