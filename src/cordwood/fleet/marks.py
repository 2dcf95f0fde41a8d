"""Marks: what a dirty log holds. Specified in docs/formats/fleet.md.

::

    0    1   kind          1 a mark, 2 a purge
    1    2   reinserts     how often a roll-up has written the mark again; stays at 65,535
    3    8   offset        the log's next offset when it was marked: what is new begins here
    11   8   first_us      when it was first marked, by the clock of who did
    19   …   name          of the log, to the end

Integers are big-endian. A record that is none of this stops a roll-up: nobody can tell what it
says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from cordwood.base.errors import CorruptionError
from cordwood.base.limits import LOG_NAME_BYTES_MAX, OFFSET_LIMIT
from cordwood.log import paths

MARK = 1
PURGE = 2

REINSERTS_MAX = 2**16 - 1

_HEADER = struct.Struct(">BHQQ")


class Mark(NamedTuple):
    """One record of a dirty log."""

    log: str
    offset: int
    first_us: int
    reinserts: int = 0
    is_purge: bool = False
    """Then it takes back the marks before it: up to `offset` nothing needs compaction."""


class Said(NamedTuple):
    """What the marks of one log say together."""

    marks: tuple[Mark, ...]
    """Those after the last purge, at least one."""
    purged_to: int
    """Before this offset nothing needs compaction; 0 if the log was marked since the purge."""

    @property
    def first_us(self) -> int:
        """When it was first marked."""
        return min(mark.first_us for mark in self.marks)

    @property
    def reinserts(self) -> int:
        """How often it was written again."""
        return max(mark.reinserts for mark in self.marks)


def encode(mark: Mark) -> bytes:
    """A record's body."""
    kind = PURGE if mark.is_purge else MARK
    reinserts = min(mark.reinserts, REINSERTS_MAX)
    return _HEADER.pack(kind, reinserts, mark.offset, mark.first_us) + mark.log.encode()


def decode(body: bytes, where: str) -> Mark:
    """The mark in a record's body.

    Raises:
        CorruptionError: there is none.
    """
    if len(body) <= _HEADER.size or len(body) > _HEADER.size + LOG_NAME_BYTES_MAX:
        raise CorruptionError(f"{where}: {len(body)} bytes are not a mark", where=where)
    kind, reinserts, offset, first_us = _HEADER.unpack_from(body)
    name = body[_HEADER.size :].decode("ascii", "replace")
    is_known = kind in {MARK, PURGE} and offset < OFFSET_LIMIT and first_us < OFFSET_LIMIT
    if not is_known or not paths.is_log_name(name):
        raise CorruptionError(
            f"{where}: neither a mark nor a purge",
            where=where,
            hint="a newer version may have written it; only that one can roll this dirty log up",
        )
    return Mark(name, offset, first_us, reinserts, kind == PURGE)


def gather(marks: Sequence[Mark]) -> dict[str, Said]:
    """What marks say of each log, in their order: a purge takes back only what came before it."""
    by_log: dict[str, list[Mark]] = {}
    for mark in marks:
        so_far = by_log.setdefault(mark.log, [])
        if mark.is_purge or (so_far and so_far[-1].is_purge):
            so_far.clear()
        so_far.append(mark)
    return {
        name: Said(tuple(said), said[-1].offset if said[-1].is_purge else 0)
        for name, said in by_log.items()
    }


def again(name: str, said: Said, start: int, now_us: int) -> Mark:
    """The mark that stands for all of a log that still needs compaction from `start` on.

    Marks of what has been compacted since no longer count: a log that is written all the time, and
    compacted all the time, is as young as what is left of it.
    """
    due = [mark for mark in said.marks if mark.offset >= start and not mark.is_purge]
    if not due:
        return Mark(name, start, now_us)
    return Mark(
        name,
        min(mark.offset for mark in due),
        min(mark.first_us for mark in due),
        max(mark.reinserts for mark in due) + 1,
    )


def still(name: str, said: Said) -> Mark:
    """The mark that stands for all of a log of which nothing new is known."""
    offset = min(mark.offset for mark in said.marks)
    return Mark(name, offset, said.first_us, said.reinserts + 1)
