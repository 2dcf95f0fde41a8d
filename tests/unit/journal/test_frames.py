"""Frames of a file: what a crash leaves is cut off, damage is refused, nothing foreign is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import CorruptionError
from cordwood.journal.frames import OVERHEAD, frame, scan

SALT = 0x0123456789ABCDEF
BASE = 64
PAYLOADS = [b"first", b"", b"third " * 9, b"\xff" * 20]


def written(payloads, *, salt=SALT, base=BASE, number=0):
    """A file of frames, and where each ends."""
    data, ends = b"", []
    for place, payload in enumerate(payloads):
        data += frame(payload, salt=salt, offset=base + len(data), number=number + place)
        ends.append(base + len(data))
    return data, ends


def scanned(data, *, synced=0, salt=SALT, base=BASE, number=0, strict=True):
    """What is found."""
    return scan(
        data, base=base, number=number, salt=salt, synced=synced, name="file", strict=strict
    )


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_what_was_written_is_read(payloads):
    """All payloads, in order; and the place for the next."""
    data, _ = written(payloads)
    assert (payloads, BASE + len(data), False) == scanned(data, synced=BASE + len(data))


def test_reading_goes_on_from_any_frame():
    """Who has read a part reads the rest only."""
    data, ends = written(PAYLOADS)
    for count, end in enumerate(ends, 1):
        rest = scanned(data[end - BASE :], base=end, number=count, synced=ends[-1])
        assert (PAYLOADS[count:], ends[-1], False) == rest


def test_a_tail_torn_at_every_byte_is_cut_off():
    """All frames before it are read, and the next goes where it began."""
    data, ends = written(PAYLOADS)
    for size in range(len(data)):
        whole = sum(end - BASE <= size for end in ends)
        begin = ends[whole - 1] if whole else BASE
        found = scanned(data[:size], synced=begin)
        assert (PAYLOADS[:whole], begin, begin - BASE < size) == found


def test_a_tail_of_zeros_or_of_rubbish_is_cut_off():
    """A file system may have made room and written nothing, or something else."""
    data, ends = written(PAYLOADS[:3])
    for tail in (bytes(1), bytes(500), b"\xff" * 77, data[:40]):
        assert (PAYLOADS[:3], ends[-1], True) == scanned(data + tail, synced=ends[-1])


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_damage_at_every_byte_of_what_was_synced_is_refused(flip):
    """Nothing synced is ever cut off, wherever it is damaged."""
    data, ends = written(PAYLOADS)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        with pytest.raises(CorruptionError, match="synced"):
            scanned(bytes(damaged), synced=ends[-1])


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_damage_in_the_middle_is_refused_without_knowing_what_was_synced(flip):
    """Whole frames behind a broken one show that it is no torn tail; the last cannot be judged."""
    data, ends = written(PAYLOADS)
    for place in range(ends[-2] - BASE):
        damaged = bytearray(data)
        damaged[place] ^= flip
        with pytest.raises(CorruptionError, match="behind"):
            scanned(bytes(damaged))
    for place in range(ends[-2] - BASE, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        assert (PAYLOADS[:3], ends[-2], True) == scanned(bytes(damaged))


def test_without_syncs_only_what_was_synced_is_proof():
    """A torn frame with whole ones behind it is what a power cut leaves of unsynced appends."""
    data, ends = written(PAYLOADS)
    torn = data[: ends[1] - BASE] + bytes(10) + data[ends[1] - BASE + 10 :]
    assert (PAYLOADS[:2], ends[1], True) == scanned(torn, synced=ends[0], strict=False)
    with pytest.raises(CorruptionError):
        scanned(torn, synced=ends[2], strict=False)


def test_a_file_that_lost_its_end_is_refused():
    """Cut exactly between two frames: only what was synced tells."""
    data, ends = written(PAYLOADS)
    with pytest.raises(CorruptionError, match="it ends"):
        scanned(data[: ends[1] - BASE], synced=ends[-1])


def test_frames_of_another_file_place_or_number_are_none():
    """Bytes of an earlier use of the same blocks are never taken for this file's."""
    data, _ = written(PAYLOADS)
    for other in (
        written(PAYLOADS, salt=SALT + 1)[0],
        written(PAYLOADS, base=BASE + 1)[0],
        written(PAYLOADS, number=7)[0],
    ):
        assert ([], BASE, True) == scanned(other)
        # Behind frames of ours as well: there they are a torn tail.
        assert (PAYLOADS, BASE + len(data), True) == scanned(data + other)


def test_a_frame_that_is_missing_is_damage():
    """The one after it, in its place, is whole: something was taken out."""
    with pytest.raises(CorruptionError, match="behind"):
        scanned(written(PAYLOADS, number=1)[0])


def test_a_length_that_lies_is_no_reason_to_read_on():
    """The largest length there is does not lead behind the end."""
    data, _ = written([b"abc"])
    assert ([], BASE, True) == scanned(b"\xff\xff\xff\xff" + data[4:])
    assert OVERHEAD + 3 == len(data)
