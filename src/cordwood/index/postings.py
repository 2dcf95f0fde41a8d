"""Posting lists: which documents have a term, and how often.

A term's *value* is 64 bits, kept in the segment's term dictionary::

    bit 0 = 1         one document: bits 1-31 how often, less one; bits 32-63 the document
    bits 0, 1 = 0, 0  up to 63 documents: bits 2-63 where its short record begins
    bits 0, 1 = 0, 1  more: where its long record begins

A short record is one byte, the number of documents; then the gaps between them (the first one from
zero), each a number of seven bits a byte, the lowest first, all but its last byte with bit 7 set;
then, where frequencies are kept, how often each has it, less one, in the same way.

A long record: ``u32 documents, u32 bytes of the set, u32 exceptions, u8 width, u8 bounds, u16 0``,
then the bounds ``(u32 tf, u32 length)``, the exceptions' places ``u32`` and their values ``u32``,
the packed frequencies, and the set of documents in Roaring's portable format. A frequency less one
takes `width` bits (0, 1, 2, 4 or 8), the first in the lowest bits of a byte; those that do not fit
are kept as the largest that does, and once more among the exceptions. A width of 255 says that no
frequencies are kept.

The bounds are what ranking prunes by: however the average length of a document changes, no document
of the list scores more than the best of these pairs would. All encoding is over whole arrays.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from cordwood.index.sets import LONG, NO_FREQUENCIES, SHORT_MAX

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_BOUND = struct.Struct("<II")

_ALL, _EACH = 32_768, 64
"""Up to so many frequencies, or so many for each wanted one, are decoded and not looked up."""

_WIDTHS = (0, 1, 2, 4, 8)
_CLASSES = np.array([0, 0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5], np.int64)
"""Frequencies of one class share a bound: 1, 2, 3, 4-7, 8-15, and the rest."""
_CLASS_COUNT = 6


class Lists(NamedTuple):
    """The posting lists of some terms, in the order of the terms."""

    starts: I64
    """Where each list begins; one more for the end."""
    docs: U32
    """Documents, rising within a list; the first document of a segment is 1."""
    tfs: U32 | None
    """How often; None where frequencies are not kept."""


class Encoded(NamedTuple):
    """The same, as bytes."""

    values: npt.NDArray[np.uint64]
    """One for each term."""
    records: U8
    """Short and long records, in the order of the terms."""


def encode(lists: Lists, lengths: U32 | None, base: int = 0) -> Encoded:
    """Lists as values and records; the first record will lie at `base` of its section.

    `lengths` has the length of document d at d - 1; None where frequencies are not kept.
    """
    counts = np.diff(lists.starts)
    short = (counts > 1) & (counts <= SHORT_MAX)
    long = np.flatnonzero(counts > SHORT_MAX)
    sizes = np.zeros(len(counts), np.int64)
    packed = _shorts(lists, counts, short)
    sizes[short] = packed.sizes
    longs = list(_longs(lists, long, lengths))
    sizes[long] = [len(record) for record in longs]
    ends = np.cumsum(sizes)
    places = ends - sizes
    records = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    _spread(records, places[short], packed)
    for place, record in zip(places[long].tolist(), longs, strict=True):
        records[place : place + len(record)] = np.frombuffer(record, np.uint8)
    values = (places + base).astype(np.uint64) << np.uint64(2)
    values[long] |= np.uint64(2)
    single = np.flatnonzero(counts == 1)
    first = lists.starts[single]
    values[single] = (lists.docs[first].astype(np.uint64) << np.uint64(32)) | np.uint64(1)
    if lists.tfs is not None:
        often = np.minimum(lists.tfs[first] - 1, 0x7FFFFFFF)
        values[single] |= often.astype(np.uint64) << np.uint64(1)
    return Encoded(values, records)


class _Shorts(NamedTuple):
    """Short records back to back."""

    data: U8
    sizes: I64


def _shorts(lists: Lists, counts: I64, chosen: npt.NDArray[np.bool_]) -> _Shorts:
    """The short records of the chosen lists."""
    taken = np.repeat(chosen, counts)
    counts = counts[chosen]
    docs = lists.docs[taken].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    gaps = np.diff(docs, prepend=0)
    gaps[firsts] = docs[firsts]
    parts = [gaps]
    if lists.tfs is not None:
        parts.append(lists.tfs[taken].astype(np.int64) - 1)
    widths = [_vbyte_sizes(part) for part in parts]
    sums = [np.add.reduceat(width, firsts) if len(firsts) else width for width in widths]
    sizes: I64 = np.ones(len(counts), np.int64)
    for total in sums:
        sizes = sizes + total
    places = np.cumsum(sizes) - sizes
    data = np.empty(int(sizes.sum()), np.uint8)
    data[places] = counts
    begin = places + 1
    for part, width, total in zip(parts, widths, sums, strict=True):
        # Within its record, a number lies behind those before it.
        before = np.cumsum(width) - width
        at = np.repeat(begin - before[firsts], counts) + before
        _put_vbytes(data, at, part, width)
        begin = begin + total
    return _Shorts(data, sizes)


def _vbyte_sizes(numbers: I64) -> I64:
    return np.searchsorted(np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28]), numbers, "right") + 1


def _put_vbytes(data: U8, places: I64, numbers: I64, sizes: I64) -> None:
    for place in range(5):
        some = np.flatnonzero(sizes > place)
        if not len(some):
            break
        byte = (numbers[some] >> (7 * place)) & 0x7F
        data[places[some] + place] = byte | np.where(sizes[some] > place + 1, 0x80, 0)


def _spread(records: U8, places: I64, packed: _Shorts) -> None:
    """Put short records where they belong, between the long ones."""
    starts = np.cumsum(packed.sizes) - packed.sizes
    at = np.repeat(places - starts, packed.sizes)
    records[at + np.arange(len(at))] = packed.data


def _longs(lists: Lists, chosen: npt.NDArray[np.intp], lengths: U32 | None) -> Iterator[bytes]:
    """The long records of the chosen lists."""
    starts, limits = lists.starts[chosen].tolist(), lists.starts[chosen + 1].tolist()
    if lists.tfs is None or lengths is None:
        for start, limit in zip(starts, limits, strict=True):
            members = _set_bytes(lists.docs[start:limit])
            yield LONG.pack(limit - start, len(members), 0, NO_FREQUENCIES, 0, 0) + members
        return
    bounds = _bounds(lists, chosen, lengths)
    widths = _widths(lists.tfs, lists.starts[chosen], lists.starts[chosen + 1])
    for number, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        members = _set_bytes(lists.docs[start:limit])
        more = lists.tfs[start:limit] - np.uint32(1)
        width = widths[number]
        over = np.flatnonzero(more > (1 << width) - 1)
        packed = _pack(np.minimum(more, (1 << width) - 1), width)
        head = LONG.pack(limit - start, len(members), len(over), width, len(bounds[number]), 0)
        odd = over.astype("<u4").tobytes() + more[over].astype("<u4").tobytes()
        yield b"".join((head, bounds[number].tobytes(), odd, packed, members))


def _set_bytes(docs: U32) -> bytes:
    members = BitMap(array("I", docs.tobytes()))  # Much quicker than from numpy's.
    members.run_optimize()
    return bytes(members.serialize())


def _widths(tfs: U32, starts: I64, limits: I64) -> list[int]:
    """For each list the width that takes the fewest bytes, exceptions included."""
    costs = []
    for width in _WIDTHS:
        places = np.flatnonzero(tfs > 1 << width)
        over = places.searchsorted(limits) - places.searchsorted(starts)
        costs.append((limits - starts) * width / 8 + 8 * over)
    chosen: list[int] = np.array(_WIDTHS)[np.argmin(costs, axis=0)].tolist()
    return chosen


def _pack(numbers: U32, width: int) -> bytes:
    if not width:
        return b""
    small = numbers.astype(np.uint8)
    if width == 8:
        return small.tobytes()
    if width == 1:
        return np.packbits(small, bitorder="little").tobytes()
    each = 8 // width
    padded = np.zeros(-(-len(small) // each) * each, np.uint8)
    padded[: len(small)] = small
    shifts = np.arange(each, dtype=np.uint8) * width
    packed: U8 = np.bitwise_or.reduce(padded.reshape(-1, each) << shifts, axis=1)
    return packed.tobytes()


def _unpack(data: memoryview, count: int, width: int) -> npt.NDArray[Any]:
    """Packed numbers, each one more than what was packed, in as few bytes as take them."""
    if not width:
        return np.ones(count, np.uint8)
    raw = np.frombuffer(data, np.uint8)
    if width == 8:
        return raw.astype(np.uint16) + np.uint16(1)
    if width == 1:
        return np.unpackbits(raw, count=count, bitorder="little") + np.uint8(1)
    return _SPREAD[width].take(raw).view(np.uint8)[:count]


def _spread_table(width: int) -> npt.NDArray[Any]:
    """For each byte the numbers in it, each one more, a byte each, side by side in one word."""
    parts = [((np.arange(256) >> shift) & ((1 << width) - 1)) + 1 for shift in range(0, 8, width)]
    table = np.stack(parts, axis=1).astype(np.uint8)
    return table.view(np.dtype(f"u{len(parts)}")).reshape(-1)


_SPREAD = {width: _spread_table(width) for width in (2, 4)}


def _bounds(
    lists: Lists, chosen: npt.NDArray[np.intp], lengths: U32
) -> list[npt.NDArray[np.uint32]]:
    """For each chosen list, of each class of frequencies the highest and the shortest length."""
    assert lists.tfs is not None
    counts = np.diff(lists.starts)
    taken = np.zeros(len(counts), np.bool_)
    taken[chosen] = True
    taken = np.repeat(taken, counts)
    tfs = lists.tfs.compress(taken)
    sizes = lengths.take(lists.docs.compress(taken) - 1)
    key = np.repeat(np.arange(len(chosen)) * _CLASS_COUNT, counts[chosen])
    key += _CLASSES.take(np.minimum(tfs, len(_CLASSES) - 1))
    pairs = np.zeros((len(chosen) * _CLASS_COUNT, 2), "<u4")
    pairs[:, 1] = np.iinfo(np.uint32).max
    np.maximum.at(pairs[:, 0], key, tfs)
    np.minimum.at(pairs[:, 1], key, sizes)
    return [rows[rows[:, 0] > 0] for rows in pairs.reshape(-1, _CLASS_COUNT, 2)]


def read_shorts(data: memoryview, starts: I64, limits: I64, *, frequencies: bool) -> Lists:
    """Decode short records that lie in `data` between `starts` and `limits`, rising.

    The last one may end before its limit.
    """
    raw = np.frombuffer(data, np.uint8)
    counts = raw[starts].astype(np.int64)
    each = 2 * counts if frequencies else counts
    marks = np.zeros(len(raw) + 1, np.int8)
    marks[starts + 1] += 1
    marks[np.minimum(limits, len(raw))] -= 1
    raw = raw[np.cumsum(marks[:-1], dtype=np.int8) > 0]
    ends = np.flatnonzero(raw < 0x80)[: int(each.sum())]
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    sizes = ends - begins + 1
    numbers = (raw[begins] & 0x7F).astype(np.int64)
    for place in range(1, 5):
        some = np.flatnonzero(sizes > place)
        if not len(some):
            break
        numbers[some] |= (raw[begins[some] + place] & 0x7F).astype(np.int64) << (7 * place)
    is_doc = np.ones(len(numbers), np.bool_)
    if frequencies:
        is_doc = np.repeat(np.tile([True, False], len(counts)), np.repeat(counts, 2))
    totals = np.cumsum(numbers[is_doc])
    lists = np.concatenate([[0], np.cumsum(counts)])
    before = np.concatenate([[0], totals])[lists[:-1]]
    docs = totals - np.repeat(before, counts)
    tfs = (numbers[~is_doc] + 1).astype(np.uint32) if frequencies else None
    return Lists(lists, docs.astype(np.uint32), tfs)


class Long:
    """A list of many documents; its parts are decoded when they are asked for."""

    __slots__ = ("_data", "_members", "_odd", "_packed", "_set", "_width", "count")

    def __init__(self, head: tuple[int, ...], rest: memoryview) -> None:
        """From the fields of its record, and what lies behind them."""
        self.count, set_bytes, exceptions, self._width, bounds, _ = head
        self._data = rest
        self._odd = 8 * bounds
        self._packed = self._odd + 8 * exceptions
        self._set = len(rest) - set_bytes
        self._members: BitMap | None = None

    def bounds(self) -> Iterator[tuple[int, ...]]:
        """The bounds: how often, and a length."""
        return _BOUND.iter_unpack(self._data[: self._odd])

    def members(self) -> BitMap:
        """The set of documents; it is not the caller's to change."""
        if self._members is None:
            self._members = BitMap.deserialize(bytes(self._data[self._set :]))
        return self._members

    def docs(self) -> U32:
        """The documents, rising."""
        return np.frombuffer(self.members().to_array(), np.uint32)

    def tfs(self) -> npt.NDArray[Any]:
        """How often each document has the term, in the order of the documents."""
        if self._width == NO_FREQUENCIES:
            return np.ones(self.count, np.uint8)
        often = _unpack(self._data[self._packed : self._set], self.count, self._width)
        if self._packed > self._odd:
            odd = np.frombuffer(self._data[self._odd : self._packed], "<u4").reshape(2, -1)
            if int(odd[1].max()) >= np.iinfo(often.dtype).max:
                often = often.astype(np.uint32)
            often[odd[0]] = odd[1] + np.uint32(1)
        return often

    def tfs_at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """How often a few documents have the term, by their places among the documents."""
        if self.count <= max(_ALL, _EACH * len(places)) or self._width == NO_FREQUENCIES:
            return self.tfs().take(places)
        if not self._width:
            more = np.zeros(len(places), np.uint32)
        else:
            raw = np.frombuffer(self._data[self._packed : self._set], np.uint8)
            bits = places * self._width
            more = (raw[bits >> 3] >> (bits & 7).astype(np.uint8)).astype(np.uint32)
            more &= np.uint32((1 << self._width) - 1)
        if self._packed > self._odd:
            odd = np.frombuffer(self._data[self._odd : self._packed], "<u4").reshape(2, -1)
            at = np.searchsorted(odd[0], places)
            at[at == odd.shape[1]] = 0
            hits = np.flatnonzero(odd[0][at] == places)
            more[hits] = odd[1][at[hits]]
        return more + np.uint32(1)
