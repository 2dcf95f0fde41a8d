"""Which segments are worth merging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.index.policy import GONE_MAX, SMALLEST, WIDTH, Sized, worth_merging

SIZES = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), max_size=60)


def sized(*sizes):
    """Segments of so many documents, none deleted."""
    return [Sized(number, size, 0) for number, size in enumerate(sizes, 1)]


def test_few_segments_are_left_alone():
    """Below eight of a size nothing is rewritten."""
    assert set() == worth_merging(sized(*[10] * (WIDTH - 1)))
    assert set() == worth_merging([])


def test_eight_of_a_size_become_one():
    """Small ones first; large ones stay."""
    small = sized(*range(1, WIDTH + 1), SMALLEST * WIDTH**2)
    assert set(range(1, WIDTH + 1)) == worth_merging(small)


def test_tiers_are_not_mixed():
    """Seven of one size and seven of the next are not merged."""
    assert set() == worth_merging(sized(*[5] * 7, *[SMALLEST * 9] * 7))


@pytest.mark.parametrize(("gone", "wanted"), [(33, set()), (34, {1})])
def test_a_segment_with_many_deletes_is_rewritten(gone, wanted):
    """From a third on, by itself."""
    assert (gone > 100 * GONE_MAX) == bool(wanted)
    assert wanted == worth_merging([Sized(1, 100 - gone, gone)])


@given(SIZES)
def test_merging_what_is_worth_it_comes_to_an_end(sizes):
    """Each merge leaves fewer segments or fewer deletes, and then it is quiet."""
    segments = [Sized(number, *size) for number, size in enumerate(sizes, 1)]
    for round_number in range(200):
        chosen = worth_merging(segments)
        if not chosen:
            break
        merged = [one for one in segments if one.number in chosen]
        assert len(merged) > 1 or merged[0].deleted
        kept = [one for one in segments if one.number not in chosen]
        size = sum(one.documents for one in merged)
        segments = [*kept, Sized(1_000 + round_number, size, 0)]
    assert set() == worth_merging(segments)
    assert sum(size for size, _ in sizes) == sum(one.documents for one in segments)
    for tier in range(12):
        low = 0 if not tier else SMALLEST * WIDTH**tier
        high = SMALLEST * WIDTH ** (tier + 1)
        assert WIDTH > sum(low * 1.0001 < one.documents < high * 0.9999 for one in segments)
