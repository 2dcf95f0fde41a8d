"""What a scrub has proved, in words that claim no more than that."""

from __future__ import annotations

from typing import Any, Literal

import click
import msgspec

from cordwood.cli.output import print_json, size
from cordwood.log.scrub import ScrubReport
from cordwood.sync import Log

Scope = Literal["all", "metadata", "part"]
"""Every record; what is said of all of them; some of them, or what is said of those."""


def scope_of(*, deep: bool, is_part: bool) -> Scope:
    """How much a scrub looked at."""
    if is_part:
        return "part"
    return "all" if deep else "metadata"


def tell_scrub(log: Log, report: ScrubReport, scope: Scope, *, as_json: bool) -> None:
    """Say what a scrub of one log found."""
    if as_json:
        print_json(_facts(report, scope))
        return
    for error in report.errors:
        click.echo(f"  {error}", err=True)
    click.echo(_verdict(log, report, scope))
    click.echo(f"setsum {report.setsum.hexdigest()}")
    if report.next_offset is not None:
        click.echo(f"go on with --start {report.next_offset}")


def _verdict(log: Log, report: ScrubReport, scope: Scope) -> str:
    how = "data files were not read; --deep reads every record"
    if report.deep:
        how = "every record of them checked" if scope == "part" else "every record checked"
    total = f" of {log.state().records:,}" if scope == "part" and report.ok else ""
    return (
        f"{_judgement(report, scope)}: {report.records:,}{total} records in "
        f"{report.fragments:,} fragments and {report.nodes:,} nodes, {size(report.bytes)} ({how})"
    )


def _judgement(report: ScrubReport, scope: Scope) -> str:
    if not report.ok:
        return f"DAMAGED in {len(report.errors)} places"
    named = {"all": "whole", "metadata": "metadata is consistent", "part": "no damage in a part"}
    return named[scope]


def _facts(report: ScrubReport, scope: Scope) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "scope": scope,
        "deep": report.deep,
        "records": report.records,
        "bytes": report.bytes,
        "fragments": report.fragments,
        "nodes": report.nodes,
        "setsum": report.setsum.hexdigest(),
        "errors": [msgspec.to_builtins(e) for e in report.errors],
        "next_offset": report.next_offset,
    }


def short_verdict(scope: Scope, *, ok: bool) -> str:
    """The same of one log among many."""
    if not ok:
        return "DAMAGED"
    return {"all": "whole", "metadata": "metadata is consistent", "part": "no damage"}[scope]
