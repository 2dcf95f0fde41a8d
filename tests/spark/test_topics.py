"""Topics through the data source: in a directory and on a store, batch and stream, in and out."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cordwood
from cordwood import InvalidInputError, sync
from cordwood.base.errors import CollectedError, StateError
from cordwood.log.bulk import Token
from cordwood.spark.topic_place import parse
from cordwood.spark.topic_reader import TopicStreamReader
from cordwood.spark.topic_writer import TopicBatchWriter, TopicUploads, commit, send
from cordwood.topics.shelf import Shelf


@pytest.fixture(params=["folder", "store"])
def topics(request, tmp_path):
    """Topics in a directory's own files, or in a directory that is a store."""
    path = tmp_path / "topics"
    made = sync.Topics(path if request.param == "folder" else cordwood.Store(f"file://{path}"))
    made.path = str(path)
    made.create("shop", "clicks", partitions=3)
    with made:
        yield made


def frame_of(spark, topics, **options):
    """The topic as a DataFrame."""
    asked = spark.read.format("cordwood").option("topic", "shop/clicks")
    return asked.options(**options).load(topics.path)


def filled(topics, count=30):
    """Records with keys and all else; what a consumer says of them."""
    with topics.producer("shop", "clicks") as producer:
        for number in range(count):
            headers = {"h": b"x"} if number % 2 else None
            producer.send(
                b"%d" % number, key=b"k%d" % (number % 5), headers=headers, timestamp_us=number
            )
        producer.send(None, key=b"k0", timestamp_us=count)
    return consumed(topics)


def consumed(topics):
    """All records, by place."""
    with topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        return sorted(consumer, key=lambda one: (one.partition, one.offset))


def test_a_topic_is_read_once(spark, topics):
    """Every record as a consumer has it, however it is cut; and a projection of it."""
    wanted = filled(topics)
    frame = frame_of(spark, topics, splitRecords=4)
    assert frame.dtypes[:3] == [
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
    ]
    rows = (
        frame.selectExpr("*", "unix_micros(timestamp) t").orderBy("partition", "offset").collect()
    )
    found = [
        (
            row.partition,
            row.offset,
            row.t,
            bytes(row.key),
            None if row.value is None else bytes(row.value),
            {one.name: bytes(one.value) for one in row.headers or ()},
        )
        for row in rows
    ]
    assert [tuple(one) for one in wanted] == found
    asked = spark.read.format("cordwood").schema("offset BIGINT, partition INT")
    few = asked.option("topic", "shop/clicks").load(topics.path).collect()
    assert sorted((one.partition, one.offset) for one in wanted) == sorted(
        (row.partition, row.offset) for row in few
    )


def test_a_topic_is_followed_and_a_restart_goes_on(spark, topics, tmp_path):
    """Each record is in one batch, in order; what is written is read by any consumer."""
    topics.create("shop", "copy", partitions=2)
    filled(topics)

    def run():
        source = spark.readStream.format("cordwood").option("topic", "shop/clicks")
        stream = source.option("maxRecordsPerTrigger", 7).load(topics.path)
        sink = stream.select("key", "value", "headers").writeStream.format("cordwood")
        sink = sink.option("topic", "shop/copy").option("checkpointLocation", str(tmp_path / "c"))
        query = sink.trigger(availableNow=True).start(topics.path)
        query.awaitTermination()
        return query

    assert len(run().recentProgress) > 4
    first = consumed(topics)
    with topics.producer("shop", "clicks") as producer:
        producer.send_many([b"more"] * 5, keys=[b"k1"] * 5)
    run()
    with topics.consumer("shop", "copy", timeout_s=0) as consumer:
        copied = list(consumer)
    for key in {one.key for one in first}:
        mine = [(one.value, one.headers) for one in consumed(topics) if one.key == key]
        assert mine == [(one.value, one.headers) for one in copied if one.key == key]
    assert 36 == len(copied)


def test_a_frame_is_appended(spark, topics):
    """With keys, headers, and partitions that were chosen."""
    frame = spark.createDataFrame(
        [("a", b"1", 2), ("b", b"2", None), ("b", b"3", None)],
        "key STRING, value BINARY, partition INT",
    ).selectExpr("*", "array(named_struct('name', 'h', 'value', cast('x' as binary))) headers")
    frame.write.format("cordwood").option("topic", "shop/clicks").mode("append").save(topics.path)
    found = consumed(topics)
    assert {b"1", b"2", b"3"} == {one.value for one in found}
    assert {2} == {one.partition for one in found if one.key == b"a"}
    assert 1 == len({one.partition for one in found if one.key == b"b"})
    assert all({"h": b"x"} == one.headers for one in found)


def test_a_commit_that_is_made_again_changes_nothing(topics):
    """On a store; in a directory records that are sent again are there again."""
    options = parse({"path": topics.path, "topic": "shop/clicks"}, "write")
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "key": [b"k", b"k"]})
    for _ in range(2):
        token = Token("job", 0)
        commit([send(iter([batch]), options, token)], options, token)
    is_store = isinstance(topics._engine.home, Shelf)
    assert (2 if is_store else 4) == len(consumed(topics))


def test_what_cannot_be(topics, spark):
    """Say what is wrong before anything runs."""
    schema = spark.createDataFrame([(b"a",)], "value BINARY").schema
    path = topics.path
    for options in (
        {"path": path, "topic": "clicks"},
        {"path": path, "topic": "shop/clicks", "startOffset": "1"},
        {"path": "memory:x", "topic": "shop/clicks"},
        {"topic": "shop/clicks"},
    ):
        with pytest.raises(InvalidInputError):
            parse(options, "read")
    with pytest.raises(InvalidInputError, match="overwritten"):
        TopicBatchWriter(schema, {"path": path, "topic": "shop/clicks"}, True)
    for wrong in ("x INT", "value INT", "value BINARY, partition STRING"):
        made = spark.createDataFrame([], wrong).schema
        with pytest.raises(InvalidInputError):
            TopicBatchWriter(made, {"path": path, "topic": "shop/clicks"}, False)
    with pytest.raises(StateError, match="without a message"):
        commit([None], parse({"path": path, "topic": "shop/clicks"}, "write"), Token("a"))
    assert TopicUploads(Token("a")).staged == {}
    reader = TopicStreamReader(
        spark.read.format("cordwood").option("topic", "shop/clicks").load(path).schema,
        {"path": path, "topic": "shop/clicks"},
    )
    begin = reader.initialOffset()
    with pytest.raises(StateError, match="another topic"):
        reader.partitions({**begin, "created_us": 1}, begin)
    beyond = reader.partitions(begin, {**begin, "offsets": [5, 0, 0]})
    with pytest.raises(CollectedError, match="before 5"):
        list(reader.read(beyond[0]))


def test_a_tier_is_written_by_its_directory_alone(tmp_path):
    """On the store, its offsets are those of the directory: nothing may come in between."""
    # EVIDENCE-OF: G-96
    tier = f"file://{tmp_path}/tier"
    with sync.Topics(tmp_path / "near") as near:
        near.create("shop", "visits", tier=tier)
        options = parse({"path": tier, "topic": "shop/visits"}, "write")
        batch = pa.RecordBatch.from_pydict({"value": [b"a"]})
        with pytest.raises(StateError, match="uploaded from a directory"):
            send(iter([batch]), options, Token("job", 0))
        near_options = parse({"path": str(tmp_path / "near"), "topic": "shop/visits"}, "write")
        commit([send(iter([batch]), near_options, Token("a", 0))], near_options, Token("a", 0))
        assert 1 == near.upload("shop", "visits").partitions[0].next
