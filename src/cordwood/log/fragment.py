"""One fragment: records as a Parquet file that vouches for itself.

The columns are those of log/records.py: three for a plain log, six where any record of the fragment
has a key, headers or a stream. Offsets and timestamps are delta-encoded (a few bytes for a whole
fragment, and never a dictionary, which Spark cannot read as BIGINT), bodies are plain.

The footer's key-value metadata has one entry of ours, `cordwood`, a JSON object, the `Link`::

    id           the write id: one put, at one slot
    start,limit  the offsets
    at           the timestamp of its records
    setsum       the sum over its records
    prev_id      the write id of the fragment before it; for the first, the log's incarnation
    prev_setsum  that fragment's setsum; zero for the first
    xxh3         XXH3 (64 bits) of the whole file, computed with its sixteen digits as zeros

and, where any record has a stream, `cordwood.streams`: the filter of log/filters.py.

A fragment is adopted (log/recovery.py) only behind the predecessor it names. The checksum covers
every byte, also those no record depends on, and is checked before the Parquet decoder sees the
file. wal3 ignores the entry; a fragment without one comes from wal3.

Validity: a fragment is what its pointer says if and only if its length, its checksum and the setsum
recomputed from its records all agree.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cordwood.base.errors import Code, CorruptionError, InvalidInputError
from cordwood.base.kernels import has_vector_kernel
from cordwood.base.limits import FRAGMENT_RECORDS_MAX, OFFSET_LIMIT
from cordwood.base.setsum import Setsum
from cordwood.base.workers import Steps, all_steps, share
from cordwood.log import paths
from cordwood.log.format import Fragment
from cordwood.log.pages import Bodies, UnusualError
from cordwood.log.records import (
    BODY,
    EXTRA,
    FULL_SCHEMA,
    OFFSET,
    PLAIN_SCHEMA,
    RELATIVE_OFFSET,
    Content,
)
from cordwood.store.api import Buffer

Compression = Literal["none", "snappy", "lz4", "zstd"]

_FOOTER_ROOM = 2**16
_STREAMS_ROOM = 2**16
"""Enough for any link, and for the filter of as many streams as have one."""

_LARGE_BYTES = 2**20
"""From this size a fragment is hashed and encoded at the same time, in pieces of about as much."""

_PIECE_RECORDS_MIN = 64
"""Fewer would leave lanes of the vector kernel empty."""

LINK_KEY = b"cordwood"
STREAMS_KEY = b"cordwood.streams"
FOOTER_PEEK_BYTES = 64 * 1024
"""Enough to hold the footer of any fragment we write: it has one row group."""

OFFSET_NAMES = ("offset", "relative_offset")
_CHECKSUM_MARK = b'"xxh3":"'
_CHECKSUM_BLANK = b"0" * 16
_MAGIC = b"PAR1"
_DELTA = dict.fromkeys(("offset", "relative_offset", "timestamp_us"), "DELTA_BINARY_PACKED")


class Link(msgspec.Struct, frozen=True):
    """What a fragment says of itself and of the fragment it follows."""

    id: str
    start: int
    limit: int
    at: int
    setsum: str
    prev_id: str
    prev_setsum: str
    xxh3: str = _CHECKSUM_BLANK.decode()


def build_table(
    content: Content, start: int, timestamp_us: int, *, relative: bool = False
) -> pa.Table:
    """The content with its offsets and timestamp; `relative` offsets are counted from 0."""
    count = len(content)
    offsets = pa.array(np.arange(start, start + count, dtype=np.uint64))
    stamps = pa.array(np.full(count, timestamp_us, dtype=np.uint64))
    extra = content.extra
    schema = FULL_SCHEMA if extra else PLAIN_SCHEMA
    if relative:
        schema = schema.set(0, RELATIVE_OFFSET)
    columns = [offsets, stamps, content.body, *(extra[f.name] for f in EXTRA if extra)]
    return pa.Table.from_arrays(columns, schema=schema)


class _Encoder:
    """A fragment that is being encoded: first its pages, then the footer that vouches for them."""

    def __init__(self, table: pa.Table, compression: Compression) -> None:
        """Nothing is encoded yet."""
        self._table = table
        # A buffer that surely holds it: growing one costs as much as encoding.
        more = _FOOTER_ROOM + (_STREAMS_ROOM if "stream" in table.schema.names else 0)
        size = table.nbytes + table.nbytes // 32 + 16 * table.num_rows + more
        self._room = pa.allocate_buffer(size)
        self._sink = pa.FixedSizeBufferWriter(self._room)
        delta = {name: how for name, how in _DELTA.items() if name in table.schema.names}
        self._writer = pq.ParquetWriter(
            self._sink,
            table.schema,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
            column_encoding=delta,
        )

    def write_pages(self) -> None:
        """All but the footer."""
        self._writer.write_table(self._table, row_group_size=max(1, self._table.num_rows))

    def finish(self, link: Link, streams: str) -> Buffer:
        """The bytes of the fragment; `streams` is its filter."""
        if streams:
            self._writer.add_key_value_metadata({STREAMS_KEY: streams})
        self._writer.add_key_value_metadata({LINK_KEY: msgspec.json.encode(link)})
        self._writer.close()
        view = memoryview(self._room).cast("B")[: self._sink.tell()]
        footer_bytes = struct.unpack("<I", view[-8:-4])[0]
        footer_at = len(view) - 8 - footer_bytes
        at = footer_at + bytes(view[footer_at:]).rindex(_CHECKSUM_MARK) + len(_CHECKSUM_MARK)
        # In place: the file is as long as it was, and copying it costs more than building it.
        view[at : at + 16] = xxhash.xxh3_64_hexdigest(view).encode()
        # Not copied, unless it would keep much more room than it needs.
        return view.toreadonly() if 4 * len(view) >= 3 * self._room.size else bytes(view)


def encode(
    table: pa.Table, compression: Compression, vouch: Callable[[str], tuple[Link, str]]
) -> tuple[Link, Buffer]:
    """The link and the bytes of a fragment; large ones are hashed and encoded at the same time.

    Args:
        table: the records.
        compression: of the pages.
        vouch: from the setsum to the link, and the filter of streams.
    """
    encoder = _Encoder(table, compression)
    if table.nbytes < _LARGE_BYTES:
        encoder.write_pages()
        setsum = Setsum.of_fragment(table)
    else:
        work: list[Callable[[], Any]] = [encoder.write_pages]
        work += [partial(Setsum.of_fragment, piece) for piece in _pieces(table)]
        setsum = sum(share(work)[1:], Setsum())
    link, streams = vouch(setsum.hexdigest())
    return link, encoder.finish(link, streams)


def _pieces(table: pa.Table) -> list[pa.Table]:
    """Parts that the vector kernel hashes side by side; all of it for hashlib."""
    if not has_vector_kernel():
        return [table]
    rows = max(_PIECE_RECORDS_MIN, -(-table.num_rows * _LARGE_BYTES // table.nbytes))
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def pointer(link: Link, seq_no: int, num_bytes: int) -> Fragment:
    """The manifest's pointer to a fragment with this link in slot `seq_no`."""
    return Fragment.of(
        paths.fragment(seq_no), seq_no, link.start, link.limit, num_bytes, link.setsum
    )


def decode(data: Buffer, fragment: Fragment, *, verify: bool = True) -> pa.Table:
    """The records of a fragment, with their absolute offsets.

    Raises:
        CorruptionError: the bytes are not what the pointer says. With `verify=False` only damage
            that the Parquet decoder notices is found.
    """
    where = fragment.path
    if len(data) != fragment.num_bytes:
        raise _damaged(where, f"{fragment.num_bytes} bytes", f"{len(data)} bytes")
    if verify:
        check_checksum(data, where)
    table = _parse(data, where, fragment.num_records)
    if verify:
        _compare(table, _sum(table, where), fragment)
    return _absolute(table, fragment.start)


def decode_batches(
    data: Buffer, fragment: Fragment, columns: Collection[str], max_rows: int
) -> Iterator[pa.RecordBatch]:
    """These columns of a fragment, where it has them, piece by piece and without proof.

    A piece that is used before the next one is made is still in the processor's cache.

    Raises:
        CorruptionError: the bytes have another length, or the Parquet decoder notices damage.
    """
    where = fragment.path
    if len(data) != fragment.num_bytes:
        raise _damaged(where, f"{fragment.num_bytes} bytes", f"{len(data)} bytes")
    try:
        file = _open(data, where, fragment.num_records)
        _check_columns(file.schema_arrow, where)
        names = [name for name in file.schema_arrow.names if name in columns]
        yield from file.iter_batches(max_rows, columns=names, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, "a readable Parquet file", str(error)) from error


def check(data: Buffer, fragment: Fragment) -> None:
    """As `decode`, for who does not want the records: they are hashed where they lie.

    A file that was forged, so that its checksum holds, may say one thing to a decoder and another
    here: that is not always found out.

    Raises:
        CorruptionError: the bytes are not what the pointer says.
    """
    all_steps(check_in_steps(data, fragment))


def check_in_steps(data: Buffer, fragment: Fragment) -> Steps[None]:
    """As `check`, step by step.

    Offsets and timestamp of a fragment of ours are known before it is opened. So its bodies are
    hashed first, each page when the checksum has just passed over it and left it in the processor's
    caches; then the file is opened, and must say the same.

    To open a file takes little, and five times as much when the 8 MiB of another one have just
    passed through the caches: it is cheaper to hash several, and then to open them.
    """
    where = fragment.path
    if len(data) != fragment.num_bytes:
        raise _damaged(where, f"{fragment.num_bytes} bytes", f"{len(data)} bytes")
    checksum = _Checksum(data, where)
    at, got = None, ""
    with suppress(UnusualError):
        at, got = _sum_in_place(data, fragment, checksum)
    checksum.finish()
    yield
    table: pa.Table | None = None
    if at is not None and got == fragment.setsum_hex:
        with suppress(UnusualError):
            table = _open_in_place(data, fragment, at)
    if table is None:
        # What a reader would find has the last word.
        table = _parse(data, where, fragment.num_records)
        got = _sum(table, where)
    _compare(table, got, fragment)


def _sum_in_place(data: Buffer, fragment: Fragment, checksum: _Checksum) -> tuple[int, str]:
    """The setsum, if the records have the offsets of the pointer and the timestamp of the link.

    And that timestamp. The checksum passes over the pages before they are hashed.

    Raises:
        UnusualError: the records must be decoded.
        CorruptionError: the bodies are compressed, and the checksum does not hold.
    """
    bodies = Bodies.find(checksum.footer, len(data))
    count, start = fragment.num_records, fragment.start
    if bodies.count != count or not 0 <= count <= FRAGMENT_RECORDS_MAX:
        raise UnusualError("another number of records")
    if not checksum.is_there or not 0 <= start < OFFSET_LIMIT:
        raise UnusualError("nothing vouches for the pages, or for what follows")
    if bodies.are_compressed:
        checksum.finish()  # No decompressor sees damage.
    try:
        link = _link_in(checksum.footer, fragment.path)
    except CorruptionError:
        link = None
    if link is None or not 0 <= link.at < 2**64:
        raise UnusualError("no link, or one without a time")
    if b"relative_offset" in checksum.footer:
        start = 0
    offsets = np.arange(start, start + count, dtype=np.uint64)
    timestamps = np.full(count, link.at, np.uint64)
    setsum = bodies.sum(np.frombuffer(data, np.uint8), offsets, timestamps, checksum.pass_over)
    return link.at, setsum.hexdigest()


def _open_in_place(data: Buffer, fragment: Fragment, at: int) -> pa.Table:
    """Offsets and timestamps, as a reader finds them.

    Raises:
        UnusualError: not all timestamps are `at`, or there is more to a record than a body.
    """
    where = fragment.path
    try:
        file = _open(data, where, fragment.num_records)
        schema, metadata = file.schema_arrow, file.metadata
        if schema.types != PLAIN_SCHEMA.types or schema.names[1:] != ["timestamp_us", "body"]:
            raise UnusualError("other columns")
        if metadata.num_row_groups != 1 or metadata.schema.column(2).max_definition_level:
            raise UnusualError("bodies in several places, or a body that may be null")
        table = file.read(columns=schema.names[:2], use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, "a readable Parquet file", str(error)) from error
    if schema.names[0] not in OFFSET_NAMES or any(c.null_count for c in table.columns):
        raise UnusualError("other columns")
    if not (table.column("timestamp_us").to_numpy() == at).all():
        raise UnusualError("other timestamps")
    return table


def _compare(table: pa.Table, got: str, fragment: Fragment) -> None:
    """Raise unless the setsum and the offsets are those of the pointer."""
    where = fragment.path
    if got != fragment.setsum_hex:
        raise _damaged(where, fragment.setsum_hex, got, code=Code.SETSUM_MISMATCH)
    start = 0 if is_relative(table) else fragment.start
    expected = (start, start + fragment.num_records)
    if (bounds := _bounds(table)) != expected:
        raise _damaged(where, f"offsets from, to {expected}", str(bounds))


def inspect(data: Buffer, path: str) -> tuple[pa.Table, Link | None]:
    """A fragment found without a pointer: its records and its link, both checked.

    Raises:
        CorruptionError: the bytes are damaged, or the link does not fit the records.
    """
    check_checksum(data, path)
    table = _parse(data, path, None)
    link = read_link(table.schema.metadata or {}, path)
    if link is not None:
        got = _sum(table, path)
        fits = not is_relative(table) and (link.start, link.limit) == _bounds(table)
        if got != link.setsum or not fits:
            raise _damaged(path, link.setsum, got, code=Code.SETSUM_MISMATCH)
    return table, link


def foreign_pointer(table: pa.Table, seq_no: int, num_bytes: int) -> Fragment | None:
    """A pointer to a fragment that another program put in a slot, or None if it cannot be one."""
    if is_relative(table):
        return None
    setsum_hex = _sum(table, paths.fragment(seq_no))
    bounds = _bounds(table)
    stamps = table.column("timestamp_us").unique()
    if bounds is None or len(stamps) != 1:
        return None
    return Fragment.of(paths.fragment(seq_no), seq_no, *bounds, num_bytes, setsum_hex)


def read_footer_link(tail: Buffer, path: str) -> Link | None:
    """The link in the last bytes of a fragment; None if the footer is longer or has none."""
    footer = _footer(tail)
    return None if footer is None else _link_in(footer, path)


def _link_in(footer: bytes, path: str) -> Link | None:
    at = footer.rfind(b'{"id":"')
    text = footer[at : footer.find(b"}", at) + 1]
    return None if at < 0 else read_link({LINK_KEY: text}, path)


def read_footer_streams(tail: Buffer) -> str | None:
    """The filter in the last bytes of a fragment; None if it is not there."""
    footer = _footer(tail)
    if footer is None or STREAMS_KEY not in footer:
        return None
    try:
        metadata = pq.read_metadata(pa.BufferReader(bytes(tail[-8 - len(footer) :]))).metadata
        return bytes((metadata or {})[STREAMS_KEY]).decode()
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None


def read_link(metadata: dict[bytes, bytes], path: str) -> Link | None:
    """The link in a file's key-value metadata."""
    text = metadata.get(LINK_KEY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Link)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, "a link in the footer", str(error)) from error


def check_checksum(data: Buffer, where: str) -> bool:
    """Raise if the file has our checksum and it does not hold; False if it is wal3's, with none."""
    return _Checksum(data, where).finish()


class _Checksum:
    """The checksum of a file, computed bit by bit, and the one that stands in its footer."""

    def __init__(self, data: Buffer, where: str) -> None:
        """Nothing is computed yet.

        Raises:
            CorruptionError: the file has no footer, or one of ours without a checksum.
        """
        footer = _footer(data)
        if footer is None:
            raise _damaged(where, "a Parquet file", "no Parquet footer")
        at = footer.rfind(_CHECKSUM_MARK)
        if at < 0 and LINK_KEY in footer:
            raise _damaged(where, "a checksum in the footer", "none")
        self.footer = footer
        self._where = where
        self._view = memoryview(data)
        self._place = None if at < 0 else len(data) - 8 - len(footer) + at + len(_CHECKSUM_MARK)
        self._sum = xxhash.xxh3_64()
        self._done = 0
        self._holds = False

    @property
    def is_there(self) -> bool:
        """Whether the file has one."""
        return self._place is not None

    def pass_over(self, end: int) -> None:
        """Compute it up to this place, or to where it stands itself."""
        if self._place is not None and self._done < min(end, self._place):
            start, self._done = self._done, min(end, self._place)
            self._sum.update(self._view[start : self._done])

    def finish(self) -> bool:
        """Raise if it does not hold; False if the file has none."""
        if self._place is None or self._holds:
            return self._holds
        self.pass_over(self._place)
        end = self._place + len(_CHECKSUM_BLANK)
        self._sum.update(_CHECKSUM_BLANK)
        self._sum.update(self._view[end:])
        expected, got = bytes(self._view[self._place : end]), self._sum.hexdigest()
        if expected != got.encode():
            stood = expected.decode(errors="replace")
            raise _damaged(self._where, f"checksum {stood}", f"checksum {got}")
        self._holds = True
        return True


def _footer(data: Buffer) -> bytes | None:
    if len(data) < 12 or data[-4:] != _MAGIC:
        return None
    (length,) = struct.unpack("<I", data[-8:-4])
    if length > len(data) - 8:
        return None
    return bytes(data[-8 - length : -8])


def _open(data: Buffer, where: str, num_records: int | None) -> pq.ParquetFile:
    """The file, if it says that it has so many records; None: as many as it has.

    pyarrow makes room for as many as a row group says it has, before it looks.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    metadata = file.metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    total = metadata.num_rows
    if num_records not in {None, total}:
        raise _damaged(where, f"{num_records} records", f"{total} records")
    if total > FRAGMENT_RECORDS_MAX:
        raise _damaged(where, f"{FRAGMENT_RECORDS_MAX} records at most", f"{total} records")
    if sum(rows) != total or min(rows, default=0) < 0:
        raise _damaged(where, f"{total} records", f"row groups of {rows[:10]}")
    return file


def _parse(data: Buffer, where: str, num_records: int | None) -> pa.Table:
    try:
        table = _open(data, where, num_records).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, "a readable Parquet file", str(error)) from error
    _check_columns(table.schema, where)
    return table


def _check_columns(schema: pa.Schema, where: str) -> None:
    first = "relative_offset" if "relative_offset" in schema.names else "offset"
    expected = {first: pa.uint64(), "timestamp_us": pa.uint64(), "body": BODY.type}
    for name, kind in expected.items():
        places = schema.get_all_field_indices(name)
        if len(places) != 1 or schema.field(places[0]).type != kind:
            raise _damaged(where, f"one column {name} of type {kind}", str(schema.names))


def is_relative(table: pa.Table) -> bool:
    """Whether the fragment counts its offsets from 0, as bulk uploads do."""
    return "relative_offset" in table.schema.names


def _sum(table: pa.Table, where: str) -> str:
    """The setsum of a table that may be anybody's."""
    try:
        return Setsum.of_fragment(table).hexdigest()
    except InvalidInputError as error:
        raise _damaged(where, "records", error.message) from error


def _bounds(table: pa.Table) -> tuple[int, int] | None:
    """First offset and the one after the last, as stored; None if they do not count up by one."""
    column = table.column("relative_offset" if is_relative(table) else "offset")
    offsets = column.to_numpy()
    if not len(offsets) or int(offsets[-1]) >= OFFSET_LIMIT:
        return None
    start = int(offsets[0])
    expected = np.arange(start, start + len(offsets), dtype=np.uint64)
    return (start, start + len(offsets)) if np.array_equal(offsets, expected) else None


def _absolute(table: pa.Table, start: int) -> pa.Table:
    if is_relative(table):
        offsets = pa.array(np.arange(start, start + table.num_rows, dtype=np.uint64))
        place = table.schema.get_field_index("relative_offset")
        table = table.set_column(place, OFFSET, offsets)
    return table.replace_schema_metadata(None)


def _damaged(where: str, expected: str, got: str, code: Code = Code.CORRUPT) -> CorruptionError:
    return CorruptionError(
        f"fragment {where} is damaged: expected {expected}, got {got}",
        where=where,
        expected=expected,
        got=got,
        code=code,
        hint="restore the object from a copy or a version of the bucket",
    )
