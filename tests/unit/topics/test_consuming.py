"""A consumer goes where it is told, ends when it is closed, and refuses what is no position."""

from __future__ import annotations

import asyncio
import threading

import pytest

import cordwood
from cordwood import sync
from cordwood.base.errors import CordwoodError, InvalidInputError, StateError

RECORDS = 10


@pytest.fixture(params=["folder", "memory"])
def topics(request, tmp_path):
    """Topics in a directory, or on a store; one of them with records."""
    place = tmp_path / "wood" if request.param == "folder" else cordwood.Store("memory:")
    with sync.Topics(place) as made:
        made.place = place
        made.create("shop", "clicks", extent_bytes=1 << 16)
        with made.producer("shop", "clicks") as producer:
            producer.send_many([b"x"] * RECORDS)
        yield made


def test_a_seek_counts_at_once_within_what_was_fetched(topics):
    """The rest of the batch is not handed out first, nor does its end undo it."""
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        found = []
        for record in consumer:
            found.append(record.offset)
            if len(found) == 5:
                consumer.seek(0, 2)
        assert [*range(5), *range(2, RECORDS)] == found
        consumer.seek(0, RECORDS)
        consumer.commit()
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        assert [] == list(consumer)


def test_a_group_that_starts_at_the_newest_misses_nothing_from_then_on(topics):
    """Also if its first member goes without a commit, whatever comes before the next."""
    # EVIDENCE-OF: G-93
    how = {"group": "late", "start": "newest", "timeout_s": 0}
    with topics.consumer("shop", "clicks", **how) as consumer:
        assert [] == list(consumer)
    assert [0] == [one.records for one in topics.lag("shop", "clicks", "late")]
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"y"] * 3)
    for turn in range(2):
        with topics.consumer("shop", "clicks", **how) as consumer:
            assert [*range(RECORDS, RECORDS + 3 + turn)] == [one.offset for one in consumer]
            with topics.producer("shop", "clicks") as producer:
                producer.send(b"z")
    assert [5] == [one.records for one in topics.lag("shop", "clicks", "late")]


def test_closing_ends_an_iteration(topics):
    """Quietly, in its own thread or in another; a new one is refused."""
    consumer = topics.consumer("shop", "clicks").__enter__()
    for record in consumer:
        if record.offset == 3:
            consumer.close()
    assert 3 == record.offset
    with pytest.raises(StateError, match="closed"):
        next(iter(consumer))


def test_closing_while_another_thread_reads(topics):
    """It is waited for: nothing is closed under its hands."""
    for _ in range(5):
        consumer = topics.consumer("shop", "clicks", start="oldest").__enter__()
        within, go_on, ended = threading.Event(), threading.Event(), []
        consuming = consumer._consuming
        fetch = consuming._fetch

        def slow(max_bytes, fetch=fetch, within=within, go_on=go_on):
            within.set()
            go_on.wait()
            return fetch(max_bytes)

        consuming._fetch = slow

        def read(consumer=consumer, ended=ended):
            ended.append(len(list(consumer)))

        threads = [threading.Thread(target=read), threading.Thread(target=consumer.close)]
        threads[0].start()
        within.wait()
        threads[1].start()
        consuming._stopped.wait()
        go_on.set()
        for thread in threads:
            thread.join()
        assert 1 == len(ended)


def test_a_task_that_is_cancelled_leaves_nothing_out(topics):
    """Its thread goes on for a moment, and what it fetched is fetched again."""

    async def read():
        within, go_on = threading.Event(), threading.Event()
        async with (
            cordwood.Topics(topics.place) as own,
            own.consumer("shop", "clicks", timeout_s=0) as consumer,
        ):
            fetch = consumer._consuming._fetch

            def slow(max_bytes):
                within.set()
                go_on.wait()
                return fetch(max_bytes)

            consumer._consuming._fetch = slow
            first = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.to_thread(within.wait)
            first.cancel()
            second = asyncio.ensure_future(_all(consumer))
            await asyncio.sleep(0)
            go_on.set()
            return await second

    assert list(range(RECORDS)) == asyncio.run(read())


async def _all(consumer):
    return [record.offset async for record in consumer]


@pytest.mark.parametrize("offset", [-1, "3", 1.5, None, True, 1 << 63])
def test_what_is_no_offset_is_refused_and_changes_nothing(topics, offset):
    """A group would not find its way again."""
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        next(iter(consumer))
        consumer.commit()
        for call in (consumer.commit, lambda given: consumer.seek(0, given[0])):
            with pytest.raises(InvalidInputError, match="no offset"):
                call({0: offset})
    assert [RECORDS - 1] == [one.records for one in topics.lag("shop", "clicks", "g")]
    if offset is not None:
        with (
            topics.consumer("shop", "clicks", positions=lambda _: offset, timeout_s=0) as consumer,
            pytest.raises(InvalidInputError, match="no offset"),
        ):
            next(iter(consumer))


@pytest.mark.parametrize(
    "wrong",
    [{"timeout_s": "1"}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"positions": 5}],
    ids=str,
)
def test_consumers_that_cannot_be(topics, wrong):
    """One clear error."""
    with (
        pytest.raises(InvalidInputError),
        topics.consumer("shop", "clicks", **wrong) as consumer,
    ):
        next(iter(consumer))


def test_positions_that_are_no_mapping_or_of_no_partition(topics):
    """One clear error."""
    with topics.consumer("shop", "clicks", group="g", timeout_s=0) as consumer:
        next(iter(consumer))
        with pytest.raises(InvalidInputError, match="maps partitions"):
            consumer.commit(5)
        for partition in (1, "0", None):
            with pytest.raises(CordwoodError, match="partition"):
                consumer.commit({partition: 3})
