"""Names of topics, their ids, and which partition and which worker a record belongs to.

A namespace and a topic are named by text; a program may give the 64-bit id of the text in its
place: XXH64 with seed 0. A partition's id is that of both ids and its number, as bytes. Which
partition a key belongs to, and which of several workers owns a partition, is chosen by jump
consistent hashing: of n+1 buckets the last one gets its share evenly from the others, and nothing
else moves.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import xxhash

from cordwood.base.errors import InvalidInputError

NAME_BYTES_MAX = 100
PARTITIONS_MAX = 1024

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PARTITION = struct.Struct("<QQI")
_MULTIPLIER = 2862933555777941757


def check_name(what: str, name: str) -> str:
    """The name, if it can be one.

    Raises:
        InvalidInputError: it cannot.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"a {what} is named by text, not by a {type(name).__name__}")
    if not _NAME.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        raise InvalidInputError(
            f"{name[:NAME_BYTES_MAX]!r} cannot be the name of a {what}",
            hint=f"use 1 to {NAME_BYTES_MAX} of the ASCII letters and digits, '-' and '_'",
        )
    return name


def name_id(name: str) -> int:
    """The id of a namespace or a topic."""
    return xxhash.xxh64_intdigest(name.encode())


def partition_id(namespace_id: int, topic_id: int, partition: int) -> int:
    """The id of a partition."""
    return xxhash.xxh64_intdigest(_PARTITION.pack(namespace_id, topic_id, partition))


def jump(hashes: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each hash."""
    state = hashes.astype(np.uint64, copy=True)
    chosen = np.zeros(len(state), np.int64)
    at = np.zeros(len(state), np.int64)
    moving = np.arange(len(state)) if buckets > 1 else np.arange(0)
    with np.errstate(over="ignore"):
        while len(moving):
            chosen[moving] = at[moving]
            state[moving] = state[moving] * np.uint64(_MULTIPLIER) + np.uint64(1)
            draw = (state[moving] >> np.uint64(33)).astype(np.float64) + 1.0
            at[moving] = ((chosen[moving] + 1) * (float(1 << 31) / draw)).astype(np.int64)
            moving = moving[at[moving] < buckets]
    return chosen


def key_hashes(keys: Iterable[bytes], count: int = -1) -> npt.NDArray[np.uint64]:
    """The hashes of keys."""
    return np.fromiter(map(xxhash.xxh64_intdigest, keys), np.uint64, count)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that a key belongs to."""
    return jump_one(xxhash.xxh64_intdigest(key), partitions)


def jump_one(hashed: int, buckets: int) -> int:
    """The bucket of one hash."""
    chosen, at = 0, 0
    while at < buckets:
        chosen = at
        hashed = (hashed * _MULTIPLIER + 1) & 0xFFFFFFFFFFFFFFFF
        at = int((chosen + 1) * (float(1 << 31) / float((hashed >> 33) + 1)))
    return chosen


def owner_of(namespace: str, topic: str, partition: int, workers: int) -> int:
    """Which of so many workers, from 0 on, owns a partition."""
    owned = partition_id(name_id(namespace), name_id(topic), partition)
    return jump_one(owned, workers)
