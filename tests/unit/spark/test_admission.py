"""Admission: within the limits, fair, always some progress, appends kept whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.log.format import Fragment
from cordwood.spark.admission import Allowance, Backlog, admit


def backlog(*fragments, start=1):
    """Fragments of these (records, bytes), from offset 1 on; read up to `start`."""
    found, at = [], 1
    for i, (records, num_bytes) in enumerate(fragments):
        found.append(Fragment.of(f"log/{i}", i + 1, at, at + records, num_bytes, "0" * 64))
        at += records
    return Backlog(start, [f for f in found if f.limit > start])


BACKLOGS = st.lists(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=12).map(
        lambda fragments: backlog(*fragments)
    ),
    min_size=1,
    max_size=5,
)
LIMITS = st.builds(
    Allowance,
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 20_000),
    st.none() | st.integers(1, 20),
).filter(lambda allowance: not allowance.is_unlimited)


def taken(backlogs, ends):
    """The fragments that a batch touches, of all logs."""
    return [f for b, end in zip(backlogs, ends, strict=True) for f in b.fragments if f.start < end]


@given(BACKLOGS, LIMITS, st.integers(0, 9))
def test_a_batch_is_within_its_limits_and_never_empty(backlogs, allowance, turn):
    """But for a first fragment that is over a limit by itself; records are never too many."""
    ends = admit(backlogs, allowance, turn)
    batch = taken(backlogs, ends)
    records = sum(end - b.start for b, end in zip(backlogs, ends, strict=True))
    assert bool(batch) == any(b.fragments for b in backlogs)
    assert allowance.records is None or records <= allowance.records
    if len(batch) > 1:
        assert allowance.fragments is None or len(batch) <= allowance.fragments
        assert allowance.num_bytes is None or sum(f.num_bytes for f in batch) <= allowance.num_bytes


@given(BACKLOGS, LIMITS, st.integers(0, 9))
def test_a_batch_ends_between_fragments(backlogs, allowance, turn):
    """Unless one fragment alone has more records than a batch may have."""
    ends = admit(backlogs, allowance, turn)
    for b, end in zip(backlogs, ends, strict=True):
        limits = {b.start, *(f.limit for f in b.fragments)}
        assert end in limits or end - b.start == allowance.records


@given(BACKLOGS, LIMITS)
def test_everything_is_read_in_the_end(backlogs, allowance):
    """Batch after batch every log comes to its end, whatever the limits are."""
    wanted = [b.fragments[-1].limit if b.fragments else b.start for b in backlogs]
    for turn in range(4000):
        if [b.start for b in backlogs] == wanted:
            break
        ends = admit(backlogs, allowance, turn)
        backlogs = [
            Backlog(end, [f for f in b.fragments if f.limit > end])
            for b, end in zip(backlogs, ends, strict=True)
        ]
    assert [b.start for b in backlogs] == wanted


def test_a_log_far_behind_takes_no_more_than_its_share():
    """Two logs of ten records a fragment share sixty records, however much the first has."""
    far, near = backlog(*[(10, 1)] * 100), backlog(*[(10, 1)] * 5)
    assert admit([far, near], Allowance(records=60), 0) == [31, 31]


def test_what_one_log_does_not_need_is_there_for_the_others():
    """The shares of those that have little go to those that have more."""
    far, little, none = backlog(*[(10, 1)] * 100), backlog((10, 1)), backlog()
    assert admit([far, little, none], Allowance(records=60), 0) == [51, 11, 1]


def test_a_large_fragment_comes_first_some_time():
    """A log whose next fragment fits into no shared batch has one when it is its turn."""
    large, small = backlog((10, 900)), backlog(*[(10, 100)] * 50)
    allowance = Allowance(num_bytes=500)
    assert admit([large, small], allowance, 1) == [1, 51]
    assert admit([large, small], allowance, 0) == [11, 1]


def test_a_batch_begins_inside_a_fragment_that_was_cut():
    """The rest of it counts, not the whole."""
    assert admit([backlog((100, 10), (5, 10), start=81)], Allowance(records=25), 0) == [106]
    assert admit([backlog((100, 10), start=1)], Allowance(records=25), 0) == [26]
