"""Frames: payloads in a file that is only appended to, and how to read it after a crash.

::

    file    header ‖ frame ‖ frame …
    frame   u32 mark ‖ u32 length ‖ u64 link ‖ u64 number ‖ u64 synced ‖ u64 time
            ‖ u32 kind ‖ u32 span ‖ payload ‖ zeros to a multiple of 8 ‖ u64 checksum (XXH3)

A checksum covers the file's salt, where the frame begins, and the frame, with its link: the
checksum of the frame before. So bytes of another file, of an earlier use of this one, or of another
place in it are never taken for a frame, and none is missing between two that link. What `number`,
`time`, `kind` and `span` say is up to who writes; numbers rise.

A file that was being written when the machine stopped may end in frames that are not whole. Nobody
was told that they are durable, and they are cut off: a *torn tail*. A frame that does not check out
although it was synced is *damage*: cutting there would throw away what somebody relies on, so it is
refused. What was synced is known from the frames themselves: each says how much of the file had
been synced when it was written. So whole frames are looked for behind a broken one, by the mark
that all frames of a file begin with, and asked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import xxhash

from cordwood.base.errors import CorruptionError
from cordwood.store.api import Buffer
from cordwood.store.disk import File

HEAD = struct.Struct("<IIQQQQII")
BEFORE = struct.Struct("<QQ")
SUM = struct.Struct("<Q")
ZEROS = bytes(7)
HEAD_BYTES = HEAD.size
OVERHEAD = HEAD.size + SUM.size
"""Bytes of a frame besides its payload, and up to seven zeros."""
JOINED_BYTES_MAX = 16384
"""Payloads up to this size are copied: that costs less than to handle the parts one by one."""

WINDOW_BYTES = 1 << 20
"""How much is read at once."""

SEARCHED_BYTES = 64 << 20
"""So far behind a broken frame whole ones are looked for."""


class Tail(NamedTuple):
    """Where the next frame of a file goes, and what it has to link to."""

    salt: int
    end: int
    number: int
    """The lowest number it may have."""
    checksum: int
    """Of the frame before."""


class Frame(NamedTuple):
    """One that is whole."""

    number: int
    span: int
    """How many numbers are its own."""
    kind: int
    synced: int
    time_us: int
    begin: int
    end: int
    link: int
    checksum: int
    payload: memoryview


class Scan(NamedTuple):
    """What a part of a file holds."""

    frames: list[Frame]
    tail: Tail


def first(salt: int, at: int) -> Tail:
    """The tail of a file that has no frames yet, and begins with a header."""
    return Tail(salt, at, 0, xxhash.xxh3_64_intdigest(struct.pack("<Q", salt)))


def framed(
    tail: Tail,
    payload: Sequence[Buffer],
    *,
    number: int,
    span: int = 1,
    kind: int = 0,
    synced: int = 0,
    time_us: int = 0,
) -> tuple[list[Buffer], Tail]:
    """The parts of a frame for the end of a file, a large payload not copied; and the tail behind.

    Numbers from `number` on, `span` of them, belong to it; the next frame has a higher one.
    """
    salt, end, _, link = tail
    length = sum(map(len, payload))
    head = HEAD.pack(sign(salt), length, link, number, synced, time_us, kind, span)
    zeros = ZEROS[: -length % 8]
    before = BEFORE.pack(salt, end)
    parts: list[Buffer]
    if length <= JOINED_BYTES_MAX:
        whole = b"".join((head, *payload, zeros))
        checksum = xxhash.xxh3_64_intdigest(before + whole)
        parts = [whole + SUM.pack(checksum)]
    else:
        hashed = xxhash.xxh3_64(before + head)
        for part in payload:
            hashed.update(part)
        hashed.update(zeros)
        checksum = hashed.intdigest()
        parts = [head, *payload, zeros + SUM.pack(checksum)]
    return parts, Tail(salt, end + OVERHEAD + length + len(zeros), number + span, checksum)


def frame_bytes(length: int) -> int:
    """How large the frame of a payload is."""
    return (OVERHEAD + length + 7) // 8 * 8


def needed_bytes(data: Any, tail: Tail) -> int | None:
    """How large the frame is that seems to follow a tail, by its head; None if there is none."""
    view = memoryview(data)
    if len(view) < HEAD.size:
        return None
    mark, length, *_ = HEAD.unpack_from(view)
    return frame_bytes(length) if mark == sign(tail.salt) else None


def scan(data: Any, tail: Tail) -> Scan:
    """The whole frames that follow a tail, one upon the other; `data` begins where it ends."""
    view = memoryview(data).cast("B")
    found: list[Frame] = []
    place = 0
    while (frame := _frame_at(view, place, tail.salt, tail.end)) is not None:
        if frame.link != tail.checksum or frame.number < tail.number:
            break
        found.append(frame)
        place += frame.end - frame.begin
        tail = behind(tail.salt, frame)
    return Scan(found, tail)


def whole_from(file: File, tail: Tail) -> Iterator[Frame]:
    """The frames of a file that follow a tail, one upon the other, as far as they are whole."""
    window = WINDOW_BYTES
    while True:
        data = file.read(tail.end, window)
        found = scan(data, tail)
        yield from found.frames
        if found.tail.end > tail.end:
            tail, window = found.tail, WINDOW_BYTES
            continue
        needed = needed_bytes(data, tail) or 0
        if not len(data) < needed <= file.stat().size_bytes - tail.end:
            return
        window = needed


def behind(salt: int, frame: Frame) -> Tail:
    """The tail of a file that ends with this frame."""
    return Tail(salt, frame.end, frame.number + frame.span, frame.checksum)


def whole_behind(data: Any, tail: Tail) -> Iterator[Frame]:
    """Whole frames somewhere behind a tail, where one that is broken may be."""
    region = memoryview(data).cast("B")[:SEARCHED_BYTES]
    mark = struct.pack("<I", sign(tail.salt))
    whole = bytes(region)
    at = whole.find(mark)
    while at >= 0:
        frame = _frame_at(region, at, tail.salt, tail.end + at)
        if frame is not None and frame.number >= tail.number:
            yield frame
        at = whole.find(mark, at + 1)


def whole_after(file: File, tail: Tail) -> Iterator[Frame]:
    """As `whole_behind`, anywhere in the rest of a file, of any length."""
    size = file.stat().size_bytes
    mark = struct.pack("<I", sign(tail.salt))
    start = tail.end
    while data := bytes(file.read(start, SEARCHED_BYTES)):
        at = data.find(mark)
        while at >= 0:
            place = start + at
            needed = needed_bytes(file.read(place, HEAD_BYTES), tail) or 0
            if 0 < needed <= size - place:
                view = memoryview(file.read(place, needed)).cast("B")
                frame = _frame_at(view, 0, tail.salt, place)
                if frame is not None and frame.number >= tail.number:
                    yield frame
            at = data.find(mark, at + 1)
        # The next part begins with the end of this one: a mark may lie across.
        start += len(data) if start + len(data) >= size else len(data) - len(mark) + 1


def check_tail(data: Any, tail: Tail, *, synced: int, name: str) -> None:
    """Make sure that what follows a tail, and is no whole frame, may be cut off.

    Raises:
        CorruptionError: it was synced, so it is damaged, or gone.
    """
    if tail.end < synced:
        raise damage(name, tail.end, f"{synced} bytes of it were synced")
    for frame in whole_behind(data, tail):
        if frame.synced > tail.end:
            raise damage(name, tail.end, f"the frame at {frame.begin} says that it was synced")


def damage(name: str, place: int, why: str) -> CorruptionError:
    """The error for a file that is broken where it must not be."""
    return CorruptionError(
        f"{name} is damaged at byte {place}: {why}",
        where=name,
        hint="keep the file; bring it back from a copy",
    )


def _frame_at(view: memoryview, place: int, salt: int, begin: int) -> Frame | None:
    """The frame at this place of what was read, which is that of a file, if it is whole."""
    if len(view) - place < OVERHEAD:
        return None
    mark, length, link, number, synced, time_us, kind, span = HEAD.unpack_from(view, place)
    size = frame_bytes(length)
    if mark != sign(salt) or size > len(view) - place:
        return None
    hashed = xxhash.xxh3_64(BEFORE.pack(salt, begin))
    hashed.update(view[place : place + size - SUM.size])
    (checksum,) = SUM.unpack_from(view, place + size - SUM.size)
    if hashed.intdigest() != checksum:
        return None
    body = place + HEAD.size
    payload = view[body : body + length]
    return Frame(number, span, kind, synced, time_us, begin, begin + size, link, checksum, payload)


def sign(salt: int) -> int:
    """What all frames of a file begin with: never zeros, which fill what is not yet written."""
    return (salt ^ salt >> 32) & 0xFFFFFFFF | 1
