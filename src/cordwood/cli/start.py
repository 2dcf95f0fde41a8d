"""Where the command begins: what is quick is tried first, and loads no more than it needs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any, NoReturn

from cordwood.cli.answers import AnswerError, give_up, guard

STOPPED = 130
"""The exit code of a command that was stopped with Ctrl-C, as shells give it."""


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    guard()
    try:
        _run()
    except AnswerError as error:  # Of what is printed by no command: help, the version.
        _end(give_up(error))


def loaded() -> None:
    """From here on Ctrl-C is an exception: what a command does is ended in order."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: Any) -> None:
    """End at once: nothing was begun, and modules do not expect exceptions while they load."""
    os._exit(STOPPED)


def _run() -> None:
    if sys.argv[1:2] == ["grep"]:
        code = _quick(sys.argv[2:])
        if code is not None:
            _end(code)
    try:
        from cordwood.cli.main import main as whole  # noqa: PLC0415

        whole()
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

        loaded()
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
