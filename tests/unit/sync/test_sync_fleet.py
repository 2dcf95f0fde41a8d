"""The blocking fleet does what its twin does, from any thread."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from cordwood import CordwoodError, StateError, sync


def test_a_fleet_from_append_to_roll_up():
    """Every method works."""
    store = sync.Store("memory:")
    with sync.Fleet(store, "m1", create=True) as fleet:
        assert 1 == fleet.append("a", b"x", key=b"k")
        assert 2 == fleet.append_many("a", [b"y", b"z"])
        assert 4 == fleet.append_arrow("a", pa.table({"body": [b"w"]}))
        assert (1, "m1", store) == (fleet.num_open, fleet.member, fleet.store)
        assert ["a"] == [one.log for one in fleet.roll_up(quiet_s=0.0).dirty]
        fleet.purge("a")
        assert ["a"] == fleet.roll_up(quiet_s=0.0).dropped
        fleet.mark("a")
        assert ["a"] == [one.log for one in sync.survey(store).dirty]
    assert ["m1"] == sync.members(store)
    assert "m1" in repr(fleet)
    with pytest.raises(StateError):
        pickle.dumps(fleet)


def test_a_writer_stays_open_for_what_is_handed_over():
    """`append_soon` within the block is durable when the block is left."""
    with sync.Fleet("memory:", "m1", create=True, max_open=1) as fleet:
        with fleet.writer("a") as writer:
            answers = [writer.append_soon(b"%d" % n) for n in range(100)]
        assert all(answer.done() for answer in answers)
        fleet.append("b", b"x")
        assert list(range(1, 101)) == [answer.result() for answer in answers]


def test_many_threads_share_a_fleet():
    """Each gets its offsets."""
    store = sync.Store("memory:")
    with (
        sync.Fleet(store, "m1", create=True, max_open=3) as fleet,
        ThreadPoolExecutor(8) as threads,
    ):
        list(threads.map(lambda n: fleet.append(f"log-{n % 10}", b"x"), range(200)))
    assert [20] * 10 == [sync.Log(store, f"log-{n}").state().records for n in range(10)]


def test_a_failure_in_the_block_gives_the_log_back():
    """An error of the user's does not keep a log open."""
    with sync.Fleet("memory:", "m1", create=True, max_open=1) as fleet:
        with pytest.raises(KeyError), fleet.writer("a"):
            raise KeyError
        assert 1 == fleet.append("b", b"x")


def test_a_failure_that_nobody_heard_of_is_raised_at_the_end():
    """As with a writer of one's own."""
    with sync.Fleet("memory:", "m1", create=True, max_open=1) as fleet:
        with pytest.raises(CordwoodError, match="never"), fleet.writer("a") as writer:
            writer.append_soon(b"x", stream="never-opened")
        assert 1 == fleet.append("a", b"y")
