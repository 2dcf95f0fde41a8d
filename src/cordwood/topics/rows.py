"""Records as a producer hands them in, checked, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import InvalidInputError
from cordwood.base.limits import KEY_BYTES_MAX, OFFSET_LIMIT, RECORD_BYTES_MAX
from cordwood.log.records import (
    HEADERS,
    KEY,
    Headers,
    arrow_column,
    check_batch,
    check_headers,
    check_longest,
    check_record,
)
from cordwood.topics.batch import Columns, Row, headers_array

VALUE = pa.field("value", pa.binary())
TIME = pa.field("timestamp_us", pa.int64())
PARTITION = pa.field("partition", pa.int64())
RESERVED = "cordwood-"
"""How names of headers begin that topics keep for themselves."""
FIELDS = {one.name: one for one in (VALUE, KEY, HEADERS, TIME, PARTITION)}


def checked_row(
    value: object, key: bytes | None, headers: Headers | None, timestamp_us: int | None
) -> Row:
    """A single record.

    Raises:
        InvalidInputError: something has the wrong type.
        LimitError: something is too large.
    """
    is_bare = key is None and headers is None and timestamp_us is None
    if is_bare and type(value) is bytes and len(value) <= RECORD_BYTES_MAX:
        return Row(value, None, None, None, len(value))
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    elif value is not None and not isinstance(value, bytes):
        raise _no_bytes("value", type(value))
    size = check_record(b"" if value is None else value, key, headers)
    if headers:
        _check_names(headers)
    if timestamp_us is not None:
        _time(timestamp_us)
    return Row(value, key, headers, timestamp_us, size)


def columns_of_rows(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers | None] | None,
) -> Columns:
    """Many records; keys and headers are as many as values, or none.

    Raises:
        InvalidInputError: something has the wrong type, or they are not as many.
        LimitError: something is too large.
    """
    for name, given in (("values", values), ("keys", keys), ("headers", headers)):
        is_list = given is None or hasattr(given, "__len__")
        if not is_list or isinstance(given, bytes | bytearray | str | Mapping):
            raise InvalidInputError(f"{name} is a list, not a {type(given).__name__}")
        if given is not None and len(given) != len(values):
            raise InvalidInputError(f"there are {len(values)} values and {len(given)} {name}")
    check_batch(len(values), 0)
    found = Columns(
        _binary("value", values, RECORD_BYTES_MAX),
        None if keys is None else _binary("key", keys, KEY_BYTES_MAX),
    )
    check_batch(len(values), found.values.nbytes)
    if headers is None:
        return found
    for one in headers:
        check_record(b"", None, one)
        _check_names(one or ())
    return Columns(found.values, found.keys, headers_array(headers))


def columns_of_arrow(data: pa.Table | pa.RecordBatch) -> tuple[Columns, Any]:
    """Records from Arrow data, and the column of partitions, if there is one.

    Raises:
        InvalidInputError: a column is missing, unknown or of the wrong type.
        LimitError: something is too large.
    """
    if not isinstance(data, pa.Table | pa.RecordBatch):
        raise InvalidInputError(
            f"expected a pyarrow Table or RecordBatch, got {type(data).__name__}"
        )
    names = data.schema.names
    if "value" not in names or set(names) - set(FIELDS) or len(set(names)) != len(names):
        raise InvalidInputError(
            f"columns {names}: expected value, and optionally {', '.join(list(FIELDS)[1:])}",
            hint="offsets are assigned by the topic",
        )
    check_batch(data.num_rows, data.nbytes)
    found = {name: arrow_column(data, FIELDS[name]) for name in names}
    check_longest(found["value"], "value", RECORD_BYTES_MAX)
    if "key" in found:
        check_longest(found["key"], "key", KEY_BYTES_MAX)
    if "headers" in found:
        check_headers(found["headers"])
        used = pc.unique(found["headers"].flatten().field("name"))
        _check_names(used.filter(pc.starts_with(used, RESERVED)).to_pylist())
    times = found.get("timestamp_us")
    if times is not None:
        if times.null_count:
            raise InvalidInputError("column timestamp_us has nulls", hint="leave the column away")
        _time(pc.min(times).as_py())
        _time(pc.max(times).as_py())
        times = times.to_numpy()
    columns = Columns(found["value"], found.get("key"), found.get("headers"), times)
    return columns, found.get("partition")


def _check_names(headers: Iterable[str]) -> None:
    for name in headers:
        if name.startswith(RESERVED):
            raise InvalidInputError(
                f"header {name!r}: names that begin with {RESERVED!r} are not for records",
                hint="choose another name",
            )


def _binary(name: str, rows: Sequence[bytes | None], most: int) -> pa.Array:
    for kind in set(map(type, rows)):
        if kind is not bytes and kind is not type(None):
            raise _no_bytes(name, kind)
    array = pa.array(rows, pa.binary())
    if array.nbytes > most:
        check_longest(array, name, most)
    return array


def _no_bytes(name: str, kind: type) -> InvalidInputError:
    return InvalidInputError(
        f"a record's {name} is bytes, not {kind.__name__}", hint="encode it first"
    )


def _time(timestamp_us: object) -> int:
    is_one = isinstance(timestamp_us, int) and not isinstance(timestamp_us, bool)
    if not is_one or not 0 <= timestamp_us < OFFSET_LIMIT:  # type: ignore[operator]
        raise InvalidInputError(
            f"{timestamp_us!r} is no time", hint="give microseconds since 1970, as an integer"
        )
    return timestamp_us  # type: ignore[return-value]
