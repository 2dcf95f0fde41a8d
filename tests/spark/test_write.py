"""A DataFrame becomes records: in parallel, in order, all of them, once."""

from __future__ import annotations

import pytest

from cordwood import sync
from cordwood.base import portal
from cordwood.log import paths
from cordwood.spark.options import parse
from cordwood.spark.plan import plan


def append(df, url, **options):
    """Write a DataFrame."""
    df.write.format("cordwood").mode("append").options(**options).save(url)


def log_at(url):
    """The log that was written."""
    return sync.Log.from_url(url)


def bodies(url):
    """Every record's body, by the plain reader, verified."""
    with log_at(url).reader() as reader:
        return [record.body for record in reader.read()]


def numbers(spark, count, splits=4):
    """A DataFrame of so many numbered records."""
    return spark.range(0, count, 1, splits).selectExpr("CAST(id AS STRING) AS body")


def uploads(tmp_path):
    """Uploads that lie in the store."""
    return [path.name for path in (tmp_path / "wood").rglob("Uuid=*") if path.is_file()]


def test_a_dataframe_is_appended_in_its_order(spark, url):
    """Split after split, in parallel, visible at once; the log is made if there is none."""
    # EVIDENCE-OF: G-61
    append(numbers(spark, 10_000), url)
    assert [b"%d" % n for n in range(10_000)] == bodies(url)
    append(numbers(spark, 10), url)
    log = log_at(url)
    assert 10_011 == log.state().next_offset
    report = log.scrub(deep=True)
    assert (True, 10_010) == (report.ok, report.records)


def test_a_sorted_dataframe_stays_sorted(spark, url):
    """Over all its splits."""
    df = spark.range(0, 5_000, 1, 8).selectExpr("CAST(9999 - id AS STRING) AS body").orderBy("body")
    append(df, url)
    found = bodies(url)
    assert 5_000 == len(found)
    assert sorted(found) == found


def test_every_column(spark, url):
    """Keys, headers and streams; text becomes UTF-8."""
    log_at(url).create()
    log_at(url).streams.open("s")
    df = spark.sql(
        """SELECT 'b1' AS body, CAST('k' AS BINARY) AS key,
                  array(named_struct('name', 'h', 'value', CAST('v' AS BINARY))) AS headers,
                  's' AS stream
           UNION ALL SELECT 'b2', NULL, NULL, NULL"""
    ).coalesce(1)
    append(df, url)
    with log_at(url).reader() as reader:
        first, second = reader.read()
    assert (b"b1", b"k", {"h": b"v"}, "s") == (first.body, first.key, first.headers, first.stream)
    assert (b"b2", None, None, None) == (second.body, second.key, second.headers, second.stream)


def test_large_tasks_make_several_fragments(spark, url):
    """Of about `fragmentBytes` each."""
    df = spark.range(0, 30_000, 1, 1).selectExpr("repeat('x', 1000) AS body")
    append(df, url, fragmentBytes="4m", compression="zstd")
    with log_at(url).reader() as reader:
        fragments = reader.scan()
    assert 3 <= len(fragments) <= 8
    assert all(paths.is_bulk(fragment.path) for fragment in fragments)
    assert 30_000 == len(bodies(url))


def test_an_empty_dataframe_makes_a_log_and_no_record(spark, url):
    """And no commit."""
    append(spark.createDataFrame([], "body BINARY"), url)
    assert 1 == log_at(url).state().next_offset


@pytest.mark.both
def test_a_job_that_is_run_again_takes_effect_once(spark, url, log):
    """With a name for it: as in foreachBatch, or under a scheduler."""
    # EVIDENCE-OF: G-62
    for _ in range(2):
        append(numbers(spark, 100), url, txnAppId="nightly", txnVersion=7)
    append(numbers(spark, 3), url, txnAppId="nightly", txnVersion=8)
    assert 103 == len(bodies(url))
    with pytest.raises(Exception, match="comes after its batch 8"):
        append(numbers(spark, 100), url, txnAppId="nightly", txnVersion=7)
    with pytest.raises(Exception, match="committed with 3 records, not 4"):
        append(numbers(spark, 4), url, txnAppId="nightly", txnVersion=8)
    for _ in range(2):
        append(numbers(spark, 1), url)
    assert 105 == len(bodies(url))


def test_tasks_that_die_half_way_change_nothing(spark, url, tmp_path):
    """They are tried again; what they had uploaded is left, named by nobody."""
    # EVIDENCE-OF: G-61

    def fail_once(batches):  # Within the test, so that it travels by value: workers lack `tests`.
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            if number == 4 and TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("this task dies half way")
            yield batch

    df = spark.range(0, 120_000, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    df = df.mapInArrow(fail_once, "body STRING")
    append(df, url, fragmentBytes="64k")
    assert [b"%d" % n for n in range(120_000)] == bodies(url)
    with log_at(url).reader() as reader:
        named = len(reader.scan())
    assert named < len(uploads(tmp_path))
    assert log_at(url).scrub(deep=True).ok


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id AS value", "have no body"),
        ("id AS body", "column body is bigint, expected binary or string"),
        ("'x' AS body, id AS key", "column key is bigint"),
        ("'x' AS body, map('a', 'b') AS headers", "column headers is map<string,string>"),
        ("'x' AS body, id AS offset", "no column 'offset'"),
        ("CAST(NULL AS STRING) AS body", "1 nulls"),
        ("repeat('x', 67108865) AS body", "the limit is 67108864"),
        ("'x' AS body, '' AS stream", "empty name"),
    ],
)
def test_what_cannot_be_appended(spark, url, columns, message):
    """One clear line, and nothing is written."""
    with pytest.raises(Exception, match=message):
        append(spark.range(1).selectExpr(*_columns(columns)), url)
    assert not _has_records(url)


def _columns(text):
    """Expressions separated by commas that are not inside of brackets."""
    import re

    return re.split(r", (?![^(]*\))", text)


def _has_records(url):
    from cordwood import NotFoundError

    try:
        return log_at(url).state().next_offset > 1
    except NotFoundError:
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fragmentBytes": "lots"}, "fragmentBytes is 'lots'"),
        ({"compression": "gzip"}, "compression is 'gzip'"),
        ({"txnVersion": "1"}, "txnAppId, which is not given"),
        ({"secretKey": "x"}, "credentials are not options"),
        ({"startOffset": "1"}, "a write of a log has no option 'startoffset'"),
        ({"create": "false"}, "there is no log at"),
    ],
)
def test_bad_options(spark, url, options, message):
    """One clear line each."""
    with pytest.raises(Exception, match=message):
        append(numbers(spark, 1), url, **options)


def test_a_log_is_not_overwritten(spark, url):
    """It only grows."""
    with pytest.raises(Exception, match="a log only grows"):
        numbers(spark, 1).write.format("cordwood").mode("overwrite").save(url)


def test_a_sealed_log(spark, url):
    """Takes nothing."""
    append(numbers(spark, 1), url)
    log_at(url).seal("over")
    with pytest.raises(Exception, match="takes no more records"):
        append(numbers(spark, 1), url)
    assert [b"0"] == bodies(url)


def test_a_fleets_log_is_marked(spark, url, tmp_path):
    """Who compacts the fleet learns of it."""
    append(numbers(spark, 5), url, fleet="spark")
    found = sync.survey(f"file://{tmp_path}/wood").dirty
    assert [("orders", 1, 6)] == [(one.log, one.start, one.limit) for one in found]


def test_a_live_writer_beside_spark(spark, url):
    """Both get through."""
    log = log_at(url)
    log.create()
    with log.writer() as writer:
        writer.append(b"before")
        append(numbers(spark, 100), url)
        assert 102 == writer.append(b"after")
    assert [b"before", *(b"%d" % n for n in range(100)), b"after"] == bodies(url)


def test_streams_of_a_dataframe_must_be_open(spark, url, tmp_path):
    """One that is not fails the job, and nothing is committed; then all are read by themselves."""
    # EVIDENCE-OF: G-98
    log_at(url).create()
    log_at(url).streams.open("s0", "s1")
    df = spark.range(0, 40, 1, 4).selectExpr(
        "CAST(id AS STRING) body", "CONCAT('s', id % 3) stream"
    )
    with pytest.raises(Exception, match=r"stream 's2' of log .* is not open"):
        append(df, url)
    assert 0 == log_at(url).state().records
    log_at(url).streams.open("s2")
    append(df, url)
    read = spark.read.format("cordwood").option("stream", "s2").load(url)
    assert sorted(n for n in range(40) if n % 3 == 2) == sorted(int(r.body) for r in read.collect())


def test_a_read_of_one_stream_plans_without_the_others(spark, url):
    """Of forty fragments, those that hold it; of a rare one no task hears of any other node."""
    # EVIDENCE-OF: G-101
    log = log_at(url)
    log.create()
    log.streams.open("rare", *(f"s{n}" for n in range(10)))
    with log.writer() as writer:
        for number in range(40):
            writer.append(b"%d" % number, stream=f"s{number % 10}")
            if number == 20:
                writer.append(b"one", stream="rare")
    reader = spark.read.format("cordwood").option("stream", "s3")
    planned = reader.option("view", "fragments").load(url).collect()
    assert [4, 14, 25, 35] == sorted(row.start for row in planned)
    read = spark.read.format("cordwood").option("stream", "s3").load(url)
    assert [b"3", b"13", b"23", b"33"] == [bytes(row.body) for row in read.collect()]
    options = parse({"path": url, "stream": "rare", "pinTtl": "0"})
    works = [work for split in portal.current().run(plan(options)) for work in split.works]
    assert 1 == len([pointer for work in works for pointer in work.pointers])
    rare = spark.read.format("cordwood").option("stream", "rare").load(url)
    assert [b"one"] == [bytes(row.body) for row in rare.collect()]
