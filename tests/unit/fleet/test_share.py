"""Workers share logs by rendezvous hashing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import InvalidInputError
from cordwood.fleet.share import owner, owners, share

LOGS = [f"tenants/{number}/events" for number in range(2_000)]

names = st.lists(st.sampled_from([f"w{n}" for n in range(12)]), min_size=1, unique=True)


def test_an_owner_does_not_depend_on_the_order():
    """Two workers that list the same names in another order agree."""
    workers = ["w1", "w2", "w3"]
    assert [owner(log, workers) for log in LOGS] == [owner(log, workers[::-1]) for log in LOGS]


def test_the_share_is_even():
    """Ten workers have about a tenth each."""
    counts = Counter(owner(log, [f"w{n}" for n in range(10)]) for log in LOGS)
    assert 10 == len(counts)
    assert 150 < min(counts.values())
    assert max(counts.values()) < 250


def test_a_worker_that_leaves_takes_only_its_own_along():
    """Nobody else's logs change hands."""
    workers = ["w1", "w2", "w3", "w4"]
    for log in LOGS:
        before, after = owner(log, workers), owner(log, workers[:-1])
        assert before in {after, "w4"}


def test_without_workers_nobody_owns():
    """An empty list is a mistake, not an answer."""
    with pytest.raises(InvalidInputError):
        owner("a", [])


@given(old=names, new=names, data=st.data())
def test_no_log_is_nobodys_while_the_list_changes(old, new, data):
    """Each log is taken by a worker that is there, whoever has heard of the change already."""
    # EVIDENCE-OF: G-56
    log = data.draw(st.sampled_from(LOGS))
    first_half = data.draw(st.booleans())
    everybody = sorted({*old, *new})
    has_moved = {worker: data.draw(st.booleans()) for worker in everybody}
    taken = set()
    for worker in everybody:
        if first_half:
            views = (old, new) if has_moved[worker] else (old, None)
        else:
            views = (new, None) if has_moved[worker] else (old, new)
        if share(worker, [log], *views):
            taken.add(worker)
    assert taken
    # Whoever leaves does so last, and whoever joins is there from the first step.
    assert taken & set(old if first_half else new)


@given(old=names, new=names)
def test_both_owners_take_a_log_during_a_change(old, new):
    """In the middle it is the old owner's and the new one's."""
    for log in LOGS[:20]:
        assert {owner(log, old), owner(log, new)} == owners(log, old, new)
        assert {owner(log, old)} == owners(log, old)


def test_a_dirty_log_has_an_owner_too():
    """The same function says who rolls it up."""
    assert 1 == len(owners("fleet/node-7/dirty", ["w1", "w2"]))
