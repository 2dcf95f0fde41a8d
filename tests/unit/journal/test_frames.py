"""Frames of a file: what a crash leaves is cut off, damage is refused, nothing foreign is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import CorruptionError
from cordwood.journal import frames
from cordwood.journal.frames import OVERHEAD

SALT = 0x0123456789ABCDEF
BASE = 64
START = frames.first(SALT, BASE)
PAYLOADS = [b"first", b"", b"third " * 9, b"\xff" * 20]


def written(payloads, *, start=START, claims=True):
    """A file of frames, and the tail behind each; each says that all before it was synced."""
    data, tails, tail = b"", [], start
    for payload in payloads:
        synced = tail.end if claims else 0
        parts, tail = frames.framed(tail, [payload], number=tail.number, synced=synced)
        data += b"".join(parts)
        tails.append(tail)
    return data, tails


def scanned(data, *, synced=0, start=START):
    """The payloads that are found, and where the next frame goes; what follows was judged."""
    found = frames.scan(data, start)
    rest = data[found.tail.end - start.end :]
    frames.check_tail(rest, found.tail, synced=synced, name="file")
    return [bytes(frame.payload) for frame in found.frames], found.tail


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_what_was_written_is_read(payloads):
    """All payloads, in order; and the place for the next."""
    data, tails = written(payloads)
    assert (payloads, [START, *tails][-1]) == scanned(data, synced=BASE + len(data))
    assert len(data) % 8 == 0
    assert len(data) == sum(frames.frame_bytes(len(payload)) for payload in payloads)


def test_a_payload_may_come_in_parts_and_frames_say_what_they_are_told():
    """Nothing is joined before it is written."""
    parts, tail = frames.framed(
        START, [b"ab", memoryview(b"cde")], number=7, span=3, kind=2, synced=5, time_us=6
    )
    (frame,) = frames.scan(b"".join(parts), START).frames
    assert (b"abcde", 7, 3, 2, 5, 6) == (bytes(frame.payload), *frame[:5])
    assert (10, BASE, tail.end) == (tail.number, frame.begin, frame.end)


def test_reading_goes_on_from_any_frame():
    """Who has read a part reads the rest only."""
    data, tails = written(PAYLOADS)
    for count, tail in enumerate(tails, 1):
        rest = scanned(data[tail.end - BASE :], start=tail, synced=tails[-1].end)
        assert (PAYLOADS[count:], tails[-1]) == rest


def test_a_tail_torn_at_every_byte_is_cut_off():
    """All frames before it are read, and the next goes where it began."""
    data, tails = written(PAYLOADS)
    for size in range(len(data)):
        whole = sum(tail.end - BASE <= size for tail in tails)
        tail = tails[whole - 1] if whole else START
        assert (PAYLOADS[:whole], tail) == scanned(data[:size], synced=tail.end)


def test_a_tail_of_zeros_or_of_rubbish_is_cut_off():
    """A file system may have made room and written nothing, or something else."""
    data, tails = written(PAYLOADS[:3])
    for tail in (bytes(1), bytes(500), b"\xff" * 77, data[:40]):
        assert (PAYLOADS[:3], tails[-1]) == scanned(data + tail, synced=tails[-1].end)


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_damage_at_every_byte_of_what_was_synced_is_refused(flip):
    """Nothing synced is ever cut off, wherever it is damaged."""
    data, tails = written(PAYLOADS)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        with pytest.raises(CorruptionError, match="synced"):
            scanned(bytes(damaged), synced=tails[-1].end)


@pytest.mark.parametrize("flip", [0x01, 0xFF])
def test_frames_behind_damage_say_that_it_was_synced(flip):
    """Without knowing what was synced from elsewhere; only the last frame cannot be judged."""
    data, tails = written(PAYLOADS)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        if place < tails[-2].end - BASE:
            with pytest.raises(CorruptionError, match="says that it was synced"):
                scanned(bytes(damaged))
        else:
            assert (PAYLOADS[:3], tails[2]) == scanned(bytes(damaged))


def test_without_syncs_only_what_was_synced_is_proof():
    """A torn frame with whole ones behind it is what a power cut leaves of unsynced appends."""
    data, tails = written(PAYLOADS, claims=False)
    torn = data[: tails[1].end - BASE] + bytes(10) + data[tails[1].end - BASE + 10 :]
    assert (PAYLOADS[:2], tails[1]) == scanned(torn, synced=tails[0].end)
    with pytest.raises(CorruptionError):
        scanned(torn, synced=tails[2].end)


def test_a_file_that_lost_its_end_is_refused():
    """Cut exactly between two frames: only what was synced tells."""
    data, tails = written(PAYLOADS)
    with pytest.raises(CorruptionError, match="were synced"):
        scanned(data[: tails[1].end - BASE], synced=tails[-1].end)


def test_frames_of_another_file_are_none():
    """Bytes of an earlier use of the same blocks are never taken for this file's."""
    data, tails = written(PAYLOADS)
    other = written(PAYLOADS, start=frames.first(SALT + 1, BASE))[0]
    assert ([], START) == scanned(other)
    # Behind frames of ours as well: there they are a torn tail.
    assert (PAYLOADS, tails[-1]) == scanned(data + other)
    # So are our own once more: the chain goes on only from the last.
    assert (PAYLOADS, tails[-1]) == scanned(data + data)


def test_frames_that_were_moved_are_none():
    """Each is bound to its place; what was synced tells that something is missing."""
    data, tails = written(PAYLOADS)
    for moved in (
        data[tails[0].end - BASE :],
        data[: tails[0].end - BASE] + data[tails[1].end - BASE :],
    ):
        assert len(scanned(moved)[0]) < 2
        with pytest.raises(CorruptionError, match="were synced"):
            scanned(moved, synced=tails[-1].end)


def test_a_payload_that_is_a_copy_of_the_file_is_no_evidence():
    """Somebody may append the bytes of a journal to itself: torn, they claim nothing of here."""
    data, tails = written(PAYLOADS)
    again, _ = written([data], start=tails[-1])
    torn = data + bytes(8) + again[8:-8] + bytes(8)
    assert (PAYLOADS, tails[-1]) == scanned(torn)


def test_a_length_that_lies_is_no_reason_to_read_on():
    """The largest length there is does not lead behind the end."""
    data, _ = written([b"abc"])
    assert ([], START) == scanned(data[:4] + b"\xff\xff\xff\xff" + data[8:])
    assert OVERHEAD + 8 == len(data)
