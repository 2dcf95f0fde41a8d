"""Which streams a fragment holds, in a few bytes: sets that may say "perhaps", never a false "no".

A filter is the set of the stream names in a fragment, exact or by hashes, whichever is smaller; and
where there is little room, a Bloom filter::

    raw   = form (1 byte) | check (8 bytes) | payload
    text  = base64 of raw

    form 1, exact:   for each name its length (1 byte) and its UTF-8 bytes, in order
    form 2, hashes:  for each name the upper 24 bits of its XXH3 hash, big-endian, in order
    form 3, bloom:   how many bits each name sets (1 byte), then the bits
    check            XXH3 (64 bits) of the fragment's setsum in hex, the form, and the payload

The first two can be merged without the names, so a node of the manifest tree has the filter of all
that is below it. Bloom filters of different sizes cannot, and one with the error rate of these,
n / 2^24, would have more bytes up to a few thousand names. But they become as small as they must:
in the root, which is small, a rough filter for each fragment is better than none for some. A
fragment without any stream has the empty set: it is passed over, too.

The check binds a filter to the setsum of what it describes, which covers the stream names. So a
filter that was damaged, or belongs to something else, is no filter: what it describes is read.

Specified in docs/formats/streams.md.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Hashes = npt.NDArray[np.uint32]
Bits = npt.NDArray[np.uint8]

HASH_BITS = 24
LEAF_NAMES_MAX = 8_192
"""Streams in one fragment beyond which it has no filter: hardly any reader could skip it."""
MERGED_NAMES_MAX = 16_384
"""The same for all that is below a node."""

_EXACT, _HASHES, _BLOOM = 1, 2, 3
_BLOOM_BITS_MIN = 3
"""Bits for a name: with fewer, more than a quarter of all others would seem to be there."""
_LN2 = 0.693
_CHECK_BYTES = 8
_NAME_BYTES_MAX = 255
_EXACT_NAMES_MAX = 64
"""More names than this are smaller as hashes, unless they have one letter each."""


class StreamSet:
    """The streams of a fragment, or of many. Immutable."""

    __slots__ = ("hashes", "names")

    def __init__(self, hashes: Hashes, names: frozenset[str] | None) -> None:
        """Sorted hashes without repetition; `names` where all of them are known."""
        self.hashes = hashes
        self.names = names

    @classmethod
    def of(cls, names: Iterable[str]) -> StreamSet:
        """The set of these names."""
        known = frozenset(names)
        # One hash per stream, not per record.
        hashes = np.fromiter(map(_hash, known), np.uint32, len(known))
        return cls(np.unique(hashes), known if len(known) <= _EXACT_NAMES_MAX else None)

    def __len__(self) -> int:
        """How many streams, but for those whose hashes are equal."""
        return len(self.hashes)

    def may_hold(self, stream: str) -> bool:
        """Whether it can be in the set. False is certain."""
        if self.names is not None:
            return stream in self.names
        wanted = _hash(stream)
        at = int(np.searchsorted(self.hashes, wanted))
        return at < len(self.hashes) and int(self.hashes[at]) == wanted

    def encode(self, setsum_hex: str) -> str:
        """The text form, for what has this setsum."""
        form, payload = _HASHES, _pack(self.hashes)
        if self.names is not None:
            exact = _exact(self.names)
            if exact is not None and len(exact) <= len(payload):
                form, payload = _EXACT, exact
        return _text(setsum_hex, form, payload)


class Bloom:
    """A set that errs more often and cannot be merged, in as few bytes as there are."""

    __slots__ = ("_bits", "_marks")

    def __init__(self, bits: Bits, marks: int) -> None:
        """The bits, packed; each name sets `marks` of them."""
        self._bits = bits
        self._marks = marks

    @classmethod
    def of(cls, streams: StreamSet, num_bytes: int) -> Bloom | None:
        """A filter of so many bytes; None if that is too little to be of use."""
        per_name = 8 * num_bytes / max(1, len(streams))
        if per_name < _BLOOM_BITS_MIN:
            return None
        marks = min(16, max(1, round(per_name * _LN2)))
        bits = np.zeros(8 * num_bytes, np.bool_)
        bits[_places(streams.hashes, marks, 8 * num_bytes).ravel()] = True
        return cls(np.packbits(bits), marks)

    def may_hold(self, stream: str) -> bool:
        """Whether it can be in the set. False is certain."""
        places = _places(np.array([_hash(stream)], np.uint32), self._marks, 8 * len(self._bits))
        return bool(np.all(self._bits[places // 8] >> (7 - places % 8) & 1))

    def encode(self, setsum_hex: str) -> str:
        """The text form, for what has this setsum."""
        return _text(setsum_hex, _BLOOM, bytes([self._marks]) + self._bits.tobytes())


Filter = StreamSet | Bloom

EMPTY = StreamSet(np.zeros(0, np.uint32), frozenset())


def streams_of(column: pa.Array | pa.ChunkedArray | None) -> StreamSet | None:
    """The streams in a column; None if they are too many to be worth a filter."""
    if column is None or column.null_count == len(column):
        return EMPTY
    distinct = column.unique().drop_null()
    return StreamSet.of(distinct.to_pylist()) if len(distinct) <= LEAF_NAMES_MAX else None


def footer_text(streams: StreamSet | None, setsum_hex: str) -> str:
    """What a fragment with these streams says of them; nothing if it has none."""
    return streams.encode(setsum_hex) if streams else ""


def merge(sets: Iterable[Filter | None]) -> StreamSet | None:
    """Everything that is in any of them; None if one is not known, or it would be too large."""
    known: list[StreamSet] = []
    for one in sets:
        if not isinstance(one, StreamSet):
            return None
        known.append(one)
    if not known:
        return EMPTY
    hashes = np.unique(np.concatenate([one.hashes for one in known]))
    if len(hashes) > MERGED_NAMES_MAX:
        return None
    names: frozenset[str] | None = frozenset()
    for one in known:
        names = None if names is None or one.names is None else names | one.names
    if names is not None and len(names) > _EXACT_NAMES_MAX:
        names = None
    return StreamSet(hashes, names)


def encode_within(streams: StreamSet, setsum_hex: str, room: int) -> str | None:
    """A filter with at most so many letters, a rough one if need be; None if there is no room."""
    text = streams.encode(setsum_hex)
    if len(text) <= room:
        return text
    bloom = Bloom.of(streams, 3 * (room // 4) - 2 - _CHECK_BYTES)
    return None if bloom is None else bloom.encode(setsum_hex)


def decode(text: str, setsum_hex: str) -> Filter | None:
    """The set in a filter's text; None if it is damaged, or that of something else."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    form, check, payload = raw[:1], raw[1 : 1 + _CHECK_BYTES], raw[1 + _CHECK_BYTES :]
    if not form or check != _check(setsum_hex, form[0], payload):
        return None
    return _parse(form[0], payload)


def _parse(form: int, payload: bytes) -> Filter | None:
    """What has passed its check. Of another form, one of a later version, nothing is known."""
    if form == _EXACT:
        return StreamSet.of(_split(payload))
    if form == _HASHES and len(payload) % 3 == 0:
        return StreamSet(_unpack(payload), None)
    if form == _BLOOM and len(payload) > 1 and payload[0]:
        return Bloom(np.frombuffer(payload, np.uint8)[1:], payload[0])
    return None


def _text(setsum_hex: str, form: int, payload: bytes) -> str:
    raw = bytes([form]) + _check(setsum_hex, form, payload) + payload
    return base64.b64encode(raw).decode()


def _places(hashes: Hashes, marks: int, num_bits: int) -> npt.NDArray[np.int64]:
    """Which bits each hash sets, a row each: steps of a width of its own."""
    wide = hashes.astype(np.uint64)[:, None]
    start, step = wide * 0x9E3779B1 >> 7, (wide * 0x85EBCA77 >> 9) | 1
    steps = np.arange(marks, dtype=np.uint64)[None, :]
    return ((start + steps * step) % np.uint64(num_bits)).astype(np.int64)


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode()) >> (64 - HASH_BITS)


def _check(setsum_hex: str, form: int, payload: bytes) -> bytes:
    return xxhash.xxh3_64_digest(setsum_hex.encode() + bytes([form]) + payload)


def _exact(names: Iterable[str]) -> bytes | None:
    """The exact form; None where a name is too long for it."""
    encoded = sorted(name.encode() for name in names)
    if any(len(name) > _NAME_BYTES_MAX for name in encoded):
        return None
    return b"".join(bytes([len(name)]) + name for name in encoded)


def _split(payload: bytes) -> list[str]:
    names, at = [], 0
    while at < len(payload):
        end = at + 1 + payload[at]
        names.append(payload[at + 1 : end].decode())
        at = end
    return names


def _pack(hashes: Hashes) -> bytes:
    """Three bytes each."""
    return hashes.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()


def _unpack(payload: bytes) -> Hashes:
    wide = np.zeros((len(payload) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(payload, np.uint8).reshape(-1, 3)
    return wide.view(">u4").reshape(-1).astype(np.uint32)
