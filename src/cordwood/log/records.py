"""Records and the Arrow columns they travel in.

A record is a body with an offset and a timestamp; it may have a key, headers and a stream. In Arrow
(and in a fragment, see log/fragment.py) a plain log has three columns, and a record that has more
brings the other three::

    offset        uint64, not null      assigned by the log
    timestamp_us  uint64, not null      one value per fragment, never less than the one before
    body          binary, not null
    key           binary
    headers       list<struct<name: string not null, value: binary not null> not null>
    stream        string
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import Code, InvalidInputError, LimitError
from cordwood.base.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
)

Headers: TypeAlias = Mapping[str, bytes]

HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.binary(), False)]),
        False,
    )
)

OFFSET = pa.field("offset", pa.uint64(), False)
RELATIVE_OFFSET = pa.field("relative_offset", pa.uint64(), False)
TIMESTAMP = pa.field("timestamp_us", pa.uint64(), False)
BODY = pa.field("body", pa.binary(), False)
KEY = pa.field("key", pa.binary())
HEADERS = pa.field("headers", HEADERS_TYPE)
STREAM = pa.field("stream", pa.string())

PLAIN_SCHEMA = pa.schema([OFFSET, TIMESTAMP, BODY])
FULL_SCHEMA = pa.schema([OFFSET, TIMESTAMP, BODY, KEY, HEADERS, STREAM])
EXTRA = (KEY, HEADERS, STREAM)

_BYTES_LIKE = bytes, bytearray, memoryview


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One record as a reader gives it."""

    offset: int
    timestamp_us: int
    body: bytes
    key: bytes | None = None
    headers: dict[str, bytes] | None = None
    """As appended. Should a foreign writer have repeated a name, its last value."""
    stream: str | None = None


class Content:
    """What an append brings: bodies, and the other three columns where any record has them.

    `extra` is either empty or holds an array for each of key, headers and stream.
    """

    __slots__ = ("body", "extra", "num_bytes")

    def __init__(self, body: pa.Array, extra: dict[str, pa.Array], num_bytes: int) -> None:
        """Arrays of equal length; `num_bytes` counts what the caller handed over."""
        self.body = body
        self.extra = extra
        self.num_bytes = num_bytes

    def __len__(self) -> int:
        """How many records."""
        return len(self.body)


def check_record(
    body: object, key: object = None, headers: object = None, stream: object = None
) -> int:
    """How many bytes the record brings.

    Raises:
        InvalidInputError: something has the wrong type.
        LimitError: something is too large.
    """
    if not isinstance(body, _BYTES_LIKE):
        raise InvalidInputError(
            f"a record's body is bytes, not {type(body).__name__}", hint="encode it first"
        )
    size = _sized("body", body, RECORD_BYTES_MAX)
    if key is not None:
        if not isinstance(key, bytes):
            raise InvalidInputError(f"a record's key is bytes, not {type(key).__name__}")
        size += _sized("key", key, KEY_BYTES_MAX)
    if stream is not None:
        if not isinstance(stream, str) or not stream:
            raise InvalidInputError(f"a stream's name is a non-empty string, not {stream!r}")
        size += _sized("stream name", _encode("stream name", stream), KEY_BYTES_MAX)
    if headers is not None:
        if not isinstance(headers, Mapping):
            raise InvalidInputError(
                f"headers map names to bytes, they are not a {type(headers).__name__}"
            )
        if len(headers) > HEADERS_MAX:
            raise _too_large("headers", len(headers), HEADERS_MAX, "headers")
        for name, value in headers.items():
            if not isinstance(name, str) or not isinstance(value, bytes):
                raise InvalidInputError(f"header {name!r}: a name is a string, a value is bytes")
            size += _sized("header name", _encode("header name", name), KEY_BYTES_MAX)
            size += _sized("header value", value, KEY_BYTES_MAX)
    return size


def content_of_rows(
    bodies: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    streams: Sequence[str | None] | None = None,
    *,
    num_bytes: int,
) -> Content:
    """Columns from rows that `check_record` has passed."""
    extra: dict[str, pa.Array] = {}
    if keys is not None or headers is not None or streams is not None:
        count = len(bodies)
        pairs = [None if h is None else list(h.items()) for h in headers or ()]
        extra = {
            "key": pa.array(keys or [None] * count, KEY.type),
            "headers": pa.array(pairs or [None] * count, HEADERS_TYPE),
            "stream": pa.array(streams or [None] * count, STREAM.type),
        }
    return Content(pa.array(bodies, BODY.type), extra, num_bytes)


def content_of_bodies(bodies: Iterable[bytes]) -> Content:
    """A column from bodies alone.

    Raises:
        InvalidInputError: there are none, or one is not bytes.
        LimitError: one is too large, or all of them are.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise InvalidInputError(
            f"expected several bodies, got one {type(bodies).__name__}", hint="pass a list"
        )
    if not isinstance(bodies, Iterable):
        raise InvalidInputError(f"expected several bodies, got a {type(bodies).__name__}")
    rows = bodies if isinstance(bodies, list) else list(bodies)
    check_batch(len(rows), 0)
    for kind in set(map(type, rows)):
        if kind is not bytes:
            raise InvalidInputError(
                f"a record's body is bytes, not {kind.__name__}", hint="encode it first"
            )
    num_bytes = sum(map(len, rows))
    check_batch(len(rows), num_bytes)
    body = pa.array(rows, BODY.type)
    check_longest(body, "body", RECORD_BYTES_MAX)
    return Content(body, {}, num_bytes)


def in_stream(content: Content, stream: str) -> Content:
    """The same records, as those of a stream."""
    count = len(content)
    extra = {
        "key": pa.nulls(count, KEY.type),
        "headers": pa.nulls(count, HEADERS_TYPE),
        "stream": pa.repeat(pa.scalar(stream, STREAM.type), count),
    }
    return Content(content.body, extra, content.num_bytes + count * len(stream.encode()))


def stream_names(content: Content) -> list[str]:
    """The streams that the records belong to, each once."""
    column = content.extra.get("stream")
    if column is None or column.null_count == len(column):
        return []
    return list(column.unique().drop_null().to_pylist())


def content_of_arrow(data: pa.Table | pa.RecordBatch) -> Content:
    """Columns from Arrow data: `body`, and optionally `key`, `headers`, `stream`.

    Raises:
        InvalidInputError: a column is missing, unknown or of the wrong type, or a body is null.
        LimitError: it is more than one atomic batch may hold.
    """
    if not isinstance(data, pa.Table | pa.RecordBatch):
        raise InvalidInputError(
            f"expected a pyarrow Table or RecordBatch, got {type(data).__name__}"
        )
    names = data.schema.names
    unknown = set(names) - {"body", *(f.name for f in EXTRA)}
    if "body" not in names or unknown or len(set(names)) != len(names):
        raise InvalidInputError(
            f"columns {names}: expected body and optionally key, headers, stream",
            hint="offset and timestamp are assigned by the log",
        )
    check_batch(data.num_rows, data.nbytes)
    body = arrow_column(data, BODY)
    if body.null_count:
        raise InvalidInputError(f"column body has {body.null_count} nulls", hint="use empty bytes")
    check_longest(body, "body", RECORD_BYTES_MAX)
    extra: dict[str, pa.Array] = {}
    if any(f.name in data.schema.names for f in EXTRA):
        extra = {
            f.name: arrow_column(data, f)
            if f.name in data.schema.names
            else pa.nulls(data.num_rows, f.type)
            for f in EXTRA
        }
        check_longest(extra["key"], "key", KEY_BYTES_MAX)
        check_longest(extra["stream"], "stream name", KEY_BYTES_MAX)
        if pc.any(pc.equal(pc.binary_length(extra["stream"]), 0)).as_py():
            raise InvalidInputError("column stream has an empty name", hint="use null for none")
        check_headers(extra["headers"])
        if all(array.null_count == len(array) for array in extra.values()):
            extra = {}
    return Content(body, extra, body.nbytes + sum(a.nbytes for a in extra.values()))


def check_batch(num_records: int, num_bytes: int) -> None:
    """Raise unless so much may be one atomic batch."""
    if not num_records:
        raise InvalidInputError("append of an empty batch", hint="append at least one record")
    if num_records > BATCH_RECORDS_MAX:
        raise _too_large("an atomic batch", num_records, BATCH_RECORDS_MAX, "records")
    if num_bytes > BATCH_BYTES_MAX:
        raise _too_large("an atomic batch", num_bytes, BATCH_BYTES_MAX, "bytes")


def concat(contents: Sequence[Content]) -> Content:
    """One content out of several, in order."""
    if len(contents) == 1:
        return contents[0]
    extra: dict[str, pa.Array] = {}
    if any(c.extra for c in contents):
        extra = {
            f.name: pa.concat_arrays(
                [c.extra[f.name] if c.extra else pa.nulls(len(c), f.type) for c in contents]
            )
            for f in EXTRA
        }
    body = pa.concat_arrays([c.body for c in contents])
    return Content(body, extra, sum(c.num_bytes for c in contents))


def iter_records(batch: pa.RecordBatch | pa.Table) -> Iterator[Record]:
    """The rows of fetched data as records."""
    names = batch.schema.names
    columns: list[Iterable[Any]] = [
        batch.column("offset").to_pylist(),
        batch.column("timestamp_us").to_pylist(),
        batch.column("body").to_pylist(),
    ]
    if any(f.name in names for f in EXTRA):
        for f in EXTRA:
            values = (
                batch.column(f.name).to_pylist() if f.name in names else [None] * batch.num_rows
            )
            if f is HEADERS:
                values = [
                    None if v is None else {pair["name"]: pair["value"] for pair in v}
                    for v in values
                ]
            columns.append(values)
    return map(Record, *columns)


def arrow_column(data: pa.Table | pa.RecordBatch, wanted: pa.Field) -> pa.Array:
    """A column of Arrow data, in one piece and of the type it should have.

    Raises:
        InvalidInputError: it is of another.
    """
    column = data.column(wanted.name)
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.array([], column.type)]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    try:
        column.validate(full=True)
        if column.type != wanted.type:
            column = column.cast(wanted.type)
            column.validate()  # Arrow makes broken lists of views of lists.
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"column {wanted.name}: {error}") from error
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidInputError(
            f"column {wanted.name} is {column.type}, expected {wanted.type}"
        ) from error
    return column


def check_headers(headers: pa.Array) -> None:
    """Raise if a header lacks its name or value, is too long, or a record has too many."""
    entries = headers.flatten()
    names, values = entries.field("name"), entries.field("value")
    if entries.null_count or names.null_count or values.null_count:
        raise InvalidInputError("column headers: a header has a name and a value, neither null")
    check_longest(names, "header name", KEY_BYTES_MAX)
    check_longest(values, "header value", KEY_BYTES_MAX)
    most = pc.max(pc.list_value_length(headers)).as_py()
    if most is not None and most > HEADERS_MAX:
        raise _too_large("headers", most, HEADERS_MAX, "headers")
    # One number for each pair of record and name: a record with a name twice has one number twice.
    kinds = names.dictionary_encode()
    parents = pc.list_parent_indices(headers).to_numpy()
    pairs = parents * max(1, len(kinds.dictionary)) + kinds.indices.to_numpy()
    if len(np.unique(pairs)) != len(pairs):
        raise InvalidInputError(
            "column headers: a record has two headers of one name",
            hint="join their values, or give them different names",
        )


def _encode(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what} {text!r} is not valid text: {error.reason}") from error


def check_longest(array: pa.Array, what: str, most: int) -> None:
    """Raise if a value has more bytes than that."""
    longest = pc.max(pc.binary_length(array)).as_py()
    if longest is not None and longest > most:
        raise _too_large(what, longest, most, "bytes")


def _sized(what: str, value: bytes | bytearray | memoryview, most: int) -> int:
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size > most:
        raise _too_large(what, size, most, "bytes")
    return size


def _too_large(what: str, size: int, most: int, unit: str) -> LimitError:
    return LimitError(
        f"{what} has {size} {unit}, the limit is {most}",
        code=Code.TOO_LARGE,
        hint="split it, or keep the payload as an object of its own and append its name",
    )
