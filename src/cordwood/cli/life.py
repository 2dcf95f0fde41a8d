"""The life of a log on the command line: cursors, pins, collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cordwood.base.errors import Code, InvalidInputError, NotFoundError, StateError
from cordwood.cli.output import byte_progress, command, console, print_json, size
from cordwood.cli.questions import confirm
from cordwood.log import tree
from cordwood.log.collect import FRAGMENTS_MAX, CollectReport
from cordwood.log.pins import TTL_S_MAX
from cordwood.sync import Log


@contextmanager
def object_progress(title: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over objects on a terminal; silence elsewhere. Call it with done and total."""
    screen = Console(stderr=True)
    if not shown or not screen.is_terminal:
        yield lambda _done, _total: None
        return
    with Progress(console=screen) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# Cursors.


@click.group()
def cursor() -> None:
    """Named positions, which hold back collection."""


@cursor.command("list")
@click.argument("url")
@command
def list_cursors(url: str, *, as_json: bool) -> None:
    """The cursors of the log at URL."""
    named = Log.from_url(url)
    named.state()  # A log that is not there has no cursors either, and says so.
    found = named.cursors.list()
    if as_json:
        print_json({name: witness.offset for name, witness in found.items()})
        return
    table = Table("cursor", "offset")
    for name, witness in sorted(found.items()):
        table.add_row(name, f"{witness.offset:,}")
    console().print(table)


@cursor.command("set")
@click.argument("url")
@click.argument("name")
@click.argument("offset", type=int)
@command
def set_cursor(url: str, name: str, offset: int, *, as_json: bool) -> None:
    """Create the cursor NAME at OFFSET, or move it there."""
    log = Log.from_url(url)
    cursors, end = log.cursors, log.state().next_offset
    if offset > end:
        # A consumer that moves on need not look; a number typed wrong would free what nobody read.
        raise InvalidInputError(f"offset {offset} is behind the end of the log, {end}")
    try:
        witness = cursors.save(name, offset, cursors.load(name))
    except NotFoundError:
        witness = cursors.init(name, offset)
    if as_json:
        print_json({"cursor": name, "offset": witness.offset})
    else:
        click.echo(f"cursor {name} stands at {witness.offset}")


@cursor.command("delete")
@click.argument("url")
@click.argument("name")
@command
def delete_cursor(url: str, name: str, *, as_json: bool) -> None:
    """Delete the cursor NAME: it holds nothing back any more."""
    named = Log.from_url(url)
    try:
        named.cursors.delete(name, named.cursors.load(name))
    except NotFoundError:
        named.state()  # It may be the log that is not there.
        raise
    if as_json:
        print_json({"cursor": name, "deleted": True})
    else:
        click.echo(f"cursor {name} is deleted")


# Pins.


@click.group()
def pin() -> None:
    """Holds on a range of records, while collection goes on."""


@pin.command("add")
@click.argument("url")
@click.argument("name")
@click.argument("start", type=int)
@click.argument("limit", type=int)
@click.option(
    "--ttl-s",
    type=click.IntRange(1, TTL_S_MAX),
    default=3_600,
    show_default=True,
    help="Seconds it holds.",
)
@command
def add_pin(url: str, name: str, start: int, limit: int, *, ttl_s: int, as_json: bool) -> None:
    """Keep the records from START up to LIMIT readable (with `log read --pin NAME`).

    A pin holds whole fragments: it may begin before START and end behind LIMIT.
    """
    made = Log.from_url(url).pin(name, start, limit, ttl_s=ttl_s)
    if as_json:
        print_json({"pin": name, "start": made.start, "limit": made.limit, "ttl_s": ttl_s})
    else:
        click.echo(f"pin {name} holds [{made.start}, {made.limit}) for {ttl_s} s")
        if made.start < start or made.limit > limit:
            click.echo(f"asked for [{start}, {limit}): fragments are held whole")


@pin.command("list")
@click.argument("url")
@command
def list_pins(url: str, *, as_json: bool) -> None:
    """The pins of the log at URL that have not ended."""
    named = Log.from_url(url)
    found = [named.pinned(name) for name in named.state().pins]
    if as_json:
        print_json({p.name: {"start": p.start, "limit": p.limit, "ttl_s": p.ttl_s} for p in found})
        return
    table = Table("pin", "from", "up to", "seconds")
    for one in found:
        table.add_row(one.name, f"{one.start:,}", f"{one.limit:,}", f"{one.ttl_s:,}")
    console().print(table)


@pin.command("release")
@click.argument("url")
@click.argument("name")
@command
def release_pin(url: str, name: str, *, as_json: bool) -> None:
    """End the pin NAME: the next collection frees what it held."""
    Log.from_url(url).pinned(name).release()
    if as_json:
        print_json({"pin": name, "released": True})
    else:
        click.echo(f"pin {name} is released")


# Collection.


@click.command()
@click.argument("url")
@click.option("--keep-from", type=int, help="Keep everything from this offset on.")
@click.option("--max-fragments", type=int, default=FRAGMENTS_MAX, show_default=True)
@click.option("--max-share", type=float, default=1.0, show_default=True, help="Of the bytes.")
@click.option("--grace-s", type=float, default=0.0, help="Wait longer than the log's grace.")
@click.option("--rate", type=float, help="Objects deleted per second, at most.")
@click.option("--wait-s", type=float, default=5.0, show_default=True)
@click.option(
    "--take-over",
    is_flag=True,
    help="First end a collection that another program (wal3) abandoned. Make sure that it does not "
    "run any more.",
)
@command
def collect(
    url: str,
    *,
    keep_from: int | None,
    max_fragments: int,
    max_share: float,
    grace_s: float,
    rate: float | None,
    wait_s: float,
    take_over: bool,
    as_json: bool,
) -> None:
    """Free what lies before every cursor of the log at URL.

    What is taken out of the log is deleted a grace interval later: by this command if that is at
    most --wait-s away, otherwise by the next one.
    """
    with object_progress("deleting", shown=not as_json) as progress:
        report = Log.from_url(url).collect(
            keep_from,
            max_fragments=max_fragments,
            max_share=max_share,
            grace_s=grace_s,
            rate=rate,
            wait_s=wait_s,
            take_over=take_over,
            progress=progress,
        )
    if as_json:
        print_json(dataclasses.asdict(report) | {"setsum": str(report.setsum)})
    else:
        _tell(report)


def _tell(report: CollectReport) -> None:
    click.echo(
        f"{report.records:,} records ({size(report.bytes)}) taken out of the log, "
        f"{report.deleted:,} objects deleted; the oldest record is {report.oldest_offset:,}"
    )
    if report.held:
        click.echo(f"kept for {', '.join(report.held)}")
    if report.gave_up:
        click.echo("the log changed under every try; collect again")
    if report.due_s > 0:
        click.echo(f"the rest may be deleted in {report.due_s:,.0f} s: collect again then")


# The end of a log, and another one with the same past.


@click.command()
@click.argument("url")
@click.option("--reason", help="Why; whoever appends is told.")
@click.option("--moved-to", help="The log that goes on from here.")
@command
def seal(url: str, *, reason: str | None, moved_to: str | None, as_json: bool) -> None:
    """End the log at URL: it takes no more records, and can be read for ever.

    A seal does not change: of a log that is sealed, another reason or another log is refused.
    """
    named = Log.from_url(url)
    made = named.seal(reason or "", moved_to or "")
    _check_kept("reason", reason, made.reason)
    _check_kept("moved to", moved_to, made.moved_to)
    if as_json:
        facts = {"reason": made.reason, "moved_to": made.moved_to}
        print_json({"sealed": named.url, "next_offset": named.state().next_offset} | facts)
    else:
        click.echo(f"{named.url} is sealed at offset {named.state().next_offset:,}")


def _check_kept(what: str, asked: str | None, kept: str) -> None:
    """Refuse what the seal does not say, because it was there before."""
    if asked is not None and asked != kept:
        raise StateError(
            f"the log was sealed before, {what} {kept!r} and not {asked!r}",
            code=Code.SEALED,
            hint="a seal does not change; copy the log instead",
        )


@click.command()
@click.argument("url")
@click.argument("target")
@click.option("--reason", default="moved", show_default=True)
@command
def migrate(url: str, target: str, *, reason: str, as_json: bool) -> None:
    """Seal the log at URL and go on in a new one at TARGET, with the offset that comes next."""
    named, other = Log.from_url(url), Log.from_url(target)
    named.migrate(other, reason)
    start = other.state().oldest_offset
    if as_json:
        print_json({"sealed": named.url, "goes_on": other.url, "offset": start})
    else:
        click.echo(f"{named.url} is sealed; {other.url} goes on at offset {start:,}")


start_option = click.option(
    "--start",
    type=int,
    help="Begin with the fragment that holds this offset, or one before; by default with the "
    "oldest. Fragments are taken whole.",
)


def _tell_start(asked: int | None, begins: int, how: str) -> None:
    """Say it if a log begins before what was asked for."""
    if asked is not None and begins < asked:
        click.echo(f"asked for {asked:,}, begins at {begins:,}: fragments are {how} whole")


@click.command()
@click.argument("url")
@click.argument("target")
@start_option
@command
def fork(url: str, target: str, *, start: int | None, as_json: bool) -> None:
    """Make TARGET a log that begins as the one at URL is now, without copying its files."""
    named, other = Log.from_url(url), Log.from_url(target)
    named.fork(other, start)
    state = other.state()
    if as_json:
        facts = {"oldest_offset": state.oldest_offset, "next_offset": state.next_offset}
        print_json({"fork": other.url, "of": named.url} | facts)
    else:
        click.echo(
            f"{other.url} shares {state.records:,} records with {named.url} "
            f"and goes on at offset {state.next_offset:,}"
        )
        _tell_start(start, state.oldest_offset, "shared")


@click.command()
@click.argument("url")
@click.option("--yes", is_flag=True, help="Do not ask.")
@command
def destroy(url: str, *, yes: bool, as_json: bool) -> None:
    """Delete the log at URL and everything in it."""
    named = Log.from_url(url)
    if not yes:
        state = named.state()
        question = f"Delete {named.url} with {state.records:,} records ({size(state.bytes)})?"
        confirm(question, as_json=as_json)
    with object_progress("deleting", shown=not as_json) as progress:
        count = named.destroy(progress)
    if as_json:
        print_json({"destroyed": named.url, "objects": count})
    else:
        click.echo(f"{named.url} is gone: {count:,} objects deleted")


@click.command()
@click.argument("url")
@click.argument("target")
@start_option
@command
def copy(url: str, target: str, *, start: int | None, as_json: bool) -> None:
    """Copy the log at URL to TARGET, in the same store or another, and prove that it is equal."""
    named, other = Log.from_url(url), Log.from_url(target)
    with byte_progress("copy", 0, shown=not as_json) as advance:
        report = named.copy(
            other,
            start,
            lambda done, made: advance(done.bytes, sum(p.num_bytes for p in tree.roots(made))),
        )
    if as_json:
        facts = {
            "records": report.records,
            "bytes": report.bytes,
            "fragments": report.fragments,
            "setsum": str(report.setsum),
            "oldest_offset": report.oldest_offset,
        }
        print_json({"copy": other.url, "of": named.url} | facts)
    else:
        click.echo(
            f"{other.url} holds {report.records:,} records ({size(report.bytes)}) of {named.url}\n"
            f"setsum {report.setsum}"
        )
        _tell_start(start, report.oldest_offset, "copied")


@click.command()
@click.argument("url")
@click.option("--from", "start", type=int, help="Begin at this offset, behind a hole.")
@click.option("--up-to", "limit", type=int, help="Leave out everything from this offset on.")
@command
def rebuild(url: str, *, start: int | None, limit: int | None, as_json: bool) -> None:
    """Make the manifest of the chain log at URL anew, from its fragments.

    For a log whose manifests are lost or damaged; it refuses while the log can be opened.
    """
    with object_progress("reading", shown=not as_json) as progress:
        report = Log.from_url(url).rebuild(start, limit, progress)
    if as_json:
        print_json({**dataclasses.asdict(report), "setsum": report.setsum.hexdigest()})
        return
    click.echo(
        f"rebuilt [{report.oldest_offset}, {report.next_offset}) from {report.fragments} "
        f"fragments, {size(report.bytes)}; {len(report.left_out)} left out"
    )
    for path in report.left_out:
        click.echo(f"  left out: {path}")
