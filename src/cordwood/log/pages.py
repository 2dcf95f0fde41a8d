"""The bodies of a fragment where they lie: what a scrub hashes without making records of them.

A column of a Parquet file is a row of pages. Each has a header, a Thrift structure in the compact
protocol, and then its values, perhaps compressed; plainly encoded, a value is its length (4 bytes,
little-endian) and its bytes::

    page  =  header  values          header  =  1 type: 0, a data page of the first version
                                                2 size of the values   3 the same, compressed
                                                5 { 1 number of values  2 encoding: 0, plain
                                                    3, 4 that of levels, if there were any: 3 }

Where they lie is in the file's footer, of the same protocol. pyarrow is not asked: it ends the
process over some of what a forged footer may say of a column, which no reader of the records does.

Only what Cordwood writes is understood: one row group, a body that is never null, plain encoding;
and of that not lz4. In any other case, and where it is cheaper, the answer is `UnusualError`, and
the caller decodes the file as every reader does; so he does if the sum is not the one he expects.

Nothing is taken for granted of the bytes: pages that are not compressed are hashed before it is
known whether the file is whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from cordwood.base.kernels import sum_pages
from cordwood.base.setsum import Setsum

if TYPE_CHECKING:
    import numpy.typing as npt

_CODECS = {0: None, 1: "snappy", 6: "zstd"}
"""By their numbers. lz4 is left to the decoder: of a page that ends too soon pyarrow gives the rest
as it found it in memory, and neither the page nor pyarrow tells its length."""
_THREE_COLUMNS = re.compile(rb"\x15.\x19\x4c", re.DOTALL)
"""How a footer begins: field 1, a version; field 2, a list of four structures, the schema."""
_BODY_PATH = b"\x19\x18\x04body"
"""The name of a column, in what is said of it: field 3, a list of one text."""
_LENGTH_BYTES = 4
_FIELDS_LAST = 11
"""The place of a dictionary, which ours have not. What follows is of no use here."""
_HEADER_BYTES_MAX = 256
_PAGE_BYTES_MAX = 2**30
_VARINT_BYTES_MAX = 10
_NESTED_MAX = 4


class UnusualError(Exception):
    """The file does not have the shape that is understood here."""


Passed = Callable[[int], None]
"""Called with a place in the file when everything before it is about to be hashed."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Where the bodies of a fragment of three columns lie, by its footer."""

    codec: str | None
    count: int
    start: int
    end: int

    @classmethod
    def find(cls, footer: bytes, num_bytes: int) -> Self:
        """Those of a file of so many bytes.

        Raises:
            UnusualError: the footer says it otherwise than ours do.
        """
        if not _THREE_COLUMNS.match(footer):
            raise UnusualError("other columns")
        at = footer.find(_BODY_PATH)
        if at < 0 or footer.find(_BODY_PATH, at + 1) >= 0:
            raise UnusualError("no body, or several")
        try:
            fields, _ = _structure(footer, at + len(_BODY_PATH), 0, number=3, last=_FIELDS_LAST)
            codec, count = _CODECS[fields[4]], fields[5]
            start, end = fields[9], fields[9] + fields[7]
        except (IndexError, KeyError, TypeError) as error:
            raise UnusualError("a footer") from error
        if 11 in fields or start < 4 or not start <= end <= num_bytes:
            raise UnusualError("a dictionary, or pages outside the file")
        if codec is None and count * _LENGTH_BYTES > end - start:
            raise UnusualError("more bodies than there is room for")
        return cls(codec, count, start, end)

    @property
    def are_compressed(self) -> bool:
        """Whether a decompressor must make them."""
        return self.codec is not None

    def sum(
        self,
        data: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.uint64],
        passed: Passed,
    ) -> Setsum:
        """The setsum of the records, if these are their offsets and timestamps.

        Raises:
            UnusualError: the fragment must be decoded instead.
        """
        pages = _pages(data, self, passed)
        sums = sum_pages(offsets, timestamps, pages, data.size)
        if sums is None:
            raise UnusualError("pages that do not hold what they should, or cheaper to decode")
        return Setsum.of_columns(sums)


def _pages(
    data: npt.NDArray[np.uint8], bodies: Bodies, passed: Passed
) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """The values of each page, not compressed, and how many they are."""
    codec = None if bodies.codec is None else pa.Codec(bodies.codec)
    at, end = bodies.start, bodies.end
    header, count, size, stored = b"", 0, 0, 0
    while at < end:
        if not header or data[at : at + len(header)].tobytes() != header:  # most are all the same
            some = data[at : at + _HEADER_BYTES_MAX].tobytes()
            count, size, stored, header_bytes = _header(some)
            header = some[:header_bytes]
        start, at = at + len(header), at + len(header) + stored
        if at > end or size > _PAGE_BYTES_MAX:
            raise UnusualError("a page is larger than its column")
        if codec is None and size != stored:
            raise UnusualError("a page has another size than its header says")
        page = data[start:at]
        passed(at)
        yield page if codec is None else _decompress(codec, page, size), count


def _decompress(codec: pa.Codec, page: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    try:
        if codec.name == "snappy" and _varint(page[:5].tobytes(), 0)[0] != size:
            raise UnusualError("a page of another length")
        return np.frombuffer(codec.decompress(page, size), np.uint8)
    except (pa.ArrowException, IndexError, OSError, ValueError) as error:
        raise UnusualError(str(error)) from error


def _header(data: bytes) -> tuple[int, int, int, int]:
    """Number of values, their size, their size as stored, and that of the header."""
    try:
        fields, at = _structure(data, 0, _NESTED_MAX)
        inner = fields[5]
        plain = (fields[1], inner[2], inner[3], inner[4]) == (0, 0, 3, 3)
        count, size, stored = inner[1], fields[2], fields[3]
        is_sound = plain and count > 0 and min(size, stored) >= 0
    except (IndexError, KeyError, TypeError) as error:
        raise UnusualError("a page header") from error
    if not is_sound:
        raise UnusualError("a page is not plain")
    return count, size, stored, at


def _structure(
    data: bytes, at: int, depth: int, *, number: int = 0, last: int = 2**15
) -> tuple[dict[int, Any], int]:
    """The fields of a Thrift structure by number, those behind `number` and up to `last`.

    And where they end.
    """
    fields: dict[int, Any] = {}
    while data[at]:
        step, kind = divmod(data[at], 16)
        if number + step > last:
            break
        at += 1
        if not step:
            raise UnusualError("a structure with field numbers in full")
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
            raise UnusualError("a structure with fields of unknown kinds")
        fields[number] = value
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    last = at + _VARINT_BYTES_MAX - 1
    while data[at] >= 128:
        if at == last:
            raise UnusualError("a number of more than 64 bits")
        value |= (data[at] - 128) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
