"""The kernel that is always there: hashlib, one record after the other.

For a short record hashlib takes more time beside the hashing than for it, and every further step in
Python costs a twentieth of that. So there is one way for each kind of value::

    all of one size     copied behind their heads into a few rows, which are used again and again:
                        no object is made per record, and hashlib is called once
    short               joined to their heads by Arrow, one object per record
    long                hashed where they lie, after their heads

A head is offset ‖ timestamp, big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from cordwood.base.rows import binary_array, join_rows

if TYPE_CHECKING:
    import numpy.typing as npt

_CHUNK_RECORDS = 4096
_CHUNK_BYTES = 2**20
"""How much is hashed between two sums, so that memory stays bounded."""

_COPY_RECORDS_MIN = 16
"""To copy heads and values together pays for so many records."""

_ROW_BYTES_MAX = 2048
"""Values of one size are copied up to this one: a longer copy costs more than it saves."""

_ROWS_MAX = 512
_ROWS_BYTES = 2**17
"""How many rows there are: enough to fill them at once, few enough to stay near the processor."""

_JOIN_BYTES_MAX = 512
"""Other values are joined to their heads up to this size on average."""

_WALK_BYTES_MIN = 1024
"""Values of different sizes are looked for in a page from this size on average: below it Arrow
decodes them in less time."""

_NOTHING_HASHED = hashlib.sha3_256()
"""A hash is begun by copying this one: to make a new one costs OpenSSL a search by name."""

_HEAD_BYTES = 16
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
    if _are_rows(count, int(sizes.max(initial=0))) and (sizes == sizes[0]).all():
        rows = _Rows(count, int(sizes[0]))
        matrix = values[first:last].reshape(count, int(sizes[0]))
        return _listed(rows.sum(offsets, timestamps, matrix))
    totals = np.zeros(8, np.uint64)
    step = min(_CHUNK_RECORDS, max(1, count * _CHUNK_BYTES // max(1, last - first)))
    for start in range(0, count, step):
        places = value_offsets[start : start + step + 1]
        heads = _heads(offsets[start : start + step], timestamps[start : start + step])
        num_bytes = int(places[-1] - places[0])
        if len(heads) >= _COPY_RECORDS_MIN and num_bytes <= len(heads) * _JOIN_BYTES_MAX:
            digests = _hash_joined(heads, values, places)
        else:
            digests = _hash_in_place(heads, values, places)
        totals += _sum_digests(digests)
    return _listed(totals)


def sum_pages(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    pages: Iterable[tuple[npt.NDArray[np.uint8], int]],
) -> list[int] | None:
    """As the kernel, where the values lie in pages; see `cordwood.base.kernels.sum_pages`."""
    totals = np.zeros(8, np.uint64)
    rows: _Rows | None = None
    done = 0
    for page, count in pages:
        some = slice(done, done + count)
        done += count
        matrix = _matrix(page, count)
        if matrix is not None and done <= len(offsets):
            if rows is None or rows.size != matrix.shape[1]:
                rows = _Rows(count, matrix.shape[1])
            totals += rows.sum(offsets[some], timestamps[some], matrix)
            continue
        is_worth_it = done > count or page.size >= count * _WALK_BYTES_MIN
        if not is_worth_it or done > len(offsets):
            return None
        digests = _hash_page(_heads(offsets[some], timestamps[some]), page)
        if digests is None:
            return None
        totals += _sum_digests(digests)
    return _listed(totals) if done == len(offsets) else None


class _Rows:
    """A few items of one size that are filled, hashed, and filled again."""

    def __init__(self, count: int, size: int) -> None:
        """For values of this size, and not more than `count` at once."""
        self.size = size
        width = _HEAD_BYTES + size
        self._num = max(1, min(count, _ROWS_MAX, _ROWS_BYTES // width))
        self._content = np.empty((self._num, width), np.uint8)
        view = self._content.reshape(-1).data
        self._items = [view[at : at + width] for at in range(0, len(view), width)]

    def sum(
        self,
        offsets: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.uint64],
        values: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.uint64]:
        """The column sums of records whose values are the rows of a matrix."""
        totals = np.zeros(8, np.uint64)
        for start in range(0, len(values), _CHUNK_RECORDS):
            some = slice(start, start + _CHUNK_RECORDS)
            heads = _heads(offsets[some], timestamps[some])
            totals += _sum_digests(self._hash(heads.view(np.uint8), values[some]))
        return totals

    def _hash(self, heads: npt.NDArray[np.uint8], values: npt.NDArray[np.uint8]) -> list[bytes]:
        """The digest of each head followed by its value, those of all rows joined.

        Joined so early, they are made where the last ones were: two per cent of all that is done.
        """
        begin = _NOTHING_HASHED.copy
        joined = []
        for start in range(0, len(values), self._num):
            some = slice(start, start + self._num)
            filled = len(values[some])
            self._content[:filled, :_HEAD_BYTES] = heads[some]
            self._content[:filled, _HEAD_BYTES:] = values[some]
            digests = []
            for item in self._items[:filled]:
                hashed = begin()
                hashed.update(item)
                digests.append(hashed.digest())
            joined.append(b"".join(digests))
        return joined


def _are_rows(count: int, size: int) -> bool:
    """Whether so many values of one size are copied into rows."""
    return count >= _COPY_RECORDS_MIN and size <= _ROW_BYTES_MAX


def _matrix(page: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.uint8] | None:
    """The values of a page as rows, if all have one size and are to be copied into rows."""
    width = page.size // max(1, count)
    size = width - _LENGTH.size
    if not _are_rows(count, size) or size < 0 or page.size != count * width:
        return None
    matrix = page.reshape(count, width)
    lengths = matrix[:, : _LENGTH.size].view("<u4")
    return matrix[:, _LENGTH.size :] if (lengths == size).all() else None


def _heads(offsets: npt.NDArray[np.uint64], timestamps: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    heads = np.empty((len(offsets), 2), ">u8")
    heads[:, 0] = offsets
    heads[:, 1] = timestamps
    return heads


def _hash_in_place(
    heads: npt.NDArray[Any], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> list[bytes]:
    """The digest of each head followed by its value."""
    begin, content, bounds = _NOTHING_HASHED.copy, values.data, places.tolist()
    digests = []
    for head, start, limit in zip(_listed_heads(heads), bounds, bounds[1:], strict=False):
        hashed = begin()
        hashed.update(head)
        hashed.update(content[start:limit])
        digests.append(hashed.digest())
    return digests


def _hash_page(heads: npt.NDArray[Any], page: npt.NDArray[np.uint8]) -> list[bytes] | None:
    """The same of values that lie behind their lengths; None if they do not fill the page."""
    begin, content, length_at = _NOTHING_HASHED.copy, page.data, _LENGTH.unpack_from
    digests = []
    limit = 0
    try:
        for head in _listed_heads(heads):
            start = limit + _LENGTH.size
            limit = start + length_at(content, limit)[0]
            hashed = begin()
            hashed.update(head)
            hashed.update(content[start:limit])
            digests.append(hashed.digest())
    except struct.error:
        return None  # beyond the end
    return digests if limit == page.size else None


def _hash_joined(
    heads: npt.NDArray[Any], values: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]
) -> list[bytes]:
    """The same, where values are short and lie one behind the other."""
    head_places = np.arange(0, heads.nbytes + 1, _HEAD_BYTES, dtype=np.int64)
    joined = join_rows([binary_array(heads, head_places), binary_array(values, places)])
    begin = _NOTHING_HASHED.copy
    digests = []
    for item in joined.to_numpy(zero_copy_only=False).tolist():
        hashed = begin()
        hashed.update(item)
        digests.append(hashed.digest())
    return digests


def _sum_digests(digests: list[bytes]) -> npt.NDArray[np.uint64]:
    """Column sums, not reduced. Long rows, 32 digests each, are what numpy sums fastest."""
    joined = b"".join(digests)
    whole = joined + bytes(-len(joined) % (32 * 32))
    numbers = np.frombuffer(whole, "<u4").reshape(-1, 32 * 8)
    by_place = numbers.sum(axis=0, dtype=np.uint64)
    sums: npt.NDArray[np.uint64] = by_place.reshape(32, 8).sum(axis=0)
    return sums


def _listed_heads(heads: npt.NDArray[Any]) -> list[bytes]:
    listed: list[bytes] = heads.view("V16")[:, 0].tolist()
    return listed


def _listed(totals: npt.NDArray[np.uint64]) -> list[int]:
    sums: list[int] = totals.tolist()
    return sums
