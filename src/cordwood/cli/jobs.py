"""Jobs on the command line: compaction of logs, and what every job's command shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from cordwood.base.errors import InvalidInputError, NotFoundError
from cordwood.cli.engines import engine_option
from cordwood.cli.output import byte_progress, command, print_json, size
from cordwood.fleet.dirty import COMPACTION
from cordwood.fleet.select import DEFAULT_POLICY, Policy
from cordwood.pipeline.compact import CompactReport
from cordwood.sync import Delta, Log, Table
from cordwood.sync import compact as compact_logs

mode_option = click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    default="append",
    show_default=True,
    help="Of a table that is made: every record, or of each key the newest.",
)
keyless_option = click.option(
    "--keyless",
    type=click.Choice(["refuse", "skip", "keep"]),
    default="refuse",
    show_default=True,
    help="Of a table that is made: what an upsert does with records without a key.",
)
format_option = click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Parquet files with a manifest of their own, or a Delta table.",
)


def policy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Which logs are worth a compaction."""
    for option in (
        click.option("--limit", type=int, default=DEFAULT_POLICY.limit, show_default=True),
        click.option("--max-reinserts", type=int, default=DEFAULT_POLICY.max_reinserts),
        click.option("--max-age-s", type=float, default=DEFAULT_POLICY.max_age_s),
        click.option("--min-bytes", type=int, default=DEFAULT_POLICY.min_bytes),
        click.option("--min-records", type=int, default=DEFAULT_POLICY.min_records),
    ):
        function = option(function)
    return function


def policy_of(given: dict[str, Any]) -> Policy:
    """The policy that the options say."""
    return Policy(**{name: given[name] for name in Policy.__struct_fields__})


def table_at(url: str, table_format: str) -> Table | Delta:
    """The table that a URL names."""
    table = Delta.from_url(url) if table_format == "delta" else Table.from_url(url)
    if table.store.scheme == "memory":
        # The cursor would move, and what it lets go would be in a table that is no more.
        raise InvalidInputError(
            f"{url}: a table in memory ends with this command",
            hint="name one in a directory or a bucket",
        )
    return table


@click.command()
@click.argument("urls", nargs=-1, required=True)
@click.option("--into", "table_url", required=True, help="The table's URL.")
@click.option("--create", is_flag=True, help="Make the table if it does not exist.")
@mode_option
@keyless_option
@format_option
@click.option("--cursor", default=COMPACTION, show_default=True)
@click.option("--max-bytes", type=click.IntRange(1), help="Of each log, at most, in fragments.")
@click.option("--dry-run", is_flag=True, help="Only say what is new.")
@engine_option
@command
def compact(
    urls: tuple[str, ...],
    *,
    table_url: str,
    create: bool,
    mode: Any,
    keyless: Any,
    table_format: str,
    cursor: str,
    max_bytes: int | None,
    dry_run: bool,
    engine: str,
    as_json: bool,
) -> None:
    """Bring what is new in the logs at URLS into a table, exactly once.

    All logs lie in one store. What is new begins where the table ends; the cursor follows, and what
    lies before it can be collected.
    """
    logs = [Log.from_url(url) for url in urls]
    if len({log.store for log in logs}) > 1:
        raise InvalidInputError(
            "the logs of one compaction lie in one store", hint="compact them one by one"
        )
    table = table_at(table_url, table_format)
    shown_url = table.url
    if create and not dry_run:
        table.create(mode=mode, keyless=keyless, exist_ok=True)
    elif create and not _is_there(table):
        # What is new for a table that would be made is new for an empty one.
        table = Table("memory:", table.name)
        table.create(mode=mode, keyless=keyless)
    with byte_progress("compact", 0, shown=not as_json) as advance:
        report = compact_logs(
            logs,
            table,
            cursor=cursor,
            max_bytes=max_bytes,
            dry_run=dry_run,
            engine=engine,
            progress=advance,
        )
    report = msgspec.structs.replace(report, table=shown_url)
    if as_json:
        print_json(msgspec.to_builtins(report) | {"dry_run": dry_run})
    else:
        tell(report, dry_run=dry_run)


def _is_there(table: Table | Delta) -> bool:
    try:
        table.files()
    except NotFoundError:
        return False
    return True


def tell(report: CompactReport, *, dry_run: bool) -> None:
    """What a compaction did, for people."""
    if not report.ranges:
        click.echo(f"nothing is new for {report.table}")
        return
    for one in report.ranges:
        click.echo(
            f"{one.log}: {one.num_records:,} records, offsets [{one.start:,}, {one.limit:,}), "
            f"{size(one.num_bytes)} in fragments"
        )
    if dry_run:
        click.echo(f"would go into {report.table}; nothing was changed")
        return
    if report.superseded:
        click.echo("somebody else compacted them meanwhile; nothing was changed")
        return
    click.echo(
        f"{report.kept:,} rows in {report.files:,} files ({size(report.bytes)}) are in "
        f"{report.table}"
    )
    if report.tombstones or report.replaced:
        click.echo(f"{report.tombstones:,} deletions, {report.replaced:,} older rows replaced")
    click.echo(f"read {report.records:,} records, as the logs say: setsum {report.setsum}")
