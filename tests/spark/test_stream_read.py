"""Logs are followed: from where, how much at once, through restarts, and what holds them."""

from __future__ import annotations

import json
import threading

import pytest

import cordwood
from cordwood import sync
from cordwood.spark import keep_cursors


@pytest.fixture
def log(url, protocol):
    """`log(10)`: append so many numbered records, a fragment each; the log."""
    made = sync.Log.from_url(url)
    made.create(grace_s=1, protocol=protocol)

    def append(count, each=1):
        start = made.manifest().next_offset
        with made.writer() as writer:
            for number in range(start, start + count * each, each):
                writer.append_many([b"%d" % n for n in range(number, number + each)])
        return made

    return append


@pytest.fixture
def follow(spark, url, tmp_path):
    """`follow(…)`: a query over what there is, and the batches it made."""

    def run(*, load=url, checkpoint="checkpoint", trigger=None, **options):
        batches = []

        def take(df, _):
            batches.append([row.body.decode() for row in df.orderBy("offset").collect()])

        query = (
            spark.readStream.format("cordwood")
            .options(**options)
            .load(load)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        run.progress = [json.loads(p.json) for p in query.recentProgress]
        return [batch for batch in batches if batch]

    return run


def numbers(first, limit):
    """The bodies of these records."""
    return [str(n) for n in range(first, limit)]


@pytest.mark.both
def test_everything_once_through_restarts(log, follow):
    """A query goes on where its checkpoint says."""
    # EVIDENCE-OF: G-64
    log(5)
    assert [numbers(1, 6)] == follow()
    assert [] == follow()
    log(3)
    assert [numbers(6, 9)] == follow()


def test_batches_are_limited(log, follow):
    """By records, by fragments and by bytes."""
    log(6, each=10)
    batches = follow(maxRecordsPerTrigger=25, checkpoint="records")
    assert [25, 25, 10] == [len(batch) for batch in batches]
    assert numbers(1, 61) == [body for batch in batches for body in batch]
    batches = follow(maxFragmentsPerTrigger=2, checkpoint="fragments")
    assert [20, 20, 20] == [len(batch) for batch in batches]
    batches = follow(maxBytesPerTrigger=1, checkpoint="bytes")
    assert [10] * 6 == [len(batch) for batch in batches]
    assert [numbers(1, 61)] == follow(
        maxRecordsPerTrigger=25, checkpoint="once", trigger={"once": True}
    )


def test_where_a_query_begins(log, follow, url):
    """At the oldest record, at an offset, at a time, at the end, at a cursor."""
    made = log(5)
    assert [numbers(4, 6)] == follow(startOffset=4, checkpoint="offset")
    with made.reader() as reader:
        third = list(reader.read())[2].timestamp_us
    assert numbers(3, 6) == follow(startTime=third, checkpoint="time")[0][-3:]
    assert [] == follow(startingAt="latest", checkpoint="latest")
    made.cursors.init("mine", 3)
    assert [numbers(3, 6)] == follow(cursor="mine", checkpoint="cursor")


def test_several_logs_share_a_batch(log, follow, url, tmp_path):
    """A small log does not wait for a large one; new logs come along."""
    log(1, each=100)
    other = sync.Log.from_url(f"{url}-eu")
    other.create()
    with other.writer() as writer:
        writer.append_many([b"eu%d" % n for n in range(10)])
    batches = follow(load=f"{url}*", maxRecordsPerTrigger=40)
    assert [40, 40, 30] == [len(batch) for batch in batches]
    assert 10 == sum(body.startswith("eu") for body in batches[0])
    late = sync.Log.from_url(f"{url}-us")
    late.create()
    with late.writer() as writer:
        writer.append(b"us")
    assert [["us"]] == follow(load=f"{url}*", maxRecordsPerTrigger=40)


def test_the_lag_is_in_the_progress(log, follow):
    """The end of the batch, and the end of the log."""
    log(4, each=10)
    follow(maxRecordsPerTrigger=15)
    source = follow.progress[0]["sources"][0]
    assert 16 == source["endOffset"]["logs"]["orders"]["offset"]
    assert 41 == source["latestOffset"]["logs"]["orders"]["offset"]


@pytest.mark.both
def test_a_cursor_holds_back_collection(log, follow, spark):
    """From the start of the query; it moves when a batch is finished, at once with a keeper."""
    # EVIDENCE-OF: G-65
    made = log(10)
    follow(cursor="copy", maxRecordsPerTrigger=4)
    # Spark does not tell a source of its last batch.
    assert 9 == made.cursors.load("copy").offset
    keeper = keep_cursors(spark)
    try:
        log(2)
        follow(cursor="copy")
        wait_for(lambda: made.cursors.load("copy").offset == 13)
    finally:
        spark.streams.removeListener(keeper)
    made.collect(wait_s=10)
    assert made.state().oldest_offset > 9
    log(1)
    assert [numbers(13, 14)] == follow(cursor="copy")


def wait_for(condition):
    """Until it holds: a listener is told a moment later."""
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to hold")


def test_a_start_that_was_collected(log, follow):
    """One clear line; or, if wanted, from the oldest there is."""
    made = log(4)
    follow()
    log(20)
    made.cursors.init("other", 20)
    made.collect(wait_s=10)
    with pytest.raises(Exception, match="goes on at offset 5, which has been collected"):
        follow()
    batches = follow(onCollected="oldest")
    assert [numbers(made.state().oldest_offset, 25)] == batches


def test_a_start_behind_the_end(log, follow):
    """Is a mistake in an option, and not one of the checkpoint."""
    log(4)
    with pytest.raises(Exception, match="option startOffset is 300, and log 'orders' ends at 5"):
        follow(startOffset=300)
    assert [] == follow(startOffset=5)


def test_keys_that_come_later_are_not_dropped(spark, log, follow, url):
    """A query that has no columns for them fails, and has them when it is made again."""
    # EVIDENCE-OF: G-64
    made = log(2)
    stream = spark.readStream.format("cordwood").load(url)
    with made.writer() as writer:
        writer.append(b"3", key=b"k")
    with pytest.raises(Exception, match="log 'orders' has keys, headers or streams, which it had"):
        copy(stream.drop("offset", "timestamp"), f"{url}-copy")
    assert [numbers(1, 4)] == follow()
    chosen = spark.readStream.format("cordwood").schema("body BINARY").load(url)
    copy(chosen, f"{url}-bodies")
    copy(
        spark.readStream.format("cordwood").load(url).drop("offset", "timestamp"),
        f"{url}-with-keys",
    )
    with sync.Log.from_url(f"{url}-with-keys").reader() as reader:
        assert [None, None, b"k"] == [record.key for record in reader.read()]


def test_a_batch_that_is_in_the_sink_and_gone_from_the_source(spark, log, url, tmp_path):
    """The driver died between the two notes, then the source was collected: what to do is said."""
    made = log(10, each=10)

    def run(name="", **options):
        stream = spark.readStream.format("cordwood").options(**options).load(url)
        copy(stream.select("body"), f"{url}-copy", name)

    run()
    for name in ("0", ".0.crc"):
        (tmp_path / "wood" / "orders-copy-checkpoint" / "commits" / name).unlink()
    made.cursors.init("other", 51)
    made.collect(wait_s=10)
    with pytest.raises(Exception, match="if the sink has it already, up to 101: start a new query"):
        run()
    with pytest.raises(Exception, match="start the producer anew behind this batch"):
        run(onCollected="oldest")
    log(1, each=10)
    run("-2", startOffset=101)
    with sync.Log.from_url(f"{url}-copy").reader() as reader:
        assert numbers(1, 111) == [record.body.decode() for record in reader.read()]


def copy(stream, url, name=""):
    """What there is, into another log."""
    path = f"{url.removeprefix('file://')}-checkpoint{name}"
    query = stream.writeStream.format("cordwood").option("checkpointLocation", path)
    query.trigger(availableNow=True).start(url).awaitTermination()


def test_a_checkpoint_of_another_log(log, follow, url):
    """A log that was made anew is not taken for the old one."""
    log(4)
    follow()
    made = sync.Log.from_url(url)
    made.destroy()
    made.create()
    with made.writer() as writer:
        writer.append_many([b"x"] * 9)
    with pytest.raises(Exception, match="the checkpoint is of another log than 'orders'"):
        follow()


def test_a_damaged_fragment_fails_the_query(log, follow, tmp_path):
    """Which one it is; nothing is dropped."""
    made = log(3)
    with made.reader() as reader:
        path = tmp_path / "wood" / "orders" / reader.scan()[1].path
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Exception, match="FragmentSeqNo=0000000000000002"):
        follow()


def test_no_log_and_bad_options(follow, log):
    """One clear line each."""
    with pytest.raises(Exception, match="there is no log named 'nothing'"):
        follow(load="file:///tmp/cordwood-nowhere/nothing")
    for options, message in [
        ({"maxRecordsPerTrigger": 0}, "maxRecordsPerTrigger is '0'"),
        ({"startingAt": "noon"}, "startingAt is 'noon'"),
        ({"endOffset": 5}, "a streaming read of a log has no option 'endoffset'"),
    ]:
        with pytest.raises(Exception, match=message):
            follow(**options)


def test_a_log_becomes_another(spark, log, url, tmp_path):
    """Source and sink together: an exact copy, also when Spark forgets its last note."""
    # EVIDENCE-OF: G-64
    log(20, each=50)
    target = f"{url}-copy"

    def run():
        query = (
            spark.readStream.format("cordwood")
            .option("maxRecordsPerTrigger", 300)
            .load(url)
            .select("body")
            .writeStream.format("cordwood")
            .option("checkpointLocation", str(tmp_path / "copy"))
            .trigger(availableNow=True)
            .start(target)
        )
        query.awaitTermination()

    run()
    for name in ("3", ".3.crc"):
        (tmp_path / "copy" / "commits" / name).unlink()
    log(1, each=50)
    run()
    with sync.Log.from_url(target).reader() as reader:
        assert numbers(1, 1051) == [record.body.decode() for record in reader.read()]
    assert cordwood.Setsum() != sync.Log.from_url(target).state().setsum


def test_the_first_batch_made_again_begins_where_it_did(spark, log, url, tmp_path):
    """Spark keeps no beginning of it: one that died there must not silently begin elsewhere."""
    # EVIDENCE-OF: G-64
    made = log(100)
    directory = tmp_path / "checkpoint"

    def run(handle):
        query = (
            spark.readStream.format("cordwood")
            .load(url)
            .writeStream.foreachBatch(handle)
            .option("checkpointLocation", str(directory))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def die(df, _):
        if df.count():
            raise RuntimeError("the sink is away")

    with pytest.raises(Exception, match="the sink is away"):
        run(die)
    made.cursors.init("other", 51)
    made.collect(wait_s=10)
    with pytest.raises(Exception, match="goes on at offset 1, which has been collected"):
        run(lambda df, _: df.count())
