"""One durable entry, worked out at once: its frame, and what the tail says of it.

The bytes are those of a turn (frames.py, mark.py), which goes there in many small steps. After a
sync the processor has forgotten the program, and takes two to three times as long for each of them:
where one entry is synced after the other, that was a tenth of the time.
"""

from __future__ import annotations

from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from cordwood.journal.frames import BEFORE, HEAD, SUM, ZEROS, sign
from cordwood.journal.mark import MARK, SLOT_BYTES, Mark

PAYLOAD_BYTES_MAX = 1 << 17
"""Larger ones are not copied, and take a turn."""

Lane: TypeAlias = tuple[int, int, int, int, int, int, int, bytes]
"""A mark of which all is synced: its turn, salt, base, end, number, checksum and newest time; and
both slots of the file `tail`."""


def lane_of(mark: Mark, slots: bytes) -> Lane | None:
    """Where the next entry goes, if it may go there at once."""
    if mark.is_closed or mark.end != mark.synced_end:
        return None
    return *mark[:6], mark.newest_us, slots


def mark_of(lane: Lane) -> Mark:
    """The mark of it."""
    turn, salt, base, end, number, checksum, newest_us, _ = lane
    return Mark(turn, salt, base, end, number, checksum, end, number, checksum, newest_us)


def entered(lane: Lane, payload: bytes, time_us: int) -> tuple[bytes, bytes, Lane]:
    """The next entry: its frame, the slot that says that it is there, and the lane behind it."""
    turn, salt, base, end, number, link, newest_us, slots = lane
    length = len(payload)
    frame = HEAD.pack(sign(salt), length, link, number, end, time_us, 0, 1) + payload
    if length % 8:
        frame += ZEROS[: -length % 8]
    checksum = xxh3_64_intdigest(BEFORE.pack(salt, end) + frame)
    frame += SUM.pack(checksum)
    turn, end, number = turn + 1, end + len(frame), number + 1
    newest_us = max(newest_us, time_us)
    slot = MARK.pack(turn, salt, base, end, number, checksum, end, number, checksum, newest_us, 0)
    slot += SUM.pack(xxh3_64_intdigest(slot))
    slots = slots[:SLOT_BYTES] + slot if turn % 2 else slot + slots[SLOT_BYTES:]
    return frame, slot, (turn, salt, base, end, number, checksum, newest_us, slots)
