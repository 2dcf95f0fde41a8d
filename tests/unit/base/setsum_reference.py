"""The setsum by its definition, and an input worth a kernel: what several test files share."""

from __future__ import annotations

import hashlib
import importlib.util

import pytest

from cordwood.base.setsum import PRIMES

requires_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="needs cordwood[fast]"
)

LONG_INPUT = """
import numpy as np
from cordwood.base import errors, items, kernels
numbers = np.arange(100, dtype=np.uint64)
places = np.arange(101) * 300
content = (np.arange(30_000) % 251).astype(np.uint8)
def digest():
    return items.hash_items(numbers, numbers, content, places)
"""
"""For a fresh interpreter: `digest()` hashes enough to make the vector kernel worth its while."""


def reference_columns(contents):
    """The setsum of items, column by column, as its definition says."""
    columns = [0] * 8
    for content in contents:
        digest = hashlib.sha3_256(content).digest()
        for index, prime in enumerate(PRIMES):
            number = int.from_bytes(digest[4 * index : 4 * index + 4], "little")
            columns[index] = (columns[index] + number) % prime
    return tuple(columns)


def reference_sum(contents):
    """The same as hexadecimal digits."""
    return b"".join(number.to_bytes(4, "little") for number in reference_columns(contents)).hex()
