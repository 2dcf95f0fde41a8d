"""What of a scrub was found whole, kept in a small file, so that one that was cut off can go on.

::

    {"log": "file:///data/wood/orders", "incarnation": "…"}
    {"start": 1, "limit": 70001, "setsum": "…"}              a line for each unit that was done

A fragment never changes, so what was found whole once need not be read again by the same scrub. A
line counts only for fragments that reach from its first offset to its last and add up to its
setsum, as the log names them now.

Crash anywhere: a line is there, or its unit is read again; half a line is none. Two at once: each
line is true by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from cordwood.base.errors import InvalidInputError
from cordwood.base.setsum import Setsum
from cordwood.log.format import Fragment

UNITS_PER_SLOT = 8
"""Units of each worker between two writes: what a crash loses, and what waiting for all costs."""


class Head(Struct, frozen=True):
    """Of which log."""

    log: str
    incarnation: str


class Line(Struct, frozen=True):
    """Neighbours that were found whole."""

    start: int
    limit: int
    setsum: str


class Kept:
    """The file."""

    def __init__(self, path: Path, log: str) -> None:
        """Nothing is read yet."""
        self._path = path
        self._log = log

    @staticmethod
    def units_at_once(slots: int) -> int:
        """How many units are done between two writes."""
        return slots * UNITS_PER_SLOT

    def proved(self, incarnation: str, fragments: Sequence[Fragment]) -> list[Fragment]:
        """Of a log's fragments, in order, those that were found whole. Begins the file.

        Raises:
            InvalidInputError: it is the file of another log, or none of ours.
        """
        mine = Head(self._log, incarnation)
        if not self._path.exists() or not self._path.stat().st_size:
            self._path.write_bytes(msgspec.json.encode(mine) + b"\n")
            return []
        first, _, rest = self._path.read_bytes().partition(b"\n")
        try:
            head = msgspec.json.decode(first, type=Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            head = Head("", "")
        if head != mine:
            what = f"the log {head.log}, as it was once" if head.log else "no scrub"
            raise InvalidInputError(
                f"{self._path} keeps the progress of {what}, not of {self._log}",
                hint="name another file, or delete this one",
            )
        if rest and not rest.endswith(b"\n"):
            # Half a line: what comes next begins a line of its own.
            with self._path.open("ab") as file:
                file.write(b"\n")
        found = (one for line in _lines(rest) for one in _covered(line, fragments))
        # Two scrubs at once may both have noted one.
        return list({fragment.path: fragment for fragment in found}.values())

    def add(self, groups: Sequence[Sequence[Fragment]]) -> None:
        """Note that these fragments, in order, were found whole."""
        lines = [_line(run) for group in groups for run in _neighbours(group)]
        with self._path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def delete(self) -> None:
        """It is done: the next scrub begins anew."""
        self._path.unlink(missing_ok=True)


def _neighbours(group: Sequence[Fragment]) -> Iterator[Sequence[Fragment]]:
    """The group in parts without a gap: what was found whole before was left out of it."""
    begin = 0
    for i in range(1, len(group) + 1):
        if i == len(group) or group[i].start != group[i - 1].limit:
            yield group[begin:i]
            begin = i


def _line(group: Sequence[Fragment]) -> Line:
    setsum = Setsum.sum(fragment.setsum_hex for fragment in group)
    return Line(group[0].start, group[-1].limit, setsum.hexdigest())


def _lines(data: bytes) -> Iterator[Line]:
    """Every line that is one."""
    for text in data.splitlines():
        try:
            yield msgspec.json.decode(text, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def _covered(line: Line, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
    """The fragments that a line speaks of, if they are still those."""
    first = bisect_left(fragments, line.start, key=lambda fragment: fragment.start)
    behind = bisect_left(fragments, line.limit, key=lambda fragment: fragment.start)
    group = fragments[first:behind]
    return group if group and _line(group) == line else ()
