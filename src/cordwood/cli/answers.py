"""Standard output, where what cannot be written is told apart from every other failure.

Whatever a command did is done, also if its answer gets nowhere. If that looked like a failure of
the command, people would run it again, and append the same records twice.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class AnswerError(Exception):
    """Standard output takes no more.

    It is no OSError: those are about the files that a command works with.
    """

    def __init__(self, error: OSError) -> None:
        """As the system says it."""
        self.why = error.strerror or str(error)
        self.is_unwanted = isinstance(error, BrokenPipeError)
        """Whether the reader has left, as `head` does: then there is nothing to complain of."""
        super().__init__(f"the answer could not be written: {self.why}")


class _Answers(io.FileIO):
    """The end of standard output that meets the system."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of it."""
        try:
            return super().write(data)
        except OSError as error:
            raise AnswerError(error) from error


def guard() -> None:
    """Let standard output raise AnswerError from here on; one that is closed takes everything."""
    if sys.stdout is None:
        forget()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Answers(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
        )


def forget() -> None:
    """Drop what standard output still holds and what else is printed: nobody gets it."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def give_up(error: AnswerError) -> int:
    """End the answer, with a line that says so if anybody wanted it; the exit code."""
    forget()
    if error.is_unwanted:
        return 0
    print(f"cordwood: {error}", file=sys.stderr)
    return 1
