"""Filters: which pages a range of commits touches, so that a walk passes over 32 of them at once.

A filter is the set of pages itself or a binary fuse filter over it, whichever is shorter. The set
is exact; the other says "perhaps" of one page in 256 that is not there. Neither ever says no of a
page that is: a fuse filter is asked for every page before it is used, and a file is checksummed
before it is read.

A walk must also stop where a volume was cut, so the head has the smallest cut of the range: a page
above it may have been cut off in the range, and the commits are looked at one by one::

    magic     8   CWFILTER
    version   4   u32, 1
    kind      4   u32, 1 a set, 2 a fuse filter
    cut       8   u64, the smallest of the range
    start     8   u64, the first LSN
    end       8   u64, the last one
    hash     32   of the last commit
    seed      8   u64, of a fuse filter
    shift     4   u32, its segments are 2^shift long
    segments  4   u32, how many a page's first slot can be in
    data          the set, or a byte for each slot
    checksum  8   XXH3 of everything before

A page's three slots are in three segments that follow one another, and the XOR of their bytes is
the page's fingerprint. Slots are filled by peeling: a page that is alone in one of its slots can be
satisfied last, whatever the others get. All pages that are alone somewhere are peeled together,
round by round, in numpy; a slot where a page is alone is no slot of any other page of that round.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError, UnsupportedError
from cordwood.volume.format import HASH_BYTES, Commit
from cordwood.volume.pagesets import PageArray, array_of, decode_pages, encode_pages

MAGIC = b"CWFILTER"
VERSION = 1
RANGE = 32
"""Commits of a filter: LSNs from 32 k + 1 to 32 k + 32."""
_HEAD = struct.Struct("<8sIIQQQ32sQII")
_CHECKSUM = struct.Struct("<Q")
_SET, _FUSE = 1, 2
_TRIES_MAX = 64
_WORD = 2**64 - 1
_SLOTS_MAX = 2**31

_U64 = npt.NDArray[np.uint64]


def range_start(lsn: int) -> int:
    """The first LSN of the range that an LSN is in."""
    return (lsn - 1) // RANGE * RANGE + 1


@dataclass(frozen=True, slots=True)
class Fuse:
    """A binary fuse filter of one byte per slot."""

    seed: int
    shift: int
    segments: int
    slots: bytes

    def __contains__(self, page: int) -> bool:
        """Whether the page may be in the set."""
        mixed = _mix(page, self.seed)
        mask = (1 << self.shift) - 1
        first = ((mixed >> 32) * (self.segments << self.shift)) >> 32
        second = (first + mask + 1) ^ ((mixed >> 18) & mask)
        third = (first + 2 * mask + 2) ^ (mixed & mask)
        slots = self.slots
        return (mixed ^ (mixed >> 32)) & 255 == slots[first] ^ slots[second] ^ slots[third]

    def contains_all(self, pages: PageArray) -> bool:
        """Whether it says so of each of these pages."""
        where, prints = _slots_of(pages, self.seed, self.shift, self.segments)
        table = np.frombuffer(self.slots, np.uint8)
        return bool(np.all(np.bitwise_xor.reduce(table[where], axis=0) == prints))


@dataclass(frozen=True, slots=True)
class Filter:
    """What a range of commits touches."""

    start: int
    end: int
    cut: int
    """The smallest cut of the range."""
    hash: bytes
    """Of the last commit."""
    pages: BitMap | Fuse

    def may_decide(self, page: int) -> bool:
        """Whether a commit of the range may hold the page or have cut it off; no is certain."""
        return page > self.cut or page in self.pages

    def encode(self) -> bytes:
        """The filter as bytes."""
        seed, shift, segments, kind = 0, 0, 0, _SET
        if isinstance(self.pages, Fuse):
            fuse = self.pages
            seed, shift, segments, kind = fuse.seed, fuse.shift, fuse.segments, _FUSE
            data = fuse.slots
        else:
            data = encode_pages(self.pages)
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            kind,
            self.cut,
            self.start,
            self.end,
            self.hash,
            seed,
            shift,
            segments,
        )
        body = head + data
        return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def make_filter(commits: Sequence[Commit]) -> Filter:
    """The filter of commits that follow one another, the first one first."""
    pages = BitMap.union(*(commit.pages for commit in commits))
    cut = min(commit.cut for commit in commits)
    ends = commits[0].lsn, commits[-1].lsn
    set_bytes = len(encode_pages(pages))
    # A fuse filter has more than a byte for each page: not worth trying where the set is as short.
    fuse = build_fuse(array_of(pages)) if set_bytes > len(pages) else None
    is_shorter = fuse is not None and len(fuse.slots) < set_bytes
    return Filter(*ends, cut, commits[-1].hash, fuse if fuse and is_shorter else pages)


def open_filter(data: bytes, where: str) -> Filter:
    """The filter that bytes say.

    Raises:
        CorruptionError: they are damaged; the filter can be made again.
        UnsupportedError: they are of a newer kind.
    """
    body = data[: -_CHECKSUM.size]
    if len(body) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise CorruptionError(f"{where}: this is no filter", where=where)
    if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) != data[-_CHECKSUM.size :]:
        raise CorruptionError(f"{where}: the filter does not match its checksum", where=where)
    fields: tuple[Any, ...] = _HEAD.unpack_from(body)
    _, version, kind, cut, start, end, hashed, seed, shift, segments = fields
    if version != VERSION or kind not in {_SET, _FUSE}:
        raise UnsupportedError(f"{where} is of version {version}, kind {kind}")
    assert len(hashed) == HASH_BYTES
    rest = body[_HEAD.size :]
    if kind == _SET:
        return Filter(start, end, cut, hashed, decode_pages(rest, where))
    if not 1 <= shift <= 18 or not segments or len(rest) != (segments + 2) << shift:
        raise CorruptionError(f"{where}: slots are missing", where=where)
    return Filter(start, end, cut, hashed, Fuse(seed, shift, segments, rest))


def build_fuse(pages: PageArray) -> Fuse | None:
    """A fuse filter of these pages, each once; None if none could be built."""
    count = len(pages)
    if not count:
        return None
    shift, segments = _shape(count)
    if (segments + 2) << shift > _SLOTS_MAX:
        return None
    for attempt in range(_TRIES_MAX):
        seed = _mix(attempt, count)
        slots = _peel(pages, seed, shift, segments)
        if slots is not None:
            fuse = Fuse(seed, shift, segments, slots.tobytes())
            # The promise is checked, and not left to the construction.
            return fuse if fuse.contains_all(pages) else None
    return None


def _shape(count: int) -> tuple[int, int]:
    """How long segments are, as a power of two, and how many the first slot can be in."""
    if count < 2:
        return 2, 1
    shift = min(18, max(2, math.floor(math.log(count) / math.log(3.33) + 2.25)))
    factor = max(1.125, 0.875 + 0.25 * math.log(1_000_000) / math.log(count))
    return shift, max(1, -(-round(count * factor) >> shift) - 2)


def _mix(number: int, seed: int) -> int:
    """64 bits of which each depends on all of the number and the seed (splitmix64's finish)."""
    mixed = (number + seed) & _WORD
    mixed = ((mixed ^ (mixed >> 33)) * 0xFF51AFD7ED558CCD) & _WORD
    mixed = ((mixed ^ (mixed >> 33)) * 0xC4CEB9FE1A85EC53) & _WORD
    return mixed ^ (mixed >> 33)


def _mix_many(numbers: PageArray, seed: int) -> _U64:
    mixed: _U64 = numbers.astype(np.uint64) + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))


def _slots_of(
    pages: PageArray, seed: int, shift: int, segments: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The three slots of each page, a row each, and the fingerprints."""
    mixed = _mix_many(pages, seed)
    mask, length = np.uint64((1 << shift) - 1), np.uint64(1 << shift)
    first = ((mixed >> np.uint64(32)) * np.uint64(segments << shift)) >> np.uint64(32)
    second = (first + length) ^ ((mixed >> np.uint64(18)) & mask)
    third = (first + length + length) ^ (mixed & mask)
    prints = ((mixed ^ (mixed >> np.uint64(32))) & np.uint64(255)).astype(np.uint8)
    return np.stack((first, second, third)).astype(np.int64), prints


def _peel(pages: PageArray, seed: int, shift: int, segments: int) -> npt.NDArray[np.uint8] | None:
    """The bytes of the slots; None if with this seed some pages are never alone."""
    where, prints = _slots_of(pages, seed, shift, segments)
    size = (segments + 2) << shift
    counts = np.bincount(where.ravel(), minlength=size)
    owners = np.zeros(size, np.int64)
    """The XOR of the indexes of all pages in a slot: where there is one, its index."""
    for row in where:
        np.bitwise_xor.at(owners, row, np.arange(len(pages)))
    rounds: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    peeled = 0
    alone = np.flatnonzero(counts == 1)
    while len(alone):
        members, first = np.unique(owners[alone], return_index=True)
        rounds.append((members, alone[first]))
        peeled += len(members)
        touched = where[:, members]
        np.subtract.at(counts, touched.ravel(), 1)
        np.bitwise_xor.at(owners, touched.ravel(), np.tile(members, 3))
        candidates = np.unique(touched)
        alone = candidates[counts[candidates] == 1]
    if peeled != len(pages):
        return None
    slots = np.zeros(size, np.uint8)
    for members, own in reversed(rounds):
        # Its own slot is still zero, so the XOR of all three is that of the others.
        slots[own] = prints[members] ^ np.bitwise_xor.reduce(slots[where[:, members]], axis=0)
    return slots
