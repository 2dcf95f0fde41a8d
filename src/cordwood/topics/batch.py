"""Records as they lie in a journal: the columns of a batch, end to end, as Arrow keeps them.

::

    u32 rows ‖ u32 columns
    1   deltas      u32 each: the offset, less that of the frame     only where offsets are missing
    2   times       i64 each: microseconds                           else all have the frame's
    4   keys        a binary column
    8   headers     i32 ends of the rows' lists ‖ names, a binary column ‖ values, likewise
    16  values      a binary column
    32  producer    u64 who ‖ u64 the sequence of the first record

A binary column is: u32 how many bytes of validity ‖ u32 how many bytes of data ‖ i32 where each row
begins and the last one ends ‖ validity, a bit for each row, none if all are there ‖ data. All
begins at a multiple of 8, with zeros in between. So a batch is read without copying anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.base.errors import CorruptionError
from cordwood.log.records import HEADERS_TYPE, Headers
from cordwood.store.api import Buffer

DELTAS, TIMES, KEYS, HEADERS, VALUES, PRODUCER = 1, 2, 4, 8, 16, 32
_HEAD = struct.Struct("<II")
_PRODUCER = struct.Struct("<QQ")
_CELL = struct.Struct("<IIii")
_PLAIN = struct.Struct("<IIIIii")
"""A batch of one value, as far as that."""
_ZEROS = bytes(7)
_KNOWN = DELTAS | TIMES | KEYS | HEADERS | VALUES | PRODUCER

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp_us", pa.int64(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)


class TopicRecord(NamedTuple):
    """A record as a consumer gives it."""

    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    """None: the key is deleted, in a compaction topic."""
    headers: dict[str, bytes]


class Row(msgspec.Struct, frozen=True):
    """One record that is to be appended; a kind of object that is made at once."""

    value: bytes | None
    key: bytes | None
    headers: Headers | None
    time_us: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Columns:
    """What is to be appended: rows, and the time of those that bring none."""

    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.Array | None = None
    times_us: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """How many rows."""
        return len(self.values)

    def slice(self, begin: int, count: int) -> Columns:
        """Some of the rows, not copied."""
        return Columns(
            self.values.slice(begin, count),
            None if self.keys is None else self.keys.slice(begin, count),
            None if self.headers is None else self.headers.slice(begin, count),
            None if self.times_us is None else self.times_us[begin : begin + count],
        )

    def take(self, rows: npt.NDArray[np.int64]) -> Columns:
        """Some of the rows, in this order."""
        picked = pa.array(rows)
        return Columns(
            self.values.take(picked),
            None if self.keys is None else self.keys.take(picked),
            None if self.headers is None else self.headers.take(picked),
            None if self.times_us is None else self.times_us[rows],
        )


class Producer(NamedTuple):
    """Who appended a batch, and which of its records the first one is."""

    id: int
    sequence: int


def columns_of(rows: Sequence[Row], time_us: int) -> Columns:
    """Single records as columns; those without a time have this one."""
    has_times = any(row.time_us is not None for row in rows)
    times = [time_us if row.time_us is None else row.time_us for row in rows] if has_times else ()
    return Columns(
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.key for row in rows], pa.binary())
        if any(row.key is not None for row in rows)
        else None,
        headers_array([row.headers for row in rows]) if any(row.headers for row in rows) else None,
        np.array(times, np.int64) if has_times else None,
    )


def headers_array(headers: Sequence[Headers | None]) -> pa.Array:
    """A column of headers."""
    return pa.array([None if one is None else list(one.items()) for one in headers], HEADERS_TYPE)


def joined(appends: Sequence[Columns | Row], time_us: int) -> Columns:
    """Rows of several appends, one after the other; those without a time get this one."""
    parts: list[Columns] = []
    for kind, some in groupby(appends, type):
        taken: list[Any] = list(some)
        parts += [columns_of(taken, time_us)] if kind is Row else taken
    if len(parts) == 1:
        return parts[0]
    return Columns(
        pa.concat_arrays([part.values for part in parts]),
        _joined([part.keys for part in parts], parts, pa.binary()),
        _joined([part.headers for part in parts], parts, HEADERS_TYPE),
        np.concatenate([_times(part, time_us) for part in parts])
        if any(part.times_us is not None for part in parts)
        else None,
    )


def encoded(
    columns: Columns,
    *,
    producer: Producer | None = None,
    deltas: npt.NDArray[np.uint32] | None = None,
) -> list[Buffer]:
    """The parts of a payload; values are not copied."""
    flags = VALUES
    parts: list[Buffer] = []
    if deltas is not None:
        flags |= DELTAS
        parts.append(_padded(deltas.astype("<u4").tobytes()))
    if columns.times_us is not None:
        flags |= TIMES
        parts.append(columns.times_us.astype("<i8").tobytes())
    if columns.keys is not None and columns.keys.null_count < len(columns):
        flags |= KEYS
        parts += _binary(columns.keys)
    if columns.headers is not None and columns.headers.null_count < len(columns):
        flags |= HEADERS
        parts += _lists(columns.headers)
    parts += _binary(columns.values)
    if producer is not None:
        flags |= PRODUCER
        parts.append(_PRODUCER.pack(*producer))
    return [_HEAD.pack(len(columns), flags), *parts]


def encoded_row(row: Row, *, producer: Producer | None = None) -> bytes:
    """The same for one record without headers, which is worth its own way: no arrays are made."""
    value, key, time_us = row.value, row.key, row.time_us
    if value is not None and key is None and time_us is None and producer is None:
        size = len(value)
        return _PLAIN.pack(1, VALUES, 0, size, 0, size) + value + _ZEROS[: -size % 8]
    flags, parts = VALUES, []
    if time_us is not None:
        flags |= TIMES
        parts.append(struct.pack("<q", time_us))
    if key is not None:
        flags |= KEYS
        parts.append(_cell(key))
    parts.append(_cell(value))
    if producer is not None:
        flags |= PRODUCER
        parts.append(_PRODUCER.pack(*producer))
    return _HEAD.pack(1, flags) + b"".join(parts)


def decoded(payload: Any, number: int, time_us: int) -> pa.RecordBatch:
    """The records of a frame.

    Raises:
        CorruptionError: whoever wrote it did not know how.
    """
    try:
        return _Decoder(payload).batch(number, time_us)
    except (ValueError, struct.error, pa.ArrowException) as error:
        raise CorruptionError(f"the batch at offset {number} cannot be read: {error}") from error


def producer_of(payload: Any) -> Producer | None:
    """Who appended it."""
    view = memoryview(payload)
    _, flags = _HEAD.unpack_from(view)
    if not flags & PRODUCER:
        return None
    return Producer(*_PRODUCER.unpack_from(view, len(view) - _PRODUCER.size))


def iter_topic_records(partition: int, batch: pa.RecordBatch) -> Iterator[TopicRecord]:
    """The rows of a batch, one by one."""
    columns = [
        batch.column(name).to_pylist() for name in ("offset", "timestamp_us", "key", "value")
    ]
    if batch.column("headers").null_count == batch.num_rows:
        headers: Any = ({} for _ in range(batch.num_rows))
    else:
        headers = (
            {pair["name"]: pair["value"] for pair in pairs or ()}
            for pairs in batch.column("headers").to_pylist()
        )
    for row in zip(*columns, headers, strict=True):
        yield TopicRecord(partition, *row)


class _Decoder:
    """Reads one section after the other."""

    def __init__(self, payload: Any) -> None:
        self._buffer = pa.py_buffer(payload)
        self._view = memoryview(payload)
        self._at = _HEAD.size
        self._rows, self._flags = _HEAD.unpack_from(self._view)
        if self._flags & ~_KNOWN or not self._flags & VALUES:
            raise ValueError(f"its columns are {self._flags:#x}: update cordwood")

    def batch(self, number: int, time_us: int) -> pa.RecordBatch:
        rows = self._rows
        offsets = np.arange(number, number + rows)
        if self._flags & DELTAS:
            offsets = number + self._numbers("<u4", rows).astype(np.int64)
        times: Any = np.full(rows, time_us)
        if self._flags & TIMES:
            times = self._numbers("<i8", rows)
        keys = self._binary(rows) if self._flags & KEYS else pa.nulls(rows, pa.binary())
        headers = self._lists(rows) if self._flags & HEADERS else pa.nulls(rows, HEADERS_TYPE)
        columns = [pa.array(offsets, pa.int64()), pa.array(times, pa.int64()), keys]
        columns += [self._binary(rows), headers]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        batch.validate()
        return batch

    def _numbers(self, kind: str, count: int) -> npt.NDArray[Any]:
        found = np.frombuffer(self._view, kind, count, self._at)
        self._at += _up(found.nbytes)
        return found

    def _binary(self, rows: int, kind: pa.DataType | None = None) -> pa.Array:
        validity_bytes, data_bytes = _HEAD.unpack_from(self._view, self._at)
        self._at += _HEAD.size
        offsets = self._slice(4 * (rows + 1))
        validity = self._slice(validity_bytes) if validity_bytes else None
        data = self._slice(data_bytes)
        return pa.Array.from_buffers(kind or pa.binary(), rows, [validity, offsets, data])

    def _lists(self, rows: int) -> pa.Array:
        offsets = self._numbers("<i4", rows + 1)
        count = int(offsets[-1])
        names = self._binary(count, pa.string())
        pairs = pa.StructArray.from_arrays(
            [names, self._binary(count)], fields=list(HEADERS_TYPE.value_type)
        )
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs, type=HEADERS_TYPE)

    def _slice(self, length: int) -> pa.Buffer:
        if self._at + length > len(self._view):
            raise ValueError("it ends too early")
        found = self._buffer.slice(self._at, length)
        self._at += _up(length)
        return found


def _cell(data: bytes | None) -> bytes:
    """A binary column of one row."""
    if data is None:
        return _CELL.pack(1, 0, 0, 0) + bytes(8)
    size = len(data)
    return _CELL.pack(0, size, 0, size) + data + bytes(-size % 8)


def _binary(array: pa.Array) -> list[Buffer]:
    """The sections of a binary column, or one of text; a part of a larger array as well."""
    _, offset_buffer, data = array.buffers()
    count = len(array)
    if count:
        offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * array.offset)
    else:
        offsets = np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    validity = b""
    if array.null_count:
        is_there = array.is_valid().to_numpy(zero_copy_only=False)
        validity = np.packbits(is_there, bitorder="little").tobytes()
    shifted = _padded((offsets - begin).astype("<i4").tobytes()) + _padded(validity)
    parts: list[Buffer] = [_HEAD.pack(len(validity), end - begin) + shifted]
    if end > begin:
        parts += [memoryview(data)[begin:end], bytes(_up(end - begin) - (end - begin))]
    return parts


def _lists(array: pa.Array) -> list[Buffer]:
    """The sections of a column of headers; a row without any has an empty list."""
    lengths = array.value_lengths().fill_null(0).to_numpy()
    ends = np.zeros(len(array) + 1, "<i4")
    np.cumsum(lengths, out=ends[1:])
    pairs = array.flatten()
    return [
        _padded(ends.tobytes()),
        *_binary(pairs.field("name")),
        *_binary(pairs.field("value")),
    ]


def _joined(
    arrays: Sequence[pa.Array | None], parts: Sequence[Columns], kind: pa.DataType
) -> pa.Array | None:
    if all(array is None for array in arrays):
        return None
    return pa.concat_arrays(
        [
            pa.nulls(len(part), kind) if array is None else array
            for array, part in zip(arrays, parts, strict=True)
        ]
    )


def _times(part: Columns, time_us: int) -> npt.NDArray[np.int64]:
    return np.full(len(part), time_us) if part.times_us is None else part.times_us


def _up(size: int) -> int:
    return (size + 7) // 8 * 8


def _padded(data: bytes) -> bytes:
    return data.ljust(_up(len(data)), b"\0")
