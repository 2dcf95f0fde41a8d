"""Generated streams: both sides compute what comes next, so each can check the other. No I/O.

A stream is a chain of numbers; each is the hash of the one before, and the first is the hash of the
stream's name. A record says its stream, its place in it, and the number there, followed by as much
padding as the number asks for. Whoever has read a stream up to a place knows the next record to the
last byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import xxhash

PADDING_MAX = 300
MARKER = b"marker "
"""Records that belong to no stream: a writer appends one to close the places of its predecessor."""


class Place(NamedTuple):
    """How far a stream has come."""

    number: int
    """Records so far."""
    state: int
    """The number of the next one."""


def begin(stream: str) -> Place:
    """A stream before its first record."""
    return Place(0, xxhash.xxh3_64_intdigest(stream.encode()))


def after(place: Place) -> Place:
    """One record on."""
    return Place(place.number + 1, xxhash.xxh3_64_intdigest(place.state.to_bytes(8, "big")))


def record(stream: str, place: Place) -> bytes:
    """The record at a place of a stream."""
    padding = b"." * (place.state % PADDING_MAX)
    return f"{stream} {place.number} {place.state:016x} ".encode() + padding


def choose(streams: int, chance: float) -> int:
    """A stream by a chance in [0, 1): the first ones far more often than the last."""
    return int(streams * chance**4)


class Follower:
    """Reads streams and compares them with what they must be."""

    def __init__(self, places: Mapping[str, tuple[int, int]] | None = None) -> None:
        """From the beginning, or from where the streams stood."""
        self.places = {name: Place(*place) for name, place in (places or {}).items()}
        self.num_records = 0

    def check(self, offset: int, body: bytes) -> str | None:
        """Take one record; what is wrong with it, if anything is."""
        self.num_records += 1
        if body.startswith(MARKER):
            return None
        stream = body.split(b" ", 1)[0].decode(errors="replace")
        place = self.places.get(stream) or begin(stream)
        expected = record(stream, place)
        self.places[stream] = after(place)
        if body == expected:
            return None
        got, wanted = body[:60], expected[:60]
        return f"offset {offset}: expected {wanted!r}, got {got!r}"

    def behind(self, durable: Mapping[str, int]) -> list[str]:
        """Streams of which less was read than was durable."""
        return [
            f"stream {name}: {count} records were durable, {found} were read"
            for name, count in durable.items()
            if (found := self.places[name].number if name in self.places else 0) < count
        ]
