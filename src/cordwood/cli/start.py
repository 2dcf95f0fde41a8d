"""Where the command begins: what is quick is tried first, and loads no more than it needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["grep"]:
        code = _quick(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from cordwood.cli.main import main as whole  # noqa: PLC0415

    whole()


def _quick(words: list[str]) -> int | None:
    """The exit code of a search that could do without the rest; None if it could not."""
    try:
        from cordwood.cli.quick import search  # noqa: PLC0415

        return search(words)
    except ModuleNotFoundError:
        return None  # An extra is not installed: the whole command says which.
    except KeyboardInterrupt:
        return 130
