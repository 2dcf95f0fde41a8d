"""Records of a topic as a log keeps them: key and headers in its own columns, the value as body.

What a log has no column for travels in headers whose names begin with `cordwood-`. Nobody else may
use such names, and consumers do not see them::

    cordwood-time        i64: the record's time in microseconds, where its producer gave one
    cordwood-null        empty: the record has no value
    cordwood-producer    u64 who sent it ‖ u64 its sequence number, where it has one

All numbers are little-endian.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import CorruptionError
from cordwood.log.records import HEADERS_TYPE
from cordwood.topics.batch import SCHEMA, Columns, Row
from cordwood.topics.rows import RESERVED

TIME = f"{RESERVED}time"
NULL = f"{RESERVED}null"
PRODUCER = f"{RESERVED}producer"


class Origins(NamedTuple):
    """Which records of a batch have sequence numbers, and whose."""

    offsets: npt.NDArray[np.int64]
    """In the topic."""
    producers: npt.NDArray[np.uint64]
    sequences: npt.NDArray[np.uint64]


def stored_row(row: Row) -> tuple[bytes, dict[str, bytes] | None]:
    """The body and the headers of one record without a sequence number."""
    headers = dict(row.headers or {})
    if row.time_us is not None:
        headers[TIME] = row.time_us.to_bytes(8, "little")
    if row.value is None:
        headers[NULL] = b""
    return row.value or b"", headers or None


def stored(
    columns: Columns, producer: int = 0, sequences: npt.NDArray[np.uint64] | None = None
) -> pa.RecordBatch:
    """Records as a log takes them; with sequence numbers, if they are those of a producer."""
    count = len(columns)
    names: list[pa.Array] = []
    values: list[pa.Array] = []
    rows: list[npt.NDArray[np.int64]] = []
    if columns.headers is not None and columns.headers.null_count < count:
        pairs = columns.headers.flatten()
        names.append(pairs.field("name"))
        values.append(pairs.field("value"))
        rows.append(_parents(columns.headers))

    def add(name: str, which: npt.NDArray[np.int64], data: pa.Array) -> None:
        names.append(pa.repeat(name, len(which)))
        values.append(data)
        rows.append(which)

    if columns.times_us is not None:
        add(TIME, np.arange(count), _fixed(columns.times_us.astype("<i8"), 8))
    if columns.values.null_count:
        is_null = columns.values.is_null().to_numpy(zero_copy_only=False)
        which = np.flatnonzero(is_null)
        add(NULL, which, pa.repeat(pa.scalar(b"", pa.binary()), len(which)))
    if sequences is not None:
        whose = np.empty((count, 2), "<u8")
        whose[:, 0] = producer
        whose[:, 1] = sequences
        add(PRODUCER, np.arange(count), _fixed(whose, 16))
    found = {"body": columns.values.fill_null(b"") if columns.values.null_count else columns.values}
    if columns.keys is not None:
        found["key"] = columns.keys
    if names:
        found["headers"] = _lists(
            np.concatenate(rows), pa.concat_arrays(names), pa.concat_arrays(values), count
        )
    return pa.RecordBatch.from_pydict(found)


def shown(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records of a log as consumers see them.

    Raises:
        CorruptionError: a header of ours is not as we write it.
    """
    count = batch.num_rows
    names = batch.schema.names
    offsets = pc.subtract(batch.column("offset").cast(pa.int64()), 1)
    times = batch.column("timestamp_us").cast(pa.int64())
    keys = batch.column("key") if "key" in names else pa.nulls(count, pa.binary())
    values = batch.column("body")
    headers = pa.nulls(count, HEADERS_TYPE)
    if "headers" in names:
        headers = batch.column("headers")
        pairs, parents = headers.flatten(), _parents(headers)
        texts = pairs.field("name")
        is_ours = pc.starts_with(texts, RESERVED).to_numpy(zero_copy_only=False)
        if is_ours.any():
            timed = pc.equal(texts, TIME).to_numpy(zero_copy_only=False)
            if timed.any():
                given = _numbers(pairs.field("value"), timed, 8)
                own = times.to_numpy().copy()
                own[parents[timed]] = given.view("<i8").reshape(-1)
                times = pa.array(own)
            void = np.zeros(count, bool)
            void[parents[pc.equal(texts, NULL).to_numpy(zero_copy_only=False)]] = True
            if void.any():
                values = pc.if_else(pa.array(void), pa.scalar(None, pa.binary()), values)
            left = np.flatnonzero(~is_ours)
            kept = pairs.take(pa.array(left))
            headers = _lists(parents[left], kept.field("name"), kept.field("value"), count)
    return pa.RecordBatch.from_arrays([offsets, times, keys, values, headers], schema=SCHEMA)


def origins(batch: pa.RecordBatch) -> Origins | None:
    """Whose the records of a log are; None if none of them has a sequence number."""
    if "headers" not in batch.schema.names:
        return None
    headers = batch.column("headers")
    pairs = headers.flatten()
    is_one = pc.equal(pairs.field("name"), PRODUCER).to_numpy(zero_copy_only=False)
    if not is_one.any():
        return None
    whose = _numbers(pairs.field("value"), is_one, 16).view("<u8").reshape(-1, 2)
    rows = _parents(headers)[is_one]
    offsets = batch.column("offset").to_numpy().astype(np.int64)[rows] - 1
    return Origins(offsets, whose[:, 0], whose[:, 1])


def _parents(headers: pa.Array) -> npt.NDArray[np.int64]:
    """The row of each header."""
    lengths = headers.value_lengths().fill_null(0).to_numpy()
    return np.repeat(np.arange(len(headers)), lengths)


def _lists(rows: npt.NDArray[np.int64], names: pa.Array, values: pa.Array, count: int) -> pa.Array:
    """A column of headers, by the row of each."""
    order = pa.array(np.argsort(rows, kind="stable"))
    pairs = pa.StructArray.from_arrays(
        [names.take(order), values.take(order)], fields=list(HEADERS_TYPE.value_type)
    )
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=HEADERS_TYPE)


def _fixed(numbers: npt.NDArray[np.generic], width: int) -> pa.Array:
    """Numbers as binary values of so many bytes each."""
    count = numbers.nbytes // width
    ends = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(numbers.tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _numbers(values: pa.Array, chosen: npt.NDArray[np.bool_], width: int) -> npt.NDArray[np.uint8]:
    """The bytes of the values that were chosen, each of this width."""
    found = values.filter(pa.array(chosen))
    if pc.any(pc.not_equal(pc.binary_length(found), width)).as_py():
        raise CorruptionError(
            f"a header of a record begins with {RESERVED!r} and is not as topics write it",
            hint="something else appended to the log of a partition; read it as a log",
        )
    whole = found.cast(pa.binary(width))
    return np.frombuffer(whole.buffers()[1], np.uint8, len(found) * width, whole.offset * width)
