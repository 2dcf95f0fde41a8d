"""Options of a read: what is understood, and the one clear error for each that is not."""

from __future__ import annotations

import time  # noqa: TID251 - sets the zone of this process
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest

import cordwood
from cordwood import InvalidInputError, NotFoundError, sync
from cordwood.spark import writing
from cordwood.spark.options import Frozen, Place, parse
from cordwood.spark.read import _given

URL = "file:///data/wood/orders"


def test_a_url_names_one_log():
    """The last segment is the log, the rest is the store; nothing else is needed."""
    asked = parse({"path": URL})
    assert asked.place == Place("file:///data/wood", ("orders",))
    assert asked.place.is_single
    assert (asked.verify, asked.view, asked.pin_ttl_s) == ("true", "records", 3600)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"path": "file:///d/orders-*"}, Place("file:///d", ("orders-*",))),
        ({"path": "file:///d/*/orders"}, Place("file:///d", ("*/orders",))),
        ({"path": "s3://box/p/a?"}, Place("s3://box/p", ("a?",))),
        ({"path": "file:///d", "logs": "a, b,a"}, Place("file:///d", ("a", "b"))),
        ({"path": "file:///d", "logs": "a,b-*"}, Place("file:///d", ("a", "b-*"))),
        ({"paths": '["file:///d/a", "file:///d/b"]'}, Place("file:///d", ("a", "b"))),
        (
            {"paths": '["file:///d/b", "file:///d/a", "file:///d/b"]'},
            Place("file:///d", ("b", "a")),
        ),
    ],
)
def test_several_logs(options, place):
    """By a pattern, by a list of names in a store, by a list of URLs."""
    asked = parse(options)
    assert asked.place == place
    assert not asked.place.is_single


def test_values_are_understood_in_any_case():
    """Spark's options have no case; sizes may have a unit, times a zone."""
    asked = parse(
        {
            "PATH": URL,
            "startoffset": " 7 ",
            "endTime": "2026-01-31T12:00:00+01:00",
            "splitBytes": "64m",
            "BATCHBYTES": "512 KB",
            "verify": "False",
            "pinTtl": "0",
        }
    )
    assert (asked.start_offset, asked.end_time_us) == (7, 1769857200_000000)
    assert (asked.split_bytes, asked.batch_bytes) == (64 * 2**20, 512 * 2**10)
    assert (asked.verify, asked.pin_ttl_s) == ("false", 0)


@pytest.mark.parametrize(
    "text", ["2026-01-31T11:00:00Z", "2026-01-31 11:00:00", "1769857200000000"]
)
def test_a_time_without_a_zone_is_utc(text):
    """So that it does not depend on the machine that plans."""
    assert parse({"path": URL, "startTime": text}).start_time_us == 1769857200_000000


def test_a_datetime_without_a_zone_is_utc_too(monkeypatch):
    """The same moment in `read_log` as in the text of an option, in any zone of the machine."""
    noon = datetime.fromisoformat("2026-01-31T12:00:00")
    try:
        for zone in ("America/New_York", "Asia/Tokyo", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            for moment in (noon, noon.replace(tzinfo=UTC), noon.isoformat(), str(noon)):
                given = _given(URL, None, None, {"start_time": moment})
                assert parse(given).start_time_us == 1769860800_000000
            assert _given(URL, noon, None, {}) == _given(URL, noon.replace(tzinfo=UTC), None, {})
    finally:
        monkeypatch.undo()
        time.tzset()


STREAMING = {"startingAt", "onCollected", "maxRecordsPerTrigger", "maxBytesPerTrigger"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no log is named"),
        ({"path": "orders"}, "does not name a log"),
        ({"path": "ftp://x/y"}, "is not one"),
        ({"path": "s3://key:secret@b/orders"}, "credentials"),
        ({"path": "memory:wood/orders"}, "do not see this one's memory"),
        ({"path": "*/orders"}, "not for their store"),
        ({"path": "file:///d", "logs": " , "}, "lists names"),
        ({"logs": "a"}, "lists names"),
        ({"path": "file:///d", "logs": "a b"}, "cannot name a log"),
        ({"paths": '["file:///d/a", "file:///e/b"]'}, "several stores"),
        ({"path": URL, "startOfset": "1"}, "no option 'startofset'"),
        ({"path": URL, "aws_secret_access_key": "x"}, "credentials are not options"),
        ({"path": URL, "startOffset": "-1"}, "startOffset is '-1', not a whole number"),
        ({"path": URL, "startOffset": "x"}, "startOffset is 'x'"),
        ({"path": URL, "startOffset": str(2**63)}, "below 2^63"),
        ({"path": URL, "endTime": "tomorrow"}, "endTime is 'tomorrow', not a time"),
        ({"path": URL, "splitBytes": "0"}, "splitBytes is '0', not a number of bytes"),
        ({"path": URL, "splitBytes": "3x"}, "splitBytes is '3x'"),
        ({"path": URL, "verify": "maybe"}, "one of true, full, false"),
        ({"path": URL, "view": "table"}, "one of records, fragments"),
        ({"path": URL, "stream": " "}, "stream is ' ', not a name"),
        ({"path": URL, "pinTtl": "1.5"}, "pinTtl is '1.5'"),
        ({"path": URL, "startOffset": "1", "cursor": "c"}, "both say where to start"),
        ({"path": URL, "startOffset": "1", "startTime": "1"}, "both say where to start"),
        ({"path": URL, "endOffset": "1", "endTime": "1"}, "both say where to end"),
        ({"path": "file:///d/*", "startOffset": "1"}, "a place in one log"),
        ({"path": "file:///d/*", "pin": "p"}, "a pin of one log"),
        ({"path": URL, "frozen": "[1]"}, "read_log made"),
        ({"path": URL, "startingAt": "never"}, "one of oldest, latest"),
        ({"path": URL, "onCollected": "panic"}, "one of fail, oldest"),
        ({"path": URL, "maxRecordsPerTrigger": "0"}, "at least 1"),
        ({"path": URL, "maxBytesPerTrigger": "many"}, "a number of bytes"),
    ],
)
def test_one_clear_error(options, said):
    """Each mistake is named, with what would have been right."""
    with pytest.raises(InvalidInputError) as refused:
        parse(options, streaming=bool(STREAMING & set(options)))
    assert said in str(refused.value)


def test_an_option_of_the_other_kind_is_refused():
    """A batch read knows no triggers, a stream no end."""
    with pytest.raises(InvalidInputError, match="a read of a log has no option"):
        parse({"path": URL, "maxRecordsPerTrigger": "1"})
    with pytest.raises(InvalidInputError, match="a streaming read of a log has no option"):
        parse({"path": URL, "endOffset": "1"}, streaming=True)
    assert parse({"path": URL, "endOffset": "1", "startingAt": "latest"}, streaming=None)


def test_a_frozen_range_travels_as_text():
    """What `read_log` fixed is an option like any other."""
    text = '[{"log":"orders","begin":3,"end":9,"pin":"spark_a"}]'
    assert parse({"path": URL, "frozen": text}).frozen == (Frozen("orders", 3, 9, "spark_a"),)


def test_a_destroyed_chain_log_is_made_anew(tmp_path):
    """What it leaves behind for a while is no log: a write makes one, or says there is none."""
    log = sync.Log(f"file://{tmp_path}", "orders")
    log.create(protocol="chain")
    log.destroy()
    options = {"store": f"file://{tmp_path}", "name": "orders"}
    with pytest.raises(NotFoundError, match="no log"):
        writing.prepare(writing.WriteOptions(**options, create=False))
    writing.prepare(writing.WriteOptions(**options))
    assert 1 == log.state().next_offset


@pytest.mark.parametrize("paths", ["[]", "a", "[1]", "{}"])
def test_a_list_that_names_no_logs(paths):
    """It is one clear error, whoever made the list."""
    with pytest.raises(InvalidInputError, match=r"no log is named|option paths"):
        parse({"paths": paths})
    for url in (None, 1, [1]):
        with pytest.raises(InvalidInputError):
            _given(url, None, None, {})


def test_uploads_of_uneven_records():
    """Large records that lie together are not taken for one atomic batch that is too large."""
    sizes = [1] * 1_000 + [60_000] * 20 + [1] * 1_000
    batch = pa.record_batch({"body": pa.array([b"x" * size for size in sizes], pa.binary())})
    tables = list(writing._tables(iter([batch, batch.slice(0, 0), batch]), 100_000))
    assert max(table.nbytes for table in tables) < 2 * 100_000
    assert sizes * 2 == [len(body) for table in tables for body in table["body"].to_pylist()]
    assert len(tables) < 60


def test_what_is_no_session(tmp_path):
    """It is told before anything is read, made or pinned."""
    url = str(tmp_path / "wood" / "orders")
    for spark in (None, url, object()):
        for call in (
            lambda spark: cordwood.spark.read_log(spark, url),
            lambda spark: cordwood.spark.read_table(spark, url),
            lambda spark: cordwood.spark.jobs.build_index(spark, url, tmp_path / "index"),
        ):
            with pytest.raises(InvalidInputError, match="spark is a SparkSession"):
                call(spark)
    spark = SimpleNamespace(read=None, createDataFrame=None)
    for columns in (5, "body", [1], [], ["nothing"]):
        with pytest.raises(InvalidInputError):
            cordwood.spark.read_log(spark, url, columns=columns)
    with pytest.raises(InvalidInputError, match="source is a DataFrame"):
        cordwood.spark.jobs.build_index(spark, 5, tmp_path / "index")
    assert [] == list(tmp_path.iterdir())
