"""`cordwood collection`: documents that are found once they are durable."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from cordwood.cli.documents import batches_of
from cordwood.cli.engines import engine_option
from cordwood.cli.output import (
    byte_progress,
    command,
    console,
    plain,
    print_json,
    read_progress,
    size,
)
from cordwood.cli.questions import add_questions, document_options, say
from cordwood.sync.collection import Collection


@click.group()
def collection() -> None:
    """Work with a searchable log.

    A collection's URL is its store's URL, a slash, and its name: file:///data/wood/docs.
    """


@collection.command()
@click.argument("url")
@click.option("--tokenizer", default="words", show_default=True, help="How texts become terms.")
@click.option("--exist-ok", is_flag=True, help="One that is there, and is like this, is no error.")
@command
def create(url: str, *, tokenizer: str, exist_ok: bool, as_json: bool) -> None:
    """Make an empty collection."""
    with _open(url) as named:
        named.create(tokenizer, exist_ok=exist_ok)
    say({"created": url}, f"created {url}", as_json=as_json)


@collection.command()
@click.argument("url")
@document_options
@command
def add(
    url: str, source: BinaryIO, *, files: tuple[Path, ...], replace: bool, as_json: bool
) -> None:
    """Add documents, durably; the next search finds them.

    SOURCE has one document on each line: {"id": "…", "text": "…"}, or an id, a tab and a text.
    """
    count = 0
    with _open(url) as named:
        append = named.update_arrow if replace else named.add_arrow
        batches = batches_of(source, files)
        for ids, texts in read_progress("add", source, batches, shown=not as_json):
            append(ids, texts)
            count += len(ids)
    say({"added": count}, f"added {count:,} documents", as_json=as_json)


@collection.command()
@click.argument("url")
@click.argument("ids", nargs=-1, required=True)
@command
def delete(url: str, ids: tuple[str, ...], *, as_json: bool) -> None:
    """Delete every document of these IDS."""
    with _open(url) as named:
        named.delete_arrow([one.encode(errors="surrogateescape") for one in ids])
    say({"deleted": list(ids)}, f"deleted {len(ids):,} ids", as_json=as_json)


@collection.command()
@click.argument("url")
@engine_option
@command
def compact(url: str, *, engine: str, as_json: bool) -> None:
    """Bring the index up to the log, so that collection can free it."""
    with (
        byte_progress("compacting", 0, shown=not as_json) as progress,
        _open(url) as named,
    ):
        report = named.compact(engine, progress=progress)
    words = (
        f"{report.records:,} operations: {report.documents:,} documents joined in "
        f"{report.segments:,} segments, {report.deleted:,} are gone"
    )
    if report.superseded:
        words = "somebody else compacted it meanwhile"
    say(msgspec.to_builtins(report), words, as_json=as_json)


@collection.command()
@click.argument("url")
@command
def show(url: str, *, as_json: bool) -> None:
    """Show what the collection has, and what waits for a compaction."""
    with _open(url) as named:
        state = named.state()
    if as_json:
        print_json(asdict(state))
        return
    screen = console()
    screen.print(f"[bold]{plain(url)}[/]  {plain(state.tokenizer)}")
    screen.print(f"{state.documents:,} documents in {state.segments:,} segments")
    screen.print(f"{state.waiting:,} operations wait, {size(state.waiting_bytes)}")


def _open(url: str) -> Collection:
    return Collection.from_url(url)


add_questions(collection, _open, "URL")
