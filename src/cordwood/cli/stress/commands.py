"""The stress command."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
import tempfile
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.cli.output import command, console, plain, print_json
from cordwood.cli.stress.run import Report, Stress
from cordwood.cli.stress.work import Plan
from cordwood.log.chain.options import Protocol


@click.command()
@click.argument("url", required=False)
@click.option(
    "--seconds", type=click.FloatRange(0), default=60, show_default=True, help="0: until Ctrl-C."
)
@click.option("--writers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--readers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--streams", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=500,
    show_default=True,
    help="Records/s per writer.",
)
@click.option("--kill", is_flag=True, help="Kill writers and the collector at random moments.")
@click.option("--protocol", type=click.Choice(["cas", "chain"]), help="Of the log, if it is new.")
@click.option("--seed", help="Repeat the same streams; by default new ones.")
@command
def stress(
    url: str | None,
    *,
    seconds: float,
    writers: int,
    readers: int,
    streams: int,
    rate: float,
    kill: bool,
    protocol: Protocol | None,
    seed: str | None,
    as_json: bool,
) -> None:
    """Put the log at URL under load and check every record of it.

    Several writers append generated streams, readers compare every record with what it must be,
    and a collector frees what was read. URL names a log that does not exist yet; without it, one in
    a temporary directory. The exit code is 1 if anything was lost, doubled, changed or out of
    order.
    """
    with tempfile.TemporaryDirectory(prefix="cordwood-stress-") as directory:
        plan = Plan(
            url or f"file://{directory}/stress", streams, rate, seed or SYSTEM_ENTROPY.token()
        )
        run = Stress(
            plan,
            writers=writers,
            readers=readers,
            kill=kill,
            progress=_progress(as_json),
            protocol=protocol,
        )
        report = asyncio.run(_until_stopped(run, seconds))
    if as_json:
        print_json(dataclasses.asdict(report) | {"faults": report.faults})
    else:
        _show(report)
    sys.exit(1 if report.violations else 0)


async def _until_stopped(stress: Stress, seconds: float) -> Report:
    """Run it; the first Ctrl-C lets it end with its report, a second one ends it at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stress.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await stress.run(seconds)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _progress(as_json: bool) -> Callable[[Report], None]:
    screen = Console(stderr=True)

    def show(report: Report) -> None:
        if screen.is_terminal and not as_json:
            screen.print(
                f"{report.seconds:6.0f} s  {report.appended:,} appended  {report.read:,} read  "
                f"{report.collected:,} collected  {report.kills} kills  "
                f"{report.violations} violations",
                end="\r",
            )

    return show


def _show(report: Report) -> None:
    table = Table(title=f"{report.seconds:.0f} seconds of stress", title_justify="left")
    table.add_column("what")
    table.add_column("how much", justify="right")
    for name in ("appended", "read", "verified", "collected", "reads", "faults", "violations"):
        table.add_row(name, f"{getattr(report, name):,}")
    console().print(table)
    for example in report.examples:
        console().print(plain(f"violation: {example}"))
