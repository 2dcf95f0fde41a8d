"""What the library says in Python's words, in those of the command line.

The library's errors speak to who calls it. What they name has an option or a command here, and
whoever reads them in a shell is to be told that one. A test holds the table against the library.
"""

from __future__ import annotations

import re

PHRASES = {
    "pass exist_ok=True": "use --exist-ok",
    "pass force=True": "use --force",
    "unpushed=True": "--unpushed",
    "(at=…)": "(--at)",
    "protocol='chain'": "--protocol chain",
    "log.create() or `cordwood log create`": "`cordwood log create`",
    "collection.create() or `cordwood collection create`": "`cordwood collection create`",
    "table.create(), or `cordwood log compact --create`": "`cordwood log compact --create`",
    "make it with cursors.init(name, offset)": "`cordwood log cursor set` makes it",
    "cursors.init(name, offset), or `cordwood log cursor set`": "`cordwood log cursor set`",
    "open it with log.streams.open(name)": "`cordwood log stream open` opens it",
    "log.streams.open(name), or `cordwood log stream open URL NAME`": (
        "`cordwood log stream open URL NAME`"
    ),
    "use log.destroy()": "use `cordwood log destroy`",
    "consumer.skip(), consume --skip-damaged": "--skip-damaged",
}
"""Longer ones come before those that they contain."""

NAMES = {
    "limit_offset": "--limit",
    "start_time_us": "--since",
    "limit_time_us": "--until",
    "max_share": "--max-share",
}
"""Arguments; where one stands in quotes it is somebody's own name."""

_NAME = re.compile(rf"(?<!['\"\w])({'|'.join(NAMES)})(?!['\"\w])")


def in_shell(text: str) -> str:
    """The same text, for who uses the command line."""
    for phrase, words in PHRASES.items():
        text = text.replace(phrase, words)
    return _NAME.sub(lambda found: NAMES[found[1]], text)
