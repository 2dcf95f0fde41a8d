"""Where a query stands, and how logs share a batch."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import InvalidInputError
from cordwood.spark.positions import Position, Positions, shares

LAGS = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 1_000), min_size=1)


@given(LAGS, st.integers(1, 5_000), st.integers(0, 100))
def test_shares_are_fair_and_complete(lags, most, turn):
    """All of what may be given is; nobody gets less than another one that has no more."""
    given_to = shares(lags, most, turn)
    assert min(most, sum(lags.values())) == sum(given_to.values())
    assert all(given_to[name] <= lags[name] for name in lags)
    hungry = [given_to[name] for name in lags if given_to[name] < lags[name]]
    if hungry:
        assert max(hungry) - min(hungry) <= 1
        assert max(given_to.values()) <= max(hungry) + 1


@given(st.integers(1, 6), st.integers(2, 7))
def test_a_log_far_behind_is_not_starved(most, others):
    """Where a batch may have fewer records than there are logs, and the others never run dry."""
    lags = {"far": 1_000} | {f"near-{n}": 1 for n in range(others)}
    rounds = 10 * len(lags)
    total = 0
    for turn in range(rounds):
        now = shares(lags, most, turn)
        assert most == sum(now.values())
        total += now["far"]
    assert total >= rounds * min(most, len(lags)) // len(lags)


def test_positions_survive_the_checkpoint():
    """As JSON."""
    there = Positions({"orders": Position(5, "ab"), "eu/orders": Position(1)}, "file:///w", "copy")
    assert there == Positions.of(json.loads(json.dumps(there.to_dict())))


@pytest.mark.parametrize("other", [{}, {"logs": 5}, {"index": 3}, {"logs": {"a": {"offset": "x"}}}])
def test_a_checkpoint_of_another_source(other):
    """One clear line."""
    with pytest.raises(InvalidInputError, match="not of a query that reads logs"):
        Positions.of(other)
