"""Marks: their bytes, and what several of them say together."""

from __future__ import annotations

import pytest

from cordwood.base.errors import CorruptionError
from cordwood.fleet.marks import REINSERTS_MAX, Mark, again, decode, encode, gather, still

MARK = Mark("tenants/0001/events", 42, 1_700_000_000_000_000, 3)
PURGE = MARK._replace(is_purge=True, reinserts=0)


@pytest.mark.parametrize("mark", [MARK, PURGE, Mark("a", 0, 0), Mark("a", 2**63 - 1, 2**63 - 1)])
def test_what_is_encoded_is_decoded(mark):
    """Every field comes back."""
    assert mark == decode(encode(mark), "here")


def test_the_bytes_are_those_of_the_page():
    """Kind, reinsertions, offset, time, name: as docs/formats/fleet.md has them."""
    expected = "01 0003 000000000000002a 00060a24181e4000".replace(" ", "")
    assert bytes.fromhex(expected) + b"tenants/0001/events" == encode(MARK)
    assert b"\x02" == encode(PURGE)[:1]


def test_a_mark_is_small():
    """About 48 bytes: 19 and the name."""
    assert 19 + len(MARK.log) == len(encode(MARK)) < 48


def test_reinsertions_stay_at_their_limit():
    """A mark that nobody ends does not overflow."""
    assert REINSERTS_MAX == decode(encode(MARK._replace(reinserts=10**9)), "here").reinserts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        encode(MARK)[:19],
        b"\x03" + encode(MARK)[1:],
        b"\x00" + encode(MARK)[1:],
        encode(MARK) + b"\xff",
        encode(MARK) + b"/",
        encode(MARK)[:19] + b"../x",
        encode(MARK)[:3] + b"\xff" * 8 + encode(MARK)[11:],
        encode(MARK) + b"x" * 600,
    ],
)
def test_what_is_no_mark_is_refused(body):
    """Cut short, of an unknown kind, with a name or a number that cannot be one."""
    with pytest.raises(CorruptionError):
        decode(body, "here")


def test_marks_of_a_log_are_taken_together():
    """The first time is the earliest, the reinsertions are the most."""
    said = gather([Mark("a", 5, 200, 1), Mark("b", 1, 1), Mark("a", 9, 100, 4)])
    assert ["a", "b"] == list(said)
    assert (100, 4, 0) == (said["a"].first_us, said["a"].reinserts, said["a"].purged_to)
    assert Mark("a", 5, 100, 5) == still("a", said["a"])


def test_a_purge_takes_back_only_what_came_before_it():
    """Order counts: the marks after a purge stay."""
    # EVIDENCE-OF: G-54
    before, purge, after = Mark("a", 5, 1), Mark("a", 7, 2, is_purge=True), Mark("a", 7, 3)
    other = Mark("b", 1, 1)
    assert ((purge,), 7) == gather([before, other, purge])["a"]
    assert ((after,), 0) == gather([before, purge, other, after])["a"]
    assert ((after, before), 0) == gather([purge, after, before])["a"]
    assert ((other,), 0) == gather([before, other, purge])["b"]


def test_a_mark_written_again_keeps_its_first_time():
    """One more reinsertion, the same time: age and count go on."""
    said = gather([Mark("a", 5, 200, 1), Mark("a", 9, 100, 4)])["a"]
    assert Mark("a", 5, 100, 5) == again("a", said, 3, 999)


def test_marks_of_what_was_compacted_no_longer_count():
    """Trickle writes: a log compacted up to its newest records is as young as these."""
    said = gather([Mark("a", 5, 100, 7), Mark("a", 9, 300, 1)])["a"]
    assert Mark("a", 9, 300, 2) == again("a", said, 8, 999)
    assert Mark("a", 20, 999, 0) == again("a", said, 20, 999)
