"""Splits: about equal, in order, small, and nothing lost between them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.log.format import Ancestor, Fragment, NodePointer, Position
from cordwood.spark import splits
from cordwood.spark.splits import Hold, Split, Work, pack

MB = 2**20


def fragments(sizes):
    """Neighbours of these sizes, ten records each."""
    return [
        Fragment.of(f"log/{i}", i + 1, 10 * i + 1, 10 * i + 11, size, "0" * 64)
        for i, size in enumerate(sizes)
    ]


@given(st.lists(st.integers(1, 64 * MB), min_size=1, max_size=60), st.integers(1 * MB, 256 * MB))
def test_every_pointer_is_in_one_split(sizes, split_bytes):
    """In order, none empty, none missing, whatever the sizes are."""
    pointers = fragments(sizes)
    runs = pack(pointers, split_bytes)
    assert [p for run in runs for p in run] == pointers
    assert all(runs)


@given(st.integers(1, 400), st.integers(1, 8))
def test_splits_are_about_equal(count, cores):
    """With fragments much smaller than a split none is much larger or smaller than another."""
    pointers = fragments([8 * MB] * count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits.os, "cpu_count", lambda: cores)
        runs = pack(pointers, 128 * MB)
    sizes = [sum(p.num_bytes for p in run) for run in runs]
    assert max(sizes) - min(sizes) <= 8 * MB
    assert max(sizes) <= 136 * MB


def test_a_small_log_keeps_every_core_busy(monkeypatch):
    """But is not cut so fine that the tasks cost more than their work."""
    monkeypatch.setattr(splits.os, "cpu_count", lambda: 4)
    assert len(pack(fragments([8 * MB] * 16), 128 * MB)) == 4
    assert len(pack(fragments([8 * MB] * 6), 128 * MB)) == 2
    assert len(pack(fragments([1000] * 50), 128 * MB)) == 1
    assert pack([], 128 * MB) == []


def test_a_split_survives_the_way_to_a_task():
    """Pickled and unpacked it is what it was, nodes and fragments in the order of the log."""
    first, last = fragments([5, 5, 5])[0], fragments([5, 5, 5])[2]
    node = NodePointer("0" * 64, "snapshot/x", 1, Position(11), Position(21), 5)
    work = Work(
        "file:///wood",
        "orders",
        (Ancestor("old", 5, 2),),
        1,
        30,
        (node,),
        (first, last),
        Hold("spark_1", 60, 17),
    )
    there = pickle.loads(pickle.dumps(Split(work)))
    assert there.work == work
    assert there.work.pointers == [first, node, last]


def test_a_split_is_small():
    """A thousand fragments travel in less than 300 bytes each."""
    pointers = fragments([8 * MB] * 1000)
    work = Work("file:///wood", "orders", (), 1, 9999, (), tuple(pointers), None)
    assert len(pickle.dumps(Split(work))) < 300_000
