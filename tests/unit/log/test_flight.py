"""Flights: what a fragment is built from, and what became of it after its writer was refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.errors import Code, InternalError, StoreError, UncertainError
from cordwood.base.setsum import Setsum
from cordwood.log import fragment as fragments
from cordwood.log import paths
from cordwood.log.batch import Batch
from cordwood.log.flight import Fate, Flight, Stage, build, judge, not_written, uncertain
from cordwood.log.format import ZERO, Fragment, Manifest, Position
from cordwood.log.recovery import Tail

COMMITTED, DEAD, UNCERTAIN = Fate.COMMITTED, Fate.DEAD, Fate.UNCERTAIN
STAMP = 1_700_000_000_000_000


class Silent:
    """A waiter that nobody listens to."""

    def done(self):
        """It went away."""
        return True


def batch_of(*bodies, key=None):
    """A batch of single records."""
    batch = Batch()
    for body in bodies:
        if key is None:
            batch.add_row(body, len(body), Silent())
        else:
            batch.add_full_row((body, key, None, None), len(body), Silent())
    return batch


def tail_at(next_seq_no, next_offset=1):
    """A log that ends there."""
    return Tail("t" * 32, ZERO, next_offset, next_seq_no, STAMP)


def manifest_from(first_seq_no=None):
    """A manifest whose collected part ends at this slot."""
    collected = (
        {}
        if first_seq_no is None
        else {"initial_seq_no": first_seq_no, "initial_offset_position": Position(50)}
    )
    return Manifest(setsum_hex=ZERO, acc_bytes=0, writer="", nodes=(), fragments=(), **collected)


def flight_at(seq_no, stage):
    """A fragment of ours in this slot."""
    link = fragments.Link(f"{seq_no:032x}", seq_no, seq_no + 1, STAMP, ZERO, "", ZERO)
    pointer = Fragment.of(paths.fragment(seq_no), seq_no, seq_no, seq_no + 1, 1, ZERO)
    return Flight(batch_of(b""), seq_no, link, pointer, False, stage)


# Building.


def test_a_flight_follows_its_tail():
    """Slot, offsets and predecessor are those the tail says, and the bytes are what it claims."""
    tail = Tail("p" * 32, Setsum().insert(b"x").hexdigest(), 41, 9, STAMP)
    flight, data = build(batch_of(b"a", b"b"), tail, STAMP + 1, "w" * 32, "snappy")
    assert (9, 41, 43) == (flight.seq_no, flight.fragment.start, flight.fragment.limit)
    assert tail.is_followed_by(flight.link)
    assert (STAMP + 1, "w" * 32) == (flight.link.at, flight.link.id)
    assert (False, Stage.FLYING) == (flight.has_columns, flight.stage)
    table = fragments.decode(data, flight.fragment)
    assert [b"a", b"b"] == table.column("body").to_pylist()
    _, link = fragments.inspect(data, "slot")
    assert (flight.link.id, flight.link.prev_id) == (link.id, link.prev_id)


def test_a_flight_with_keys_knows_its_columns():
    """The manifest will have to declare them."""
    flight, _ = build(batch_of(b"a", key=b"k"), tail_at(1), STAMP, "w" * 32, "none")
    assert flight.has_columns


def test_flights_form_a_chain():
    """The tail after one is what the next one follows."""
    first, _ = build(batch_of(b"a"), tail_at(5), STAMP, "1" * 32, "none")
    tail = tail_at(5).after(first.link, first.seq_no)
    second, _ = build(batch_of(b"b", b"c"), tail, STAMP, "2" * 32, "none")
    assert ("1" * 32, first.link.setsum) == (second.link.prev_id, second.link.prev_setsum)
    assert (6, 2) == (second.seq_no, second.fragment.start)
    assert (7, 4) == tuple(tail.after(second.link, 6)[i] for i in (3, 2))


def test_what_landed_is_known_without_reading():
    """Recovery gets pointer, link, columns and streams from the flight."""
    flight = flight_at(3, Stage.LANDED)
    assert (flight.fragment, flight.link, False, flight.streams) == tuple(flight.landed())


# Judging: (stages in slots 5, 6, …; the log's next slot; the first slot not collected; which are
# named) -> fates.

CASES = {
    "everything was named": ("LL", 7, None, {5, 6}, [COMMITTED, COMMITTED]),
    "named although its answer was lost": ("U", 6, None, {5}, [COMMITTED]),
    "named in a collected part that still names it": ("L", 9, 3, {5}, [COMMITTED]),
    "slot taken by another": ("R", 6, None, set(), [DEAD]),
    "slot taken, so all behind it are dead": ("RLL", 6, None, set(), [DEAD, DEAD, DEAD]),
    "dead behind a refused one even where nobody looked": ("RU", 6, None, set(), [DEAD, DEAD]),
    "first named, second refused": ("LRL", 7, None, {5}, [COMMITTED, DEAD, DEAD]),
    "failed for certain": ("F", 5, None, set(), [DEAD]),
    "failed for certain, the next landed behind nothing": ("FL", 5, None, set(), [DEAD, DEAD]),
    "landed and passed by: void": ("L", 6, None, set(), [DEAD]),
    "unknown and passed by: void or never there": ("U", 6, None, set(), [DEAD]),
    "void, and so is what follows": ("LL", 6, None, set(), [DEAD, DEAD]),
    "first named, second passed by": ("LL", 7, None, {5}, [COMMITTED, DEAD]),
    "unknown in the slot where the log ends": ("U", 5, None, set(), [UNCERTAIN]),
    "unknown, then landed behind it": ("UL", 5, None, set(), [UNCERTAIN, UNCERTAIN]),
    "named, then unknown at the end": ("LU", 6, None, {5}, [COMMITTED, UNCERTAIN]),
    "unknown at the end, then refused": ("UR", 5, None, set(), [UNCERTAIN, DEAD]),
    "unknown at the end, then failed": ("UF", 5, None, set(), [UNCERTAIN, DEAD]),
    "landed in a slot that was collected": ("L", 9, 9, set(), [UNCERTAIN]),
    "unknown in a slot that was collected": ("U", 9, 9, set(), [UNCERTAIN]),
    "refused in a slot that was collected": ("R", 9, 9, set(), [DEAD]),
    "one collected, one passed by": ("LL", 9, 6, set(), [UNCERTAIN, DEAD]),
    "nothing flew": ("", 5, None, set(), []),
}
STAGES = {
    "L": Stage.LANDED,
    "R": Stage.REFUSED,
    "F": Stage.FAILED,
    "U": Stage.UNKNOWN,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_judgement(case):
    """Each fragment's fate follows from facts that can never change again."""
    stages, next_seq_no, first_seq_no, named, expected = case
    flights = [flight_at(5 + i, STAGES[letter]) for i, letter in enumerate(stages)]
    fates = judge(
        flights, manifest_from(first_seq_no), tail_at(next_seq_no), lambda f: f.seq_no in named
    )
    assert expected == fates


@settings(max_examples=200)
@given(
    st.text("LRFU", min_size=1, max_size=5),
    st.integers(5, 12),
    st.none() | st.integers(1, 12),
    st.integers(0, 5),
)
def test_judgement_never_lies(stages, next_seq_no, first_seq_no, num_named):
    """Committed means named and not refused before; dead needs a fact of its own."""
    flights = [flight_at(5 + i, STAGES[letter]) for i, letter in enumerate(stages)]
    named = {f.seq_no for f in flights[:num_named] if f.seq_no < next_seq_no}
    manifest, tail = manifest_from(first_seq_no), tail_at(next_seq_no)
    fates = judge(flights, manifest, tail, lambda f: f.seq_no in named)
    has_died = False
    for flight, fate in zip(flights, fates, strict=True):
        has_died = has_died or flight.stage in {Stage.REFUSED, Stage.FAILED}
        assert (fate is COMMITTED) == (flight.seq_no in named and not has_died)
        if fate is DEAD and not has_died:
            passed = manifest.first_seq_no <= flight.seq_no < next_seq_no
            assert flight.stage in {Stage.REFUSED, Stage.FAILED} or passed
        has_died = has_died or fate is DEAD
        if has_died:
            assert fate is not UNCERTAIN


# What waiters are told.


def test_an_uncertain_fragment_names_what_to_look_for():
    """Write id, slot and range are in the error, the chain it hangs on, and its cause."""
    cause = StoreError("gone")
    chain = [flight_at(6, Stage.UNKNOWN), flight_at(7, Stage.LANDED)]
    error = uncertain(chain, cause)
    assert isinstance(error, UncertainError)
    assert f"{7:032x}" == error.write_id
    assert ((6, f"{6:032x}"), (7, f"{7:032x}")) == error.chain
    assert "[7, 8) in slot 7" in error.message
    assert "find_write" in error.hint
    assert cause is error.__cause__


def test_what_was_not_written_says_why():
    """A store's error keeps its code and hint; it says that nothing was written."""
    cause = StoreError("disk full", code=Code.STORE_FULL, hint="make room", applied=False)
    error = not_written(cause)
    assert (Code.STORE_FULL, "make room") == (error.code, error.hint)
    assert "nothing was written: disk full" == error.message
    assert (False, cause) == (error.applied, error.__cause__)


def test_our_own_bug_is_not_hidden():
    """An unexpected error reaches the waiters as the cause."""
    # EVIDENCE-OF: G-15, G-16
    cause = InternalError("bug")
    assert cause is not_written(cause).__cause__
    other = KeyError("x")
    assert other is not_written(other).__cause__
