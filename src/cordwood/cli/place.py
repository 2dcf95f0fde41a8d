"""How a command names a volume: by a URL, with a directory for what is local."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from cordwood.base.errors import InvalidInputError
from cordwood.cli.output import command
from cordwood.store.url import Store
from cordwood.sync.volume import Volume
from cordwood.volume.home import default_directory

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def volume_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command on one volume: its URL, its directory, `--json`."""
    named = click.option(
        "-d",
        "--directory",
        envvar="CORDWOOD_DIRECTORY",
        type=click.Path(file_okay=False),
        help="Where local commits and copies of pages are.",
    )(command(function))
    return click.argument("url")(named)


def split_url(url: str) -> tuple[Store, str]:
    """The store and the name of a volume.

    Raises:
        InvalidInputError: it names none.
    """
    head, slash, name = url.rstrip("/").rpartition("/")
    if not slash or not name or head.endswith((":", ":/")):
        raise InvalidInputError(
            f"{url!r} does not name a volume",
            hint="a volume's URL is its store's URL, a slash, and its name: file:///data/wood/app",
        )
    return Store(head), name


def directory_of(store: Store, directory: str | None) -> str:
    """The directory that is meant."""
    return default_directory(store) if directory is None else directory


@contextmanager
def opened(url: str, directory: str | None) -> Iterator[Volume]:
    """A volume; its files are closed in the end."""
    store, name = split_url(url)
    volume = Volume(store, name, directory=directory_of(store, directory))
    try:
        yield volume
    finally:
        volume.close()
