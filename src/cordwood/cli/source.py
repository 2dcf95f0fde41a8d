"""Where a command's input comes from: a file, or standard input."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click


class Source(click.File):
    """A file to read bytes from; `-` is standard input."""

    def __init__(self) -> None:
        """For bytes, and only to read."""
        super().__init__("rb")

    def convert(
        self,
        value: str | os.PathLike[str] | IO[Any],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> IO[Any]:
        """Open it."""
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed; name a file", param, ctx)
        return super().convert(value, param, ctx)


def tell_terminal(file: IO[Any]) -> None:
    """If lines are to be typed, say that the command waits for them: it looks as if it hung."""
    if file.isatty():
        click.echo("cordwood: reading lines from the terminal; Ctrl-D ends", err=True)
