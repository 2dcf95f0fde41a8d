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
from cordwood.cli.later import Later, LaterGroup
from cordwood.cli.output import fail
from cordwood.cli.start import STOPPED

COMMANDS = {
    name: Later(f"cordwood.cli.{name}", what)
    for name, what in {
        "collection": "Work with a searchable log.",
        "demo": "Show the whole pipeline on a directory: writers, dirty logs, compaction, query, "
        "proof.",
        "fleet": "Look after many logs of one store.",
        "grep": "Print the lines that match PATTERN in the files below DIR (default: here).",
        "index": "Work with a search index.",
        "log": "Work with logs.",
        "names": "Search names that are not quite right.",
        "pipeline": "Look after the logs of a fleet: roll up, compact, collect, scrub.",
        "spark": "Logs and Spark.",
        "store": "Look at a store.",
        "table": "Work with tables that compactions made.",
        "topic": "Work with topics.",
        "volume": "Work with volumes, and with SQLite databases in them.",
    }.items()
}
"""Each is in the module of its name."""


class _Commands(LaterGroup):
    """All commands."""

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
            # While a question waits click raises it "from None".
            if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
                sys.exit(STOPPED)
            click.echo("cordwood: nothing was done", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _tell(error: click.ClickException, *, as_json: bool) -> NoReturn:
    """Say what is wrong with a call, and where its options are explained."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = "" if context is None else f"`{context.command_path} --help` says what it takes"
    message = " ".join(error.format_message().split()).removesuffix(".")
    code = "os" if isinstance(error, click.FileError) else "usage"
    fail(message, hint, code, as_json=as_json, exit_code=error.exit_code)


@click.group(
    cls=_Commands, later=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
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
