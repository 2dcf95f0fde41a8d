"""The ledger: what it takes, what it refuses, and that a compaction does not change what is so."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from cordwood.base.errors import ConflictError, CorruptionError
from cordwood.index.ledger import (
    AddSegment,
    CancelMerge,
    DeleteDocuments,
    EndMerge,
    StartMerge,
    State,
    Transaction,
    compacted,
    deletion,
    documents_of,
    folded,
)
from cordwood.testing.ledgerplay import Handle, LedgerPlay


def play(seed, steps):
    """A ledger after so many random steps."""
    made = LedgerPlay(np.random.default_rng(seed))
    for _ in range(steps):
        made.step()
    return made


def agreeing(one, other):
    """Whether two readers see the same index, however they came there."""
    return (
        one.id == other.id
        and one.live.keys() == other.live.keys()
        and one.merges == other.merges
        and one.marks == other.marks
    )


@settings(max_examples=150)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_readers_agree_with_the_truth_and_with_each_other(seed, steps):
    """One who followed all along, and one who reads what compactions left, see the same."""
    # EVIDENCE-OF: G-82
    made = play(seed, steps)
    fresh = made.newest()
    assert made.alive == made.visible(fresh)
    assert made.alive == made.visible(Handle(made.state, {}))
    assert agreeing(fresh.state, made.state)


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_a_handle_goes_on_from_any_age(seed, steps):
    """Whatever was compacted since, what comes after its state is still there to be read."""
    made = play(seed, steps)
    handle = made.newest()
    made.handles.append(handle)
    seen = made.visible(handle)
    for _ in range(20):
        made.step()
        assert seen == made.visible(handle)
        if not any(one is handle for one in made.handles):
            return
    later = handle.state.copy()
    for transaction in made.transactions:
        if transaction.id > later.id:
            later.apply(transaction)
    later.id = max(later.id, made.state.id)
    assert agreeing(later, made.state)
    assert made.alive == made.visible(Handle(later, handle.tombs))


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.data())
def test_compacting_keeps_the_state_and_is_done_once(seed, steps, data):
    """Up to any handle: the same state; and a second time there is nothing more to do."""
    made = play(seed, steps)
    before = folded(made.transactions)
    oldest = data.draw(st.integers(0, made.state.id))
    plan = compacted(made.transactions, made.state.id, oldest)
    after = folded(plan.kept)
    assert before.live.keys() == after.live.keys()
    assert (before.merges, before.marks) == (after.merges, after.marks)
    assert plan.last >= max([before.id, made.state.id])
    for number in before.live:
        gone = after.deleted.get(number, BitMap()) | plan.tombstones.get(number, BitMap())
        assert before.deleted.get(number, BitMap()) == gone
        assert after.live[number].has_tombs >= (number in plan.tombstones)
    assert set(plan.segments).isdisjoint(after.live.keys() | after.dead.keys())
    needed = {dead.into for dead in after.dead.values()}
    assert needed.isdisjoint(plan.idmaps)
    again = compacted(plan.kept, plan.last, oldest)
    assert (plan.kept, {}, [], []) == (again.kept, again.tombstones, again.segments, again.idmaps)


def state():
    """Three segments of five documents, of which 2 and 3 are being merged since transaction 4."""
    made = State()
    for number in (1, 2, 3):
        made.apply(Transaction(number, 0, (AddSegment(number, 5, 1),)))
    made.apply(Transaction(4, 0, (StartMerge((2, 3)),)))
    return made


def end(**other):
    """The end of that merge."""
    right = {"started": 4, "segment": 9, "documents": 10, "size_bytes": 1, "merged": (2, 3)}
    return EndMerge(**right | {"carried": 4} | other)


REFUSED = {
    "a segment that is live": [AddSegment(1, 5, 1)],
    "a segment twice in one": [AddSegment(7, 5, 1), AddSegment(7, 5, 1)],
    "a merge of what is being merged": [StartMerge((1, 2))],
    "a merge of what is not there": [StartMerge((1, 8))],
    "a merge of one segment twice": [StartMerge((1, 1))],
    "a merge of nothing": [StartMerge(())],
    "two merges of one segment in one": [StartMerge((1,)), StartMerge((1,))],
    "an end without a beginning": [end(started=3)],
    "an end after the cancellation": [CancelMerge(4), end()],
    "an end with other segments": [end(merged=(2,))],
    "an end with its segments turned round": [end(merged=(3, 2))],
    "an end with a segment that exists": [end(segment=1)],
    "an end twice": [end(), end(segment=10)],
    "a cancellation of nothing": [CancelMerge(3)],
    "a cancellation twice": [CancelMerge(4), CancelMerge(4)],
    "a delete in a segment that is not there": [deletion({8: BitMap([1])})],
    "a delete of document 0": [deletion({1: BitMap([0])})],
    "a delete behind the last document": [deletion({1: BitMap([6])})],
    "a delete in what was merged": [end(), deletion({2: BitMap([1])})],
    "a delete that a merge forgets": [deletion({2: BitMap([1])}), end()],
    "a segment that was merged": [end(), AddSegment(2, 5, 1)],
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_changes_nothing(why):
    """Every transaction that does not fit, also behind entries that do."""
    before = state()
    kept = before.copy()
    entries = (AddSegment(20, 5, 1), deletion({1: BitMap([2])}), *REFUSED[why])
    with pytest.raises(ConflictError):
        before.apply(Transaction(5, 0, entries))
    assert kept == before
    assert before.deleted == {}


def test_a_transaction_costs_what_it_does():
    """What it does not touch is not copied: of thousands, the last costs as much as the first."""
    made = state()
    parts = ("live", "dead", "merges", "deleted", "deleted_last", "marks")
    before = [getattr(made, part) for part in parts]
    made.apply(Transaction(5, 0, (deletion({1: BitMap([2])}), end()), {"a": b"b"}))
    assert all(getattr(made, part) is one for part, one in zip(parts, before, strict=True))
    assert ({1, 9}, {2, 3}, {1}) == (set(made.live), set(made.dead), set(made.deleted))


def test_a_delete_that_came_before_the_end_is_refused_unless_it_is_carried():
    """The end of a merge says up to where it knows of deletes."""
    late = state()
    late.apply(Transaction(5, 0, (deletion({2: BitMap([1])}),)))
    with pytest.raises(ConflictError, match="meanwhile"):
        late.copy().apply(Transaction(6, 0, (end(carried=4),)))
    late.apply(Transaction(6, 0, (deletion({9: BitMap([1])}), end(carried=5))))
    assert {9: BitMap([1])} == late.deleted
    assert [9, 9] == [next(late.successors(2)), next(late.successors(3))]


def test_ids_only_rise():
    """A transaction of an id that was there is refused."""
    for number in (4, 3, 0):
        with pytest.raises(ConflictError, match="does not follow"):
            state().apply(Transaction(number, 0, ()))
    ahead = state()
    ahead.apply(Transaction(900, 0, ()))
    assert 900 == ahead.id


def test_marks_that_are_expected():
    """Work that is done twice counts once."""
    marked = state()
    first = Transaction(5, 0, (), {"offset": b"7"}, {"offset": None})
    marked.apply(first)
    with pytest.raises(ConflictError, match="offset"):
        marked.apply(msgspec.structs.replace(first, id=6))
    marked.apply(Transaction(6, 0, (), {"offset": b"8"}, {"offset": b"7"}))
    assert {"offset": b"8"} == marked.marks


def test_a_segment_that_nobody_remembers():
    """A delete from a handle older than the ledger is refused, and says so."""
    with pytest.raises(ConflictError, match="open a new one"):
        list(state().successors(77))


def test_the_newest_id_stays_when_its_transaction_goes():
    """Ids go on from the highest there was, also if a compaction drops that transaction."""
    made = state()
    transactions = [
        Transaction(1, 0, (AddSegment(1, 5, 1),)),
        Transaction(2, 0, (deletion({1: BitMap([1])}),)),
    ]
    plan = compacted(transactions, 0, 2)
    assert [1] == [transaction.id for transaction in plan.kept]
    assert 2 == plan.last
    assert {1: BitMap([1])} == plan.tombstones
    assert made.id == 4


def test_a_set_that_cannot_be_read():
    """Is damage, whatever it is."""
    whole = deletion({1: BitMap([1, 70_000])}).documents[1]
    assert BitMap([1, 70_000]) == documents_of(whole)
    for size in range(len(whole)):
        with pytest.raises(CorruptionError):
            documents_of(whole[:size])


def test_entries_survive_their_encoding():
    """Each kind, and a transaction with all that it may carry."""
    entries = (
        AddSegment(1, 2, 3, has_tombs=True),
        DeleteDocuments({1: b"set"}),
        StartMerge((1, 2)),
        CancelMerge(4),
        EndMerge(4, 5, 6, 7, (1, 2), 3),
    )
    whole = Transaction(9, 8, entries, {"a": b"b"}, {"a": None, "c": b""}, "token", "by")
    decoder = msgspec.msgpack.Decoder(Transaction)
    assert whole == decoder.decode(msgspec.msgpack.encode(whole))
