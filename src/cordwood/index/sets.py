"""Posting lists as sets of documents: all that a search without ranking asks of a segment.

The records are laid out in postings.py, which has what else can be done with them. Nothing here
loads numpy: a command that only looks for documents would wait for it longer than for the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import ducer
from pyroaring import BitMap

from cordwood.index.sections import known_sections

SHORT_MAX = 63
"""The most documents of a short record."""

SHORT_BYTES_MAX = 1 + SHORT_MAX * 10
"""No short record is longer."""

LONG = struct.Struct("<IIIBBH")
NO_FREQUENCIES = 255


class Single(NamedTuple):
    """A term of one document."""

    doc: int
    tf: int

    def members(self) -> BitMap:
        """The set of documents."""
        return BitMap((self.doc,))


class Short(NamedTuple):
    """A list of few documents, decoded."""

    docs: list[int]
    tfs: list[int]
    """Empty where frequencies are not kept."""

    def members(self) -> BitMap:
        """The set of documents."""
        return BitMap(self.docs)


class Roaring(NamedTuple):
    """A list of many documents, of which nothing but the set is wanted."""

    data: memoryview

    def members(self) -> BitMap:
        """The set of documents."""
        return BitMap.deserialize(bytes(self.data))


def read_single(value: int) -> Single | None:
    """The only document of a term, if its value in the dictionary says that there is but one."""
    return Single(value >> 32, ((value >> 1) & 0x7FFFFFFF) + 1) if value & 1 else None


def read_short(data: memoryview, *, frequencies: bool) -> Short:
    """Decode the short record that `data` begins with."""
    count = data[0]
    numbers = []
    place = 1
    for _ in range(2 * count if frequencies else count):
        byte = data[place]
        place += 1
        if byte < 0x80:
            numbers.append(byte)
            continue
        number, shift = byte & 0x7F, 7
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        numbers.append(number)
    docs = []
    doc = 0
    for gap in numbers[:count]:
        doc += gap
        docs.append(doc)
    return Short(docs, [more + 1 for more in numbers[count:]])


def long_bytes(head: tuple[int, ...]) -> int:
    """How many bytes follow the fields of a long record."""
    count, set_bytes, exceptions, width, bounds, _ = head
    packed = 0 if width == NO_FREQUENCIES else -(-count * width // 8)
    return 8 * bounds + 8 * exceptions + packed + set_bytes


class Sets:
    """The terms of a segment, each with the set of its documents. Deleted ones are in it."""

    def __init__(self, data: Any, name: str) -> None:
        """Over all bytes of the file, mapped or read.

        Raises:
            CorruptionError: it is damaged.
            UnsupportedError: it is of a newer kind.
        """
        self._sections = known_sections(data, name)
        facts = self._sections.facts
        self._frequencies: bool = facts["frequencies"]
        self.documents: int = facts["documents"]
        self._terms: Any = ducer.Map(self._sections.whole("terms"))

    def find(self, term: bytes) -> Single | Short | Roaring | None:
        """The documents of a term."""
        value = self._terms.get(term)
        return None if value is None else self._open(value)

    def find_prefix(self, prefix: bytes) -> Iterator[Single | Short | Roaring]:
        """The documents of each term that begins so."""
        for _, value in self._terms.starts_with(prefix):
            yield self._open(value)

    def _open(self, value: int) -> Single | Short | Roaring:
        single = read_single(value)
        if single is not None:
            return single
        place = value >> 2
        if not value & 2:
            data = self._sections.part("postings", place, SHORT_BYTES_MAX)
            return read_short(data, frequencies=self._frequencies)
        head = LONG.unpack(self._sections.part("postings", place, LONG.size))
        size = long_bytes(head)
        set_bytes: int = head[1]
        start = place + LONG.size + size - set_bytes
        return Roaring(self._sections.part("postings", start, set_bytes))
