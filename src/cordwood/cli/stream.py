"""`cordwood log stream`: open, close, list and show the streams of a log."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import click

from cordwood.base.errors import InvalidInputError
from cordwood.cli.output import command, console, print_json
from cordwood.log.roll import Stream
from cordwood.sync import Log

METADATA_CHARS_SHOWN = 60


@click.group()
def stream() -> None:
    """Streams: many small logs in one."""


@stream.command("open")
@click.argument("url")
@click.argument("names", nargs=-1, required=True)
@click.option("--metadata", help="A JSON object that is kept with each of them.")
@command
def open_streams(url: str, names: tuple[str, ...], *, metadata: str | None, as_json: bool) -> None:
    """Open the streams NAMES of the log at URL, all of them or none."""
    Log.from_url(url).streams.open(*names, metadata=_parse(metadata))
    _tell("open", names, as_json=as_json)


@stream.command("close")
@click.argument("url")
@click.argument("names", nargs=-1, required=True)
@command
def close_streams(url: str, names: tuple[str, ...], *, as_json: bool) -> None:
    """Close the streams NAMES of the log at URL: they take no more records, and can be read."""
    Log.from_url(url).streams.close(*names)
    _tell("closed", names, as_json=as_json)


@stream.command("list")
@click.argument("url")
@click.option("--closed", is_flag=True, help="Also those that are closed.")
@command
def list_streams(url: str, *, closed: bool, as_json: bool) -> None:
    """The open streams of the log at URL."""
    found = Log.from_url(url).streams.list(closed=closed)
    if as_json:
        print_json({name: _facts(one) for name, one in found.items()})
        return
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("stream", "state", "since", "metadata")
    for name, one in found.items():
        text = json.dumps(one.metadata, ensure_ascii=False) if one.metadata else ""
        cut = text if len(text) <= METADATA_CHARS_SHOWN else text[:METADATA_CHARS_SHOWN] + "…"
        table.add_row(escape(name), _state(one), _time(one), escape(cut))
    console().print(table)


@stream.command("show")
@click.argument("url")
@click.argument("name")
@click.option("--metadata", help="Set the metadata first: a JSON object.")
@command
def show_stream(url: str, name: str, *, metadata: str | None, as_json: bool) -> None:
    """The stream NAME of the log at URL: whether it is open, and its metadata."""
    streams = Log.from_url(url).streams
    streams.meta(name, _parse(metadata))
    one = streams.list(closed=True)[name]
    if as_json:
        print_json({"stream": name, **_facts(one)})
    else:
        click.echo(f"stream {name} is {_state(one)}, last changed {_time(one)}")
        click.echo(json.dumps(one.metadata, ensure_ascii=False, indent=2))


def _tell(state: str, names: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"streams": list(names), "state": state})
    elif len(names) == 1:
        click.echo(f"stream {names[0]} is {state}")
    else:
        click.echo(f"{len(names):,} streams are {state}")


def _facts(one: Stream) -> dict[str, Any]:
    return {"state": _state(one), "metadata": one.metadata, "at_us": one.at_us}


def _state(one: Stream) -> str:
    return "open" if one.open else "closed"


def _time(one: Stream) -> str:
    moment = dt.datetime.fromtimestamp(one.at_us / 1_000_000, tz=dt.UTC)
    return moment.isoformat(sep=" ", timespec="seconds")


def _parse(metadata: str | None) -> dict[str, Any] | None:
    if metadata is None:
        return None
    try:
        found = json.loads(metadata)
    except ValueError as error:
        raise InvalidInputError(f"--metadata is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInputError("--metadata is a JSON object", hint='write {"team": "eu"}')
    return found
