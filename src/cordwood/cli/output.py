"""How commands speak: to people with tables and bars, to programs with one JSON object.

Every command takes `--json`. With it standard output holds JSON and nothing else, also for an
error. An error is one clear line on standard error, with `--json` too, and the exit code tells.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from cordwood.base.errors import CordwoodError, CordwoodWarning
from cordwood.cli.answers import AnswerError, forget
from cordwood.cli.start import STOPPED, loaded
from cordwood.cli.wording import in_shell

if TYPE_CHECKING:
    from rich.console import Console


T = TypeVar("T")

TRACEBACK = "CORDWOOD_TRACEBACK"
"""The variable of the environment that lets a bug show where it is."""

_UNSAFE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}
"""What a terminal takes for more than text, and how it is shown."""

_UNSAFE_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}
"""The same in JSON, which escapes the others by itself."""

COLUMNS_MIN, COLUMNS_PIPED = 40, 10_000
"""A table is no narrower than this; and in a pipe as wide as it is, since this is more."""

BUG_HINT = f"this is a bug in Cordwood: please report it, with what {TRACEBACK}=1 shows"


def console() -> Console:
    """Where people read results. What draws for them is loaded when there is something to draw."""
    from rich.console import Console  # noqa: PLC0415

    class Screen(Console):
        """A console whose reader may leave, as `head` does."""

        def on_broken_pipe(self) -> None:
            """As anything else that is printed: the command ends well."""
            raise BrokenPipeError

    screen = Screen(highlight=False, soft_wrap=True)
    # A program reads names whole, and on a screen without a width nothing would be seen.
    screen.width = max(screen.width, COLUMNS_MIN) if screen.is_terminal else COLUMNS_PIPED
    return screen


def print_json(value: Any) -> None:
    """One JSON object, or one line of a stream of them."""
    click.echo(json_line(value))


def json_line(value: Any) -> str:
    """A value as JSON, in a line that does a terminal no harm."""
    line = json.dumps(value, ensure_ascii=False, default=_plain)
    return line.translate(_UNSAFE_JSON) if sys.stdout.isatty() else line


def print_line(line: str | bytes) -> None:
    """A line of somebody's data."""
    data = line.encode(errors="surrogateescape") if isinstance(line, str) else line
    click.echo(for_output(data))


def for_output(line: bytes) -> bytes:
    """Somebody's data as standard output is to get it: every byte of it, unless on a terminal.

    A terminal would obey control characters; there all but tabs are shown, a newline among them.
    """
    return text_of(line).translate(_UNSAFE).encode() if sys.stdout.isatty() else line


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, frozenset | set | tuple):
        return sorted(value)
    return str(value)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its `--json` option; turn errors into a line and an exit code."""
    return _told(function, "the work was done, and only ")


def printing_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one that prints while it works: without its answer it is not done."""
    return _told(function, "")


def _told(function: Callable[..., Any], done: str) -> Callable[..., Any]:
    """A command; `done` is said before anything else if its answer cannot be written."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        loaded()
        try:
            with told_warnings():
                return function(*args, as_json=as_json, **kwargs)
        except CordwoodError as error:
            fail(error.message, error.hint, str(error.code), as_json=as_json)
        except AnswerError as error:
            not_answered(error, done, as_json=as_json)
        except BrokenPipeError:
            # The reader of a file that we were asked to write has left, as `head` does.
            sys.exit(0)
        except OSError as error:
            fail(told_of(error), "", "os", as_json=as_json)
        except KeyboardInterrupt:
            sys.exit(STOPPED)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            said = " ".join(str(error).split())
            fail(f"{type(error).__name__}: {said}", BUG_HINT, "internal", as_json=as_json)

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
    """End with an error; `facts` are for programs, in words they are in the message.

    It is one line, unless the message has several to show a place in what was typed.
    """
    message, hint = in_shell(message), in_shell(hint)
    if as_json:
        try:
            print_json({"error": code, "message": message, "hint": hint} | dict(facts or {}))
        except AnswerError:
            forget()
    between = " " if message.endswith(("?", ".")) else ". "
    between = "\n  " if "\n" in message else between
    with suppress(OSError):  # The exit code tells it as well.
        click.echo(f"cordwood: {message}" + (between + hint if hint else ""), err=True)
    sys.exit(exit_code)


def not_answered(error: AnswerError, done: str, *, as_json: bool) -> NoReturn:
    """End because the answer could not be written; `done` says what is true all the same."""
    forget()
    if error.is_unwanted:
        sys.exit(0)
    fail(f"{done}{error}", "", "os", as_json=as_json)


def told_of(error: OSError) -> str:
    """What the system said, and of which file, if it said that."""
    name = error.filename
    shown = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    return f"{shown}: {error.strerror or error}" if shown else str(error.strerror or error)


def plain(text: str) -> str:
    """A text that is not ours, to be drawn as it is: what looks like markup in it is none."""
    from rich.markup import escape  # noqa: PLC0415

    return escape(text)


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


def read_progress(
    title: str, file: IO[bytes], items: Iterable[T], *, shown: bool, each: int = 1
) -> Iterator[T]:
    """What is made of a file, with a bar on a terminal over how much of the file was read.

    It looks after every so many items. What comes from elsewhere than a plain file has no end that
    is known, and no bar.
    """
    try:
        status = os.fstat(file.fileno())
        total = status.st_size if stat.S_ISREG(status.st_mode) else 0
    except (OSError, ValueError):  # It is none of the system's.
        total = 0
    if not total:
        yield from items
        return
    with byte_progress(title, total, shown=shown) as advance:
        for count, item in enumerate(items):
            if count % each == 0:
                advance(file.tell())
            yield item
        advance(total)


@contextmanager
def count_progress(title: str, *, shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over a number of things on a terminal; silence elsewhere.

    Call the result with how many are done, and how many there are, if that is known.
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


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft to write to, which becomes the file at the end of the block; an error leaves none.

    So a file that is there is complete, and outlives a power cut; one that was there before stays
    until then. What is no file, a pipe for example, is written to as it is; behind a link it is
    what the link names.
    """
    from cordwood.store.disk import sync_path  # noqa: PLC0415 - loaded only where it is used

    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        draft.touch()
    except OSError as error:
        # People asked for the file, and know nothing of a draft.
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield draft
        sync_path(draft)
        os.replace(draft, target)
        sync_path(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError


def as_text(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A row for JSON: bytes of these names as text; what is no text as `name_base64`.

    Of a mapping to bytes, such as headers, each value by itself.
    """
    shown = dict(row)
    for name in names:
        data = shown.get(name)
        if isinstance(data, Mapping):
            shown[name] = {of: value.decode() for of, value in data.items() if _is_text(value)}
            others = {of: value for of, value in data.items() if not _is_text(value)}
            if others:
                shown[f"{name}_base64"] = {of: b64encode(v).decode() for of, v in others.items()}
        elif data is not None and _is_text(data):
            shown[name] = data.decode()
        elif data is not None:
            shown[f"{name}_base64"] = b64encode(shown.pop(name)).decode()
    return shown


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(body: bytes) -> str:
    """A body for people: as text where it is text, other bytes escaped."""
    return body.decode("utf-8", "backslashreplace")
