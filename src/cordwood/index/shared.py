"""Work in parts that two processes share: the system's answers take a core each.

Threads would wait for each other: the interpreter lets one run at a time. The parts that nobody has
begun are numbers in a pipe, and each process takes the next one when it is free. What the second
one found comes back through another pipe. It may die at any moment: the first one does what it has
not heard of. So this is for work that may be done twice, in a process that has no other thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_NUMBER = struct.Struct("<H")
_ROW = struct.Struct("<HI")
PARTS_MAX = 16_384
"""More would not fit into a pipe."""

WORTH_PARTS = 8
"""Fewer are done before another process has begun."""


class Shared:
    """Parts of some work, each of which finds numbers."""

    def __init__(self, parts: int, find: Callable[[int], list[int]], *, helped: bool) -> None:
        """Begin; with a second process if that is wanted and there is enough to do."""
        self._parts = parts
        self._find = find
        self._process = 0
        self._results = self._tokens = -1
        if helped and WORTH_PARTS <= parts <= PARTS_MAX and _has_cores():
            with suppress(OSError):
                self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No other process is left; what nobody has begun is not done."""
        if self._process:
            while self._next() is not None:
                pass
            self._heard()

    def finish(self) -> list[int]:
        """Do what is left; all that was found, in the order of the parts."""
        found: dict[int, list[int]] = {}
        if self._process:
            while (part := self._next()) is not None:
                found[part] = self._find(part)
            found |= self._heard()
        for part in range(self._parts):
            if part not in found:
                found[part] = self._find(part)
        return [one for part in range(self._parts) for one in found[part]]

    def _begin(self) -> None:
        self._tokens, tokens_in = os.pipe()
        self._results, results_in = os.pipe()
        with open(tokens_in, "wb") as file:
            file.write(b"".join(map(_NUMBER.pack, range(self._parts))))
        try:
            self._process = os.fork()
        except OSError:
            for end in (self._tokens, self._results, results_in):
                os.close(end)
            raise
        if self._process:
            os.close(results_in)
            return
        try:
            os.close(self._results)
            self._help(results_in)
        finally:
            os._exit(0)

    def _help(self, results: int) -> None:
        """In the second process: a row for each number found, and one that says a part is done."""
        with open(results, "wb") as file:
            while (part := self._next()) is not None:
                file.writelines(_ROW.pack(part, one + 1) for one in self._find(part))
                file.write(_ROW.pack(part, 0))

    def _next(self) -> int | None:
        """A part that nobody has begun."""
        token = os.read(self._tokens, _NUMBER.size)
        return _NUMBER.unpack(token)[0] if len(token) == _NUMBER.size else None

    def _heard(self) -> dict[int, list[int]]:
        """What the second process found, of parts that it finished."""
        with open(self._results, "rb") as file:
            data = file.read()
        os.close(self._tokens)
        os.waitpid(self._process, 0)
        self._process = 0
        rows: dict[int, list[int]] = {}
        done = set()
        whole = len(data) - len(data) % _ROW.size
        for part, one in _ROW.iter_unpack(data[:whole]):
            if one:
                rows.setdefault(part, []).append(one - 1)
            else:
                done.add(part)
        return {part: rows.get(part, []) for part in done}


def _has_cores() -> bool:
    """Whether there is more than one for us, on a system where a copy of a process is at ease."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
