"""Streams of several logs, asked as Spark asks them: whose turn it is, and which logs they are."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cordwood import CollectedError, StateError, sync
from cordwood.spark import advance
from cordwood.spark.schema import PLAIN
from cordwood.spark.stream_reader import StreamReader


@pytest.fixture
def store(tmp_path):
    """Where the logs lie."""
    return f"file://{tmp_path}/wood"


@pytest.fixture
def make(store, fill):
    """`make("a", 3)`: a log with so many fragments of ten records."""

    def create(name, fragments=0):
        made = sync.Log(store, name)
        made.create(exist_ok=True, grace_s=1)
        fill(made, fragments)
        return made

    return create


def stream(url, **options):
    """A stream as the driver holds it, in a process that has just begun."""
    named = {name: str(value) for name, value in options.items()}
    return StreamReader(StructType(list(PLAIN)), {"path": url, **named})


def step(reader, start):
    """The next batch: where it ends, as it comes back from the checkpoint, and what it reads."""
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    rows = [
        batch.num_rows for split in reader.partitions(start, end) for batch in reader.read(split)
    ]
    return end, sum(rows)


def offsets(positions):
    """Where each log stands."""
    return {name: there["offset"] for name, there in positions["logs"].items()}


def test_a_limit_of_fragments_holds_for_all_logs_together(make, store):
    """With more logs than fragments they take turns, and everything is read in the end."""
    for name in "abcde":
        make(name, 2)
    reader = stream(f"{store}/*", maxFragmentsPerTrigger=2)
    at, counts = reader.initialOffset(), []
    for _ in range(5):
        at, count = step(reader, at)
        counts.append(count)
    assert counts == [20] * 5
    assert set(offsets(at).values()) == {21}


def test_a_limit_of_bytes_holds_for_all_logs_together(make, store):
    """One fragment at least; else what fits."""
    logs = [make(name, 3) for name in "ab"]
    with logs[0].reader() as r:
        size = max(fragment.num_bytes for fragment in r.scan())
    reader = stream(f"{store}/*", maxBytesPerTrigger=4 * size)
    at, count = step(reader, reader.initialOffset())
    assert count == 40
    assert offsets(at) == {"a": 21, "b": 21}


def test_a_new_log_is_entered_before_it_is_read(make, store):
    """So that a batch made again begins where it began, whatever was collected meanwhile."""
    make("a", 1)
    reader = stream(f"{store}/*", cursor="copy")
    at, _ = step(reader, reader.initialOffset())
    late = make("b", 2)
    entered, count = step(reader, at)
    assert (offsets(entered), count) == ({"a": 11, "b": 1}, 0)
    assert late.cursors.load("copy").offset == 1
    after, count = step(reader, entered)
    assert (offsets(after), count) == ({"a": 11, "b": 21}, 20)
    again = stream(f"{store}/*", cursor="copy")
    splits = again.partitions(entered, after)
    assert sum(batch.num_rows for split in splits for batch in again.read(split)) == 20


def test_a_log_that_was_destroyed_is_left_behind(make, store):
    """Where logs come and go by a pattern; what it had is not asked for any more."""
    make("a", 1)
    gone = make("b", 1)
    reader = stream(f"{store}/*")
    at, _ = step(reader, reader.initialOffset())
    gone.destroy()
    make("a", 1)
    after, count = step(stream(f"{store}/*"), at)
    assert (offsets(after), count) == ({"a": 21, "b": 11}, 10)


def test_a_checkpoint_of_another_query_is_refused(make, store):
    """Another log, or a pattern that no longer names one that is there."""
    make("a", 1)
    make("b", 1)
    at = stream(f"{store}/a").initialOffset()
    for other in (f"{store}/b", f"{store}/b*"):
        with pytest.raises(StateError, match="the checkpoint is of log 'a', and the query reads b"):
            stream(other).latestOffset(at, ReadAllAvailable())


def test_a_cursor_ahead_of_the_checkpoint_is_moved_back(make, store):
    """What a restarted query will read again is not collected under it."""
    log = make("a", 4)
    reader = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    begin = reader.initialOffset()
    at, _ = step(reader, begin)
    reader.commit(at)
    witness = log.cursors.load("copy")
    assert witness.offset == 11
    log.cursors.save("copy", 41, witness)
    restarted = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    assert step(restarted, at)[1] == 10
    assert log.cursors.load("copy").offset == 11


def test_a_cursor_is_one_querys(make, store):
    """Another one that was given its name is refused before it reads, and moves nothing."""
    # EVIDENCE-OF: G-65
    log = make("a", 10)
    slow = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    at, _ = step(slow, slow.initialOffset())
    fast = stream(f"{store}/a", cursor="copy")
    with pytest.raises(StateError, match="the cursor 'copy' of log 'a' belongs to the query"):
        step(fast, fast.initialOffset())
    assert log.cursors.load("copy").offset == 1
    slow.commit(at)
    again = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    assert step(again, at)[1] == 10
    assert log.cursors.load("copy").offset == 11


def test_a_query_that_died_in_its_first_batch_has_its_cursor(make, store):
    """Spark asks anew where it begins, and has the end of the batch in the checkpoint."""
    make("a", 2)
    first = stream(f"{store}/a", cursor="copy")
    end, _ = step(first, first.initialOffset())
    again = stream(f"{store}/a", cursor="copy")
    splits = again.partitions(again.initialOffset(), end)
    assert sum(batch.num_rows for split in splits for batch in again.read(split)) == 20
    again.commit(end)


def test_a_cursor_is_taken_when_asked(make, store):
    """By a new query, from where it stands; the old one is told, and moves it no more."""
    log = make("a", 4)
    old = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    at, _ = step(old, old.initialOffset())
    old.commit(at)
    new = stream(f"{store}/a", cursor="copy", takeCursor="true")
    end, count = step(new, new.initialOffset())
    assert count == 30
    new.commit(end)
    with pytest.raises(StateError, match=r"'copy' of log 'a' was not moved to 11: .* to"):
        old.commit(at)
    with pytest.raises(StateError, match="belongs to the query"):
        step(stream(f"{store}/a", cursor="copy", takeCursor="true"), at)
    new.commit(end)
    assert log.cursors.load("copy").offset == 41
    log.cursors.save("copy", 41, log.cursors.load("copy"))
    other = stream(f"{store}/a", cursor="copy")
    assert step(other, other.initialOffset())[1] == 0


def test_a_cursor_that_cannot_be_moved_says_which(make, store):
    """And what that means: it was deleted, and collection went past what the query finished."""
    log = make("a", 4)
    reader = stream(f"{store}/a", cursor="copy", maxFragmentsPerTrigger=1)
    at, _ = step(reader, reader.initialOffset())
    log.cursors.delete("copy", log.cursors.load("copy"))
    log.cursors.init("other", 31)
    log.collect(wait_s=30)
    with pytest.raises(CollectedError) as refused:
        reader.commit(at)
    assert "the cursor 'copy' of log 'a' was not moved to 11: offset 11" in str(refused.value)
    assert "No batch is lost" in str(refused.value)


def test_a_cursor_that_was_deleted_is_made_again(make, store):
    """A query that goes on goes on holding back collection."""
    log = make("a", 2)
    reader = stream(f"{store}/a", cursor="copy")
    at, _ = step(reader, reader.initialOffset())
    log.cursors.delete("copy", log.cursors.load("copy"))
    reader.commit(at)
    assert log.cursors.load("copy").offset == 21


def test_a_start_offset_that_was_collected(make, store):
    """The same clear error as everywhere."""
    log = make("a", 20)
    log.cursors.init("done", 150)
    log.collect(wait_s=30)
    with pytest.raises(CollectedError, match="has been collected"):
        stream(f"{store}/a", startOffset=5).initialOffset()


def test_a_sealed_log_ends(make, store):
    """It is read to its end, and then there is nothing more."""
    log = make("a", 2)
    reader = stream(f"{store}/a")
    log.seal("done")
    at, count = step(reader, reader.initialOffset())
    assert count == 20
    assert step(reader, at) == (at, 0)
    assert reader.reportLatestOffset()["logs"]["a"]["offset"] == at["logs"]["a"]["offset"]


class Ended:
    """A query that has ended, as far as `advance` looks at it."""

    def __init__(self, *ends):
        self.lastProgress = {"sources": [{"endOffset": end} for end in ends]} if ends else None


def test_the_last_batch_moves_the_cursor_when_asked(make, store):
    """Spark tells a source nothing of it; other sources and an empty progress are passed over."""
    log = make("a", 2)
    reader = stream(f"{store}/a", cursor="copy")
    at, _ = step(reader, reader.initialOffset())
    assert log.cursors.load("copy").offset == 1
    advance(Ended(None, "7", '{"topic": {"0": 5}}', json.dumps(at)))
    assert log.cursors.load("copy").offset == 21
    advance(Ended())
