"""`cordwood grep` where a glance is enough (index/glance.py): the same answer, with less to load.

What reads command lines, and what opens an index as a whole, takes longer to load than such a
search takes to answer. So the plain options are read here, and the rest of the command is left for
when it is needed: for any other option, for whatever is wrong, and for a tree whose index is to be
built or brought up to date. Nothing is printed before it is certain that it is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cordwood.base.errors import CordwoodError
from cordwood.cli.answers import AnswerError, give_up
from cordwood.cli.found import NOT_FOUND, WRONG, Found
from cordwood.index.glance import Glance
from cordwood.index.lines import Finder
from cordwood.index.sources import Sources, is_much

_FLAGS = {
    "-i": ("ignore_case", True),
    "--ignore-case": ("ignore_case", True),
    "-F": ("fixed", True),
    "--fixed": ("fixed", True),
    "-w": ("words", True),
    "--words": ("words", True),
    "-l": ("files", True),
    "--files": ("files", True),
    "-c": ("count", True),
    "--count": ("count", True),
    "-n": ("numbers", True),
    "--numbers": ("numbers", True),
    "-N": ("numbers", False),
    "--no-numbers": ("numbers", False),
    "--no-ignore": ("no_ignore", True),
    "--json": ("as_json", True),
}
_VALUES = {"--color": "color", "--index": "place"}
_COLORS = {"auto", "always", "never"}


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """The options and arguments of a command line; None if there is anything special about it."""
    options: dict[str, Any] = {key: False for key, _ in _FLAGS.values()}
    options |= {"numbers": True, "color": "auto", "place": ""}
    arguments: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        name, has_value, value = word.partition("=")
        if word in _FLAGS:
            key, is_on = _FLAGS[word]
            options[key] = is_on
        elif name in _VALUES and (has_value or left):
            options[_VALUES[name]] = value if has_value else left.pop()
        elif word[:1] == "-" and word[1:2] != "-" and len(word) > 2:
            left += [f"-{letter}" for letter in reversed(word[1:])]
        elif word[:1] == "-":
            return None
        else:
            arguments.append(word)
    if not 1 <= len(arguments) <= 2 or options["color"] not in _COLORS:
        return None
    return options | {"pattern": arguments[0], "directory": [*arguments, "."][1]}


def search(words: Sequence[str]) -> int | None:
    """Search as a command line asks for; the exit code, or None if nothing was done."""
    options = read(words)
    if options is None:
        return None
    told: list[tuple[bytes, OSError]] = []
    glance: Glance | None = None
    with suppress(CordwoodError, OSError):  # The whole command says what is wrong.
        finder = Finder(
            options["pattern"],
            ignore_case=options["ignore_case"],
            fixed=options["fixed"],
            words=options["words"],
        )
        sources = Sources(
            options["directory"],
            options["place"],
            ignore=not options["no_ignore"],
            tell=lambda *fault: told.append(fault),
        )
        glance = sources.glance(finder, helped=True)
    if glance is None or is_much(glance.changed, glance.gone):
        return None
    try:
        has_found = Found(finder, options).show_all(sources, glance.candidates)
    except AnswerError as unsaid:
        return WRONG if give_up(unsaid) else 0
    for path, error in told:
        shown = path.decode("utf-8", "backslashreplace")
        print(f"cordwood: {shown}: {error.strerror or error}", file=sys.stderr)
    if told:
        return WRONG
    return 0 if has_found else NOT_FOUND
