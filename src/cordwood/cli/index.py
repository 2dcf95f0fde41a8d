"""`cordwood index`: documents by the words in them, in a directory or a bucket."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from cordwood.cli.documents import batches_of
from cordwood.cli.later import Later, LaterGroup
from cordwood.cli.output import (
    command,
    console,
    count_progress,
    plain,
    print_json,
    read_progress,
    size,
    text_of,
)
from cordwood.cli.questions import add_questions, document_options, say
from cordwood.sync.index import Index

_LATER = {
    "bench": Later(
        "cordwood.cli.bench.searching",
        "Build and ask the index beside tantivy, SQLite FTS5 and bm25s, where they are installed.",
    )
}


@click.group(cls=LaterGroup, later=_LATER)
def index() -> None:
    """Work with a search index.

    PLACE is a directory, or a URL such as s3://bucket/prefix.
    """


@index.command()
@click.argument("place")
@click.option("--tokenizer", default="words", show_default=True, help="How texts become terms.")
@click.option("--no-frequencies", is_flag=True, help="Smaller; for `match` alone.")
@click.option("--exist-ok", is_flag=True, help="One that is there, and is like this, is no error.")
@command
def create(
    place: str, *, tokenizer: str, no_frequencies: bool, exist_ok: bool, as_json: bool
) -> None:
    """Make an empty index at PLACE."""
    _open(place).create(tokenizer, frequencies=not no_frequencies, exist_ok=exist_ok)
    say({"created": place}, f"created {place}", as_json=as_json)


@index.command()
@click.argument("place")
@document_options
@command
def add(
    place: str, source: BinaryIO, *, files: tuple[Path, ...], replace: bool, as_json: bool
) -> None:
    """Add documents to the index at PLACE, in one transaction.

    SOURCE has one document on each line: {"id": "…", "text": "…"}, or an id, a tab and a text.
    """
    count = 0
    with _open(place).begin() as transaction:
        batches = batches_of(source, files)
        for ids, texts in read_progress("add", source, batches, shown=not as_json):
            if replace:
                transaction.delete_arrow(ids)
            transaction.add_arrow(ids, texts)
            count += len(ids)
    say({"added": count}, f"added {count:,} documents", as_json=as_json)


@index.command()
@click.argument("place")
@click.argument("ids", nargs=-1, required=True)
@command
def delete(place: str, ids: tuple[str, ...], *, as_json: bool) -> None:
    """Delete every document of these IDS from the index at PLACE."""
    with _open(place).begin() as transaction:
        transaction.delete_arrow([one.encode(errors="surrogateescape") for one in ids])
    say({"deleted": list(ids)}, f"deleted {len(ids):,} ids", as_json=as_json)


@index.command()
@click.argument("place")
@click.option("--tiered", is_flag=True, help="Only those that are worth it.")
@command
def merge(place: str, *, tiered: bool, as_json: bool) -> None:
    """Merge the segments of the index at PLACE, so that it is searched more quickly."""
    with count_progress("merge", shown=not as_json) as progress:
        gone = _open(place).merge(tiered=tiered, progress=progress)
    say({"fewer_segments": gone}, f"{gone:,} segments fewer", as_json=as_json)


@index.command()
@click.argument("place")
@command
def compact(place: str, *, as_json: bool) -> None:
    """Delete what merges left and nobody reads any more."""
    report = _open(place).compact()
    words = (
        f"removed {report.segments_removed:,} segments and {report.orphans_removed:,} that crashes "
        f"left; the ledger has {report.transactions_after:,} of {report.transactions_before:,} "
        "transactions"
    )
    say(asdict(report), words, as_json=as_json)


@index.command()
@click.argument("place")
@command
def show(place: str, *, as_json: bool) -> None:
    """Show what the index at PLACE has."""
    state = _open(place).state()
    if as_json:
        marks = {name: text_of(value) for name, value in state.marks.items()}
        print_json(asdict(state) | {"marks": marks})
        return
    screen = console()
    kept = "with" if state.frequencies else "without"
    screen.print(f"[bold]{plain(place)}[/]  {plain(state.tokenizer)}, {kept} frequencies")
    screen.print(
        f"{state.documents:,} documents in {state.segments:,} segments, {size(state.size_bytes)}; "
        f"{state.deleted:,} deleted ones to be merged away"
    )
    for name, value in sorted(state.marks.items()):
        screen.print(plain(f"mark {name}: {text_of(value)}"))


def _open(place: str) -> Index:
    return Index(place)


add_questions(index, _open, "PLACE")
