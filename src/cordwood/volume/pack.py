"""Packs: pages in compressed frames, each with a digest; an object that can be read on its own.

::

    magic     8   CWPACK and two zero bytes
    version   4   u32, 1
    page size 4   u32
    pages     4   u32, how many
    frames    4   u32, how many
    zeros     8
    frames        one after the other, from byte 32
    table         stored bytes u32 × frames, last page u32 × frames, digest 16 bytes × frames
    set           the page numbers, as Roaring writes them
    set bytes 4   u32
    hash     32   BLAKE2b-256 of head, table, set and set bytes
    footer    4   u32, bytes from the table to here, these four not counted

Pages are in the order of their numbers. A frame holds 64 KiB of them (at least one page), the last
one perhaps less. It is one zstd frame; where that is not smaller the pages are stored as they are,
so a frame is compressed if and only if it is shorter than its pages. Its digest is BLAKE2b-128 of
what is stored: the commit that names a pack repeats the table, so its hash vouches for each page.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard
from pyroaring import BitMap

from cordwood.base.errors import CorruptionError, InternalError, InvalidInputError, UnsupportedError
from cordwood.store.api import Buffer
from cordwood.volume.pagesets import PageArray, array_of, decode_pages, encode_pages, pages_of

MAGIC = b"CWPACK\0\0"
VERSION = 1
HEAD = struct.Struct("<8sIIII8x")
FRAME_BYTES = 64 * 1024
"""Pages of a frame, uncompressed: what one read of one page fetches at most."""
PACK_BYTES_MAX = 64 * 2**20
"""Pages of a pack, uncompressed: what a push holds in memory."""
DIGEST_BYTES = 16
ROW_BYTES = 4 + 4 + DIGEST_BYTES
"""What one frame takes in the table."""
_HASH_BYTES = 32
_LENGTH = struct.Struct("<I")
_LEVEL = 3
SIZES = frozenset(2**n for n in range(9, 17))
"""Every page size there is."""


def check_page_size(page_size: object) -> int:
    """The page size, if it can be one.

    Raises:
        InvalidInputError: it is no power of two from 512 to 65536.
    """
    if not isinstance(page_size, int) or page_size not in SIZES:
        raise InvalidInputError(
            f"a page size of {page_size!r}", hint="use a power of two from 512 to 65536"
        )
    return page_size


def frame_pages(page_size: int) -> int:
    """How many pages a frame holds."""
    return max(1, FRAME_BYTES // page_size)


def digest(stored: Buffer) -> bytes:
    """What vouches for a stored frame."""
    return blake2b(stored, digest_size=DIGEST_BYTES).digest()


class Frames(NamedTuple):
    """The table of a pack's frames, a column each."""

    stored: npt.NDArray[np.uint32]
    last: PageArray
    digests: bytes

    def encode(self) -> bytes:
        """The table as bytes."""
        return self.stored.tobytes() + self.last.tobytes() + self.digests

    @staticmethod
    def decode(data: bytes, count: int) -> Frames:
        """The table in `count` rows of bytes."""
        stored = np.frombuffer(data, "<u4", count)
        last = np.frombuffer(data, "<u4", count, 4 * count)
        return Frames(stored, last, bytes(data[8 * count :]))


@dataclass(frozen=True, slots=True, eq=False)
class PackIndex:
    """What a commit or checkpoint says of a pack: enough to find a page and to prove it."""

    id: str
    log: str
    """The log it was made for: a directory keeps it there, whoever else names it."""
    page_size: int
    own: BitMap
    """Every page that is in it."""
    live: BitMap
    """The pages that count for who names it."""
    frames: Frames
    starts: npt.NDArray[np.int64] = field(init=False)
    """Where each frame begins, and behind them where the last ends."""

    def __post_init__(self) -> None:
        """Where frames begin follows from how long they are."""
        ends = HEAD.size + np.cumsum(self.frames.stored, dtype=np.int64)
        object.__setattr__(self, "starts", np.concatenate(([HEAD.size], ends)))

    @property
    def num_frames(self) -> int:
        """How many frames it has."""
        return len(self.frames.stored)

    def locate(self, page: int) -> tuple[int, int]:
        """The frame of a page that is in the pack, and its place there."""
        return divmod(self.own.rank(page) - 1, frame_pages(self.page_size))

    def locate_many(self, pages: PageArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The same of many pages at once."""
        places = np.searchsorted(array_of(self.own), pages)
        frames, at = np.divmod(places, frame_pages(self.page_size))
        return frames, at

    def plain_bytes(self, frame: int) -> int:
        """How long the pages of a frame are together."""
        each = frame_pages(self.page_size)
        return min(each, len(self.own) - frame * each) * self.page_size

    def digest_of(self, frame: int) -> bytes:
        """What the stored bytes of a frame must hash to."""
        return self.frames.digests[DIGEST_BYTES * frame : DIGEST_BYTES * (frame + 1)]

    def open_frame(self, frame: int, stored: Buffer) -> bytes:
        """The pages of a frame, one after the other.

        Raises:
            CorruptionError: these are not the bytes that the digest is of.
        """
        expected = self.digest_of(frame)
        if digest(stored) != expected:
            raise CorruptionError(
                f"pack {self.id}, frame {frame}: the bytes do not match their digest",
                where=f"{self.id}#{frame}",
                expected=expected.hex(),
                got=digest(stored).hex(),
                hint="bring the pack back from a copy of the store",
            )
        return self.inflate(frame, stored)

    def inflate(self, frame: int, stored: Buffer) -> bytes:
        """As `open_frame`, of bytes that were proved before."""
        return _inflated(stored, self.plain_bytes(frame), f"pack {self.id}, frame {frame}")

    def keeping(self, live: BitMap) -> PackIndex:
        """The same pack, of which only these pages count."""
        return replace(self, live=live)


def check_index(index: PackIndex, where: str) -> None:
    """Refuse a table that cannot be of this set of pages.

    Raises:
        CorruptionError: set and table contradict each other, or sizes are out of bounds.
    """
    each = frame_pages(index.page_size)
    count, pages = index.num_frames, len(index.own)
    why = ""
    if not pages or pages * index.page_size > max(PACK_BYTES_MAX, index.page_size):
        why = f"{pages} pages"
    elif count != -(-pages // each):
        why = f"{count} frames for {pages} pages"
    elif len(index.frames.digests) != DIGEST_BYTES * count:
        why = "digests are missing"
    elif not index.live or not index.live.issubset(index.own):
        why = "pages that count and are not in it"
    else:
        ends = np.minimum(np.arange(1, count + 1) * each, pages)
        plain = np.diff(ends, prepend=0) * index.page_size
        if not np.array_equal(array_of(index.own)[ends - 1], index.frames.last):
            why = "a frame ends at another page"
        elif np.any((index.frames.stored < 1) | (index.frames.stored > plain)):
            why = "a frame is longer than its pages"
    if why:
        raise CorruptionError(f"{where}: pack {index.id}: {why}", where=where)


def _inflated(stored: Buffer, plain_bytes: int, where: str) -> bytes:
    if len(stored) == plain_bytes:
        return bytes(stored)
    try:
        # Asked first: the call below takes what memory the frame says it needs.
        if zstandard.frame_content_size(stored) == plain_bytes:
            return _inflater().decompress(stored, max_output_size=plain_bytes)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"{where}: {error}", where=where) from error
    raise CorruptionError(f"{where}: it is not {plain_bytes} bytes long", where=where)


def _inflater() -> zstandard.ZstdDecompressor:
    """This thread's: to make one takes longer than many a frame, and threads may not share it."""
    found: zstandard.ZstdDecompressor | None = getattr(_threads, "inflater", None)
    if found is None:
        found = _threads.inflater = zstandard.ZstdDecompressor()
    return found


_threads = threading.local()


class Built(NamedTuple):
    """A pack, ready to be stored."""

    pack: PackIndex
    data: bytes


class PackBuilder:
    """Takes pages in order, compresses frame by frame, gives the object."""

    def __init__(self, page_size: int) -> None:
        """An empty pack."""
        self._page_size = check_page_size(page_size)
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._numbers: list[PageArray] = []
        self._waiting = bytearray()
        self._stored: list[bytes] = []
        self.num_pages = 0

    @property
    def room(self) -> int:
        """How many pages still fit."""
        return max(1, PACK_BYTES_MAX // self._page_size) - self.num_pages

    def add(self, numbers: PageArray, data: Buffer) -> None:
        """Pages above all before, and their bytes one after the other."""
        if len(numbers) > self.room or len(data) != len(numbers) * self._page_size:
            raise InternalError(f"{len(numbers)} pages of {len(data)} bytes do not fit the pack")
        self._numbers.append(np.array(numbers, dtype=np.uint32))
        self.num_pages += len(numbers)
        self._waiting += data
        whole = frame_pages(self._page_size) * self._page_size
        done = len(self._waiting) // whole * whole
        for start in range(0, done, whole):
            self._store(bytes(self._waiting[start : start + whole]))
        del self._waiting[:done]

    def finish(self, pack_id: str, log: str) -> Built:
        """The pack of everything added; at least one page was."""
        if self._waiting:
            self._store(bytes(self._waiting))
        numbers = np.concatenate(self._numbers)
        if np.any(numbers[1:] <= numbers[:-1]) or numbers[0] < 1:
            raise InternalError("pages of a pack must be in order, each once")
        own = pages_of(numbers)
        lengths = np.fromiter(map(len, self._stored), np.uint32, len(self._stored))
        each = frame_pages(self._page_size)
        last = numbers[np.minimum(np.arange(1, len(lengths) + 1) * each, len(numbers)) - 1]
        frames = Frames(lengths, last, b"".join(map(digest, self._stored)))
        return assembled(PackIndex(pack_id, log, self._page_size, own, own, frames), self._stored)

    def _store(self, plain: bytes) -> None:
        squeezed = self._compressor.compress(plain)
        self._stored.append(squeezed if len(squeezed) < len(plain) else plain)


def assembled(index: PackIndex, stored: Sequence[Buffer]) -> Built:
    """The object of a pack, from its table and its frames as they are stored."""
    head = HEAD.pack(MAGIC, VERSION, index.page_size, len(index.own), index.num_frames)
    pages = encode_pages(index.own)
    footer = index.frames.encode() + pages + _LENGTH.pack(len(pages))
    footer += blake2b(head + footer, digest_size=_HASH_BYTES).digest()
    return Built(index, b"".join([head, *stored, footer, _LENGTH.pack(len(footer))]))


def build_packs(
    page_size: int, batches: Iterable[tuple[PageArray, Buffer]], ids: Iterator[str], log: str
) -> Iterator[Built]:
    """Packs of any number of pages, which come in order; one pack is in memory at a time.

    Args:
        page_size: of every page.
        batches: page numbers, and their bytes one after the other.
        ids: fresh ids, one for each pack.
        log: whose pages they are.
    """
    builder = PackBuilder(page_size)
    for numbers, data in batches:
        view = memoryview(data)
        start = 0
        while start < len(numbers):
            limit = min(len(numbers), start + builder.room)
            builder.add(numbers[start:limit], view[start * page_size : limit * page_size])
            start = limit
            if not builder.room:
                yield builder.finish(next(ids), log)
                builder = PackBuilder(page_size)
    if builder.num_pages:
        yield builder.finish(next(ids), log)


def open_pack(data: Buffer, pack_id: str, log: str = "") -> PackIndex:
    """The table of a pack that is read alone, without the commit that names it.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: it is of a newer kind.
    """
    where = f"pack {pack_id}"
    if len(data) < HEAD.size + _HASH_BYTES + 2 * _LENGTH.size:
        raise CorruptionError(f"{where}: too short", where=where)
    magic, version, page_size, pages, count = HEAD.unpack_from(data)
    (length,) = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
    begin, end = len(data) - _LENGTH.size - length, len(data) - _LENGTH.size
    if magic != MAGIC or begin < HEAD.size or length < _HASH_BYTES + _LENGTH.size:
        raise CorruptionError(f"{where}: this is no pack, or a damaged one", where=where)
    footer = bytes(data[begin : end - _HASH_BYTES])
    hashed = blake2b(bytes(data[: HEAD.size]) + footer, digest_size=_HASH_BYTES).digest()
    if hashed != data[end - _HASH_BYTES : end]:
        raise CorruptionError(f"{where}: the footer does not match its hash", where=where)
    if version != VERSION:
        raise UnsupportedError(f"{where} is of version {version}", hint="update cordwood")
    (set_bytes,) = _LENGTH.unpack_from(footer, len(footer) - _LENGTH.size)
    if len(footer) != ROW_BYTES * count + set_bytes + _LENGTH.size or page_size not in SIZES:
        raise CorruptionError(f"{where}: its parts are of another length", where=where)
    table = ROW_BYTES * count
    own = decode_pages(footer[table : table + set_bytes], where)
    frames = Frames.decode(footer[:table], count)
    index = PackIndex(pack_id, log, page_size, own, own, frames)
    check_index(index, where)
    if len(own) != pages or index.starts[-1] != begin:
        raise CorruptionError(f"{where}: its frames do not fill it", where=where)
    return index
