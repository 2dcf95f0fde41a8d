"""Some columns of a fragment, without its bodies: two small ranged GETs instead of the whole file.

A Parquet file lists at its end where each column lies. So its end is read first, and then only what
was asked for. Offsets need no reading at all: the pointer says where they begin, and they count up
by one. Nor do timestamps, where the fragment has a link that knows its place: that one is the
timestamp of all its records.

What can be proved without the bodies is less than a setsum, which covers them too. It is this: the
link in the fragment's footer states the setsum, the range and the size that its pointer states, so
the object is the one that the manifest means, and it has as many records. Whether the columns that
were read are intact is left to the Parquet decoder. Whoever wants more reads the fragment whole.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cordwood.base.errors import Code, CorruptionError, InvalidInputError
from cordwood.log.format import Fragment
from cordwood.log.fragment import FOOTER_PEEK_BYTES, Link, read_link
from cordwood.log.objects import LogObjects
from cordwood.log.records import EXTRA, FULL_SCHEMA, OFFSET, TIMESTAMP
from cordwood.store.api import Buffer

GAP_BYTES_MAX = 256 * 1024
"""Columns that lie no further apart are read with one request."""


async def fetch_columns(
    objects: LogObjects, fragment: Fragment, columns: Sequence[str], *, verify: bool = True
) -> pa.Table:
    """These columns of a fragment, any but its bodies. At most three ranged GETs.

    A column that the fragment does not have is null.

    Raises:
        CorruptionError: the fragment is missing, or not the one that its pointer means.
    """
    with objects.located(fragment):
        return await _fetch(objects, fragment, columns, verify=verify)


async def _fetch(
    objects: LogObjects, fragment: Fragment, columns: Sequence[str], *, verify: bool
) -> pa.Table:
    wanted = set(columns) - {OFFSET.name}
    if not wanted and not verify:
        return _assemble(fragment, columns, pa.table({}), None)
    parts = _Parts(fragment.num_bytes)
    metadata = await _read_footer(objects, fragment, parts)
    stored = set(metadata.schema.to_arrow_schema().names)
    link = read_link(metadata.metadata or {}, fragment.path)
    if link is not None and "relative_offset" in stored:
        link = None
    if verify:
        _check(metadata, link, fragment)
    stored &= wanted if link is None else wanted - {TIMESTAMP.name}
    for start, limit in _ranges(metadata, stored):
        await _read(objects, fragment, parts, start, limit)
    table = _decode(parts, metadata, fragment, sorted(stored))
    return _assemble(fragment, columns, table, None if link is None else link.at)


async def _read_footer(objects: LogObjects, fragment: Fragment, parts: _Parts) -> pq.FileMetaData:
    """What the end of the file says of the rest. One ranged GET, or two if it is a long one."""
    start = max(0, fragment.num_bytes - FOOTER_PEEK_BYTES)
    tail = bytes(await _read(objects, fragment, parts, start, None))
    if tail[-4:] != b"PAR1":
        raise _damaged(fragment, "a Parquet file", "no Parquet footer")
    footer_bytes = 8 + int.from_bytes(tail[-8:-4], "little")
    if footer_bytes > fragment.num_bytes - 4:
        raise _damaged(fragment, "a footer inside the file", "a longer one")
    if footer_bytes > len(tail):
        first = fragment.num_bytes - footer_bytes
        tail = bytes(await _read(objects, fragment, parts, first, start)) + tail
    try:
        return pq.read_metadata(pa.BufferReader(tail[-footer_bytes:]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(fragment, "a readable Parquet footer", str(error)) from error


class _Parts(io.RawIOBase):
    """A file of which only some parts were read."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._num_bytes = num_bytes
        self._parts: dict[int, Buffer] = {}
        self._at = 0

    def add(self, start: int, data: Buffer) -> None:
        """One more part."""
        self._parts[start] = data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._num_bytes)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """From the part that has these bytes; nobody asks for others."""
        limit = self._num_bytes if size < 0 else min(self._num_bytes, self._at + size)
        pieces = []
        while self._at < limit:
            start = max((s for s in self._parts if s <= self._at), default=-1)
            part = (
                memoryview(self._parts[start])[self._at - start : limit - start]
                if start >= 0
                else b""
            )
            if not len(part):
                raise OSError(f"bytes from {self._at} on were not read")
            pieces.append(bytes(part))
            self._at += len(part)
        return b"".join(pieces)


async def _read(
    objects: LogObjects, fragment: Fragment, parts: _Parts, start: int, limit: int | None
) -> Buffer:
    """Read a part; without `limit` up to the end, and one byte more, to notice a longer object."""
    length = fragment.num_bytes + 1 - start if limit is None else limit - start
    expected = min(length, fragment.num_bytes - start)
    try:
        data = await objects.get_part(fragment, start, length)
    except InvalidInputError as error:
        raise _damaged(fragment, f"{fragment.num_bytes} bytes", "fewer") from error
    if len(data) != expected:
        raise _damaged(fragment, f"{expected} bytes from {start} on", f"{len(data)} bytes")
    parts.add(start, data)
    return data


def _check(metadata: pq.FileMetaData, link: Link | None, fragment: Fragment) -> None:
    """Raise unless what the footer says is what the pointer says."""
    pointed = (fragment.num_records, fragment.setsum_hex, fragment.start, fragment.limit)
    found = (metadata.num_rows, *pointed[1:])
    if link is not None:
        found = (metadata.num_rows, link.setsum, link.start, link.limit)
    if found != pointed:
        code = Code.CORRUPT if found[1] == pointed[1] else Code.SETSUM_MISMATCH
        raise _damaged(fragment, f"records, setsum, offsets {pointed}", str(found), code)


def _ranges(metadata: pq.FileMetaData, names: set[str]) -> list[tuple[int, int]]:
    """Where the chunks of these columns lie, neighbours together."""
    found: list[tuple[int, int]] = []
    for group in range(metadata.num_row_groups):
        for i in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(i)
            if chunk.path_in_schema.partition(".")[0] not in names:
                continue
            start = chunk.data_page_offset
            if chunk.has_dictionary_page:
                start = min(start, chunk.dictionary_page_offset)
            limit = start + chunk.total_compressed_size
            if found and 0 <= start - found[-1][1] <= GAP_BYTES_MAX:
                found[-1] = (found[-1][0], limit)
            else:
                found.append((start, limit))
    return found


def _decode(
    parts: _Parts, metadata: pq.FileMetaData, fragment: Fragment, names: list[str]
) -> pa.Table:
    if not names:
        return pa.table({})
    try:
        file = pq.ParquetFile(pa.PythonFile(parts, "r"), metadata=metadata, pre_buffer=False)
        return file.read(columns=names, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(fragment, "readable columns", str(error)) from error


def _assemble(
    fragment: Fragment, columns: Sequence[str], table: pa.Table, at_us: int | None
) -> pa.Table:
    """The columns in the order asked for: read, or known, or null."""
    count = fragment.num_records
    nulls = {field.name: field for field in EXTRA}
    arrays = []
    for name in columns:
        if name == OFFSET.name:
            arrays.append(pa.array(np.arange(fragment.start, fragment.limit, dtype=np.uint64)))
        elif name in table.schema.names:
            arrays.append(table.column(name))
        elif name == TIMESTAMP.name and at_us is not None:
            arrays.append(pa.array(np.full(count, at_us, dtype=np.uint64)))
        elif name in nulls:
            arrays.append(pa.nulls(count, nulls[name].type))
        else:
            raise _damaged(fragment, f"a column {name}", str(table.schema.names))
    return pa.table(arrays, schema=pa.schema([FULL_SCHEMA.field(name) for name in columns]))


def _damaged(
    fragment: Fragment, expected: str, got: str, code: Code = Code.CORRUPT
) -> CorruptionError:
    return CorruptionError(
        f"fragment {fragment.path} is damaged: expected {expected}, got {got}",
        where=fragment.path,
        expected=expected,
        got=got,
        code=code,
        hint="restore the object from a copy or a version of the bucket",
    )
