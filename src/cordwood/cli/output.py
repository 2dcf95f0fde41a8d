"""How commands speak: to people with tables and bars, to programs with one JSON object.

Every command takes `--json`. With it standard output holds JSON and nothing else, also for an
error; without it an error is one clear line on standard error. Either way the exit code tells.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cordwood.base.errors import CordwoodError, CordwoodWarning

if TYPE_CHECKING:
    from rich.console import Console

STOPPED = 130
"""The exit code of a command that was stopped with Ctrl-C, as shells give it."""


def console() -> Console:
    """Where people read results. What draws for them is loaded when there is something to draw."""
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON object, or one line of a stream of them."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, frozenset | set | tuple):
        return sorted(value)
    return str(value)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its `--json` option; turn errors into a line and an exit code."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        try:
            with told_warnings():
                return function(*args, as_json=as_json, **kwargs)
        except CordwoodError as error:
            fail(error.message, error.hint, str(error.code), as_json=as_json)
        except BrokenPipeError:
            # The reader of our output has left, as `head` does.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            sys.exit(0)
        except OSError as error:
            fail(f"{error.filename or ''}: {error.strerror or error}", "", "os", as_json=as_json)
        except KeyboardInterrupt:
            sys.exit(STOPPED)

    return wrapped


@contextmanager
def told_warnings() -> Iterator[None]:
    """Our own warnings are a line on standard error, once each."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, CordwoodWarning):
                click.echo(f"cordwood: {message}", err=True)
            else:
                others(message, category, *rest, **more)

        warnings.simplefilter("default", CordwoodWarning)
        warnings.showwarning = show
        yield


def fail(
    message: str,
    hint: str,
    code: str,
    *,
    as_json: bool,
    exit_code: int = 1,
    facts: Mapping[str, Any] | None = None,
) -> NoReturn:
    """End with an error; `facts` are for programs, in words they are in the message."""
    if as_json:
        print_json({"error": code, "message": message, "hint": hint} | dict(facts or {}))
    else:
        click.echo(f"cordwood: {message}" + (f"\n  {hint}" if hint else ""), err=True)
    sys.exit(exit_code)


@contextmanager
def byte_progress(title: str, total: int, *, shown: bool) -> Iterator[Callable[..., None]]:
    """A bar over bytes on a terminal; silence elsewhere.

    Call the result with the bytes done so far, and how many there are if that is known only now.
    """
    if not shown:
        yield lambda *_: None
        return
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield lambda *_: None
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=screen) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


@contextmanager
def count_progress(title: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar over a number of things on a terminal; silence elsewhere.

    Call the result with how many are done, and how many there are.
    """
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    screen = Console(stderr=True)
    if not shown or not screen.is_terminal:
        yield lambda *_: None
        return
    with progress.Progress(console=screen) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def text_of(body: bytes) -> str:
    """A body for people: as text where it is text."""
    return body.decode("utf-8", "backslashreplace")
