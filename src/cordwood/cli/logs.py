"""Jobs over many logs on the command line: collect them, prove them, roll up what marks them."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from cordwood.base import portal
from cordwood.base.errors import NotFoundError
from cordwood.cli.engines import engine_option
from cordwood.cli.jobs import policy_of, policy_options
from cordwood.cli.life import object_progress
from cordwood.cli.output import byte_progress, command, print_json, size
from cordwood.cli.verdict import scope_of, short_verdict
from cordwood.fleet.rollup import QUIET_S
from cordwood.log.catalogue import logs_in
from cordwood.pipeline.engine import AUTO
from cordwood.store.url import Store
from cordwood.sync import Log, collect_logs, roll_up_fleet, scrub_logs

dry_run_option = click.option("--dry-run", is_flag=True, help="Only look; change nothing.")


def _names(store: Store, patterns: tuple[str, ...]) -> list[str]:
    """The logs that the patterns mean.

    Raises:
        NotFoundError: they mean none.
    """
    found = portal.current().run(logs_in(store, patterns))
    if not found:
        raise NotFoundError(
            f"{store.url} has no log that matches {' or '.join(patterns)}",
            hint="* stands for letters of one segment, ** for any segments",
        )
    return found


@click.command()
@click.argument("store_url")
@click.argument("logs", nargs=-1, required=True)
@click.option("--wait-s", type=float, default=0.0, show_default=True)
@click.option(
    "--max-share", type=float, default=1.0, show_default=True, help="Of each log's bytes."
)
@dry_run_option
@engine_option
@command
def collect(
    store_url: str,
    logs: tuple[str, ...],
    *,
    wait_s: float,
    max_share: float,
    dry_run: bool,
    engine: str,
    as_json: bool,
) -> None:
    """Free what lies before every cursor of LOGS in the store at STORE_URL.

    LOGS are names or patterns: 'orders-*', '**'. Each is by itself: what goes wrong with one is
    reported, ends in exit code 1, and holds up no other.
    """
    store = Store(store_url)
    with object_progress("collect", shown=not as_json) as progress:
        done = collect_logs(
            store,
            _names(store, logs),
            wait_s=wait_s,
            max_share=max_share,
            dry_run=dry_run,
            engine=_here_if_auto(engine),
            progress=progress,
        )
    if as_json:
        print_json({"dry_run": dry_run, "collected": msgspec.to_builtins(done)})
    else:
        verb = "would be taken" if dry_run else "taken"
        for one in done:
            if one.error:
                click.echo(f"{one.log}: {one.error}", err=True)
                continue
            line = f"{one.log}: {one.records:,} records ({size(one.bytes)}) {verb} out"
            line += "" if dry_run else f", {one.deleted:,} objects deleted"
            line += f"; kept for {', '.join(one.held)}" if one.held else ""
            line += f"; more in {one.due_s:,.0f} s" if one.due_s > 0 else ""
            click.echo(line)
    if any(one.error for one in done):
        sys.exit(1)


@click.command()
@click.argument("store_url")
@click.argument("logs", nargs=-1, required=True)
@click.option("--sample", type=click.IntRange(1), help="Only fragments at so many random offsets.")
@dry_run_option
@engine_option
@command
def scrub(
    store_url: str,
    logs: tuple[str, ...],
    *,
    sample: int | None,
    dry_run: bool,
    engine: str,
    as_json: bool,
) -> None:
    """Prove every record of LOGS in the store at STORE_URL, or samples of them.

    LOGS are names or patterns: 'orders-*', '**'. With --dry-run the metadata is checked, and it is
    said how much there is to read.
    """
    store = Store(store_url)
    named = [Log(store, name) for name in _names(store, logs)]
    with byte_progress("scrub", 0, shown=not as_json) as advance:
        done = scrub_logs(named, sample=sample, dry_run=dry_run, engine=engine, progress=advance)
    scope = scope_of(deep=not dry_run, is_part=sample is not None)
    if as_json:
        print_json({"dry_run": dry_run, "scope": scope, "scrubbed": msgspec.to_builtins(done)})
    else:
        how = "to read" if dry_run else "checked"
        for one in done:
            click.echo(
                f"{one.log}: {short_verdict(scope, ok=one.ok)}, {one.records:,} records in "
                f"{one.fragments:,} fragments {how}, {size(one.bytes)}"
            )
            for error in one.errors:
                click.echo(f"  {error}", err=True)
    if not all(one.ok for one in done):
        sys.exit(1)


@click.command()
@click.argument("store_url")
@policy_options
@click.option("--quiet-s", type=float, default=QUIET_S, help="Marks younger than this stay.")
@dry_run_option
@engine_option
@command
def rollup(
    store_url: str, *, quiet_s: float, dry_run: bool, engine: str, as_json: bool, **given: Any
) -> None:
    """Roll up the dirty logs of all members in the store at STORE_URL; say which logs are due.

    Marks that are over go, and whatever is still dirty is marked again. Nothing is compacted.
    """
    with object_progress("roll up", shown=not as_json) as progress:
        found = roll_up_fleet(
            store_url,
            policy=policy_of(given),
            quiet_s=quiet_s,
            dry_run=dry_run,
            engine=_here_if_auto(engine),
            progress=progress,
        )
    if not found.members:
        raise NotFoundError(
            f"there is no fleet in {store_url}: no member has marked a log there",
            hint="check the URL; logs are marked by who writes through cordwood.Fleet",
        )
    if as_json:
        print_json(msgspec.to_builtins(found) | {"dry_run": dry_run, "errors": found.errors})
    else:
        for one in found.selected:
            dirty, why = one.dirty, ", ".join(one.reasons)
            click.echo(
                f"{dirty.log}: {dirty.num_records:,} records, {size(dirty.num_bytes)} ({why})"
            )
        click.echo(
            f"{len(found.selected):,} of {len(found.dirty):,} dirty logs are due; "
            f"{sum(member.marks for member in found.members):,} marks of "
            f"{len(found.members):,} members read, the marks of "
            f"{sum(len(member.dropped) for member in found.members):,} logs dropped"
        )
        for name, why in sorted(found.errors.items()):
            click.echo(f"  {name}: {why}", err=True)
    if found.errors:
        sys.exit(1)


def _here_if_auto(engine: str) -> str:
    """What such a job takes does not depend on bytes: `auto` stays here, Spark is asked for."""
    return "local" if engine == AUTO else engine
