"""Real text that is on every machine with Python: its own sources and documents, and of packages.

A *short* document is a paragraph of 8 to 80 words, each different one once; a *long* one is a whole
file. Files are taken a few from each directory in turn, so that a part of the corpus is as mixed as
all of it. Ids are numbers of eight digits, as keys of a table are.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sysconfig
from collections.abc import Iterator
from typing import Literal, NamedTuple

Length = Literal["short", "long"]

ENDINGS = (".py", ".pyi", ".txt", ".rst", ".md")
WORDS_MIN, WORDS_MAX = 8, 80
LONG_WORDS_MAX = 20_000
"""A longer file is a table of something, no text."""

_GAP = re.compile(r"\n\s*\n")


class Document(NamedTuple):
    """A text and its id."""

    id: bytes
    text: str


def documents(length: Length, limit_bytes: int) -> list[Document]:
    """Documents of about so many bytes of text in all; fewer if there are no more."""
    found: list[Document] = []
    size_bytes = 0
    seen: set[int] = set()
    for path in _paths():
        for text in _texts(path, length):
            key = hash(text)
            if key in seen:
                continue
            seen.add(key)
            found.append(Document(b"%08d" % len(found), text))
            size_bytes += len(text)
            if size_bytes >= limit_bytes:
                return found
    return found


def _texts(path: str, length: Length) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return  # Packages have files that are no text, to test with.
    if length == "long":
        if WORDS_MIN <= len(text.split()) <= LONG_WORDS_MAX:
            yield text
        return
    for part in _GAP.split(text):
        if WORDS_MIN <= len(part.split()) <= WORDS_MAX:
            yield part.strip()


def _paths() -> Iterator[str]:
    """Files, of each directory one, then of each another, and so on."""
    columns = itertools.zip_longest(*_directories())
    return (path for path in itertools.chain.from_iterable(columns) if path is not None)


@functools.cache
def _directories() -> list[list[str]]:
    roots = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib"))
    found: dict[str, list[str]] = {}
    for root in roots:
        for folder, _, names in os.walk(root):
            chosen = sorted(name for name in names if name.endswith(ENDINGS))
            if chosen:
                found[folder] = [os.path.join(folder, name) for name in chosen]
    return [found[folder] for folder in sorted(found)]
