"""The bodies of a fragment where they lie: what a scrub hashes without making records of them.

A column of a Parquet file is a row of pages. Each has a header, a Thrift structure in the compact
protocol, and then its values, perhaps compressed; plainly encoded, a value is its length (4 bytes,
little-endian) and its bytes::

    page  =  header  values          header  =  1 type: 0, a data page of the first version
                                                2 size of the values   3 the same, compressed
                                                5 { 1 number of values  2 encoding: 0, plain … }

Only what Cordwood writes is understood: one row group, a body that is never null, plain encoding.
In any other case, and where it is cheaper, the answer is `UnusualError`, and the caller decodes the
file as every reader does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from cordwood.base.kernels import sum_pages
from cordwood.base.setsum import Setsum

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow.parquet as pq

_CODECS = ("zstd", "lz4_raw", "snappy")
_HEADER_BYTES_MAX = 256
_PAGE_BYTES_MAX = 2**30
_NESTED_MAX = 4


class UnusualError(Exception):
    """The file does not have the shape that is understood here."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of a fragment, found and not yet hashed."""

    data: npt.NDArray[np.uint8]
    chunk: Any
    offsets: npt.NDArray[np.uint64]
    timestamps: npt.NDArray[np.uint64]

    @classmethod
    def find(
        cls,
        data: npt.NDArray[np.uint8],
        file: pq.ParquetFile,
        offsets: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.uint64],
    ) -> Self:
        """Those of a fragment.

        Args:
            data: the whole fragment, whose checksum holds.
            file: the same, opened.
            offsets: of its records.
            timestamps: of its records.

        Raises:
            UnusualError: the fragment must be decoded instead.
        """
        return cls(data, _body_chunk(file), offsets, timestamps)

    def sum(self) -> Setsum:
        """The setsum of the records.

        Raises:
            UnusualError: the fragment must be decoded instead.
        """
        pages = _pages(self.data, self.chunk)
        sums = sum_pages(self.offsets, self.timestamps, pages, self.data.size)
        if sums is None:
            raise UnusualError("pages that do not hold what they should, or cheaper to decode")
        return Setsum.of_columns(sums)


def _pages(data: npt.NDArray[np.uint8], chunk: Any) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """The values of each page, not compressed, and how many they are."""
    codec = _Codec()
    at, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    if at < 4 or end > data.size:
        raise UnusualError("the pages lie outside the file")
    header, count, size, stored = b"", 0, 0, 0
    while at < end:
        if not header or data[at : at + len(header)].tobytes() != header:  # most are all the same
            some = data[at : at + _HEADER_BYTES_MAX].tobytes()
            count, size, stored, header_bytes = _header(some)
            header = some[:header_bytes]
        start, at = at + len(header), at + len(header) + stored
        if at > end or size > _PAGE_BYTES_MAX:
            raise UnusualError("a page is larger than its column")
        page = data[start:at]
        yield page if size == stored else codec.decompress(page, size), count


def _body_chunk(file: pq.ParquetFile) -> Any:
    """What the footer says of the one column chunk of bodies."""
    metadata = file.metadata
    places = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == "body"]
    if metadata.num_row_groups != 1 or len(places) != 1:
        raise UnusualError("not one row group with one body")
    column = metadata.schema.column(places[0])
    chunk = metadata.row_group(0).column(places[0])
    if (column.max_definition_level, column.max_repetition_level) != (0, 0):
        raise UnusualError("a body may be null")
    if chunk.physical_type != "BYTE_ARRAY" or chunk.has_dictionary_page:
        raise UnusualError("bodies are not plain")
    return chunk


class _Codec:
    """What the pages of a file are compressed with.

    The footer names it, but pyarrow ends the process when it is asked for the name of one that it
    does not know. So they are tried: what comes of the wrong one fits neither lengths nor setsum.
    """

    def __init__(self) -> None:
        self._codecs: list[pa.Codec] = []

    def decompress(self, page: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
        for codec in self._codecs or map(pa.Codec, _CODECS):
            try:
                content = np.frombuffer(codec.decompress(page, size), np.uint8)
            except (pa.ArrowException, OSError, ValueError):
                continue
            self._codecs = [codec]
            return content
        raise UnusualError("a page is damaged, or compressed in another way")


def _header(data: bytes) -> tuple[int, int, int, int]:
    """Number of values, their size, their size as stored, and that of the header."""
    try:
        fields, at = _structure(data, 0, _NESTED_MAX)
        inner = fields[5]
        plain = fields[1] == 0 and inner[2] == 0
        count, size, stored = inner[1], fields[2], fields[3]
    except (IndexError, KeyError, TypeError) as error:
        raise UnusualError("a page header") from error
    if not plain or min(count, size, stored) < 0:
        raise UnusualError("a page is not plain")
    return count, size, stored, at


def _structure(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a Thrift structure by number, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = divmod(data[at], 16)
        at += 1
        if not step:
            raise UnusualError("a page header with fields out of order")
        number += step
        value: Any
        if kind in {1, 2}:
            value = kind == 1
        elif kind in {4, 5, 6}:
            value, at = _varint(data, at)
            value = (value >> 1) ^ -(value & 1)
        elif kind == 8:
            size, at = _varint(data, at)
            value, at = None, at + size
        elif kind == 12 and depth:
            value, at = _structure(data, at, depth - 1)
        else:
            raise UnusualError("a page header with unknown fields")
        fields[number] = value
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] >= 128:
        value |= (data[at] - 128) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
