"""Frames: payloads in a file that is only appended to, and how to read it after a crash.

::

    file    header ‖ frame ‖ frame …
    frame   u32 length ‖ u64 number ‖ payload ‖ u32 CRC-32C

Frames are numbered from 0 in their file. The checksum covers the file's salt, where the frame
begins, its length, its number and its payload: so bytes of another file, of an earlier use of this
one, or of another place in it are never taken for a frame.

A file that was being written when the machine stopped may end in a frame that is not whole. Nobody
was told that it is durable, and it is cut off: a *torn tail*. A frame that does not check out
although it was synced, or although whole frames lie behind it, is *damage*: cutting there would
throw away what somebody relies on, so it is refused. `synced` is how much of the file is known to
have been synced; the last frame of a file that says nothing about it cannot be judged otherwise.

Where appends do not wait for the disk, a power cut may leave whole frames behind one that is torn:
who writes like that reads without `strict`, and then only what was synced is proof of damage.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import google_crc32c

from cordwood.base.errors import CorruptionError

_HEAD = struct.Struct("<IQ")
_PLACE = struct.Struct("<QQ")
_SUM = struct.Struct("<I")
OVERHEAD = _HEAD.size + _SUM.size
"""Bytes of a frame besides its payload."""

SEARCHED_BYTES = 64 << 20
"""So far behind a broken frame whole ones are looked for."""


class Scan(NamedTuple):
    """What a file holds."""

    payloads: list[bytes]
    end: int
    """Where the last whole frame ends, and the next one goes."""
    is_torn: bool
    """Whether something lies behind it that is to be cut off."""


def frame(payload: bytes, *, salt: int, offset: int, number: int) -> bytes:
    """A frame for this place of a file."""
    head = _HEAD.pack(len(payload), number)
    return head + payload + _SUM.pack(_checksum(salt, offset, head, payload))


def scan(
    data: Any,
    *,
    base: int,
    number: int,
    salt: int,
    synced: int,
    name: str,
    strict: bool = True,
) -> Scan:
    """All frames in the part of a file that begins at `base`, the first with this number.

    Raises:
        CorruptionError: one in the middle is damaged, or one that was synced.
    """
    part = _Part(memoryview(data), base, salt)
    payloads: list[bytes] = []
    place = 0
    while place < len(part.view):
        payload = part.frame_at(place, number)
        if payload is None:
            if base + place < synced:
                raise _damage(name, base + place, "it was synced and does not match its checksum")
            if strict and _has_frame_behind(part, place, number):
                raise _damage(name, base + place, "whole frames lie behind one that is broken")
            return Scan(payloads, base + place, is_torn=True)
        payloads.append(payload)
        place += OVERHEAD + len(payload)
        number += 1
    if base + place < synced:
        raise _damage(name, base + place, f"it ends, and {synced} bytes of it were synced")
    return Scan(payloads, base + place, is_torn=False)


class _Part(NamedTuple):
    """A part of a file."""

    view: memoryview
    base: int
    salt: int

    def frame_at(self, place: int, number: int) -> bytes | None:
        """The payload of the frame of this number, if the whole of it is at this place."""
        view = self.view
        if len(view) - place < OVERHEAD:
            return None
        length, found = _HEAD.unpack_from(view, place)
        if found != number or length > len(view) - place - OVERHEAD:
            return None
        body = place + _HEAD.size
        payload = bytes(view[body : body + length])
        (expected,) = _SUM.unpack_from(view, body + length)
        got = _checksum(self.salt, self.base + place, bytes(view[place:body]), payload)
        return payload if got == expected else None


def _has_frame_behind(part: _Part, place: int, number: int) -> bool:
    """Whether the frame after this one is there, whole."""
    # The next frame has the next number, behind four bytes of length.
    wanted = struct.pack("<Q", number + 1)
    region = bytes(part.view[place : place + SEARCHED_BYTES])
    at = region.find(wanted)
    while at >= 0:
        if at >= 4 and part.frame_at(place + at - 4, number + 1) is not None:
            return True
        at = region.find(wanted, at + 1)
    return False


def _damage(name: str, place: int, why: str) -> CorruptionError:
    return CorruptionError(
        f"{name} is damaged at byte {place}: {why}",
        where=name,
        hint="keep the file; bring it back from a copy",
    )


def _checksum(salt: int, offset: int, head: bytes, payload: bytes) -> int:
    checked: int = google_crc32c.value(_PLACE.pack(salt, offset) + head + payload)
    return checked
