"""Records of topics on the command line: lines, JSON lines or Parquet, in and out."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cordwood.base.errors import InvalidInputError
from cordwood.cli.output import as_text, for_output, json_line
from cordwood.log.records import HEADERS_TYPE
from cordwood.topics.batch import SCHEMA, TopicRecord
from cordwood.topics.batch import iter_topic_records as records_of

BLOCK_LINES = 10_000
BLOCK_BYTES = 4 << 20
LINE_BYTES_MAX = 128 << 20

_COLUMNS = {
    "value": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS_TYPE,
    "timestamp_us": pa.int64(),
    "partition": pa.int64(),
}
_FIELDS = frozenset({*_COLUMNS, "value_base64", "key_base64", "headers_base64"})
_GIVEN = frozenset({"offset"})
"""What a consumer prints as well, and the topic gives anew."""
_NUMBER_LIMIT = 1 << 63


class Block(msgspec.Struct):
    """Records that are sent together, and the last line of the input that they are of."""

    table: pa.Table
    last_line: int


def blocks_of(file: IO[bytes], form: str, separator: str | None) -> Iterator[Block]:
    """The records of a file, as many at once as are there: a line waits for no other."""
    if form == "parquet":
        yield from _of_parquet(file)
        return
    done = 0
    for lines in _lines(file):
        for begin in range(0, len(lines), BLOCK_LINES):
            part = lines[begin : begin + BLOCK_LINES]
            numbered = enumerate(part, done + 1)
            done += len(part)
            if form == "jsonl":
                rows = [_of_json(line, number) for number, line in numbered if line]
            else:
                rows = [_of_line(line, separator) for line in part]
            if rows:
                yield Block(_table(rows), done)


def _lines(file: IO[bytes]) -> Iterator[list[bytes]]:
    """The lines of a file, those together that one read gives: it waits only if there are none."""
    read = getattr(file, "read1", file.read)
    rest: list[bytes] = []
    size = 0
    while data := read(BLOCK_BYTES):
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest, size = [], 0
            yield [line.removesuffix(b"\r") for line in lines]
        rest.append(last)
        size += len(last)
        if size > LINE_BYTES_MAX:
            raise InvalidInputError(
                f"a line has more than {LINE_BYTES_MAX:,} bytes",
                hint="a record is a line; for larger ones, or bytes with newlines, use Parquet",
            )
    if size:
        yield [b"".join(rest).removesuffix(b"\r")]


def print_batch(
    partition: int, batch: pa.RecordBatch, separator: str | None, *, as_json: bool
) -> None:
    """Records for people, or for programs: a line each."""
    lines = [_line(one, separator, as_json=as_json) for one in records_of(partition, batch)]
    click.echo(b"\n".join(lines))


def print_record(record: TopicRecord, separator: str | None, *, as_json: bool) -> None:
    """One record."""
    click.echo(_line(record, separator, as_json=as_json))


def _line(record: TopicRecord, separator: str | None, *, as_json: bool) -> bytes:
    if as_json:
        return json_line(_object(record._asdict())).encode()
    value = b"" if record.value is None else record.value
    key = b"" if separator is None else (record.key or b"") + separator.encode()
    return for_output(key + value)


class ParquetFile:
    """Records as a Parquet file, whole when it is closed."""

    def __init__(self, path: Path) -> None:
        """A new file."""
        self._schema = SCHEMA.insert(0, pa.field("partition", pa.int32(), False))
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Some records of a partition."""
        numbers = pa.array([partition] * batch.num_rows, pa.int32())
        columns = [numbers, *batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Finish it."""
        self._writer.close()


def _of_parquet(file: IO[bytes]) -> Iterator[Block]:
    try:
        source = pq.ParquetFile(file if file.seekable() else pa.BufferReader(file.read()))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"this is no Parquet file: {error}") from error
    names = [name for name in source.schema_arrow.names if name in _COLUMNS]
    done = 0
    batches = source.iter_batches(BLOCK_LINES, columns=names)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise InvalidInputError(f"the Parquet file is damaged: {error}") from error
        if batch is None:
            return
        done += batch.num_rows
        yield Block(pa.Table.from_batches([batch]), done)


def _of_line(line: bytes, separator: str | None) -> dict[str, Any]:
    if separator is None:
        return {"value": line}
    key, found, value = line.partition(separator.encode())
    return {"key": key, "value": value} if found else {"value": line}


def _of_json(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
        if not isinstance(found, dict) or not set(found) <= _FIELDS | _GIVEN:
            raise InvalidInputError(f"it is an object with some of {', '.join(sorted(_FIELDS))}")
        row: dict[str, Any] = {}
        for name in ("value", "key"):
            if found.get(name) is not None:
                row[name] = _bytes(found[name])
            elif found.get(f"{name}_base64") is not None:
                row[name] = b64decode(found[f"{name}_base64"], validate=True)
        headers = {name: _bytes(value) for name, value in (found.get("headers") or {}).items()}
        for name, text in (found.get("headers_base64") or {}).items():
            headers[name] = b64decode(text, validate=True)
        if headers:
            row["headers"] = list(headers.items())
        for name in ("timestamp_us", "partition"):
            if found.get(name) is not None:
                row[name] = _number(name, found[name])
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInputError(
            f"line {number} is no record: {error}",
            hint='write {"value": "…", "key": "…", "headers": {"…": "…"}}; bytes that are no text '
            'go into "value_base64", "key_base64" and "headers_base64"',
        ) from error
    return row


def _number(name: str, value: Any) -> int:
    number = int(value)
    is_whole = not isinstance(value, float) or number == value
    if not is_whole or not -_NUMBER_LIMIT <= number < _NUMBER_LIMIT:
        raise ValueError(f"its {name} is {value!r}")
    return number


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """The columns that some row has."""
    present = [name for name in _COLUMNS if name == "value" or any(name in row for row in rows)]
    if "timestamp_us" in present and not all("timestamp_us" in row for row in rows):
        raise InvalidInputError("some of these records have a timestamp_us, and some have none")
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], _COLUMNS[name]) for name in present}
    )


def _object(row: dict[str, Any]) -> dict[str, Any]:
    """A record as JSON: text where it is text."""
    return as_text(row, "key", "value", "headers")
