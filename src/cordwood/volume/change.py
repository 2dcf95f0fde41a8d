"""What one transaction wrote, as the payload of its frame.

::

    u64 page count ‖ u64 cut ‖ u32 count ‖ u32 zeros
    ‖ u32 page for each, zeros to a multiple of 8 ‖ u64 XXH3 for each ‖ the pages

The page count is that of the volume afterwards. The cut is the smallest that it had meanwhile, if
that is smaller than it was before, else 2^64 - 1: the pages behind it that are not in the
transaction are zeros from then on. One frame for the whole: it is there, or it is not.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import xxhash

from cordwood.journal.frames import HEAD_BYTES, Frame, damage
from cordwood.store.api import Buffer
from cordwood.volume.tables import Numbers, Pages

_HEAD = struct.Struct("<QQII")
NO_CUT = (1 << 64) - 1


class Change(NamedTuple):
    """One that was read."""

    page_count: int
    cut: int | None
    pages: Pages
    sums: Numbers
    places: Numbers
    """Where the pages are in the file."""


def place_of(begin: int, count: int) -> int:
    """Where the first page is of a frame that begins here; the others follow."""
    return begin + HEAD_BYTES + _HEAD.size + (4 * count + 7) // 8 * 8 + 8 * count


def encoded(
    page_count: int, cut: int | None, numbers: list[int], bodies: list[bytes]
) -> tuple[list[Buffer], list[int]]:
    """The payload, and the checksums of the pages."""
    count = len(numbers)
    sums = list(map(xxhash.xxh3_64_intdigest, bodies))
    # Most transactions are of a few pages: arrays would cost more than the rest of it.
    listed = struct.pack(f"<{count}I{4 * (count & 1)}x{count}Q", *numbers, *sums)
    head = _HEAD.pack(page_count, NO_CUT if cut is None else cut, count, 0)
    return [head + listed, *bodies], sums


def decoded(frame: Frame, page_bytes: int, name: str) -> Change:
    """What a frame says.

    Raises:
        CorruptionError: it is whole, but not what we write.
    """
    payload = frame.payload
    if len(payload) >= _HEAD.size:
        page_count, cut, count, zeros = _HEAD.unpack_from(payload)
        listed = (4 * count + 7) // 8 * 8
        size = _HEAD.size + listed + count * (8 + page_bytes)
        if len(payload) == size and not zeros and frame.span == max(count, 1):
            pages = np.frombuffer(payload, np.uint32, count, _HEAD.size)
            sums = np.frombuffer(payload, np.uint64, count, _HEAD.size + listed)
            if count == 0 or (pages[0] > 0 and (pages[1:] > pages[:-1]).all()):
                at = place_of(frame.begin, count)
                places = np.arange(at, at + count * page_bytes, page_bytes, dtype=np.uint64)
                return Change(page_count, None if cut == NO_CUT else cut, pages, sums, places)
    raise damage(name, frame.begin, "its frame is not a transaction of a volume")
