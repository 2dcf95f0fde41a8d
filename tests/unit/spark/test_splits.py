"""Splits: about equal, in order, small, and nothing lost between them."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.log.format import Ancestor, Fragment, NodePointer, Position
from cordwood.spark import splits
from cordwood.spark.splits import Hold, Split, Work, cut, pack

MB = 2**20


def fragments(sizes):
    """Neighbours of these sizes, ten records each."""
    return [
        Fragment.of(f"log/{i}", i + 1, 10 * i + 1, 10 * i + 11, size, "0" * 64)
        for i, size in enumerate(sizes)
    ]


def work(pointers, log="orders", **more):
    """A part of a log with these pointers."""
    whole = Work("file:///wood", log, (), 1, 10_000_000, (), ())
    return msgspec.structs.replace(whole.only(pointers), **more)


@given(st.lists(st.integers(0, 64 * MB), min_size=1, max_size=60), st.integers(MB, 256 * MB))
def test_everything_is_in_one_run(sizes, split_bytes):
    """In order, none empty, none missing, whatever the sizes are."""
    runs = pack(sizes, split_bytes)
    assert [size for run in runs for size in sizes[run]] == sizes
    assert all(run.start < run.stop for run in runs)


@given(st.integers(1, 400), st.integers(1, 8))
def test_runs_are_about_equal(count, cores):
    """With fragments much smaller than a split none is much larger or smaller than another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits.os, "cpu_count", lambda: cores)
        runs = pack([8 * MB] * count, 128 * MB)
    sizes = [8 * MB * (run.stop - run.start) for run in runs]
    assert max(sizes) - min(sizes) <= 8 * MB
    assert max(sizes) <= 136 * MB


def test_a_small_log_keeps_every_core_busy(monkeypatch):
    """But is not cut so fine that the tasks cost more than their work."""
    monkeypatch.setattr(splits.os, "cpu_count", lambda: 4)
    assert len(pack([8 * MB] * 16, 128 * MB)) == 4
    assert len(pack([8 * MB] * 6, 128 * MB)) == 2
    assert len(pack([1000] * 50, 128 * MB)) == 1
    assert pack([], 128 * MB) == []


def test_small_logs_share_a_split():
    """A thousand logs with little in them do not make a thousand tasks."""
    works = [work(fragments([1000, 1000]), f"log-{i}") for i in range(1000)]
    made = cut([*works, work([], "empty")], 128 * MB)
    assert [w for split in made for w in split.works] == works
    assert len(made) == 1


def test_a_large_log_is_cut_and_nothing_is_lost():
    """Each part names the same range, and the parts together have every pointer once."""
    whole = work(fragments([64 * MB] * 10))
    made = cut([whole], 128 * MB)
    assert [len(split.works) for split in made] == [1] * 5
    assert [p for split in made for p in split.works[0].pointers] == whole.pointers
    assert {(split.works[0].begin, split.works[0].end) for split in made} == {(1, 10_000_000)}


def test_a_split_survives_the_way_to_a_task():
    """Pickled and unpacked it is what it was, nodes and fragments in the order of the log."""
    first, _, last = fragments([5, 5, 5])
    node = NodePointer("0" * 64, "snapshot/x", 1, Position(11), Position(21), 5)
    ancestors, hold = (Ancestor("old", 5, 2),), Hold("spark_1", 60, 17, by_tasks=True)
    one = work([node, last, first], ancestors=ancestors, hold=hold)
    there = pickle.loads(pickle.dumps(Split([one])))
    assert there.works == [one]
    assert there.works[0].pointers == [first, node, last]


def test_a_split_is_small():
    """A thousand fragments travel in less than 300 bytes each."""
    assert len(pickle.dumps(Split([work(fragments([8 * MB] * 1000))]))) < 300_000
