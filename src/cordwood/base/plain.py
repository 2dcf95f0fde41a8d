"""The kernel that is always there: hashlib, one record after the other.

For a short record hashlib takes more time beside the hashing than for it, and every further step in
Python costs a twentieth of that. So there is one way for each kind of value::

    all of one size     copied into a strip, each behind its head, some hundred at a time: no object
                        is made of it, and hashlib is given it in one piece
    short               joined to their heads by Arrow, one object per record
    long                hashed where they lie, after their heads

A head is offset ‖ timestamp, big-endian.

Whatever is done between two stretches of hashing finds the processor's caches cold, and costs five
times what it costs in a loop of its own: the fewer such steps, the better.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from cordwood.base.rows import binary_array, join_rows

if TYPE_CHECKING:
    import numpy.typing as npt

_CHUNK_RECORDS = 4096
_CHUNK_BYTES = 2**20
"""How much is hashed in one go, so that memory stays bounded."""

_SUM_BYTES = 2**18
"""Digests are summed up when there are so many bytes of them."""

_COPY_RECORDS_MIN = 16
"""To copy heads and values together pays for so many records."""

_STRIP_VALUE_MAX = 2048
"""Values of one size are copied up to this one: a longer copy costs more than it saves."""

_STRIP_RECORDS = 1024
_STRIP_BYTES = 2**18
"""How much is copied at once: enough that what is done for each strip does not count, little enough
that what was copied is still near when it is hashed."""

_JOIN_BYTES_MAX = 512
"""Other values are joined to their heads up to this size on average."""

_WALK_BYTES_MIN = 1024
"""Values of different sizes are looked for in a page from this size on average: below it Arrow
decodes them in less time."""

_NOTHING_HASHED = hashlib.sha3_256()
"""A hash is begun by copying this one: to make a new one costs OpenSSL a search by name."""

_HEAD_BYTES = 16
_HEAD = f"V{_HEAD_BYTES}"
_LENGTH = struct.Struct("<I")


def sum_items(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: npt.NDArray[np.uint8],
    value_offsets: npt.NDArray[np.int64],
) -> list[int]:
    """The kernel; see `cordwood.base.kernels`."""
    count = len(offsets)
    sizes = np.diff(value_offsets)
    first, last = int(value_offsets[0]), int(value_offsets[-1])
    heads = _heads(offsets, timestamps)
    total = _Total()
    size = int(sizes.max(initial=0))
    if _Strip.takes(count, size) and (sizes == size).all():
        _Strip(count, size).hash(heads, values[first:last], 0, total)
        return total.columns()
    step = min(_CHUNK_RECORDS, max(1, count * _CHUNK_BYTES // max(1, last - first)))
    for start in range(0, count, step):
        places = value_offsets[start : start + step + 1]
        some = heads[start : start + step]
        num_bytes = int(places[-1] - places[0])
        if len(some) >= _COPY_RECORDS_MIN and num_bytes <= len(some) * _JOIN_BYTES_MAX:
            total.add(_hash_joined(some, values, places))
        else:
            total.add(_hash_in_place(some, values, places))
    return total.columns()


def sum_pages(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    pages: Iterable[tuple[npt.NDArray[np.uint8], int]],
) -> list[int] | None:
    """As the kernel, where the values lie in pages; see `cordwood.base.kernels.sum_pages`."""
    heads = _heads(offsets, timestamps)
    total = _Total()
    strip: _Strip | None = None
    done = 0
    for page, count in pages:
        some = heads[done : done + count]
        done += count
        if done > len(heads):
            return None
        size, rest = divmod(page.size, max(1, count))
        size -= _LENGTH.size
        if not rest and _Strip.takes(count, size):
            if strip is None or not strip.fits(count, size):
                strip = _Strip(count, size)
            if strip.hash(some, page, _LENGTH.size, total):
                continue
        is_worth_it = done > count or page.size >= count * _WALK_BYTES_MIN
        digests = _hash_page(some, page) if is_worth_it else None
        if digests is None:
            return None
        total.add(digests)
    return total.columns() if done == len(heads) else None


class _Total:
    """The column sums of digests, not reduced."""

    def __init__(self) -> None:
        self._sums = np.zeros(8, np.uint64)
        self._waiting: list[bytes] = []
        self._num_bytes = 0

    def add(self, digests: bytes) -> None:
        """Digests, one behind the other."""
        self._waiting.append(digests)
        self._num_bytes += len(digests)
        if self._num_bytes >= _SUM_BYTES:
            self._add_up()

    def columns(self) -> list[int]:
        """Of all that was added."""
        self._add_up()
        listed: list[int] = self._sums.tolist()
        return listed

    def _add_up(self) -> None:
        """Two columns at a time, in long rows of 16 digests: what numpy sums fastest."""
        joined = b"".join([*self._waiting, bytes(-self._num_bytes % 512)])
        pairs = np.frombuffer(joined, "<u8").reshape(-1, 64)
        low, high = pairs & np.uint64(2**32 - 1), pairs >> np.uint64(32)
        self._sums[0::2] += low.sum(axis=0).reshape(-1, 4).sum(axis=0)
        self._sums[1::2] += high.sum(axis=0).reshape(-1, 4).sum(axis=0)
        self._waiting, self._num_bytes = [], 0


class _Strip:
    """Values of one size, some hundred at a time, each copied behind its head.

    As they lie they follow each other, perhaps each behind its length::

        content    length value   length value   length value   …
        strip      head   value   head   value   head   value   …
    """

    def __init__(self, count: int, size: int) -> None:
        """For so many values of this size, or for some of them at a time."""
        pitch = _HEAD_BYTES + size
        self._num, self._size = self._num_for(count, size), size
        space = np.empty(self._num * pitch, np.uint8)
        self._heads = np.ndarray(self._num, _HEAD, space, 0, pitch)
        self._values = np.ndarray(self._num, f"V{size}", space, _HEAD_BYTES, pitch)
        view = space.data
        self._items = [view[at : at + pitch] for at in range(0, space.size, pitch)]

    def fits(self, count: int, size: int) -> bool:
        """Whether it is for such values, and large enough for so many."""
        return self._size == size and self._num >= self._num_for(count, size)

    @staticmethod
    def _num_for(count: int, size: int) -> int:
        return min(count, _STRIP_RECORDS, _STRIP_BYTES // (_HEAD_BYTES + size))

    @staticmethod
    def takes(count: int, size: int) -> bool:
        """Whether it is worth it for so many values of one size."""
        return count >= _COPY_RECORDS_MIN and 0 < size <= _STRIP_VALUE_MAX

    def hash(
        self, heads: npt.NDArray[np.void], content: npt.NDArray[np.uint8], gap: int, total: _Total
    ) -> bool:
        """Add the digest of each head followed by its value.

        False, and nothing is added, if the content does not have that many values of this size,
        each behind a gap of so many bytes; if there is one, that is its length.
        """
        count, pitch = len(heads), gap + self._size
        if content.size != count * pitch:
            return False
        values = np.ndarray(count, self._values.dtype, content, gap, pitch)
        lengths = np.ndarray(count if gap else 0, "<u4", content, 0, pitch)
        if (lengths != self._size).any():
            return False
        for start in range(0, count, self._num):
            rows = slice(start, start + self._num)
            num = len(heads[rows])
            self._values[:num] = values[rows]
            self._heads[:num] = heads[rows]
            total.add(_hash_items(self._items[:num]))
        return True


def _hash_items(items: list[memoryview]) -> bytes:
    """Their digests, joined: so soon, that the next ones are made where these were."""
    begin = _NOTHING_HASHED.copy
    digests = []
    for item in items:
        hashed = begin()
        hashed.update(item)
        digests.append(hashed.digest())
    return b"".join(digests)


def _heads(
    offsets: npt.NDArray[np.uint64], timestamps: npt.NDArray[np.uint64]
) -> npt.NDArray[np.void]:
    heads = np.empty((len(offsets), 2), np.uint64)
    heads[:, 0] = offsets
    heads[:, 1] = timestamps
    if sys.byteorder == "little":
        heads.byteswap(inplace=True)
    joined: npt.NDArray[np.void] = heads.view(_HEAD)[:, 0]
    return joined


def _hash_in_place(
    heads: npt.NDArray[np.void], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> bytes:
    """The digest of each head followed by its value."""
    begin, content, bounds = _NOTHING_HASHED.copy, values.data, places.tolist()
    digests = []
    for head, start, limit in zip(heads.tolist(), bounds, bounds[1:], strict=False):
        hashed = begin()
        hashed.update(head)
        hashed.update(content[start:limit])
        digests.append(hashed.digest())
    return b"".join(digests)


def _hash_page(heads: npt.NDArray[np.void], page: npt.NDArray[np.uint8]) -> bytes | None:
    """The same of values that lie behind their lengths; None if they do not fill the page."""
    begin, content, length_at = _NOTHING_HASHED.copy, page.data, _LENGTH.unpack_from
    digests = []
    limit = 0
    try:
        for head in heads.tolist():
            start = limit + _LENGTH.size
            limit = start + length_at(content, limit)[0]
            hashed = begin()
            hashed.update(head)
            hashed.update(content[start:limit])
            digests.append(hashed.digest())
    except struct.error:
        return None  # beyond the end
    return b"".join(digests) if limit == page.size else None


def _hash_joined(
    heads: npt.NDArray[np.void], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> bytes:
    """The same, where values are short and lie one behind the other."""
    head_places = np.arange(0, heads.nbytes + 1, _HEAD_BYTES, dtype=np.int64)
    joined = join_rows([binary_array(heads, head_places), binary_array(values, places)])
    begin = _NOTHING_HASHED.copy
    digests = []
    for item in joined.to_numpy(zero_copy_only=False).tolist():
        hashed = begin()
        hashed.update(item)
        digests.append(hashed.digest())
    return b"".join(digests)
