"""How work is divided: neighbours go together until they are about large enough. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

UNIT_BYTES = 128 * 2**20
"""What becomes one file of a table."""

READ_BYTES_MAX = 256 * 2**20
"""What one unit reads, where it writes nothing: a task of Spark costs as much as reading 20 MB."""

READ_BYTES_MIN = 4 * 2**20
"""Less is not worth a unit of its own."""

UNITS_PER_SLOT = 2
"""Small work is cut so often for each core: one that is slowed down does not hold up the others."""


def read_bytes(total_bytes: int, slots: int) -> int:
    """How much a unit should read, where there is so much and so many are done at once."""
    wanted = -(-total_bytes // max(1, slots * UNITS_PER_SLOT))
    return max(READ_BYTES_MIN, min(READ_BYTES_MAX, wanted))


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
