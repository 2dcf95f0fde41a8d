"""What an index and a collection are asked alike, and how both take documents from the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from cordwood.cli.documents import show_hits, show_ids
from cordwood.cli.output import byte_progress, command, print_json
from cordwood.cli.source import Source

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def document_options(function: Decorated) -> Decorated:
    """Where documents come from."""
    options = (
        click.argument("source", type=Source(), default="-"),
        click.option(
            "--files",
            multiple=True,
            type=click.Path(exists=True, path_type=Path),
            help="Files as documents, under their names as ids; of a directory, all in it.",
        ),
        click.option("--replace", is_flag=True, help="In place of documents of the same ids."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def add_questions(group: click.Group, opened: Callable[[str], Any], place: str) -> None:
    """Give a group the commands that ask; `place` is what it calls the place to open."""

    @group.command()
    @click.argument("at", metavar=place)
    @click.argument("query")
    @click.option("-k", "--top", type=click.IntRange(1), default=10, show_default=True)
    @click.option(
        "--scoring", type=click.Choice(["bm25", "tfidf"]), default="bm25", show_default=True
    )
    @command
    def search(at: str, query: str, *, top: int, scoring: str, as_json: bool) -> None:
        """The ids that answer QUERY best, such as 'quick AND (fox OR dog) NOT cat', or 'qui*'."""
        with opened(at) as named:
            show_hits(named.search(query, top, scoring=scoring), as_json=as_json)

    @group.command()
    @click.argument("at", metavar=place)
    @click.argument("query")
    @command
    def match(at: str, query: str, *, as_json: bool) -> None:
        """All ids that QUERY finds, not ranked."""
        with opened(at) as named:
            show_ids(named.match(query), as_json=as_json)

    @group.command()
    @click.argument("at", metavar=place)
    @command
    def check(at: str, *, as_json: bool) -> None:
        """Read all of it, and compare its parts."""
        with opened(at) as named, byte_progress("check", 0, shown=not as_json) as progress:
            report = named.check(progress)
        if as_json:
            print_json({"ok": report.ok} | asdict(report))
        else:
            for error in report.errors:
                click.echo(f"  {error}", err=True)
            whole = f"whole: {report.documents:,} documents in {report.segments:,} segments"
            click.echo(whole if report.ok else f"DAMAGED in {len(report.errors)} places")
        if not report.ok:
            sys.exit(1)


def say(facts: dict[str, object], words: str, *, as_json: bool) -> None:
    """The same for programs and for people."""
    if as_json:
        print_json(facts)
    else:
        click.echo(words)


def confirm(question: str, *, as_json: bool) -> None:
    """Go on if somebody says yes, or a pipe does; a program that wants JSON is not asked."""
    if as_json:
        raise click.UsageError("nobody can be asked with --json; with --yes it is done unasked")
    click.confirm(question, abort=True, err=True)
