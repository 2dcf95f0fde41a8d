"""`cordwood log`: create, append, read, follow, look at and prove logs."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cordwood import sync
from cordwood.base import portal
from cordwood.base.errors import AlreadyExistsError, CordwoodError, InvalidInputError
from cordwood.cli.append import append_to, lines_of, report
from cordwood.cli.engines import engine_option
from cordwood.cli.later import Later, LaterGroup
from cordwood.cli.output import (
    as_text,
    byte_progress,
    command,
    console,
    count_progress,
    plain,
    print_json,
    print_line,
    printing_command,
    read_progress,
    size,
    text_of,
    whole_file,
)
from cordwood.cli.source import Source, tell_terminal
from cordwood.cli.tree import draw
from cordwood.cli.verdict import scope_of, tell_scrub
from cordwood.log import tree
from cordwood.log.catalogue import logs_in
from cordwood.log.chain.options import Protocol
from cordwood.log.format import GRACE_S_DEFAULT, Manifest
from cordwood.log.reader import Limits
from cordwood.log.records import FULL_SCHEMA, Record
from cordwood.store.url import Store
from cordwood.sync import Log

LINES_PER_LOOK = 1_000
"""So often an append sees how far it is: to look takes longer than to read a line."""


_LATER = {
    "bench": Later(
        "cordwood.cli.bench",
        "Measure a log, each figure beside a peer or a limit taken in the same run.",
    ),
    "collect": Later("cordwood.cli.life", "Free what lies before every cursor of the log at URL."),
    "compact": Later(
        "cordwood.cli.jobs", "Bring what is new in the logs at URLS into a table, exactly once."
    ),
    "copy": Later(
        "cordwood.cli.life",
        "Copy the log at URL to TARGET, in the same store or another, and prove that it is equal.",
    ),
    "cursor": Later("cordwood.cli.life", "Named positions, which hold back collection."),
    "destroy": Later("cordwood.cli.life", "Delete the log at URL and everything in it."),
    "fork": Later(
        "cordwood.cli.life",
        "Make TARGET a log that begins as the one at URL is now, without copying its files.",
    ),
    "migrate": Later(
        "cordwood.cli.life",
        "Seal the log at URL and go on in a new one at TARGET, with the offset that comes next.",
    ),
    "pin": Later("cordwood.cli.life", "Holds on a range of records, while collection goes on."),
    "rebuild": Later(
        "cordwood.cli.life", "Make the manifest of the chain log at URL anew, from its fragments."
    ),
    "seal": Later(
        "cordwood.cli.life",
        "End the log at URL: it takes no more records, and can be read for ever.",
    ),
    "stream": Later("cordwood.cli.stream", "Streams: many small logs in one."),
    "stress": Later(
        "cordwood.cli.stress", "Put the log at URL under load and check every record of it."
    ),
}


@click.group(cls=LaterGroup, later=_LATER)
def log() -> None:
    """Work with logs."""


@log.command()
@click.argument("url")
@click.option("--exist-ok", is_flag=True, help="Leave a log that exists as it is.")
@click.option(
    "--grace-s",
    type=click.IntRange(1),
    default=GRACE_S_DEFAULT,
    show_default=True,
    help="Seconds between unlinking and deleting in a collection; fixed for ever.",
)
@click.option(
    "--protocol",
    type=click.Choice(["cas", "chain"]),
    help="How appends are agreed on; by default chain on gs://, else cas.",
)
@click.option("--shards", type=click.IntRange(1, 12), default=1, help="Of a chain log.")
@command
def create(
    url: str,
    *,
    exist_ok: bool,
    grace_s: int,
    protocol: Protocol | None,
    shards: int,
    as_json: bool,
) -> None:
    """Create the log at URL."""
    named = Log.from_url(url)
    is_new = True
    try:
        named.create(grace_s=grace_s, protocol=protocol, shards=shards)
    except AlreadyExistsError:
        if not exist_ok:
            raise
        is_new = False
    if as_json:
        print_json({"created": is_new, "url": named.url})
    else:
        click.echo(f"created {named.url}" if is_new else f"{named.url} exists already")


@log.command()
@click.argument("url")
@click.argument("file", type=Source(), default="-")
@click.option(
    "--as",
    "form",
    type=click.Choice(["lines", "jsonl", "file"]),
    default="lines",
    show_default=True,
    help="A record per line, per line of valid JSON, or one record for the whole file.",
)
@click.option(
    "--key",
    help="With --as jsonl: the field whose value becomes the record's key. A text is the key as it "
    'is, anything else by its JSON: 7 and "7" are one key. It must be there, and not be null.',
)
@click.option("--create", "make", is_flag=True, help="Create the log if it does not exist.")
@click.option("--stream", help="The stream that the records belong to; it must be open.")
@command
def append(
    url: str,
    file: IO[bytes],
    *,
    form: str,
    key: str | None,
    make: bool,
    stream: str | None,
    as_json: bool,
) -> None:
    """Append records from FILE (or standard input) to the log at URL.

    A line ends with a newline, or with a carriage return and a newline; neither is part of the
    record. A blank line is an empty record, but with --as jsonl it is passed over.

    The command ends when every record is durable and prints the offsets they got. After a failure,
    or Ctrl-C, the log holds the beginning of FILE, and the command says up to which line.
    """
    tell_terminal(file)
    lines = read_progress(
        "append", file, lines_of(file, form, key), shown=not as_json, each=LINES_PER_LOOK
    )
    outcome = append_to(Log.from_url(url), lines, create=make, stream=stream)
    report(outcome, as_json=as_json)


@log.command("list")
@click.argument("store_url")
@click.argument("logs", nargs=-1)
@printing_command
def list_logs(store_url: str, logs: tuple[str, ...], *, as_json: bool) -> None:
    """List the logs in the store at STORE_URL, or those of LOGS.

    LOGS are names or patterns: 'orders-*', '**'. A log that cannot be read is reported, ends in
    exit code 1, and holds up no other.
    """
    store = Store(store_url)
    found = portal.current().run(logs_in(store, logs or ("**",)))
    if not found and not as_json:
        click.echo(f"{store.url} has no logs" + (" of these names" if logs else ""), err=True)
    has_failed = False
    for named in (Log(store, name) for name in found):
        row: dict[str, Any] = {"log": named.name, "url": named.url}
        try:
            row |= _listed(named.manifest())
        except CordwoodError as error:
            has_failed = True
            row |= {"error": str(error.code), "message": error.message}
        if as_json:
            print_json(row)
        elif "error" in row:
            click.echo(f"{named.name}: {row['message']}", err=True)
        else:
            sealed = ", sealed" if row["sealed"] else ""
            click.echo(f"{named.name}: {row['records']:,} records, {size(row['bytes'])}{sealed}")
    if has_failed:
        sys.exit(1)


@log.command()
@click.argument("url")
@click.option("--start", type=int, help="The first offset; by default the oldest.")
@click.option("--limit", type=int, help="The first offset not wanted; for a number, see -n.")
@click.option("-n", "--records", type=click.IntRange(min=0), help="At most so many records.")
@click.option(
    "--since",
    help="Only records from this time on, e.g. 2026-01-31T12:00:00Z; without a zone it is UTC.",
)
@click.option("--until", help="Only records before this time.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a file instead: .parquet or .jsonl, by its ending.",
)
@click.option("--raw", is_flag=True, help="Print the bodies alone, with nothing between them.")
@click.option("--no-verify", is_flag=True, help="Do not check setsums while reading.")
@click.option("--pin", "pinned", help="Read what the pin of this name holds.")
@click.option("--stream", help="Only records of this stream.")
@printing_command
def read(
    url: str,
    *,
    start: int | None,
    limit: int | None,
    records: int | None,
    since: str | None,
    until: str | None,
    output: Path | None,
    raw: bool,
    no_verify: bool,
    pinned: str | None,
    stream: str | None,
    as_json: bool,
) -> None:
    r"""Read records of the log at URL: a line each, or a file.

    A line is the offset, a tab and the body. Bytes of it that are no UTF-8 are printed as \xff, and
    newlines as they are; on a terminal control characters other than tabs are shown, as \x1b. For
    exact bytes use --raw, or --json or -o: there, what is no text is in Base64.
    """
    if raw and (as_json or output is not None):
        raise InvalidInputError("--raw is for standard output, without --json and -o")
    limits = Limits(
        max_records=records,
        limit_offset=limit,
        start_time_us=_time_us(since),
        limit_time_us=_time_us(until),
    )
    with Log.from_url(url).reader(verify=not no_verify, pin=pinned) as reader:
        if output is not None:
            if output.suffix not in {".parquet", ".jsonl"}:
                raise InvalidInputError(f"{output}: the file's ending is .parquet or .jsonl")
            write = _write_lines if output.suffix == ".jsonl" else _write_parquet
            batches = reader.read_arrow(start, limits, stream=stream)
            with (
                count_progress("read", shown=not as_json) as advance,
                whole_file(output) as draft,
            ):
                count = write(draft, _counted(batches, advance))
            if as_json:
                print_json({"records": count, "output": str(output)})
            else:
                click.echo(f"wrote {count:,} records to {output}")
            return
        for record in reader.read(start, limits, stream=stream):
            if raw:
                click.echo(record.body, nl=False)
            else:
                _print_record(record, as_json=as_json)


@log.command()
@click.argument("url")
@click.option("--start", type=int, help="The first offset; by default the end as it is now.")
@click.option("-n", "--records", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--stream", help="Only records of this stream.")
@printing_command
def tail(
    url: str, *, start: int | None, records: int | None, stream: str | None, as_json: bool
) -> None:
    """Follow the log at URL: print records as they come, until stopped."""
    with Log.from_url(url).reader() as reader:
        for record in islice(reader.tail(start, stream=stream), records):
            _print_record(record, as_json=as_json)
            sys.stdout.flush()


@log.command()
@click.argument("url")
@click.option("--depth", type=int, default=1, show_default=True, help="Levels of the tree to open.")
@command
def show(url: str, *, depth: int, as_json: bool) -> None:
    """Show the state of the log at URL and draw its manifest tree."""
    named = Log.from_url(url)
    state = named.state()
    manifest = named.manifest()
    if as_json:
        print_json(
            {
                "url": named.url,
                "oldest_offset": state.oldest_offset,
                "next_offset": state.next_offset,
                "records": state.records,
                "bytes": state.bytes,
                "setsum": state.setsum.hexdigest(),
                "collected": state.collected.hexdigest(),
                "sealed": state.sealed,
                "cursors": state.cursors,
                "pins": list(state.pins),
                "features": sorted(state.features),
                "protocol": state.protocol,
                "grace_s": state.grace_s,
                "writer": manifest.writer,
                "nodes": [_pointer(n) | {"depth": n.depth} for n in manifest.nodes],
                "fragments": [_pointer(f) | {"seq_no": f.seq_no} for f in manifest.fragments],
            }
        )
        return
    screen = console()
    screen.print(f"[bold]{named.url}")
    screen.print(
        f"{state.records:,} records, offsets [{state.oldest_offset:,}, {state.next_offset:,}), "
        f"{size(state.bytes)} in fragments"
    )
    screen.print(f"setsum {state.setsum.hexdigest()}")
    if state.features:
        screen.print(f"features {', '.join(sorted(state.features))}")
    if state.seal is not None:
        goes_on = f", goes on in {state.seal.moved_to}" if state.seal.moved_to else ""
        why = f": {state.seal.reason}" if state.seal.reason else ""
        screen.print(plain(f"sealed{goes_on}{why}"))
    for name, offset in sorted(state.cursors.items()):
        screen.print(f"cursor {name} at {offset:,}")
    for name in sorted(state.pins):
        screen.print(f"pin {name}")
    screen.print(draw(named, manifest, depth))


@log.command()
@click.argument("url")
@click.option("--deep", is_flag=True, help="Read every fragment and recompute every setsum.")
@click.option("--start", type=int, help="Begin at this offset, where an earlier scrub ended.")
@click.option("--max-files", type=click.IntRange(1), help="End after so many fragments.")
@click.option("--sample", type=click.IntRange(1), help="Only fragments at so many random offsets.")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that keeps how far a deep scrub is, to go on if it is cut off.",
)
@engine_option
@command
def scrub(
    url: str,
    *,
    deep: bool,
    start: int | None,
    max_files: int | None,
    sample: int | None,
    resume: Path | None,
    engine: str,
    as_json: bool,
) -> None:
    """Check the metadata of the log at URL; with --deep, prove that every record is there.

    Without --deep no data file is read: one that was damaged or deleted is not noticed. The log is
    called whole only after a deep scrub of all of it.

    A deep scrub of the whole log, or of samples, can be done by Spark, with the same result.
    `pipeline scrub` does many logs, and says before how much there is to read.
    """
    named = Log.from_url(url)
    is_part = start is not None or max_files is not None
    if (engine == "spark" or resume is not None) and (is_part or not deep):
        raise InvalidInputError(
            "only a deep scrub of a whole log, or of samples, goes to Spark or can be resumed",
            hint="use --deep without --start and --max-files",
        )
    if deep and not is_part and (engine != "local" or resume is not None):
        with byte_progress("scrub", 0, shown=not as_json) as advance:
            report = sync.scrub_log(
                named, sample=sample, resume=resume, engine=engine, progress=advance
            )
    else:
        total = named.state().bytes if deep else 0
        with byte_progress("scrub", total, shown=deep and not as_json) as advance:
            report = named.scrub(
                deep=deep,
                start=start,
                limits=Limits(max_files=max_files),
                sample=sample,
                progress=lambda done, _: advance(done.bytes),
            )
    is_all = start is None and sample is None and report.next_offset is None
    tell_scrub(named, report, scope_of(deep=deep, is_part=not is_all), as_json=as_json)
    if not report.ok:
        sys.exit(1)


def _print_record(record: Record, *, as_json: bool) -> None:
    if as_json:
        fields = {
            "offset": record.offset,
            "timestamp_us": record.timestamp_us,
            "body": record.body,
            "key": record.key,
            "headers": record.headers,
            "stream": record.stream,
        }
        found = {name: value for name, value in fields.items() if value is not None}
        print_json(as_text(found, "body", "key", "headers"))
    else:
        print_line(f"{record.offset}\t{text_of(record.body)}")


def _counted(
    batches: Iterable[pa.RecordBatch], advance: Callable[[int, int | None], None]
) -> Iterator[pa.RecordBatch]:
    """The same batches; how many there will be is not known before the last."""
    count = 0
    for batch in batches:
        yield batch
        count += batch.num_rows
        advance(count, None)
    advance(count, count)


def _write_lines(output: Path, batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    with output.open("w", encoding="utf-8") as file:
        for batch in batches:
            for found in batch.to_pylist():
                if found.get("headers") is not None:
                    found["headers"] = {h["name"]: h["value"] for h in found["headers"]}
                row = as_text(found, "body", "key", "headers")
                file.write(msgspec.json.encode(row).decode() + "\n")
            count += batch.num_rows
    return count


def _write_parquet(output: Path, batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    with pq.ParquetWriter(output, FULL_SCHEMA) as writer:
        for batch in batches:
            writer.write_table(_full(batch))
            count += batch.num_rows
    return count


def _full(batch: pa.RecordBatch) -> pa.Table:
    """A batch with all six columns, so that one file can hold plain and full fragments."""
    columns = [
        batch.column(f.name) if f.name in batch.schema.names else pa.nulls(batch.num_rows, f.type)
        for f in FULL_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=FULL_SCHEMA)


def _listed(manifest: Manifest) -> dict[str, Any]:
    """What a list says of a log."""
    return {
        "oldest_offset": manifest.oldest_offset,
        "next_offset": manifest.next_offset,
        "records": manifest.next_offset - manifest.oldest_offset,
        "bytes": sum(pointer.num_bytes for pointer in tree.roots(manifest)),
        "sealed": manifest.seal is not None,
    }


def _pointer(pointer: Any) -> dict[str, Any]:
    return {
        "path": pointer.path,
        "start": pointer.start,
        "limit": pointer.limit,
        "num_bytes": pointer.num_bytes,
        "setsum": pointer.setsum_hex,
    }


def _time_us(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is not a time", hint="write it as 2026-01-31T12:00:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return max(0, int(moment.timestamp() * 1_000_000))  # No record is from before 1970.
