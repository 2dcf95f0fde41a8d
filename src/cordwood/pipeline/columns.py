"""The rows of a table, and the Parquet files that hold them.

A row is a record of some log, as anything that reads Parquet would like it::

    log        string, not null                the log it is of
    offset     int64, not null
    timestamp  timestamp[us, UTC], not null
    key        binary
    headers    list<struct<name: string not null, value: binary not null> not null>
    stream     string
    body       binary, not null

A file's setsum is that of its records in the form with all columns (base/setsum.py), whatever the
fragments were that they came from: it can be recomputed from the file alone. The name of the log is
not part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from msgspec import Struct

from cordwood.base.errors import Code, CorruptionError, InvalidInputError, NotFoundError
from cordwood.base.setsum import Setsum
from cordwood.base.workers import in_worker
from cordwood.log.records import HEADERS_TYPE
from cordwood.pipeline.ranged import RangedFile
from cordwood.store.api import Buffer, LocalReads, ObjectStore

SCHEMA = pa.schema(
    [
        pa.field("log", pa.string(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("stream", pa.string()),
        pa.field("body", pa.binary(), False),
    ]
)

ROW_GROUP_BYTES = 32 * 2**20
"""Rows are written in groups of about so much: enough to read fast, little to hold."""

DICTIONARY_ROWS = 64
"""Rows decoded together where a dictionary hides how large their values are."""

_EXTRA = ("key", "headers", "stream")


class DataFile(Struct, frozen=True):
    """One immutable file of a table."""

    path: str
    """Relative to the table."""
    rows: int
    bytes: int
    xxh3: str
    """XXH3 (64 bits) of the file, as sixteen digits; empty if nobody computed it."""
    setsum: str
    """Over its records; empty if nobody computed it."""


def chosen(columns: Sequence[str] | None) -> list[str]:
    """The columns that were asked for; all of them, if none were.

    Raises:
        InvalidInputError: a table has no such column.
    """
    unknown = set(columns or ()) - set(SCHEMA.names)
    if unknown:
        raise InvalidInputError(
            f"a table has no column {min(unknown)!r}", hint=f"it has {', '.join(SCHEMA.names)}"
        )
    return SCHEMA.names if columns is None else list(columns)


def together(parts: Iterable[pa.Table], names: Sequence[str]) -> pa.Table:
    """One table of these columns, also where there are no rows."""
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return pa.concat_tables([schema.empty_table(), *parts])


def rows_of(records: pa.Table, log: str) -> pa.Table:
    """The records of a fragment as rows."""
    count = records.num_rows
    named = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([log]))
    columns = {
        "log": named.cast(pa.string()) if count else pa.array([], pa.string()),
        "offset": records.column("offset").cast(pa.int64()),
        "timestamp": records.column("timestamp_us").cast(pa.int64()),
        "body": records.column("body"),
    }
    for name in _EXTRA:
        if name in records.schema.names:
            columns[name] = records.column(name)
        else:
            columns[name] = pa.nulls(count, SCHEMA.field(name).type)
    columns["timestamp"] = columns["timestamp"].cast(SCHEMA.field("timestamp").type)
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def in_full(records: pa.Table) -> pa.Table:
    """The records of a fragment with every column that a row has: the form that a table sums.

    Not made by `rows_of`: it is what the rows are compared with.
    """
    for name in _EXTRA:
        if name not in records.schema.names:
            missing = pa.nulls(records.num_rows, SCHEMA.field(name).type)
            records = records.append_column(SCHEMA.field(name), missing)
    return records


def setsum_of(rows: pa.Table) -> Setsum:
    """The sum over the records that the rows are."""
    if not rows.num_rows:
        return Setsum()
    stamps = rows.column("timestamp").cast(pa.int64()).cast(pa.uint64())
    records = {
        "offset": rows.column("offset").cast(pa.uint64()),
        "timestamp_us": stamps,
        "body": rows.column("body"),
    } | {name: rows.column(name) for name in _EXTRA}
    return Setsum.of_fragment(pa.table(records))


def unpack(bitmap: bytes, count: int) -> npt.NDArray[np.bool_]:
    """The first `count` bits; what a shorter bitmap leaves out is 0."""
    bits = np.zeros(count, np.bool_)
    found = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:count]
    bits[: len(found)] = found
    return bits


def pack(bits: npt.NDArray[np.bool_]) -> bytes:
    """A bitmap, the first in the lowest bit of the first byte."""
    return np.packbits(bits, bitorder="little").tobytes()


class Builder:
    """Makes the bytes of one file, row group by row group."""

    def __init__(self, compression: str) -> None:
        """Nothing yet."""
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression=compression,
            # Where values repeat. Offsets never: Spark reads no dictionary of them as BIGINT.
            use_dictionary=["log", "stream"],
            # Bounds of keys and bodies, which are in no order, exclude nothing.
            write_statistics=["log", "offset", "timestamp", "stream"],
            # For who reads some columns only, and cannot check the whole file.
            write_page_checksum=True,
        )
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._setsum = Setsum()
        self.rows = 0

    @property
    def stored_bytes(self) -> int:
        """What it holds as it will be stored; rows that still wait for their group are not in."""
        return int(self._sink.tell())

    def add(self, rows: pa.Table) -> Setsum:
        """Take some rows; their sum."""
        added = setsum_of(rows)
        if not rows.num_rows:
            return added
        self._setsum = self._setsum + added
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self.write()
        return added

    def finish(self, path: str) -> tuple[DataFile, bytes]:
        """The file, and its bytes."""
        self.write()
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        digest = xxhash.xxh3_64_hexdigest(data)
        return DataFile(path, self.rows, len(data), digest, self._setsum.hexdigest()), data

    def write(self) -> None:
        """Make a row group of what waits, and let go of it."""
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._waiting, self._waiting_bytes = [], 0


async def get_file(store: ObjectStore, table: str, file: DataFile) -> Buffer:
    """The bytes of a file. One ranged GET.

    Raises:
        CorruptionError: it does not exist.
    """
    try:
        # One byte more than there should be: a longer object is noticed as well.
        return await store.get_range(f"{table}/{file.path}", 0, file.bytes + 1)
    except NotFoundError as error:
        raise _missing(table, file) from error


async def get_columns(
    store: ObjectStore, table: str, file: DataFile, columns: Sequence[str]
) -> pa.Table:
    """Some columns of a file, without reading the others. A small GET for each of a row group.

    The checksum of the whole file cannot be checked; those of its pages are.

    Raises:
        CorruptionError: it does not exist, or is damaged.
    """
    key, loop = f"{table}/{file.path}", asyncio.get_running_loop()
    local: LocalReads | None = getattr(store, "local", None)

    def read(start: int, length: int) -> Buffer:
        if local is not None:
            return local.read_now(key, start, length)
        return asyncio.run_coroutine_threadsafe(store.get_range(key, start, length), loop).result()

    def work() -> pa.Table:
        parts = pa.PythonFile(RangedFile(read, file.bytes), "r")
        parquet = pq.ParquetFile(parts, pre_buffer=False, page_checksum_verification=True)
        return _typed(parquet.read(columns=list(columns), use_threads=False), columns)

    try:
        return await in_worker(work)
    except NotFoundError as error:
        raise _missing(table, file) from error
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(file.path, "rows of a table", str(error)) from error


def read_file(
    data: Buffer, file: DataFile, columns: Sequence[str] | None = None, *, verify: bool = True
) -> pa.Table:
    """The rows of a file.

    Raises:
        CorruptionError: the bytes are not those of the file.
    """
    _check_bytes(data, file, verify=verify)
    try:
        names = SCHEMA.names if columns is None else list(columns)
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=verify)
        return _typed(parquet.read(columns=names, use_threads=False), names)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(file.path, "rows of a table", str(error)) from error


def read_pieces(data: Buffer, file: DataFile) -> Iterator[pa.Table]:
    """The rows of a file, some at a time: about `ROW_GROUP_BYTES`, whatever it was compressed to.

    Raises:
        CorruptionError: the bytes are not those of the file.
    """
    _check_bytes(data, file, verify=True)
    try:
        source = pa.BufferReader(data)
        parquet = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
        for place in range(parquet.num_row_groups):
            most = _rows_at_once(parquet.metadata.row_group(place))
            batches = parquet.iter_batches(
                most, row_groups=[place], columns=SCHEMA.names, use_threads=False
            )
            for piece in _gathered(batches):
                yield _typed(pa.Table.from_batches(piece), SCHEMA.names)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged(file.path, "rows of a table", str(error)) from error


def _rows_at_once(group: pq.RowGroupMetaData) -> int:
    """How many rows of a row group may be decoded together."""
    most: int = max(1, group.num_rows * ROW_GROUP_BYTES // max(1, group.total_byte_size))
    chunks = [group.column(place) for place in range(group.num_columns)]
    if any(chunk.has_dictionary_page and _is_large(chunk.path_in_schema) for chunk in chunks):
        # Another program's: a few bytes may stand for a value again and again.
        return min(most, DICTIONARY_ROWS)
    return most


def _is_large(column: str) -> bool:
    """Whether the values of a Parquet column may be large."""
    return column.partition(".")[0] in {"body", "key", "headers"}


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches together, as many as make a piece."""
    piece: list[pa.RecordBatch] = []
    for batch in batches:
        piece.append(batch)
        if sum(one.nbytes for one in piece) >= ROW_GROUP_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def cut(records: pa.Table) -> Iterator[pa.Table]:
    """The same rows in pieces of about `ROW_GROUP_BYTES`, none of them copied."""
    most = records.num_rows * ROW_GROUP_BYTES // max(1, records.nbytes)
    for start in range(0, records.num_rows, max(1, most)):
        yield records.slice(start, max(1, most))


def _check_bytes(data: Buffer, file: DataFile, *, verify: bool) -> None:
    """Raise unless the bytes are those of the file, as far as anybody computed what they are."""
    if len(data) != file.bytes:
        raise damaged(file.path, f"{file.bytes} bytes", f"{len(data)} bytes")
    if verify and file.xxh3:
        digest = xxhash.xxh3_64_hexdigest(data)
        if digest != file.xxh3:
            raise damaged(file.path, f"checksum {file.xxh3}", f"checksum {digest}")


def _typed(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """In our order, with our types, should another program have written it."""
    return table.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))


def is_tombstone(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows delete their key: those with a key and an empty body."""
    empty = pc.equal(pc.binary_length(rows.column("body")), 0)
    has_key = pc.is_valid(rows.column("key"))
    return np.asarray(pc.and_(empty, has_key).to_numpy(zero_copy_only=False), np.bool_)


def damaged(path: str, expected: str, got: str) -> CorruptionError:
    """What is told of a file that is not what its table says."""
    return CorruptionError(
        f"the table's file {path} is damaged: expected {expected}, got {got}",
        where=path,
        expected=expected,
        got=got,
        hint="restore the object from a copy or a version of the bucket; or make the table anew "
        "from its logs",
    )


def _missing(table: str, file: DataFile) -> CorruptionError:
    return CorruptionError(
        f"the file {file.path} is named by the table {table!r} and does not exist",
        where=f"{table}/{file.path}",
        code=Code.MISSING_OBJECT,
        hint="if the table was changed just now, try again; else restore the object from a copy or "
        "a version of the bucket",
    )
