"""Batch reads: by name, frozen, projected, by range, of several logs."""

from __future__ import annotations

import gc
import shutil
import threading
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from cordwood import CollectedError, InvalidInputError, NotFoundError, Token, sync
from cordwood.spark import read_log, release
from cordwood.spark.batch_reader import reader_of
from cordwood.spark.schema import OFFSET


def offsets(frame):
    """The offsets that a query gives, in the order it gives them."""
    return [row.offset for row in frame.select("offset").collect()]


@pytest.mark.both
def test_a_log_is_read_by_name(spark, log, url, fill):
    """No register call; the records are those of the plain reader, in order."""
    fill(log, fragments=30)
    frame = spark.read.format("cordwood").load(url)
    assert frame.schema.simpleString() == "struct<offset:bigint,timestamp:timestamp,body:binary>"
    assert not any(field.nullable for field in frame.schema)
    rows = frame.collect()
    with log.reader() as reader:
        records = list(reader.read())
    assert [(r.offset, bytes(r.body)) for r in rows] == [(r.offset, r.body) for r in records]
    stamped = spark.read.format("cordwood").load(url).selectExpr("unix_micros(timestamp) t")
    assert [r.t for r in stamped.collect()] == [r.timestamp_us for r in records]


def test_keys_headers_and_streams_where_the_log_has_them(spark, log, url):
    """A log with the feature has six columns, and what a record lacks is null."""
    log.streams.open("eu")
    with log.writer() as writer:
        writer.append(b"plain")
        writer.append(b"full", key=b"k", headers={"a": b"1", "b": b"2"}, stream="eu")
    frame = spark.read.format("cordwood").load(url)
    assert frame.columns == ["offset", "timestamp", "body", "key", "headers", "stream"]
    plain, full = frame.collect()
    assert (plain.key, plain.headers, plain.stream) == (None, None, None)
    assert (bytes(full.key), full.stream) == (b"k", "eu")
    assert [(h.name, bytes(h.value)) for h in full.headers] == [("a", b"1"), ("b", b"2")]
    only = spark.read.format("cordwood").option("stream", "eu").schema("offset BIGINT").load(url)
    assert offsets(only) == [2]


def test_a_schema_is_a_projection(spark, log, url, fill):
    """These columns, in this order, nullable if they are declared so."""
    fill(log, fragments=3)
    asked = "fragment STRING, log STRING NOT NULL, body BINARY, offset BIGINT NOT NULL, key BINARY"
    frame = spark.read.format("cordwood").schema(asked).load(url)
    row = frame.collect()[-1]
    with log.reader() as reader:
        newest = reader.scan()[-1]
    assert tuple(row) == (newest.path, "orders", bytearray(b"30"), 30, None)
    assert [field.nullable for field in frame.schema] == [True, False, True, False, True]


def test_a_frame_is_frozen_and_a_fresh_load_is_not(spark, log, url, fill):
    """What was planned stays; what is loaded again sees what came."""
    # EVIDENCE-OF: G-80
    fill(log, fragments=2)
    frame = spark.read.format("cordwood").load(url)
    assert frame.count() == 20
    fill(log, fragments=1)
    assert frame.count() == 20
    assert spark.read.format("cordwood").load(url).count() == 30


def test_nobody_sees_half_an_append_or_half_a_commit(log, url):
    """Reads that are planned while others write have a whole number of them, in order."""
    # EVIDENCE-OF: G-80
    is_over = threading.Event()

    def write():
        batch = 0
        while not is_over.is_set():
            token = Token("job", batch)
            bodies = pa.table({"body": [b"%d" % batch] * 5})
            log.commit([log.stage(bodies, token) for _ in range(3)], token)
            with log.writer() as writer:
                writer.append_many([b"append"] * 15)
            batch += 1

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    try:
        while len(counts) < 20 or counts[-1] < 90:
            reader = reader_of(StructType([OFFSET]), {"path": url})
            batches = [b for split in reader.partitions() for b in reader.read(split)]
            found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
            assert found == list(range(1, len(found) + 1))
            counts.append(len(found))
    finally:
        is_over.set()
        writer.join()
    assert {0} == {count % 15 for count in counts}


def test_filters_leave_other_queries_alone(spark, log, url, fill):
    """Spark's push-down mixes up queries of one DataFrame; a source without it is safe from that.

    Should this source ever push filters, these counts show whether Spark still does.
    """
    fill(log, fragments=10)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("cordwood").schema("offset BIGINT").load(url)
        assert frame.where("offset >= 10 and offset < 20").count() == 10
        assert frame.count() == 100
        parts = frame.where("offset < 10").union(frame.where("offset > 95"))
        assert parts.count() == 9 + 5
        assert frame.where("cast(offset as string) = '5'").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_ranges_are_options(spark, log, url, fill):
    """By offset, by time, from a cursor; ends are not included, and may lie inside a fragment."""
    fill(log, fragments=5)
    log.cursors.init("done", 31)
    with log.reader() as reader:
        stamps = {record.offset: record.timestamp_us for record in reader.read()}

    def load(**options):
        reader = spark.read.format("cordwood").schema("offset BIGINT").options(**options)
        return offsets(reader.load(url))

    assert load(startOffset=7, endOffset=23) == list(range(7, 23))
    assert load(cursor="done") == list(range(31, 51))
    assert load(startTime=stamps[21], endTime=stamps[41]) == list(range(21, 41))
    assert load(startOffset=51) == []
    assert load(endOffset=1) == []


def test_an_empty_log_is_an_empty_frame(spark, log, url):
    """No split, no row, no error."""
    assert spark.read.format("cordwood").load(url).collect() == []
    assert read_log(spark, url).collect() == []


def test_several_logs(spark, log, url, fill):
    """A pattern, a list of names, a list of URLs; a column says which log a record is of."""
    store = url.rpartition("/")[0]
    for name, count in (("clicks", 1), ("orders-eu", 2)):
        other = sync.Log(store, name)
        other.create()
        fill(other, fragments=count)
    fill(log, fragments=3)

    def counts(frame):
        return {row.log: row["count"] for row in frame.groupBy("log").count().collect()}

    assert counts(spark.read.format("cordwood").load(f"{store}/orders*")) == {
        "orders": 30,
        "orders-eu": 20,
    }
    named = spark.read.format("cordwood").option("logs", "clicks,orders").load(store)
    assert counts(named) == {"clicks": 10, "orders": 30}
    listed = read_log(spark, [url, f"{store}/clicks"], ["log", "offset"])
    assert counts(listed) == {"clicks": 10, "orders": 30}


@pytest.mark.both
def test_a_fork_is_read_with_what_it_shares(spark, log, url, fill):
    """Tasks find the parent's files without a manifest."""
    fill(log, fragments=30)
    fork = sync.Log(log.store, "fork")
    log.fork(fork)
    fill(fork, fragments=2)
    frame = spark.read.format("cordwood").option("verify", "full").load(fork.url)
    assert offsets(frame) == list(range(1, 321))


def test_counts_and_bounds_come_from_the_manifest(spark, log, url, fill, tmp_path):
    """The view `fragments` has a row for each file, and reads none of them."""
    fill(log, fragments=30)
    frame = spark.read.format("cordwood").option("view", "fragments").load(url)
    with log.reader() as reader:
        fragments = reader.scan()
    shutil.rmtree(tmp_path / "wood" / "orders" / "log")
    assert [(r.path, r.seq_no, r.start, r.limit, r.bytes, r.setsum) for r in frame.collect()] == [
        (f.path, f.seq_no, f.start, f.limit, f.num_bytes, f.setsum_hex) for f in fragments
    ]
    totals = frame.selectExpr("sum(records) n", "min(start) a", "max(`limit`) b").first()
    assert tuple(totals) == (300, 1, 301)


def test_read_log_is_fresh_and_frozen(spark, log, url, fill):
    """It sees the log as it is at the call, whenever it is used."""
    # EVIDENCE-OF: G-80
    fill(log, fragments=2)
    frame = read_log(spark, url, columns=["offset"], start=5)
    fill(log, fragments=1)
    assert offsets(frame) == list(range(5, 21))
    later = read_log(
        spark, url, ["body", "offset"], end=datetime(2100, 1, 1, tzinfo=UTC), split_bytes="1m"
    )
    assert later.columns == ["body", "offset"]
    assert later.count() == 30
    assert spark.read.format("cordwood").load(url).count() == 30


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"columns": ["offset", "colour"]}, InvalidInputError, "colour"),
        ({"columns": []}, InvalidInputError, "cannot be read"),
        ({"columns": "body"}, InvalidInputError, "give a list"),
        ({"splitbites": 1}, InvalidInputError, "no option"),
        ({"start": -1}, InvalidInputError, "startOffset is '-1'"),
        ({"cursor": "nobody"}, NotFoundError, "no cursor named 'nobody'"),
    ],
)
def test_read_log_says_at_once_what_is_wrong(spark, log, url, fill, arguments, error, said):
    """As an error of Cordwood's own, before Spark is asked."""
    fill(log, fragments=1)
    with pytest.raises(error) as refused:
        read_log(spark, url, **arguments)
    assert said in str(refused.value)
    assert log.state().pins == ()


@pytest.mark.both
def test_what_is_read_stays_while_collection_goes_on(spark, log, url, fill):
    """A pin keeps the files of a read; the log itself moves on, and a fresh read starts later."""
    # EVIDENCE-OF: G-81
    fill(log, fragments=20)
    frame = read_log(spark, url, ["offset", "body"])
    planned = spark.read.format("cordwood").load(url)
    assert planned.count() == 200
    assert len(log.state().pins) == 2
    log.cursors.init("done", 151)
    log.collect(wait_s=30)
    oldest = log.state().oldest_offset
    assert oldest > 100
    assert frame.count() == 200
    assert planned.count() == 200
    assert spark.read.format("cordwood").load(url).count() == 201 - oldest
    before = log.state().pins
    release(frame)
    assert len(before) - len(log.state().pins) == 1


def test_a_forgotten_frame_stays_pinned_for_what_was_made_of_it(spark, log, url, fill):
    """Until everything of the process is released: nothing else tells when it is not needed."""
    # EVIDENCE-OF: G-81
    fill(log, fragments=4)
    release()
    derived = read_log(spark, url).where("offset > 10")
    gc.collect()
    log.cursors.init("done", 41)
    log.collect(wait_s=30)
    assert derived.count() == 30
    assert len(log.state().pins) == 1
    release()
    assert log.state().pins == ()


def test_without_a_pin_a_read_that_is_too_late_says_so(spark, log, url, fill):
    """A file that was collected ends the read; no record is left out in silence."""
    # EVIDENCE-OF: G-81
    fill(log, fragments=4)
    frame = spark.read.format("cordwood").option("pinTtl", "0").load(url)
    assert frame.count() == 40
    assert log.state().pins == ()
    log.cursors.init("done", 31)
    log.collect(wait_s=30)
    with pytest.raises(Exception, match="have been collected since this read was planned"):
        frame.count()
    with pytest.raises(CollectedError, match="has been collected"):
        read_log(spark, url, start=5)


def test_large_records_make_small_batches(spark, log, url):
    """A batch has some megabytes, however large the records are."""
    with log.writer() as writer:
        writer.append_arrow(pa.table({"body": [bytes(3 * 2**20), b"small", bytes(2**20)]}))
    frame = spark.read.format("cordwood").option("batchBytes", "1m").load(url)
    assert [len(r.body) for r in frame.collect()] == [3 * 2**20, 5, 2**20]
