"""From Arrow columns to items: what is hashed for each record of a fragment.

An item is offset ‖ timestamp ‖ value. The value of a plain record is its body, hashed where it
lies; with extra columns it is stream ‖ key ‖ headers ‖ body, put together here piece by piece::

    table ─ record batches ─┬─ plain ────────────────────────── body ─┬─ hash_items ─ columns
                            └─ extra ─ pieces of a few megabytes ─────┘

The bytes of every part are defined in `cordwood.base.setsum`. What is returned are the eight column
sums, plain numbers that are not yet reduced: `Setsum.of_columns` makes a setsum of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from cordwood.base.errors import InvalidInputError
from cordwood.base.kernels import sum_items
from cordwood.base.rows import binary_array, join_rows

# pyarrow is imported where it is used: who only compares and adds setsums need not wait for it.
if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from cordwood.base.rows import Bytes

_EXTRA_NAMES = ("stream", "key", "headers")
_HEADER_FIELDS = {"name", "value"}

_PIECE_BYTES = 8 * 2**20
"""About how much of a fragment with extra columns is put together in memory at a time."""

_BATCH_RECORDS_MIN = 256
"""Record batches smaller than this on average are copied into one: each costs some 30 µs."""


def hash_fragment(table: pa.Table | pa.RecordBatch) -> list[int]:
    """The column sums of a fragment's records; `Setsum.of_fragment` says what a fragment is.

    Raises:
        InvalidInputError: if it is none.
    """
    return _add_up(_hash_batch(batch) for batch in _batches(table))


def hash_items(
    offsets: npt.NDArray[np.uint64],
    timestamps: npt.NDArray[np.uint64],
    values: Bytes,
    value_offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64],
) -> list[int]:
    """The column sums of n records, record i being offset ‖ timestamp ‖ value, numbers big-endian.

    Args:
        offsets: n numbers.
        timestamps: n numbers.
        values: the bytes of all values (bytes, an array of uint8, an Arrow buffer); not copied.
        value_offsets: n + 1 places in `values`; value i lies from place i to place i + 1. They need
            not start at 0 nor end where `values` ends.

    Raises:
        InvalidInputError: if types or lengths do not fit, or a place lies outside `values`.
    """
    num_records = len(offsets)
    if offsets.dtype != np.uint64 or timestamps.dtype != np.uint64:
        raise InvalidInputError(
            f"offsets and timestamps are uint64, not {offsets.dtype} and {timestamps.dtype}"
        )
    if value_offsets.dtype not in (np.int32, np.int64):
        raise InvalidInputError(f"value offsets are int32 or int64, not {value_offsets.dtype}")
    if len(timestamps) != num_records or len(value_offsets) != num_records + 1:
        raise InvalidInputError(
            f"{num_records} offsets need as many timestamps and one more value offset, "
            f"not {len(timestamps)} and {len(value_offsets)}"
        )
    if num_records == 0:
        return [0] * 8
    content = np.frombuffer(values, np.uint8)
    places = np.require(value_offsets, np.int64, ["C", "A"])
    if places[0] < 0 or places[-1] > content.size or (places[1:] < places[:-1]).any():
        raise InvalidInputError(
            f"value offsets decrease or lie outside the {content.size} bytes of values"
        )
    offsets = np.require(offsets, requirements=["C", "A"])
    timestamps = np.require(timestamps, requirements=["C", "A"])
    return sum_items(offsets, timestamps, content, places)


def _batches(table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows as they lie; of no rows one empty batch, so that its columns are looked at."""
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(table, pa.RecordBatch):
        return [table]
    if not isinstance(table, pa.Table):
        raise InvalidInputError(
            f"a fragment is a pyarrow Table or RecordBatch, not {type(table).__name__}"
        )
    batches = table.to_batches()
    if len(batches) > 1 and table.num_rows < len(batches) * _BATCH_RECORDS_MIN:
        batches = table.combine_chunks().to_batches()
    return batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _hash_batch(batch: pa.RecordBatch) -> list[int]:
    """The column sums of the rows, plain or with extra columns."""
    names = batch.schema.names
    if ("offset" in names) == ("relative_offset" in names):
        raise InvalidInputError("a fragment has one of the columns offset and relative_offset")
    offsets = _numbers(batch, "offset" if "offset" in names else "relative_offset")
    timestamps = _numbers(batch, "timestamp_us")
    body = _column(batch, "body")
    _check_binary("body", body)
    if body.null_count:
        raise InvalidInputError(f"column body has {body.null_count} nulls")
    if set(_EXTRA_NAMES).isdisjoint(names):
        return hash_items(offsets, timestamps, *_layout(body))
    sums = []
    step = max(1, batch.num_rows * _PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, max(1, batch.num_rows), step):
        values, value_offsets = _layout(_join_extras(batch.slice(start, step)))
        rows = slice(start, start + step)
        sums.append(hash_items(offsets[rows], timestamps[rows], values, value_offsets))
    return _add_up(sums)


def _add_up(sums: Iterable[list[int]]) -> list[int]:
    """Column by column."""
    return [sum(column) for column in zip([0] * 8, *sums, strict=True)]


def _join_extras(batch: pa.RecordBatch) -> pa.Array:
    """What follows the timestamp in each item: stream, key, headers, body."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    parts: list[Any] = []
    for name in _EXTRA_NAMES:
        column = _column(batch, name) if name in batch.schema.names else None
        if column is None or pa.types.is_null(column.type):
            parts.append(pa.scalar(b"\x00", pa.large_binary()))
        elif name == "headers":
            parts += _encode_headers(column)
        else:
            _check_binary(name, column, text=name == "stream")
            parts += [_presence(pc.binary_length(column)), column]
    return join_rows([*parts, _column(batch, "body")])


def _encode_headers(column: pa.Array) -> list[pa.Array]:
    """Presence byte and count, then the headers themselves, record by record."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    entry: Any = kind.value_type if is_list else kind
    if not is_list or not pa.types.is_struct(entry) or {f.name for f in entry} != _HEADER_FIELDS:
        raise InvalidInputError(
            f"column headers is a list of struct<name: string, value: binary>, not {kind}"
        )
    entries = column.flatten()
    names, values = entries.field("name"), entries.field("value")
    _check_binary("headers.name", names, text=True)
    _check_binary("headers.value", values)
    if entries.null_count or names.null_count or values.null_count:
        raise InvalidInputError("a header has neither a null name nor a null value")
    name_sizes, value_sizes = pc.binary_length(names), pc.binary_length(values)
    parts = [_big_endian(name_sizes), names, _big_endian(value_sizes), values]
    content, places = _layout(join_rows(parts))
    # The headers of a record lie one behind the other: its bytes go from its first to its last.
    counts = pc.list_value_length(column)
    ends = np.cumsum(counts.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    return [_presence(counts), binary_array(content, places[np.concatenate(([0], ends))])]


def _presence(numbers: pa.Array) -> pa.Array:
    """Per record 01 and the number in 8 bytes, or 00 where the number is null."""
    present = numbers.is_valid().to_numpy(zero_copy_only=False)
    rows = np.empty((len(numbers), 9), np.uint8)
    rows[:, 0] = present
    rows[:, 1:] = _big_endian_rows(numbers.fill_null(0))
    kept = np.ones(rows.shape, np.bool_)
    kept[:, 1:] = present[:, np.newaxis]
    ends = np.cumsum(np.where(present, 9, 1), dtype=np.int64)
    return binary_array(rows[kept], np.concatenate(([0], ends)))


def _big_endian(numbers: pa.Array) -> pa.Array:
    """Per row the number in 8 bytes."""
    rows = _big_endian_rows(numbers)
    return binary_array(rows, np.arange(0, rows.size + 1, 8, dtype=np.int64))


def _big_endian_rows(numbers: pa.Array) -> npt.NDArray[np.uint8]:
    swapped: npt.NDArray[Any] = numbers.to_numpy(zero_copy_only=False).astype(">u8")
    return swapped.view(np.uint8).reshape(len(numbers), 8)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    places = batch.schema.get_all_field_indices(name)
    if len(places) != 1:
        raise InvalidInputError(f"a fragment has one column {name}, this one has {len(places)}")
    return batch.column(places[0])


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.uint64]:
    import pyarrow as pa  # noqa: PLC0415

    column = _column(batch, name)
    if not pa.types.is_uint64(column.type):
        raise InvalidInputError(f"column {name} is uint64, not {column.type}")
    if column.null_count:
        raise InvalidInputError(f"column {name} has {column.null_count} nulls")
    numbers: npt.NDArray[np.uint64] = column.to_numpy()
    return numbers


def _check_binary(name: str, column: pa.Array, *, text: bool = False) -> None:
    import pyarrow as pa  # noqa: PLC0415

    kinds = (pa.string(), pa.large_string()) if text else (pa.binary(), pa.large_binary())
    if column.type not in kinds:
        raise InvalidInputError(f"column {name} is {kinds[0]} or {kinds[1]}, not {column.type}")


def _layout(column: pa.Array) -> tuple[Bytes, npt.NDArray[Any]]:
    """The bytes of a binary or large_binary column and its value offsets, both where they lie."""
    import pyarrow as pa  # noqa: PLC0415

    _, places, content = column.buffers()
    if len(column) == 0 or places is None:
        return b"", np.zeros(1, np.int64)
    width = np.dtype(np.int64 if column.type == pa.large_binary() else np.int32)
    start = column.offset * width.itemsize
    numbers = np.frombuffer(places, width, count=len(column) + 1, offset=start)
    return b"" if content is None else content, numbers
