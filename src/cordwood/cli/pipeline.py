"""`cordwood pipeline`: compact, collect and prove the logs of a fleet, once or again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Drawing

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench import jobs as jobs_bench
from cordwood.cli.bench.commands import print_nested
from cordwood.cli.engines import engine_option
from cordwood.cli.jobs import (
    format_option,
    keyless_option,
    mode_option,
    policy_of,
    policy_options,
)
from cordwood.cli.logs import collect, rollup, scrub
from cordwood.cli.output import command, console, plain, print_json, size
from cordwood.fleet.rollup import QUIET_S
from cordwood.pipeline.reports import RunReport
from cordwood.pipeline.run import Status
from cordwood.sync import Pipeline

ROWS_MAX = 30
"""Logs that a table shows; `--json` gives all."""


@click.group()
def pipeline() -> None:
    """Look after the logs of a fleet: roll up, compact, collect, scrub."""


pipeline.add_command(collect)
pipeline.add_command(rollup)
pipeline.add_command(scrub)


@pipeline.command()
@click.argument("store_url")
@click.option("--tables", "tables_url", help="The store for the tables; by default the same.")
@click.option("--table", default="tables/{log}", show_default=True, help="A log's table.")
@format_option
@mode_option
@keyless_option
@policy_options
@click.option("--quiet-s", type=float, default=QUIET_S, help="Marks younger than this stay.")
@click.option(
    "--scrub",
    type=click.Choice(["off", "sample", "deep"]),
    default="sample",
    show_default=True,
    help="Afterwards, prove nothing, samples, or every record.",
)
@click.option("--once", is_flag=True, help="Run once; this is what it does without --every.")
@click.option("--every", "every_s", type=click.FloatRange(0, min_open=True), help="Seconds.")
@click.option("--dry-run", is_flag=True, help="Only say what would be compacted.")
@engine_option
@command
def run(store_url: str, *, as_json: bool, **given: Any) -> None:
    """Compact, collect and prove the logs of the fleet in the store at STORE_URL.

    A run that was killed is resumed by the next one. What goes wrong with one log is reported, ends
    in exit code 1, and holds up no other.
    """
    every_s = given["every_s"]
    if every_s is not None and (given["once"] or given["dry_run"]):
        raise click.UsageError("--every goes neither with --once nor with --dry-run")
    made = Pipeline(
        store_url,
        tables=given["tables_url"],
        table=given["table"],
        table_format=given["table_format"],
        mode=given["mode"],
        keyless=given["keyless"],
        policy=policy_of(given),
        quiet_s=given["quiet_s"],
        scrub=given["scrub"],
        engine=given["engine"],
    )
    with step_progress(shown=not as_json) as progress:
        if every_s is None:
            reports = iter([made.run(dry_run=given["dry_run"], progress=progress)])
        else:
            reports = made.every(every_s, progress=progress)
        errors = 0
        for report in reports:
            errors = len(report.errors)
            if as_json:
                print_json(msgspec.to_builtins(report))
            else:
                tell(report)
    if errors:
        sys.exit(1)


@pipeline.command()
@click.argument("store_url")
@click.option("--runs", type=click.IntRange(0), default=5, show_default=True)
@policy_options
@command
def status(store_url: str, *, runs: int, as_json: bool, **given: Any) -> None:
    """Show what waits in the store at STORE_URL, and what the last runs did. Changes nothing."""
    found = Pipeline(store_url, policy=policy_of(given)).status(runs=runs)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _draw(found)


@pipeline.group()
def bench() -> None:
    """Measure jobs on Spark, each beside one process."""


@bench.command("scrub")
@click.option(
    "--record", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a record."
)
@click.option("--megabytes", type=click.IntRange(1), default=1024, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--kernel", type=click.Choice(["auto", "hashlib", "numba"]), default="auto")
@command
def bench_scrub(*, record: int, megabytes: int, repeats: int, kernel: str, as_json: bool) -> None:
    """A deep scrub by Spark beside one process."""
    print_nested("scrub", jobs_bench.scrub(record, megabytes, repeats, kernel), as_json=as_json)


@bench.command("compact")
@click.option(
    "--record", type=click.IntRange(1), default=1024, show_default=True, help="Bytes of a record."
)
@click.option("--megabytes", type=click.IntRange(1), default=512, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True)
@command
def bench_compact(*, record: int, megabytes: int, repeats: int, as_json: bool) -> None:
    """A compaction by Spark and in one process, of every record and of the newest by key."""
    print_nested("compact", jobs_bench.compaction(record, megabytes, repeats), as_json=as_json)


def tell(report: RunReport) -> None:
    """What a run did, for people."""
    if report.dry_run:
        for one in report.chosen:
            why = ", ".join(one.reasons)
            click.echo(f"{one.log}: {one.records:,} records, {size(one.num_bytes)} ({why})")
        click.echo(
            f"{len(report.chosen):,} of {report.dirty:,} dirty logs would be compacted, "
            f"{len(report.waiting):,} logs wait for collection"
        )
        return
    click.echo(
        f"{len(report.chosen):,} of {report.dirty:,} dirty logs chosen; {report.records:,} records "
        f"compacted into {len({one.table for one in report.compacted}):,} tables; "
        f"{sum(one.records for one in report.collected):,} records collected, "
        f"{sum(one.deleted for one in report.collected):,} objects deleted; "
        f"{len(report.scrubbed):,} logs scrubbed"
    )
    if report.waiting:
        click.echo(
            f"{len(report.waiting):,} logs wait for their grace interval, a pin, or a store that "
            "fails: run again later"
        )
    for name, why in sorted(report.errors.items()):
        click.echo(f"  {name}: {why}", err=True)


def _draw(found: Status) -> None:
    screen = console()
    now_us = SYSTEM_CLOCK.now_us()
    if found.waiting:
        drawing = Drawing(title="to compact, oldest first", title_justify="left")
        for column in ("log", "records", "about", "age, s", "due because of"):
            drawing.add_column(column)
        for one in found.waiting[:ROWS_MAX]:
            drawing.add_row(
                one.log,
                f"{one.num_records:,}",
                size(one.num_bytes),
                f"{max(0, now_us - one.first_us) / 1e6:,.0f}",
                ", ".join(found.due.get(one.log, ())) or "[dim]not yet",
            )
        screen.print(drawing)
        if len(found.waiting) > ROWS_MAX:
            screen.print(f"and {len(found.waiting) - ROWS_MAX:,} more; --json lists them all")
    else:
        screen.print("nothing waits for compaction")
    if found.to_collect:
        screen.print(f"to collect again: {', '.join(found.to_collect[:ROWS_MAX])}")
    for name, why in sorted(found.errors.items()):
        screen.print(f"  [red]{plain(name)}:[/] {plain(why)}")
    if not found.runs:
        screen.print("no run has left a report")
        return
    drawing = Drawing(title="last runs", title_justify="left")
    for column in ("ago, s", "took, s", "logs", "records", "collected", "errors"):
        drawing.add_column(column, justify="right")
    for run_report in found.runs:
        took = (run_report.ended_us - run_report.begun_us) / 1e6
        drawing.add_row(
            f"{max(0, now_us - run_report.begun_us) / 1e6:,.0f}",
            f"{took:,.1f}" if run_report.is_done else "not ended",
            f"{len(run_report.chosen):,}",
            f"{run_report.records:,}",
            f"{sum(one.records for one in run_report.collected):,}",
            f"{len(run_report.errors):,}",
        )
    screen.print(drawing)


@contextmanager
def step_progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each step on a terminal; silence elsewhere."""
    screen = Console(stderr=True)
    if not shown or not screen.is_terminal:
        yield lambda _step, _done, _total: None
        return
    with Progress(console=screen, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total)

        yield advance
