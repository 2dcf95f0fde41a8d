"""Finding the lines of a file that a pattern matches.

A line is what stands between newlines, and a pattern sees one line at a time. To look at every line
by itself would be slow, so

* where each match has one of a few literals in it, those are looked for in the whole file, and only
  lines that have one are matched;
* else, where a pattern cannot see the end of a line, the whole file is matched at once;
* else each line is.

A file with a NUL is no text, and has no lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from cordwood.index.regex import Plan, compiled, plan

BLOCK_BYTES = 8 << 20
"""A larger file is looked at in blocks of about this size, each of whole lines."""

LITERAL_MIN = 3
"""Shorter literals stand in every other line: matching the whole file is quicker, if it can be."""


class Line(NamedTuple):
    """A line that matches."""

    number: int
    """From 1."""
    text: str
    """Without its newline; bytes that are no UTF-8 are surrogates."""


class Finder:
    """A pattern, ready to look into files."""

    def __init__(
        self,
        pattern: str,
        *,
        ignore_case: bool = False,
        fixed: bool = False,
        words: bool = False,
    ) -> None:
        """Compile it.

        Args:
            pattern: as Python's `re` reads it.
            ignore_case: upper and lower case are the same.
            fixed: it is no pattern, but the text to look for.
            words: only matches with no letter, digit or underscore on either side.

        Raises:
            InvalidInputError: it is no pattern; the message shows where.
        """
        flags = re.IGNORECASE if ignore_case else 0
        self.expression = compiled(re.escape(pattern) if fixed else pattern, flags)
        if words:
            inner = re.escape(pattern) if fixed else pattern
            self.expression = compiled(_as_word(inner, flags), flags)
        self.plan: Plan = plan(self.expression.pattern, flags)

    def lines(self, data: bytes) -> Iterator[Line]:
        """The lines of a text that match."""
        literals, crosses = self.plan.literals, self.plan.crosses
        if literals and (crosses or min(map(len, literals)) >= LITERAL_MIN):
            yield from self._with_literals(data)
        elif not crosses:
            yield from self._at_once(data)
        else:
            texts = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
            if data:
                for number, text in enumerate(texts, 1):
                    if self.expression.search(text):
                        yield Line(number, text)

    def _with_literals(self, data: bytes) -> Iterator[Line]:
        searched = data.lower() if self.plan.folded else data
        # Where each literal is found next; -1 behind the last.
        nexts = {one: searched.find(one) for one in self.plan.literals}
        number, counted = 1, 0
        while (place := min((at for at in nexts.values() if at >= 0), default=-1)) >= 0:
            start = data.rfind(b"\n", 0, place) + 1
            limit = data.find(b"\n", place)
            limit = len(data) if limit < 0 else limit
            text = data[start:limit].decode("utf-8", "surrogateescape")
            if self.expression.search(text):
                number += data.count(b"\n", counted, start)
                counted = start
                yield Line(number, text)
            for one, at in nexts.items():
                if 0 <= at <= limit:
                    nexts[one] = searched.find(one, limit + 1)

    def _at_once(self, data: bytes) -> Iterator[Line]:
        text = data.decode("utf-8", "surrogateescape")
        end = len(text) - text.endswith("\n")  # Behind the last newline there is no line.
        number, counted, start = 1, 0, 0
        while start <= end and text and (found := self.expression.search(text, start)):
            begin = text.rfind("\n", 0, found.start()) + 1
            if begin > end:
                return
            limit = text.find("\n", found.start())
            limit = len(text) if limit < 0 else limit
            number += text.count("\n", counted, begin)
            counted = begin
            yield Line(number, text[begin:limit])
            start = limit + 1


def _as_word(pattern: str, flags: int) -> str:
    """The pattern between what is no part of a word."""
    # Flags for the whole must stand first, and what is verbose may end in a comment.
    head = re.match(r"(?:\(\?[aiLmsux]+\))*", pattern)
    first = head.group() if head else ""
    body = pattern[len(first) :]
    end = "\n" if compiled(pattern, flags).flags & re.VERBOSE else ""
    return f"{first}(?<!\\w)(?:{body}{end})(?!\\w)"


def read_blocks(path: bytes, size_bytes: int) -> Iterator[bytes]:
    """A file, whole or in blocks of whole lines, until one has a NUL: that is no text any more.

    `size_bytes` is what the file had a moment ago; if it has grown since, all of it is read.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        rest, is_last = b"", False
        while not is_last:
            data = _read(descriptor, size_bytes + 1)
            is_last = len(data) < BLOCK_BYTES
            data = rest + data if rest else data
            if b"\0" in data:
                return
            cut = len(data) if is_last else data.rfind(b"\n") + 1
            if cut:
                yield data[:cut]
            rest = data[cut:]
    finally:
        os.close(descriptor)


def _read(descriptor: int, expected_bytes: int) -> bytes:
    """The next block, or all that is left if that is less."""
    parts: list[bytes] = []
    left = BLOCK_BYTES
    while left and (part := os.read(descriptor, min(left, expected_bytes))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
