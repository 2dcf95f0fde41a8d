"""Tombstones of a segment as bytes: one for each document, and a checksum of them.

The byte of document d is at d, the one at 0 is unused; 0xFF says that the document was deleted. The
last eight bytes are the XXH3 of the others.
"""

from __future__ import annotations

import numpy as np
import xxhash
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError


def encoded(gone: BitMap, documents: int) -> bytes:
    """What is written for a segment of so many documents."""
    marks = np.zeros(documents + 1, np.uint8)
    marks[np.frombuffer(gone.to_array(), np.uint32)] = 0xFF
    data = marks.tobytes()
    return data + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


def decoded(data: bytes, documents: int, where: str) -> BitMap:
    """What was written.

    Raises:
        CorruptionError: it is damaged.
    """
    marks, digest = data[:-8], data[-8:]
    right = xxhash.xxh3_64_intdigest(marks).to_bytes(8, "little") == digest
    if not right or len(marks) != documents + 1:
        raise CorruptionError(
            f"{where} is damaged: it does not match its checksum",
            where=where,
            hint="bring it back from a copy",
        )
    return BitMap(np.flatnonzero(np.frombuffer(marks, np.uint8)).astype(np.uint32))
