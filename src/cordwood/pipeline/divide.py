"""How work is divided: neighbours go together until they are about large enough. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

UNIT_BYTES = 128 * 2**20
"""What one unit works on: a task of Spark costs 20 ms, reading so much a second."""

UNIT_BYTES_MIN = 4 * 2**20
"""Less is not worth a unit of its own."""

UNITS_WANTED = 16
"""Small work is cut so often, so that all cores have something to do."""


def unit_bytes(total_bytes: int, wanted: int = UNITS_WANTED) -> int:
    """How large a unit should be where so much is to be read."""
    return max(UNIT_BYTES_MIN, min(UNIT_BYTES, total_bytes // max(1, wanted)))


def divide(things: Iterable[T], size: Callable[[T], int], target: int) -> Iterator[tuple[T, ...]]:
    """Neighbours in groups of about `target` bytes each; nothing is cut in two.

    >>> [group for group in divide([4, 4, 4, 9, 1], lambda n: n, 8)]
    [(4, 4), (4,), (9,), (1,)]
    """
    group: list[T] = []
    filled = 0
    for thing in things:
        if group and filled + size(thing) > target:
            yield tuple(group)
            group, filled = [], 0
        group.append(thing)
        filled += size(thing)
    if group:
        yield tuple(group)
