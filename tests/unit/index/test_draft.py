"""Deletes and merges that cross: whichever commits first, no delete is lost, none is too many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from cordwood.base.errors import ConflictError, CorruptionError
from cordwood.index.draft import Draft, Ended, entries, idmaps_for
from cordwood.index.ledger import AddSegment, DeleteDocuments, EndMerge
from cordwood.testing.ledgerplay import Handle, LedgerPlay, idmap_of


def begun(segments=3, documents=4):
    """An index of some segments, and a handle to it."""
    play = LedgerPlay(np.random.default_rng(1))
    for _ in range(segments):
        play.add(documents)
    return play, play.newest()


def found(play):
    """What is there: checked against the truth, by a reader old and new."""
    fresh = play.newest()
    assert play.alive == play.visible(fresh) == play.visible(Handle(play.state, play.tombs))
    return play.alive


def test_a_delete_commits_while_a_merge_runs():
    """The merge carries it over."""
    # EVIDENCE-OF: G-82
    play, handle = begun()
    merge = play.start(handle, (1, 2))
    play.delete(handle, {1: BitMap([2]), 3: BitMap([1])})
    play.end(merge)
    assert {0, 2, 3, *range(4, 8), *range(9, 12)} == found(play)


def test_a_merge_ends_between_a_delete_and_its_commit():
    """The delete is renamed as the idmap says."""
    # EVIDENCE-OF: G-82
    play, handle = begun()
    play.end(play.start(play.newest(), (1, 2)))
    play.delete(handle, {1: BitMap([2]), 2: BitMap([1]), 3: BitMap([4])})
    assert {0, 2, 3, 5, 6, 7, 8, 9, 10} == found(play)


@pytest.mark.parametrize("merges", [1, 2, 3, 5])
@pytest.mark.parametrize("compacts", [False, True])
def test_a_delete_follows_through_chained_merges(merges, compacts):
    """However often its documents moved meanwhile, and whatever was compacted."""
    # EVIDENCE-OF: G-82
    play, handle = begun()
    play.handles.append(handle)
    last = 1
    for _ in range(merges):
        last = play.end(play.start(play.newest(), (last, play.add(2))))
        if compacts:
            play.compact()
    play.delete(handle, {1: BitMap([1, 3]), 2: BitMap([2])})
    assert set(range(play.names)) - {0, 2, 5} == found(play)


@pytest.mark.parametrize("place", range(4))
def test_a_delete_during_one_of_several_chained_merges(place):
    """Between the beginning and the end of the second, the third, …: never lost."""
    # EVIDENCE-OF: G-82
    play, handle = begun()
    play.handles.append(handle)
    last = 1
    for turn in range(4):
        merge = play.start(play.newest(), (last, play.add(2)))
        if turn == place:
            play.delete(handle, {1: BitMap([4])})
        last = play.end(merge)
        play.compact()
    assert set(range(play.names)) - {3} == found(play)


def place_of(play, handle, name):
    """A document as a handle knows it; nothing if it is not there."""
    return {
        segment: BitMap([play.contents[segment].index(name) + 1])
        for segment in handle.state.live
        if name in play.contents[segment]
    }


@pytest.mark.parametrize("order", list(itertools.permutations(["old", "new", "merge"])))
def test_one_document_is_deleted_twice(order):
    """By a handle from before the merge, and by one from now, in any order with its end."""
    play, old = begun(1)
    merge = play.start(play.newest(), (1,))
    for turn in order:
        if turn == "merge":
            play.end(merge)
        else:
            handle = old if turn == "old" else play.newest()
            play.delete(handle, place_of(play, handle, 1))
    assert {0, 2, 3} == found(play)


def test_a_document_that_a_merge_left_out_is_not_deleted_again():
    """What was deleted before has no new name, and the entry is left out."""
    play, handle = begun(1)
    play.delete(play.newest(), {1: BitMap([2])})
    play.end(play.start(play.newest(), (1,)))
    draft = Draft(deleted={1: BitMap([2])})
    idmaps = {number: play.idmaps[number] for number in idmaps_for(draft, play.state)}
    assert [] == entries(draft, play.state, idmaps)
    assert handle.state.id == 1


def test_a_segment_of_its_own_needs_no_idmap():
    """A transaction may delete in what it adds; that nobody could have merged."""
    play, _ = begun(1)
    draft = Draft((AddSegment(50, 3, 1),), {50: BitMap([2]), 1: BitMap([1])})
    assert set() == idmaps_for(draft, play.state)
    added, deleted = entries(draft, play.state, {})
    assert 50 == added.segment
    assert isinstance(deleted, DeleteDocuments)
    assert [1, 50] == sorted(deleted.documents)


def test_a_handle_older_than_the_ledger_is_refused():
    """If it was not known to the compaction, its deletes cannot be renamed."""
    play, handle = begun()
    play.end(play.start(play.newest(), (1, 2)))
    play.compact()
    play.state = play.newest().state
    with pytest.raises(ConflictError, match="open a new one"):
        play.delete(handle, {1: BitMap([1])})


def test_the_end_of_a_merge_needs_its_idmap_only_for_late_deletes():
    """Without any it is not read."""
    play, handle = begun()
    merge = play.start(handle, (1, 2))
    ended = Draft(ended=Ended(EndMerge(merge.started, 9, 8, 1, (1, 2)), {}))
    assert set() == idmaps_for(ended, play.state)
    play.delete(handle, {2: BitMap([1])})
    assert {9} == idmaps_for(ended, play.state)


def test_an_idmap_of_another_merge_is_damage():
    """One that does not know the segment, or not so many documents."""
    idmap = idmap_of((1, 2), [[0, 1, 2], [0, 3]])
    assert [3] == idmap.moved(2, np.array([1])).tolist()
    for segment, number in ((3, 1), (2, 2)):
        with pytest.raises(CorruptionError, match="another merge"):
            idmap.moved(segment, np.array([number]))


@settings(max_examples=80)
@given(st.integers(0, 1 << 32))
def test_any_order_of_all_of_it(seed):
    """A hundred random steps of old and new handles, merges and compactions."""
    # EVIDENCE-OF: G-82
    play = LedgerPlay(np.random.default_rng(seed))
    for _ in range(100):
        play.step()
    found(play)
