"""The plain kernel gives the sums of the definition, whichever way a record is hashed."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from setsum_reference import reference_columns

from cordwood.base import kernels, plain
from cordwood.base.setsum import Setsum


def inputs(sizes, seed=1):
    """Records with values of these sizes: heads, the values, and what the definition says."""
    generator = np.random.default_rng(seed)
    values = [generator.bytes(int(size)) for size in sizes]
    offsets, timestamps = generator.integers(0, 2**64, (2, len(values)), dtype=np.uint64)
    heads = [
        int(offset).to_bytes(8, "big") + int(timestamp).to_bytes(8, "big")
        for offset, timestamp in zip(offsets, timestamps, strict=True)
    ]
    expected = reference_columns(map(bytes.__add__, heads, values))
    return offsets, timestamps, values, expected


def page_of(values):
    """A page as Parquet has it."""
    data = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    return np.frombuffer(data, np.uint8), len(values)


def sum_items(offsets, timestamps, values):
    """By the kernel."""
    places = np.concatenate(([0], np.cumsum([len(value) for value in values], dtype=np.int64)))
    content = np.frombuffer(b"".join(values), np.uint8)
    return Setsum.of_columns(plain.sum_items(offsets, timestamps, content, places)).columns


SIZES = {
    "none": [],
    "one": [5],
    "few of one size": [7] * 3,
    "empty": [0] * 20,
    "one size": [100] * 20,
    "shorter than heads": [7] * 20,
    "as long as heads": [16] * 17,
    "more than a strip": [100] * 1_301,
    "a kilobyte": [1024] * 1_100,
    "as long as may be copied": [2048] * 20,
    "longer": [2049] * 20,
    "more than a chunk": [1] * 9_000,
    "more strips than wait for a sum": [1] * 140_000,
    "short": [*range(60)] * 3,
    "long": [1500, 1600, 1700] * 9,
    "more than a chunk, of two sizes": [1, 2] * 5_000,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_one_behind_the_other(sizes):
    """As the kernel gets them."""
    offsets, timestamps, values, expected = inputs(sizes)
    assert expected == sum_items(offsets, timestamps, values)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 3))
def test_any_sizes(sizes, seed):
    """Whatever lies beside each other."""
    offsets, timestamps, values, expected = inputs(sizes, seed)
    assert expected == sum_items(offsets, timestamps, values)


def sum_pages(offsets, timestamps, pages):
    """By whichever kernel is in use; None as it is."""
    num_bytes = sum(page.size for page, _ in pages)
    sums = kernels.sum_pages(offsets, timestamps, iter(pages), num_bytes)
    return None if sums is None else Setsum.of_columns(sums).columns


WALKED = {"longer", "long"}
"""Not of one size, or too long to be copied, and long enough to be looked for."""

COPIED = {
    "one size",
    "shorter than heads",
    "as long as heads",
    "more than a strip",
    "a kilobyte",
    "as long as may be copied",
    "more than a chunk",
    "more strips than wait for a sum",
}


@pytest.mark.parametrize("kind", SIZES)
def test_values_in_pages(kernel, kind):
    """One page or several; what Arrow decodes in less time is left to it."""
    offsets, timestamps, values, expected = inputs(SIZES[kind])
    is_done = kernel == "numba" or kind in WALKED | COPIED | {"none"}
    for step in (len(values) + 1, max(17, len(values) // 3)):
        pages = [page_of(values[at : at + step]) for at in range(0, len(values), step)]
        assert (expected if is_done else None) == sum_pages(offsets, timestamps, pages)


def test_pages_of_every_kind_in_turn(kernel):
    """The first one decides whether it is worth while; those after it are hashed in any case."""
    kinds = [[50] * 20, [60] * 20, [3, 4, 5], [60] * 40, [1800, 5, 3000], [60] * 5, [0]]
    offsets, timestamps, values, expected = inputs(chain(*kinds))
    pages, at = [], 0
    for sizes in kinds:
        pages.append(page_of(values[at : at + len(sizes)]))
        at += len(sizes)
    assert expected == sum_pages(offsets, timestamps, pages)
    assert sum_pages(offsets[:-1], timestamps[:-1], pages) is None
    assert sum_pages(offsets, timestamps, pages[:-1]) is None
    assert sum_pages(offsets, timestamps[:-1], pages) is None


@pytest.mark.parametrize("sizes", [[30] * 50, [2000, 1000] * 25, [3000] * 50])
def test_a_page_that_is_not_filled_has_no_sum(kernel, sizes):
    """With a value too many, too few or too long."""
    offsets, timestamps, values, expected = inputs(sizes)
    page, count = page_of(values)
    assert expected == sum_pages(offsets, timestamps, [(page, count)])
    data = page.tobytes()
    longer = (int.from_bytes(data[:4], "little") + 1).to_bytes(4, "little") + data[4:]
    wrong = (data[:-1], data + b"x", data + bytes(4), b"", b"\xff" * 4 + data, longer)
    for other in wrong:
        damaged = np.frombuffer(other, np.uint8)
        assert sum_pages(offsets, timestamps, [(damaged, count)]) is None
    assert sum_pages(offsets[:-1], timestamps[:-1], [(page, count - 1)]) is None


@pytest.mark.parametrize("at", [0, 3, 18, 1_100])
def test_lengths_that_only_add_up_are_not_taken_for_one_size(at):
    """A page as long as one of equal values may hold others, and they are found in any strip."""
    sizes = [1200] * 1_140
    sizes[at], sizes[at + 1] = 1199, 1201
    offsets, timestamps, values, expected = inputs(sizes)
    assert expected == sum_pages(offsets, timestamps, [page_of(values)])
    strip, total = plain._Strip(1_140, 1200), plain._Total()
    heads = plain._heads(offsets, timestamps)
    assert not strip.hash(heads, page_of(values)[0], 4, total)
    assert total.columns() == [0] * 8
    values[at : at + 2] = [bytes(1200)] * 2
    assert strip.hash(heads, page_of(values)[0], 4, total)
