"""Where the command begins: what is quick is tried first, and loads no more than it needs."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

STOPPED = 130
"""The exit code of a command that was stopped with Ctrl-C, as shells give it."""


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["grep"]:
        code = _quick(sys.argv[2:])
        if code is not None:
            _end(code)
    try:
        from cordwood.cli.main import main as whole  # noqa: PLC0415

        whole()
    except KeyboardInterrupt:  # While it was being loaded.
        _end(STOPPED)
    except SystemExit as ended:
        if ended.code == STOPPED:
            # Threads may be in the middle of something, and would complain of an interpreter that
            # is being taken apart, or take it down with them.
            _end(STOPPED)
        raise


def _quick(words: list[str]) -> int | None:
    """The exit code of a search that could do without the rest; None if it could not."""
    gc.disable()  # It would look through all that is being loaded, again and again.
    try:
        from cordwood.cli.quick import search  # noqa: PLC0415

        return search(words)
    except ModuleNotFoundError:
        return None  # An extra is not installed: the whole command says which.
    except KeyboardInterrupt:
        return STOPPED
    finally:
        gc.enable()


def _end(code: int) -> NoReturn:
    """End at once: to take apart, object by object, what the system takes back whole is no use."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
