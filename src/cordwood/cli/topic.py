"""`cordwood topic`: records by namespace and topic, for producers and groups of consumers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from cordwood.base.errors import (
    AlreadyExistsError,
    CordwoodError,
    CordwoodWarning,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.cli.later import Later, LaterGroup
from cordwood.cli.output import (
    byte_progress,
    command,
    console,
    count_progress,
    fail,
    plain,
    print_json,
    printing_command,
    read_progress,
    size,
    whole_file,
)
from cordwood.cli.questions import confirm, say
from cordwood.cli.records import ParquetFile, blocks_of, print_batch, print_record
from cordwood.cli.source import Source, tell_terminal
from cordwood.journal.journal import EXTENT_BYTES
from cordwood.sync.topics import Consumer, Topics
from cordwood.topics.config import FLUSH_PERIOD_S, TOMBSTONE_S, TopicConfig
from cordwood.topics.consuming import Fetched

_LATER = {
    "bench": Later(
        "cordwood.cli.bench.topics",
        "Send records durably, one by one and many at once, beside SQLite in WAL mode, FULL sync.",
    )
}


@click.group(cls=LaterGroup, later=_LATER)
def topic() -> None:
    """Work with topics.

    PLACE is the directory that they are in, or the URL of a store. TOPIC is a namespace, a slash
    and a name: shop/clicks.
    """


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.option("--partitions", default=1, show_default=True, help="Ordered parts, for good.")
@click.option("--compaction", is_flag=True, help="Keep only the last record of each key.")
@click.option("--property", "properties", multiple=True, help="name=value; may be repeated.")
@click.option(
    "--retention-s", type=float, help="0: for ever. Else 604800, or compaction's: for ever."
)
@click.option("--retention-bytes", type=int, help="How much of each partition is kept.")
@click.option("--ack", type=click.Choice(["journal", "flush", "store"]), default="journal")
@click.option("--flush-period-s", default=FLUSH_PERIOD_S, show_default=True, help="With flush.")
@click.option("--extent-bytes", default=EXTENT_BYTES, show_default=True, help="Size of its files.")
@click.option("--tombstone-s", default=TOMBSTONE_S, show_default=True, help="With compaction.")
@click.option("--tier", help="The URL of a store that a directory's records are uploaded to.")
@click.option("--local-retention-s", type=float, help="With a tier: kept here for so long.")
@click.option("--exist-ok", is_flag=True, help="It may be there already.")
@command
def create(
    place: str,
    topic: str,
    *,
    properties: tuple[str, ...],
    retention_s: float | None,
    exist_ok: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Make a topic."""
    pairs = [one.partition("=") for one in properties]
    if wrong := [name for name, found, _ in pairs if not found]:
        raise InvalidInputError(f"property {wrong[0]!r} has no value", hint="write name=value")
    names, is_new = _names(topic), True
    with Topics(place) as topics:
        try:
            topics.create(
                *names,
                properties={name: value for name, _, value in pairs},
                retention_s="default" if retention_s is None else retention_s or None,
                **how,
            )
        except AlreadyExistsError:
            # Or its id is another's.
            if not exist_ok or names not in topics.list(names[0]):
                raise
            is_new = False
    words = f"created {topic}" if is_new else f"{topic} exists already"
    say({"created": is_new, "topic": topic}, words, as_json=as_json)


@topic.command("list")
@click.argument("place")
@click.argument("namespace", required=False)
@command
def list_topics(place: str, namespace: str | None, *, as_json: bool) -> None:
    """List all topics, or those of a NAMESPACE."""
    with Topics(place) as topics:
        for space, name in topics.list(namespace):
            if as_json:
                print_json({"namespace": space, "topic": name})
            else:
                click.echo(f"{space}/{name}")


@topic.command()
@click.argument("place")
@click.argument("topic")
@command
def describe(place: str, topic: str, *, as_json: bool) -> None:
    """Say what a topic is, and what it holds."""
    with Topics(place) as topics:
        state = topics.describe(*_names(topic))
    if as_json:
        print_json(msgspec.to_builtins(state))
        return
    from rich.table import Table  # noqa: PLC0415

    config, screen = state.config, console()
    kind = "compaction topic" if config.compaction else "topic"
    screen.print(f"[bold]{topic}[/]  {kind}, acknowledged by {config.ack}")
    screen.print(f"ids {state.namespace_id} / {state.topic_id}")
    screen.print(_kept(config))
    for name, value in config.properties.items():
        screen.print(plain(f"{name} = {value}"))
    columns = ["partition", "oldest", "next", "records"]
    if config.tier is not None:
        kept_s = config.local_retention_s
        kept = "as long as there" if kept_s is None else f"for {kept_s:,g} s"
        screen.print(f"tier {plain(config.tier)}; what was uploaded stays here {kept}")
        columns += ["here from", "not uploaded"]
    table = Table(*columns, "properties")
    for one in state.partitions:
        attached = ", ".join(f"{name} = {value}" for name, value in one.properties.items())
        numbers = [f"{n:,}" for n in (one.partition, one.oldest, one.next, one.next - one.oldest)]
        if config.tier is not None:
            numbers += [f"{n or 0:,}" for n in (one.oldest_here, one.not_uploaded)]
        table.add_row(*numbers, plain(attached))
    screen.print(table)
    if state.groups:
        screen.print(plain(f"groups: {', '.join(state.groups)}"))
    for warning in state.warnings:
        screen.print(f"[yellow]{plain(warning)}")


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.argument("file", type=Source(), default="-")
@click.option(
    "--as",
    "form",
    type=click.Choice(["lines", "jsonl", "parquet"]),
    default="lines",
    show_default=True,
    help="A record per line, per line of JSON, or per row.",
)
@click.option("--separator", help="With lines: what is before it is the key.")
@command
def produce(
    place: str, topic: str, file: IO[bytes], *, form: str, separator: str | None, as_json: bool
) -> None:
    """Send the records of FILE (or standard input) to a topic.

    JSON: {"value": "…", "key": "…", "headers": {…}, "timestamp_us": …, "partition": …}, and what
    else consume prints. Parquet: the columns of these names. After a failure the command says how
    much of FILE was sent.
    """
    if separator == "":
        raise InvalidInputError("the separator is empty", hint="leave it away: lines have no keys")
    tell_terminal(file)
    sent, lines = 0, 0
    with Topics(place) as topics, topics.producer(*_names(topic)) as producer:
        try:
            blocks = blocks_of(file, form, separator)
            for block in read_progress("send", file, blocks, shown=not as_json):
                sent += len(producer.send_arrow(block.table))
                lines = block.last_line
        except CordwoodError as error:
            done = f"the first {lines:,} of FILE are sent" if lines else "none was sent for certain"
            facts = {"records": sent, "lines": lines}
            fail(
                f"{error.message}; {done}",
                error.hint,
                str(error.code),
                as_json=as_json,
                facts=facts,
            )
    say({"records": sent}, f"sent {sent:,} record{'' if sent == 1 else 's'}", as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.option("--group", help="Go on where the group stopped, and share the work with it.")
@click.option("--follow", is_flag=True, help="Wait for more, until stopped.")
@click.option("-n", "--records", type=click.IntRange(min=0), help="At most so many.")
@click.option("--start", type=click.Choice(["oldest", "newest"]), default="oldest")
@click.option("--separator", help="Print keys as well, before it.")
@click.option("--skip-damaged", is_flag=True, help="Say what cannot be read, and go on behind it.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Parquet file instead.",
)
@printing_command
def consume(
    place: str,
    topic: str,
    *,
    group: str | None,
    follow: bool,
    records: int | None,
    start: Any,
    separator: str | None,
    skip_damaged: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print the records of a topic, a line each.

    The position of a group is committed after its records are printed, or the file is complete.
    """
    timeout_s = None if follow else 0.0
    with (
        Topics(place) as topics,
        topics.consumer(*_names(topic), group=group, start=start, timeout_s=timeout_s) as consumer,
    ):
        count, positions = 0, {}
        with nullcontext() if output is None else whole_file(output) as draft:
            file = None if draft is None else ParquetFile(draft)
            for found in _batches(consumer, skip_damaged=skip_damaged) if records != 0 else ():
                batch = found.batch if records is None else found.batch.slice(0, records - count)
                count += batch.num_rows
                last = batch.column("offset")[-1].as_py() + 1
                positions[found.partition] = found.next if batch is found.batch else last
                if file is not None:
                    file.write(found.partition, batch)
                else:
                    print_batch(found.partition, batch, separator, as_json=as_json)
                    sys.stdout.flush()
                    if group is not None:
                        consumer.commit({found.partition: positions[found.partition]})
                if count == records:
                    break
            if file is not None:
                file.close()
        if output is not None:
            if group is not None:
                consumer.commit(positions)
            facts = {"records": count, "output": str(output)}
            say(facts, f"wrote {count:,} records to {output}", as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.argument("group")
@command
def lag(place: str, topic: str, group: str, *, as_json: bool) -> None:
    """Say how many records a GROUP has not read."""
    with Topics(place) as topics:
        found = topics.lag(*_names(topic), group)
    total = sum(one.records for one in found)
    if as_json:
        parts = [one._asdict() | {"lag": one.records} for one in found]
        print_json({"group": group, "lag": total, "partitions": parts})
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table("partition", "position", "next", "lag")
    for one in found:
        table.add_row(*(f"{number:,}" for number in (*one, one.records)))
    console().print(table)
    click.echo(f"{total:,} record{'' if total == 1 else 's'} behind")


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.option("--rate", type=float, help="Bytes to read and write in a second, at most.")
@command
def compact(place: str, topic: str, *, rate: float | None, as_json: bool) -> None:
    """Drop all but the last record of each key of a compaction topic."""
    with Topics(place) as topics, byte_progress("compact", 0, shown=not as_json) as advance:
        report = topics.compact(*_names(topic), rate_bytes_s=rate, progress=advance)
    records = sum(one.records for one in report.partitions)
    smaller = sum(one.bytes for one in report.partitions)
    words = f"{records:,} records went, {size(smaller)} are free"
    say(msgspec.to_builtins(report), words, as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@command
def retain(place: str, topic: str, *, as_json: bool) -> None:
    """Delete what is older than a topic's retention, or more than it keeps.

    That happens by itself while somebody has the topic open. Only this deletes a topic of which
    nothing is left to keep.
    """
    with Topics(place) as topics:
        report = topics.retain(*_names(topic))
    gone = sum(one.records for one in report.partitions)
    words = f"{gone:,} records went" + (
        "; nothing was left, and the topic is gone" * report.is_deleted
    )
    say(msgspec.to_builtins(report), words, as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@command
def upload(place: str, topic: str, *, as_json: bool) -> None:
    """Upload what is not yet on a topic's tier, and wait for that.

    It happens by itself while somebody sends; use this before a machine goes away.
    """
    with Topics(place) as topics, count_progress("upload", shown=not as_json) as advance:
        report = topics.upload(*_names(topic), progress=advance)
    sent = sum(one.records for one in report.partitions)
    words = f"{sent:,} record{'' if sent == 1 else 's'} uploaded; all are on the store"
    say(msgspec.to_builtins(report), words, as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.argument("key", required=False)
@click.option("--separator", default="=", show_default=True, help="Between key and value.")
@printing_command
def latest(place: str, topic: str, key: str | None, *, separator: str, as_json: bool) -> None:
    """Print the last record of a KEY of a compaction topic, or of every key."""
    with Topics(place) as topics:
        if key is None:
            for partition, batch in topics.latest_batches(*_names(topic)):
                print_batch(partition, batch, separator, as_json=as_json)
            return
        found = topics.latest(*_names(topic), key.encode(errors="surrogateescape"))
    if found is None:
        raise NotFoundError(f"{topic} has no record of the key {key!r}")
    print_record(found, separator, as_json=as_json)


@topic.command()
@click.argument("place")
@click.argument("topic")
@click.option("--group", help="Forget this group of consumers, and not the topic.")
@click.option("--yes", is_flag=True, help="Do not ask; a program is not asked.")
@command
def delete(place: str, topic: str, *, group: str | None, yes: bool, as_json: bool) -> None:
    """Delete a topic with all its records, or a group."""
    names = _names(topic)
    with Topics(place) as topics:
        if group is not None:
            topics.delete_group(*names, group)
            say({"deleted": group}, f"deleted group {group}", as_json=as_json)
            return
        held = sum(one.next - one.oldest for one in topics.describe(*names).partitions)
        if not yes and held and sys.stdin.isatty() and not as_json:
            confirm(f"{topic} has {held:,} records; delete them?", as_json=as_json)
        topics.delete(*names)
    say({"deleted": topic, "records": held}, f"deleted {topic}", as_json=as_json)


def _kept(config: TopicConfig) -> str:
    """What a topic keeps, in words."""
    kept = "the last record of each key" if config.compaction else "all records"
    if config.retention_s is not None:
        kept += f" for {config.retention_s / 3600:,g} h"
    if config.retention_bytes is not None:
        kept += f", {size(config.retention_bytes)} of each partition at most"
    return f"keeps {kept}"


def _batches(consumer: Consumer, *, skip_damaged: bool) -> Iterator[Fetched]:
    """What a consumer gives, and what it passes over."""
    while True:
        try:
            yield from consumer.batches()
        except CorruptionError as error:
            if not skip_damaged:
                raise
            skipped = consumer.skip()
            words = f"{error.message}; {skipped.begin} to {skipped.end - 1} were passed over"
            warnings.warn(words, CordwoodWarning, stacklevel=1)
        else:
            return


def _names(topic: str) -> tuple[str, str]:
    """Namespace and name."""
    namespace, slash, name = topic.partition("/")
    if not slash:
        raise InvalidInputError(
            f"{topic!r} names no topic", hint="write its namespace, a slash and its name"
        )
    return namespace, name
