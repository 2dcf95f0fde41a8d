"""The file of a segment: named sections, and a checksum for every 64 KiB of it.

::

    magic             8 bytes
    section           each begins at a multiple of 64
    …
    sums              u64 for each block of the file so far: XXH3 of it; the last block may be short
    directory         JSON: what the file says of itself, and where its sections are
    trailer           u64 where the sums begin, u64 where the directory begins, u64 length of the
                      file, u64 XXH3 of everything from the sums to here, magic

All numbers are little-endian. The trailer vouches for the sums and the sums for the rest, so no
byte goes unvouched for. Opening a file reads its end alone; a block is checked when something in it
is first asked for, and no byte is handed out unchecked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol

import xxhash

from cordwood.base.errors import CorruptionError, UnsupportedError

FORMAT = 1
"""Of what the sections of a segment hold."""

MAGIC = b"CWSEG\x01\r\n"
BLOCK = 65_536
ALIGNMENT = 64
_TRAILER = struct.Struct("<QQQQ8s")


class Sink(Protocol):
    """Where a file is written."""

    def write(self, data: Any, /) -> Any:
        """Take these bytes."""
        ...


class SectionWriter:
    """Writes a file from its beginning to its end."""

    def __init__(self, sink: Sink) -> None:
        """Begin."""
        self._sink = sink
        self._sums: list[int] = []
        self._block = xxhash.xxh3_64()
        self._place = 0
        self._sections: dict[str, list[int]] = {}
        self._put(memoryview(MAGIC))

    @property
    def place(self) -> int:
        """How much has been written."""
        return self._place

    def begin(self, name: str) -> None:
        """What is written from here on belongs to this section."""
        self._put(memoryview(bytes(-self._place % ALIGNMENT)))
        self._sections[name] = [self._place, 0]

    def write(self, data: Any) -> None:
        """More of the section begun last."""
        view = memoryview(data)
        if view.nbytes:
            next(reversed(self._sections.values()))[1] += view.nbytes
            self._put(view.cast("B"))

    def _put(self, view: memoryview) -> None:
        self._sink.write(view)
        while len(view):
            room = BLOCK - self._place % BLOCK
            part = view[:room]
            self._block.update(part)
            self._place += len(part)
            view = view[room:]
            if not self._place % BLOCK:
                self._sums.append(self._block.intdigest())
                self._block = xxhash.xxh3_64()

    def finish(self, facts: Mapping[str, Any]) -> int:
        """Write the end, with what the file says of itself; its length."""
        if self._place % BLOCK:
            self._sums.append(self._block.intdigest())
        sums = struct.pack(f"<{len(self._sums)}Q", *self._sums)
        directory = json.dumps(
            {**facts, "sections": self._sections}, ensure_ascii=False, separators=(",", ":")
        ).encode()
        starts = (self._place, self._place + len(sums))
        length = starts[1] + len(directory) + _TRAILER.size
        end = sums + directory + struct.pack("<QQQ", *starts, length)
        self._sink.write(end + struct.pack("<Q", xxhash.xxh3_64_intdigest(end)) + MAGIC)
        return length


class Sections:
    """An open file: hands out bytes that have been checked."""

    def __init__(self, data: Any, name: str) -> None:
        """Over all bytes of the file, mapped or read; `name` is for errors.

        Raises:
            CorruptionError: its end is damaged, or it is not whole.
            UnsupportedError: it is none of ours, or newer.
        """
        self._data = memoryview(data).cast("B")
        self.name = name
        self._sums, directory = self._end()
        self._checked = bytearray(len(self._sums))
        try:
            parsed: dict[str, Any] = json.loads(directory)
            where: dict[str, list[int]] = parsed.pop("sections")
            self._where = {key: (start, length) for key, (start, length) in where.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"segment {name} has a directory that this version cannot read: {error}",
                hint="it was written by something newer: update cordwood",
            ) from error
        self.facts: dict[str, Any] = parsed
        """What the file says of itself."""

    def __contains__(self, section: str) -> bool:
        return section in self._where

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return len(self._data)

    def length(self, section: str) -> int:
        """How long a section is."""
        return self._where[section][1]

    def whole(self, section: str) -> memoryview:
        """All of a section."""
        return self.part(section, 0, self._where[section][1])

    def part(self, section: str, start: int, length: int) -> memoryview:
        """Some bytes of a section; fewer where it ends.

        Raises:
            CorruptionError: they are damaged.
        """
        first, size = self._where[section]
        start = min(start, size)
        begin = first + start
        end = begin + min(length, size - start)
        block, last = begin // BLOCK, (end - 1) // BLOCK
        while block <= last:
            if not self._checked[block]:
                self._check(block)
            block += 1
        return self._data[begin:end]

    def check(self) -> list[str]:
        """Every block, once more; what is wrong with them."""
        wrong = []
        for block in range(len(self._sums)):
            try:
                self._check(block)
            except CorruptionError as error:
                wrong.append(error.message)
        return wrong

    def _check(self, block: int) -> None:
        start = block * BLOCK
        limit = min(start + BLOCK, self._body)
        got = xxhash.xxh3_64_intdigest(self._data[start:limit])
        if got != self._sums[block]:
            raise CorruptionError(
                f"segment {self.name} is damaged between bytes {start} and {limit}",
                where=self.name,
                expected=f"{self._sums[block]:016x}",
                got=f"{got:016x}",
                hint="bring the file back from a copy, or build the index again",
            )
        self._checked[block] = 1

    def _end(self) -> tuple[tuple[int, ...], bytes]:
        """The sums and the directory."""
        data = self._data
        if len(data) < len(MAGIC) + _TRAILER.size or bytes(data[-8:]) != MAGIC:
            if len(data) > 5 and bytes(data[:5]) == MAGIC[:5] and data[5] != MAGIC[5]:
                raise UnsupportedError(
                    f"segment {self.name} is of version {data[5]}", hint="update cordwood"
                )
            self._refuse("it is not whole, or no segment at all")
        body, directory, length, digest, _ = _TRAILER.unpack(data[-_TRAILER.size :])
        if not len(MAGIC) <= body <= directory <= len(data) - _TRAILER.size or length != len(data):
            self._refuse(f"it has {len(data)} bytes and says {length}")
        if xxhash.xxh3_64_intdigest(data[body:-16]) != digest:
            self._refuse("its end does not match its checksum")
        count = -(-body // BLOCK)
        if directory - body != 8 * count:
            self._refuse("it lacks sums")
        self._body = body
        sums = struct.unpack(f"<{count}Q", data[body:directory])
        return sums, bytes(data[directory : -_TRAILER.size])

    def _refuse(self, why: str) -> None:
        raise CorruptionError(
            f"segment {self.name} is damaged: {why}",
            where=self.name,
            hint="bring the file back from a copy, or build the index again",
        )


def known_sections(data: Any, name: str) -> Sections:
    """The sections of a segment.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: it is of a newer kind.
    """
    sections = Sections(data, name)
    found = sections.facts.get("format")
    if found != FORMAT:
        raise UnsupportedError(f"segment {name} is of format {found}", hint="update cordwood")
    return sections
