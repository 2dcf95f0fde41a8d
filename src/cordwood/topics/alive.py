"""Which records of a partition are the last of their keys, in bounded memory.

The entries of all extents are compared, one range of hashes after the other, as many as there have
to be. What comes out is a bit for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.topics.keys import Source, View
from cordwood.topics.keytable import Entries, joined, ranked

MEMORY_BYTES = 64 << 20
"""What comparing takes at most, and the bits, about."""
WORKING = 4
"""So many times the size of the entries is used to compare them."""

Keep = Callable[[Entries, npt.NDArray[np.bool_]], npt.NDArray[np.bool_]]
"""Which of these records, each the last of its key, to keep; and whether each is the only one."""


class Bits:
    """A bit for each record of an extent."""

    def __init__(self, source: Source) -> None:
        """None is set."""
        self._base = source.base
        self._bits = np.zeros(bits_bytes(source), np.uint8)

    def set(self, offsets: npt.NDArray[np.int64]) -> None:
        """Set those of some records."""
        places = offsets - self._base
        np.bitwise_or.at(self._bits, places >> 3, (1 << (places & 7)).astype(np.uint8))

    def of(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of some records are set."""
        places = offsets - self._base
        found: npt.NDArray[np.bool_] = (self._bits[places >> 3] >> (places & 7)) & 1 != 0
        return found

    def count(self) -> int:
        """How many are set."""
        return int(np.bitwise_count(self._bits).sum())


def bits_bytes(source: Source) -> int:
    """What the bits of an extent take."""
    return (source.limit - source.base + 7) // 8


def groups(sources: Sequence[Source], memory_bytes: int) -> Iterator[list[Source]]:
    """Extents whose bits have room in memory together, in order."""
    group: list[Source] = []
    size = 0
    for source in sources:
        if group and size + bits_bytes(source) > memory_bytes // 2:
            yield group
            group, size = [], 0
        group.append(source)
        size += bits_bytes(source)
    if group:
        yield group


def alive(
    view: View, group: Sequence[Source], keep: Keep, *, memory_bytes: int = MEMORY_BYTES
) -> list[Bits]:
    """Which records of a group of extents to keep."""
    bits = [Bits(source) for source in group]
    bases = np.array([source.base for source in group], np.int64)
    limits = np.array([source.limit for source in group], np.int64)
    for low, high in _ranges(view.sources, memory_bytes // 2):
        entries = joined([part for one in view.sources for part in one.between(low, high)])
        order, is_last = ranked(entries)
        is_only = np.append(True, is_last[:-1])[is_last] if len(order) else is_last
        last = entries.take(order[is_last])
        owners: npt.NDArray[Any] = np.searchsorted(bases, last.offsets, "right") - 1
        # Between extents of the group may be others that cannot be read.
        mine = keep(last, is_only) & (owners >= 0) & (last.offsets < limits[owners])
        offsets, owners = last.offsets[mine], owners[mine]
        for place in np.unique(owners).tolist():
            bits[place].set(offsets[owners == place])
    return bits


def _ranges(sources: Sequence[Source], memory_bytes: int) -> Iterator[tuple[int, int]]:
    """All hashes, in ranges of about as many entries as there is memory for."""
    total = sum(source.entries_bytes for source in sources)
    count = 1 + WORKING * total // memory_bytes
    for number in range(count):
        yield (number << 64) // count, ((number + 1 << 64) // count) - 1
