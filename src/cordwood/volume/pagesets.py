"""Sets of page numbers: Roaring bitmaps, and the arrays that they become where work is done.

A set is never opened before its bytes were checksummed: damaged, Roaring may crash or lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError

PAGE_MAX = 2**32 - 1
"""Pages are numbered from 1 to this."""

PageArray = npt.NDArray[np.uint32]


def pages_of(numbers: Any) -> BitMap:
    """The set of these page numbers: an array, or anything that is a sequence of integers."""
    return BitMap(np.ascontiguousarray(numbers, dtype=np.uint32))


def array_of(pages: BitMap) -> PageArray:
    """The numbers of a set, in order."""
    return np.array(pages.to_array(), dtype=np.uint32)


def up_to(pages: BitMap, limit: int) -> BitMap:
    """Those pages of a set that are not above `limit`; the set itself is left as it is."""
    if not pages or pages.max() <= limit:
        return pages
    kept = pages.copy()
    kept.remove_range(limit + 1, 2**32)
    return kept


def encode_pages(pages: BitMap) -> bytes:
    """A set as bytes; equal sets give equal bytes."""
    packed = BitMap(pages)
    packed.run_optimize()
    packed.shrink_to_fit()
    return bytes(packed.serialize())


def decode_pages(data: bytes, where: str) -> BitMap:
    """The set that bytes say, which were checksummed before.

    Raises:
        CorruptionError: they are not the bytes of a set of page numbers.
    """
    try:
        pages = BitMap.deserialize(bytes(data))
    except ValueError as error:
        raise CorruptionError(f"{where}: a set of pages is damaged", where=where) from error
    if 0 in pages or encode_pages(pages) != data:
        raise CorruptionError(f"{where}: a set of pages is not as it is written", where=where)
    return pages
