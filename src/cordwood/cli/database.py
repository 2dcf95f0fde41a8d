"""SQLite files in and out of volumes, and a shell on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cordwood.base import portal
from cordwood.base.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from cordwood.base.lazy import lazily
from cordwood.cli.output import byte_progress, fail, print_json, print_line, size
from cordwood.cli.place import directory_of, split_url, volume_command
from cordwood.cli.questions import say
from cordwood.volume.transfer import export_file, import_file, page_size_of
from cordwood.volume.volume import Volume


@click.command("import")
@volume_command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-m", "--message", help="What the version is; else the file's name.")
@click.option("--no-push", is_flag=True, help="Only commit it here.")
def import_database(
    url: str,
    directory: str | None,
    *,
    file: Path,
    message: str | None,
    no_push: bool,
    as_json: bool,
) -> None:
    """Make the SQLite database FILE the first version of a volume at URL.

    Others may read the file meanwhile, and not write to it.
    """
    store, name = split_url(url)
    volume = Volume(store, name, directory=directory_of(store, directory))
    run = portal.current().run
    with lazily("cordwood.volume.sqlite", "quiet")(file):
        with open(file, "rb") as opened:
            page_size = page_size_of(opened.read(100), str(file))
        run(volume.create(page_size, exist_ok=True))
        try:
            with byte_progress("import", 0, shown=not as_json) as progress:
                pages = run(import_file(volume, str(file), progress))
            lsn = None if no_push else run(_push(volume, message or file.name, page_size, as_json))
        finally:
            run(volume.close())
    done = "committed here" if lsn is None else f"published as version {lsn:,}"
    words = f"{pages:,} pages ({size(pages * page_size)}) {done}"
    say({"url": url, "pages": pages, "page_size": page_size, "lsn": lsn}, words, as_json=as_json)


async def _push(volume: Volume, message: str, page_size: int, as_json: bool) -> int | None:
    with byte_progress("push", 0, shown=not as_json) as bar:
        return await volume.push(
            message, lambda done, total: bar(done * page_size, total * page_size)
        )


@click.command()
@volume_command
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--at", help="The version; else what is there, local commits and all.")
@click.option("--force", is_flag=True, help="In place of a file of that name.")
def export(
    url: str,
    directory: str | None,
    *,
    file: Path,
    at: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a version of the volume at URL to FILE, byte for byte: a plain SQLite database."""
    if file.exists() and not force:
        raise AlreadyExistsError(f"{file} is there already", hint="choose another, or --force")
    if not file.absolute().parent.is_dir():
        raise NotFoundError(f"there is no directory {file.absolute().parent}")
    store, name = split_url(url)
    volume = Volume(store, name, directory=directory_of(store, directory))
    run = portal.current().run
    try:
        with byte_progress("export", 0, shown=not as_json) as progress:
            length = run(export_file(volume, str(file), at, progress))
    finally:
        run(volume.close())
    say({"file": str(file), "bytes": length}, f"wrote {size(length)} to {file}", as_json=as_json)


@click.command()
@volume_command
@click.option("-c", "--command", "statement", help="Run this SQL, print its rows, and end.")
@click.option("--at", help="Read this version, and write nothing.")
@click.option("--create", is_flag=True, help="Make the volume if it is not there.")
def shell(
    url: str,
    directory: str | None,
    *,
    statement: str | None,
    at: str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Open the database in the volume at URL: type SQL, or .help.

    `pragma cordwood_push('message')` publishes what was committed; so does `cordwood volume push`.
    """
    store, name = split_url(url)
    if statement is None and as_json:
        raise InvalidInputError("--json goes with one statement", hint="add -c 'select …'")
    connect = lazily("cordwood.volume.sqlite", "connect")
    errors = lazily("cordwood.volume.sqlite", "SqlError")
    place = directory_of(store, directory)
    try:
        connection = connect(store, name, directory=place, at=at, create=create)
        try:
            if statement is None:
                lazily("cordwood.volume.sqlite", "interact")(connection)
            else:
                _run(connection, statement, as_json)
        finally:
            connection.close(True)
    except errors as error:
        fail(str(error), "", "sql", as_json=as_json)


def _run(connection: Any, statement: str, as_json: bool) -> None:
    """Run statements and print what they return, a line for each row."""
    cursor = connection.execute(statement)
    for row in cursor:
        if as_json:
            names = [column[0] for column in cursor.description]
            print_json(dict(zip(names, row, strict=False)))
        else:
            print_line("\t".join("" if value is None else _text(value) for value in row))


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
