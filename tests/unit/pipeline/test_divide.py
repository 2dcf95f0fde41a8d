"""Work is cut into units of about equal size; small files of a table are put together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.divide import READ_BYTES_MAX, READ_BYTES_MIN, divide, read_bytes
from cordwood.pipeline.tiers import STEP, crowded

SIZES = st.lists(st.integers(1, 100), max_size=60)


@given(SIZES, st.integers(1, 200))
def test_groups_are_neighbours_and_not_too_large(sizes, target):
    """Nothing is lost or moved; a group is larger than asked for only if it is one thing."""
    groups = list(divide(sizes, lambda size: size, target))
    assert sizes == [size for group in groups for size in group]
    assert all(sum(group) <= target or len(group) == 1 for group in groups)
    pairs = pairwise(groups)
    assert all(sum(group) + following[0] > target for group, following in pairs)


def test_units_suit_the_work():
    """Small work is cut so that all cores have something; large work into units of one size."""
    assert READ_BYTES_MIN == read_bytes(0, 4) == read_bytes(10_000_000, 4)
    assert 50_000_000 == read_bytes(400_000_000, 4)
    assert READ_BYTES_MAX == read_bytes(10**12, 4)


def files_of(sizes):
    """Files of these sizes."""
    return [DataFile(f"data/{i:032x}.parquet", 1, size, "", "") for i, size in enumerate(sizes)]


def test_files_of_one_size_are_put_together():
    """Eight or more, not fewer; what is large stays."""
    assert [] == crowded(files_of([100] * (STEP - 1)), 10**6)
    assert STEP == len(crowded(files_of([100] * STEP), 10**6))
    assert [] == crowded(files_of([600_000] * 20), 10**6)
    few_of_each = [100] * (STEP - 1) + [10_000] * (STEP - 1)
    assert [] == crowded(files_of(few_of_each), 10**6)


def test_a_row_is_written_anew_seldom():
    """A thousand small commits rewrite a row a few times, not hundreds of times."""
    files: list[DataFile] = []
    written = 0
    for number in range(1_000):
        gone = crowded(files, 10**6)
        stay = [file for file in files if file not in gone]
        size = sum(file.bytes for file in gone)
        written += size
        merged = [DataFile(f"data/{number + 10**6:032x}.parquet", 1, size, "", "")] if gone else []
        files = [*stay, *merged, DataFile(f"data/{number:032x}.parquet", 1, 100, "", "")]
    assert len(files) < 5 * STEP
    assert written < 6 * 100 * 1_000
