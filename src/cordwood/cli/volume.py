"""`cordwood volume`: pages with versions, and the databases in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime

import click

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import AlreadyExistsError, NotFoundError
from cordwood.cli.commits import drawn
from cordwood.cli.database import export, import_database, shell
from cordwood.cli.later import Later, LaterGroup
from cordwood.cli.life import object_progress
from cordwood.cli.output import byte_progress, command, print_json, size
from cordwood.cli.place import opened, volume_command
from cordwood.cli.questions import confirm, say
from cordwood.store.url import Store
from cordwood.sync.volume import Volume
from cordwood.volume.collect import KEEP_S
from cordwood.volume.format import GRACE_S
from cordwood.volume.graph import Graph, read_graph
from cordwood.volume.pull import Moved
from cordwood.volume.remote import Remote
from cordwood.volume.versions import Version
from cordwood.volume.volume import PAGE_SIZE

_LATER = {
    "bench": Later(
        "cordwood.cli.bench.volume",
        "Measure volumes, beside a peer in the same run.",
    )
}


@click.group(cls=LaterGroup, later=_LATER)
def volume() -> None:
    """Work with volumes, and with SQLite databases in them.

    A volume is named by its store's URL, a slash and its own name: s3://bucket/wood/app. A branch
    is a volume as well. Local commits and copies of pages are in a directory: --directory, or the
    environment's CORDWOOD_DIRECTORY, or one below your home.

    A version is an LSN (7), a time (2026-01-31T12:00) or how long ago ('5 minutes ago').
    """


for verb in (import_database, export, shell):
    volume.add_command(verb)


# Their lives.


@volume.command()
@volume_command
@click.option("--page-size", type=int, default=PAGE_SIZE, show_default=True, help="For good.")
@click.option(
    "--grace-s",
    type=float,
    default=GRACE_S,
    show_default=True,
    help="Seconds between marking and deleting in a collection; fixed for ever.",
)
@click.option("--exist-ok", is_flag=True, help="Leave a volume that exists as it is.")
def create(
    url: str,
    directory: str | None,
    *,
    page_size: int,
    grace_s: float,
    exist_ok: bool,
    as_json: bool,
) -> None:
    """Make the volume at URL, without pages."""
    is_new = True
    with opened(url, directory) as named:
        try:
            named.create(page_size, grace_s=grace_s)
        except AlreadyExistsError:
            if not exist_ok:
                raise
            is_new = False
    words = f"created {url}" if is_new else f"{url} exists already"
    say({"created": is_new, "url": url}, words, as_json=as_json)


@volume.command("list")
@click.argument("store_url")
@command
def list_volumes(store_url: str, *, as_json: bool) -> None:
    """List the volumes, branches and tags of the store at STORE_URL."""
    remote = Remote(Store(store_url), SYSTEM_CLOCK, SYSTEM_ENTROPY)
    found = portal.current().run(remote.list_tags())
    for name, tag in sorted(found.items()):
        if as_json:
            print_json({"name": name, "log": tag.log})
        else:
            click.echo(f"{name}  {tag.log}")


@volume.command()
@volume_command
@click.option("--yes", is_flag=True, help="Do not ask; a program is not asked.")
def delete(url: str, directory: str | None, *, yes: bool, as_json: bool) -> None:
    """Take the name of the volume at URL away; `collect` frees what nothing needs then."""
    if not yes and sys.stdin.isatty() and not as_json:
        confirm(f"delete {url}?", as_json=as_json)
    with opened(url, directory) as named:
        is_there = named.name in named.tags()
        named.delete()  # Also if it is gone: what this directory knows of it may be left.
        if not is_there:
            raise NotFoundError(f"there is no volume named {named.name!r}")
    say({"deleted": url}, f"deleted {url}", as_json=as_json)


@volume.command()
@volume_command
@click.option("--offline", is_flag=True, help="Ask nothing of the store.")
def status(url: str, directory: str | None, *, offline: bool, as_json: bool) -> None:
    """Say how the volume at URL stands: ahead, behind, diverged, cached."""
    with opened(url, directory) as named:
        found = named.status(offline=offline)
    if as_json:
        print_json(asdict(found) | {"is_safe_to_delete": found.is_safe_to_delete})
        return
    pages = f"{found.num_pages:,} pages of {found.page_size:,} bytes"
    lines = [
        f"{found.name}  at version {found.lsn:,}, {pages}",
        f"ahead    {found.ahead:,} pages committed here and not published",
        "behind   "
        + (
            "the store was not asked"
            if found.behind is None
            else f"{found.behind:,} versions" + (f", {found.lag_s:,.0f} s" if found.lag_s else "")
        ),
        f"cached   {found.cached_share:.0%} of the published pages",
        f"kept in  {found.directory}",
    ]
    if found.diverged:
        lines.append("DIVERGED: keep yours on a branch, take theirs (reset), or rebase")
    if found.uncertain:
        lines.append("a push was cut off: the next push or pull finds out what became of it")
    if not found.is_safe_to_delete:
        of = "" if found.ahead else " of other volumes"
        lines.append(f"do not delete that directory: it has what is nowhere else{of}")
    click.echo("\n".join(lines))


# Versions.


@volume.command("log")
@volume_command
@click.option("-n", "--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--graph", is_flag=True, help="Draw it, with all branches, as the store has them.")
def show_log(url: str, directory: str | None, *, limit: int, graph: bool, as_json: bool) -> None:
    """List the published versions of the volume at URL, the newest first."""
    with opened(url, directory) as named:
        if graph:
            remote = Remote(named.store, SYSTEM_CLOCK, SYSTEM_ENTROPY)
            _show_graph(portal.current().run(read_graph(remote, named.name, limit)), as_json)
            return
        for version in named.log(limit):
            if as_json:
                print_json(asdict(version))
            else:
                click.echo(_told(version))


def _show_graph(graph: Graph, as_json: bool) -> None:
    """All branches, drawn."""
    if as_json:
        print_json(asdict(graph))
        return
    heads: dict[tuple[str, int], list[str]] = {}
    for line in graph.lines:
        own = {commit.lsn for commit in graph.commits if commit.log == line.log}
        log = line.log if line.head in own or line.parent is None else line.parent[0]
        heads.setdefault((log, line.head), []).extend(line.names)
    for picture, commit in drawn(graph):
        if commit is None:
            click.echo(picture)
        else:
            names = heads.get((commit.log, commit.lsn), [])
            click.echo(f"{picture}  {_told(commit, names)}")
    if graph.hidden:
        click.echo(f"… {graph.hidden:,} older")


def _told(version: Version, names: list[str] | None = None) -> str:
    """One line about a version."""
    when = datetime.fromtimestamp(version.timestamp_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    shown = f"[{', '.join(names)}] " if names else ""
    message = version.message.splitlines()[0] if version.message else ""
    changed = f"{version.pages_changed:,} page{'' if version.pages_changed == 1 else 's'}"
    return f"{version.lsn}  {shown}{when}  {changed}  {message}".rstrip()


@volume.command()
@volume_command
@click.argument("before")
@click.argument("after", required=False)
def diff(url: str, directory: str | None, *, before: str, after: str | None, as_json: bool) -> None:
    """List the pages that differ between versions BEFORE and AFTER (the newest) of URL."""
    with opened(url, directory) as named:
        pages = [*named.diff(before, after)]
    if as_json:
        print_json({"pages": pages})
        return
    for page in pages:
        click.echo(str(page))


@volume.command()
@volume_command
@click.argument("name")
@click.option("--at", help="The version; else what is published here.")
@click.option("--unpushed", is_flag=True, help="Take local commits along; then take theirs here.")
@click.option("-m", "--message", default="", help="With --unpushed.")
def branch(
    url: str,
    directory: str | None,
    *,
    name: str,
    at: str | None,
    unpushed: bool,
    message: str,
    as_json: bool,
) -> None:
    """Make a branch NAME of the volume at URL; no page is copied."""
    with opened(url, directory) as named:
        named.branch(name, at, unpushed=unpushed, message=message).close()
    say({"branch": name}, f"made {name}", as_json=as_json)


@volume.command()
@volume_command
@click.argument("name")
@click.option("--force", is_flag=True, help="Also if the name means another volume.")
def tag(url: str, directory: str | None, *, name: str, force: bool, as_json: bool) -> None:
    """Give the volume at URL another NAME in the store."""
    with opened(url, directory) as named:
        named.tag(name, force=force)
    say({"tag": name}, f"{name} means {url}", as_json=as_json)


@volume.command()
@volume_command
@click.argument("at")
def restore(url: str, directory: str | None, *, at: str, as_json: bool) -> None:
    """Make version AT what is there, by a local commit; `push` publishes it."""
    with opened(url, directory) as named:
        changed = named.restore(at)
    say({"pages": changed}, f"{changed:,} pages are as they were; push to publish", as_json=as_json)


# With the store.


@volume.command()
@volume_command
@click.option("-m", "--message", default="", help="What the version is.")
def push(url: str, directory: str | None, *, message: str, as_json: bool) -> None:
    """Publish what is committed here as one version of the volume at URL."""
    with opened(url, directory) as named, object_progress("push", shown=not as_json) as progress:
        lsn = named.push(message, progress)
    words = "nothing to push" if lsn is None else f"published version {lsn:,}"
    say({"lsn": lsn}, words, as_json=as_json)


def _moving(name: str, call: Callable[[Volume], Moved], about: str) -> None:
    @volume.command(name, help=about)
    @volume_command
    def moving(url: str, directory: str | None, *, as_json: bool) -> None:
        with opened(url, directory) as named:
            moved = call(named)
        words = f"version {moved.lsn:,}" + (
            f", before {moved.before:,}" if moved.lsn != moved.before else ", as before"
        )
        say(moved._asdict(), words, as_json=as_json)


_moving("pull", Volume.pull, "Let the newest published version be what is seen here.")
_moving("fetch", Volume.fetch, "Learn what others published, and change nothing that is seen.")
_moving("reset", Volume.reset, "Take theirs: local commits that were not pushed are gone.")
_moving("rebase", Volume.rebase, "Put local commits on top of what others published.")


@volume.command()
@volume_command
def follow(url: str, directory: str | None, *, as_json: bool) -> None:
    """Go where the name of the volume at URL points now, if somebody moved it."""
    with opened(url, directory) as named:
        is_moved = named.follow()
        lsn = named.status(offline=True).lsn
    words = f"{'another volume' if is_moved else 'as before'}, at version {lsn:,}"
    say({"moved": is_moved, "lsn": lsn}, words, as_json=as_json)


@volume.command()
@volume_command
@click.option("--at", help="The version; else the one seen here.")
def hydrate(url: str, directory: str | None, *, at: str | None, as_json: bool) -> None:
    """Bring every page of a version of URL to this machine."""
    with opened(url, directory) as named, byte_progress("hydrate", 0, shown=not as_json) as bar:
        done = 0

        def progress(fetched: int) -> None:
            nonlocal done
            done += fetched
            bar(done)

        fetched = named.hydrate(at, progress)
    say({"bytes": fetched}, f"fetched {size(fetched)}", as_json=as_json)


@volume.command()
@volume_command
@click.option("--at", help="The version; else the newest.")
def checkpoint(url: str, directory: str | None, *, at: str | None, as_json: bool) -> None:
    """Name every page of a version of URL in one document, so that reads stop there."""
    with (
        opened(url, directory) as named,
        object_progress("checkpoint", shown=not as_json) as progress,
    ):
        made = named.checkpoint(at, progress)
    facts: dict[str, object] = {
        "lsn": made.checkpoint.lsn,
        "packs_reused": made.packs_reused,
        "packs_written": made.packs_written,
        "bytes_written": made.bytes_written,
    }
    words = (
        f"checkpoint at version {made.checkpoint.lsn:,}: {made.packs_reused:,} packs as they are, "
        f"{made.packs_written:,} written ({size(made.bytes_written)})"
    )
    say(facts, words, as_json=as_json)


@volume.command()
@volume_command
def discover(url: str, directory: str | None, *, as_json: bool) -> None:
    """Add checkpoints of URL that were made, and whose makers died before they said so."""
    with opened(url, directory) as named:
        found = [*named.discover()]
    words = f"added {', '.join(map(str, found))}" if found else "nothing to add"
    say({"checkpoints": found}, words, as_json=as_json)


@volume.command()
@click.argument("store_url")
@click.option(
    "--keep-s", type=float, default=KEEP_S, show_default=True, help="Keep all versions so long."
)
@click.option("--grace-s", type=float, help="Wait longer between marking and deleting.")
@command
def collect(store_url: str, *, keep_s: float, grace_s: float | None, as_json: bool) -> None:
    """Delete old versions, and what nothing needs, of all volumes of the store at STORE_URL.

    A first call marks; one that comes a grace interval later deletes. Put it into a timer.
    """
    from cordwood.volume.collect import Collector  # noqa: PLC0415 - the others do without it

    remote = Remote(Store(store_url), SYSTEM_CLOCK, SYSTEM_ENTROPY)
    collector = Collector(remote, keep_s=keep_s, grace_s=grace_s)
    with object_progress("collect", shown=not as_json) as progress:
        report = portal.current().run(collector.collect(progress))
    words = (
        f"deleted {report.deleted:,} objects, {report.packs:,} of them packs; "
        f"marked {len(report.marked):,} logs, condemned {len(report.condemned):,}"
    )
    if report.due_s:
        words += f"; again in {report.due_s:,.0f} s"
    say(asdict(report), words, as_json=as_json)
