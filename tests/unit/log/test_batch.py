"""Batches and the queue: what shares a fragment, who is told what, and what the queue refuses."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.errors import Code, LimitError, UncertainError
from cordwood.log.batch import Batch, Queue
from cordwood.log.records import content_of_bodies, content_of_rows


class Told:
    """A waiter that remembers what it was told."""

    def __init__(self, *, gone=False):
        """`gone`: its caller was cancelled."""
        self.gone = gone
        self.answer = None

    def done(self):
        """Whether it waits no more."""
        return self.gone or self.answer is not None

    def set_result(self, offset):
        """Once only, and never after it went."""
        assert not self.done()
        self.answer = offset

    def set_exception(self, error):
        """Once only, and never after it went."""
        assert not self.done()
        self.answer = error


def add_rows(batch, *bodies):
    """Plain records, each with a waiter."""
    waiters = [Told() for _ in bodies]
    for body, waiter in zip(bodies, waiters, strict=True):
        batch.add_row(body, len(body), waiter)
    return waiters


def add_block(batch, *bodies):
    """An atomic append with its one waiter."""
    waiter = Told()
    batch.add_block(content_of_bodies(list(bodies)), waiter)
    return waiter


# Batches.


def test_rows_and_blocks_keep_the_order_of_their_calls():
    """However they alternate, the columns hold them in order."""
    batch = Batch()
    add_rows(batch, b"a", b"b")
    add_block(batch, b"c", b"d")
    add_rows(batch, b"e")
    batch.add_full_row((b"f", b"k", {"n": b"v"}, "s"), 4, Told())
    add_rows(batch, b"g")
    content = batch.content()
    assert [b"a", b"b", b"c", b"d", b"e", b"f", b"g"] == content.body.to_pylist()
    assert [None] * 5 + [b"k", None] == content.extra["key"].to_pylist()
    assert [None] * 5 + ["s", None] == content.extra["stream"].to_pylist()
    assert (7, 6 + 4) == (batch.num_records, batch.num_bytes)


def test_a_batch_of_bodies_stays_plain():
    """Nothing but bodies makes three columns."""
    batch = Batch()
    add_rows(batch, b"a")
    add_block(batch, b"b")
    assert {} == batch.content().extra


def test_everybody_is_told_the_offset_of_its_first_record():
    """A record its own offset, a block that of its first record."""
    batch = Batch()
    rows = add_rows(batch, b"a", b"b")
    block = add_block(batch, b"c", b"d", b"e")
    (after,) = add_rows(batch, b"f")
    assert [2, 1, 1] == list(batch.resolve(100, 10))
    assert [100, 101] == [waiter.answer for waiter in rows]
    assert (102, 105) == (block.answer, after.answer)


def test_who_went_away_is_not_told_and_moves_nobody():
    """A cancelled caller's record keeps its place."""
    batch = Batch()
    gone, here = Told(gone=True), Told()
    batch.add_row(b"a", 1, gone)
    batch.add_block(content_of_bodies([b"b", b"c"]), Told(gone=True))
    batch.add_row(b"d", 1, here)
    assert [1, 1, 1] == list(batch.resolve(10, 10))
    assert (None, 13) == (gone.answer, here.answer)


def test_everybody_hears_of_a_failure():
    """Rows and blocks alike get the same error; who is gone gets none."""
    batch = Batch()
    rows = add_rows(batch, b"a", b"b")
    block = add_block(batch, b"c")
    gone = Told(gone=True)
    batch.add_row(b"d", 1, gone)
    error = RuntimeError("no")
    batch.fail(error)
    assert [error] * 3 == [waiter.answer for waiter in (*rows, block)]
    assert gone.answer is None


def test_everybody_hears_where_its_uncertain_records_would_be():
    """An uncertain append can be looked for by its own place in the fragment."""
    batch = Batch()
    rows = add_rows(batch, b"a", b"b")
    block = add_block(batch, b"c", b"d")
    (late,) = add_rows(batch, b"e")
    batch.fail(UncertainError("lost", write_id="w", chain=((7, "w"),)))
    assert [0, 1, 2, 4] == [waiter.answer.index for waiter in (*rows, block, late)]
    assert {("w", ((7, "w"),))} == {(w.answer.write_id, w.answer.chain) for w in (block, late)}


def test_a_batch_splits_into_its_parts():
    """Records, bytes and order are kept; who watches the whole watches the last part."""
    batch = Batch()
    add_rows(batch, b"a", b"b")
    add_block(batch, b"c", b"d")
    add_rows(batch, b"e")
    batch.watchers.append(Told())
    parts = batch.split()
    assert [2, 2, 1] == [part.num_records for part in parts]
    assert batch.num_bytes == sum(part.num_bytes for part in parts)
    assert batch.content().body == pa.concat_arrays([p.content().body for p in parts])
    assert [[], [], batch.watchers] == [part.watchers for part in parts]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.binary(max_size=4)),
        st.tuples(st.just("full"), st.binary(max_size=4)),
        st.tuples(st.just("block"), st.lists(st.binary(max_size=4), min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80)
@given(operations, st.integers(1, 2**62), st.integers(1, 13))
def test_every_waiter_finds_its_records_at_the_offset_it_was_told(calls, start, most):
    """For any mix of calls the content at the told offset is what was appended."""
    batch, expected = Batch(), []
    for kind, value in calls:
        waiter = Told()
        if kind == "row":
            batch.add_row(value, len(value), waiter)
        elif kind == "full":
            batch.add_full_row((value, b"key", None, None), len(value) + 3, waiter)
        else:
            batch.add_block(content_of_bodies(value), waiter)
        expected.append((waiter, [value] if isinstance(value, bytes) else value))
    bodies = batch.content().body.to_pylist()
    told = list(batch.resolve(start, most))
    assert (max(told) <= most, sum(told)) == (True, len(calls))
    assert batch.num_records == len(bodies)
    for waiter, values in expected:
        at = waiter.answer - start
        assert values == bodies[at : at + len(values)]


# The queue.


def fill(queue, *sizes):
    """Plain records of these sizes, as a writer adds them."""
    waiters = []
    for size in sizes:
        queue.admit(size)
        waiters += add_rows(queue.open, bytes(size))
        queue.close_if_full()
    return waiters


def test_an_empty_queue_has_nothing():
    """Neither waits anything, nor is anything full."""
    queue = Queue(10, 100)
    assert (False, False, []) == (bool(queue), queue.has_full, queue.drain())


def test_a_batch_closes_when_it_has_grown_to_its_size():
    """Records gather until the size is reached; the next one opens another batch."""
    queue = Queue(10, 100)
    fill(queue, 4, 4)
    assert (True, False) == (bool(queue), queue.has_full)
    fill(queue, 4, 4)
    assert queue.has_full
    assert [3, 1] == [batch.num_records for batch in queue.drain()]


def test_take_gives_the_oldest_and_closes_the_open_one_at_last():
    """Whole batches first, then what has gathered so far."""
    queue = Queue(10, 100)
    fill(queue, 10, 3)
    assert [10, 3] == [queue.take().num_bytes, queue.take().num_bytes]
    assert not queue


def test_a_block_joins_what_waits_if_it_fits():
    """A block shares a fragment with earlier records where both fit into a batch."""
    queue = Queue(10, 100)
    fill(queue, 4)
    assert queue.open is queue.open_for_block(6)
    assert 4 == queue.open_for_block(6).num_bytes


def test_a_block_that_does_not_fit_is_not_split():
    """It starts a batch of its own, and the open one closes before it."""
    queue = Queue(10, 100)
    fill(queue, 4)
    queue.open_for_block(7).add_block(content_of_bodies([b"123", b"4567"]), Told())
    queue.close_if_full()
    assert [4, 7] == [batch.num_bytes for batch in queue.drain()]


def test_a_block_larger_than_a_batch_is_one_batch():
    """Atomic is stronger than the batch size."""
    queue = Queue(10, 1000)
    queue.open_for_block(50).add_block(content_of_bodies([b"x" * 25] * 2), Told())
    assert queue.close_if_full()
    assert [50] == [batch.num_bytes for batch in queue.drain()]


def test_the_queue_refuses_what_would_pass_its_limit():
    """A LimitError with its own code, and nothing is counted."""
    queue = Queue(10, 20)
    fill(queue, 12)
    with pytest.raises(LimitError) as caught:
        queue.admit(9)
    assert Code.QUEUE_FULL == caught.value.code
    assert 12 == queue.unresolved_bytes
    queue.admit(8)
    assert 20 == queue.unresolved_bytes


def test_an_empty_queue_takes_anything():
    """A record larger than the queue's limit can still be appended alone."""
    queue = Queue(10, 20)
    queue.admit(1_000)
    assert 1_000 == queue.unresolved_bytes


def test_what_is_in_flight_still_counts():
    """Taking a batch frees nothing; resolving it does."""
    queue = Queue(10, 20)
    fill(queue, 10)
    batch = queue.take()
    assert 10 == queue.unresolved_bytes
    queue.release(batch.num_bytes)
    assert 0 == queue.unresolved_bytes


def test_what_is_taken_back_goes_to_the_front_in_its_order():
    """Batches to be written again come before everything that waits."""
    queue = Queue(5, 100)
    fill(queue, 5, 6, 7, 2)
    first, second = queue.take(), queue.take()
    queue.take_back([first, second])
    assert [5, 6, 7, 2] == [batch.num_bytes for batch in queue.drain()]
    assert 20 == queue.unresolved_bytes


def test_an_open_batch_that_was_taken_is_no_longer_joined():
    """A record that comes later goes into another batch."""
    queue = Queue(10, 100)
    fill(queue, 3)
    taken = queue.take()
    fill(queue, 4)
    assert (3, 4) == (taken.num_bytes, queue.take().num_bytes)


def test_extra_columns_do_not_leak_between_batches():
    """A batch with keys does not make the next one full."""
    queue = Queue(10, 100)
    queue.open.add_full_row((b"a", b"k", None, None), 2, Told())
    with_key = queue.take()
    fill(queue, 1)
    assert with_key.content().extra
    assert {} == queue.take().content().extra


def test_blocks_with_and_without_columns_share_a_batch():
    """The plain one gets nulls."""
    # EVIDENCE-OF: G-25
    # EVIDENCE-OF: G-12
    batch = Batch()
    add_block(batch, b"a")
    batch.add_block(content_of_rows([b"b"], streams=["s"], num_bytes=2), Told())
    assert [None, "s"] == batch.content().extra["stream"].to_pylist()
