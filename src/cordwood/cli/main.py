"""The command itself: `cordwood <noun> <verb>`.

A command's module is loaded when the command is used: a search is not to wait for Spark's half of
the library, and one that needs an extra does not keep the others from working without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from cordwood import __version__
from cordwood.base.errors import StateError
from cordwood.base.lazy import lazily
from cordwood.cli.output import fail
from cordwood.cli.start import STOPPED

COMMANDS = (
    "collection",
    "demo",
    "fleet",
    "grep",
    "index",
    "log",
    "names",
    "pipeline",
    "spark",
    "store",
    "table",
    "topic",
    "volume",
)
"""Each is in the module of its name."""


class _Commands(click.Group):
    """Loads commands by name."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run it. What is wrong with a call is told as any other error is, in one line."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(words, prog_name, **extra | {"standalone_mode": False})
        except NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _tell(error, as_json="--json" in words)
        except click.Abort as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                sys.exit(STOPPED)
            click.echo("cordwood: nothing was done", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; if it needs an extra that is not installed, one that says so."""
        if cmd_name not in COMMANDS:
            return None
        try:
            found: click.Command = lazily(f"cordwood.cli.{cmd_name}", cmd_name)
        except StateError as error:
            return _missing(cmd_name, error)
        return found


def _tell(error: click.ClickException, *, as_json: bool) -> NoReturn:
    """Say what is wrong with a call, and where its options are explained."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = "" if context is None else f"`{context.command_path} --help` says what it takes"
    message = " ".join(error.format_message().split()).removesuffix(".")
    fail(message, hint, "usage", as_json=as_json, exit_code=error.exit_code)


def _missing(name: str, error: StateError) -> click.Command:
    @click.command(
        name,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        help=f"Not installed: {error.hint}",
    )
    @click.argument("words", nargs=-1)
    def told(words: tuple[str, ...]) -> Any:
        fail(error.message, error.hint, str(error.code), as_json="--json" in words)

    return told


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cordwood")
def cli() -> None:
    """Ordered, verifiable logs in plain files on an object store.

    A store is named by a URL: file:///data/wood, s3://bucket/prefix, gs://bucket/prefix,
    az://container/prefix. A log is named by its store's URL, a slash, and its own name:
    file:///data/wood/orders.
    """


def main() -> None:
    """Run the command line."""
    cli(prog_name="cordwood")
