"""Indexes built, followed and merged by Spark."""

from __future__ import annotations

import pytest

import cordwood.spark.jobs
from cordwood import sync
from cordwood.base import portal
from cordwood.base.errors import InvalidInputError, NotFoundError, StateError
from cordwood.pipeline.merging import merge_index
from cordwood.spark import build_index
from cordwood.spark.engine import SparkEngine


@pytest.fixture
def frame(spark):
    """Documents in four splits."""
    texts = "concat('word', id % 50, ' common ', id % 7) AS text"
    return spark.range(0, 2_000, 1, 4).selectExpr("CAST(id AS STRING) AS id", texts)


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path):
    """Where an index is: a directory of its own, or a store and a name."""
    if request.param == "folder":
        return (str(tmp_path / "ix"), "")
    return (sync.Store(f"file://{tmp_path}/wood"), "ix")


def test_a_frame_becomes_documents_once(spark, frame, place):
    """Every split makes segments; a build of the same version counts once."""
    index = sync.Index(*place)
    index.create()
    assert cordwood.spark.jobs.build_index is build_index
    report = build_index(spark, frame, *place, build="nightly", version=7)
    assert (2_000, 4, False) == (report.documents, report.segments, report.is_repeated)
    for version in (7, 6):
        assert build_index(spark, frame, *place, build="nightly", version=version).is_repeated
    assert {b"%d" % number for number in range(5, 2_000, 50)} == index.match("word5")
    assert index.check().ok
    assert 2_000 == index.state().documents
    more = frame.where("id < 100")
    assert 100 == build_index(spark, more, *place, build="nightly", version=8).documents


def test_a_task_that_dies_half_way_doubles_nothing(spark, frame, place):
    """It is done again; what it had made is named by nobody."""

    def dies_once(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("this task dies at its end")

    index = sync.Index(*place)
    index.create()
    dying = frame.mapInArrow(dies_once, "id STRING, text STRING")
    assert 2_000 == build_index(spark, dying, *place).documents
    assert 2_000 == len(index.match("common"))
    assert index.check().ok


def test_a_collection_is_compacted_by_spark(spark, tmp_path):
    """With the result that this process has; and its segments merged."""
    collections = {}
    for engine in ("local", "spark"):
        named = sync.Collection(f"file://{tmp_path}/{engine}", "docs")
        named.create()
        with named:
            for part in range(3):
                ids = [b"%d" % number for number in range(part * 50, part * 50 + 100)]
                named.update_arrow(ids, [f"part{part} w{n % 9}" for n in range(100)])
                named.delete_arrow(ids[::10])
            report = named.compact(SparkEngine(spark) if engine == "spark" else engine)
            assert 330 == report.records
            named.add(b"new", "part9")
            found = [sorted(named.match(f"part{part} w3")) for part in (0, 1, 2, 9)]
            collections[engine] = (found, named.search("w3 part1", 20), named.state().documents)
            assert named.check().ok
    assert collections["local"] == collections["spark"]


def test_merges_on_spark(spark, frame, tmp_path):
    """Groups of segments are units; deletes that came meanwhile are carried over."""
    store = sync.Store(f"file://{tmp_path}/wood")
    index = sync.Index(store, "ix")
    index.create()
    build_index(spark, frame, store, "ix")
    with index.begin() as transaction:
        transaction.delete_arrow([b"%d" % number for number in range(0, 2_000, 4)])
    work = merge_index(store, "ix", tiered=False, engine=SparkEngine(spark))
    report = portal.current().run(work)
    assert (1, 4, 1) == (report.merges, report.segments_before, report.segments_after)
    assert 1_500 == len(index.match("common"))
    assert 0 == index.state().deleted
    assert index.check().ok


def test_what_tasks_cannot_do(spark, frame, tmp_path):
    """One clear line, before anything is begun."""
    with pytest.raises(StateError, match="lives in this process"):
        build_index(spark, frame, sync.Store("memory:"), "ix")
    sync.Index(tmp_path / "ix").create()
    log = sync.Log.from_url(f"file://{tmp_path}/wood/log")
    log.create()
    with pytest.raises(InvalidInputError, match="is not in the store of the log"):
        build_index(spark, log.url, tmp_path / "ix")
    with pytest.raises(NotFoundError, match="there is no index"):
        build_index(spark, frame, tmp_path / "none", create=False)
    assert 2 == build_index(spark, frame.limit(2), tmp_path / "made").documents
    assert 2 == sync.Index(tmp_path / "made").state().documents


def test_a_log_is_followed(spark, tmp_path):
    """Keys are ids, bodies texts; each time what is new."""
    store = sync.Store(f"file://{tmp_path}/wood")
    log = sync.Log(store, "notes")
    index = sync.Index(store, "ix")
    index.create()
    with log.writer(create=True) as writer:
        writer.append(b"first words", key=b"a")
        writer.append(b"other words", key=b"b")
        assert 2 == build_index(spark, log.url, store, "ix").documents
        writer.append(b"newer words", key=b"a")
        assert 1 == build_index(spark, log.url, store, "ix").documents
    assert set() == index.match("first")
    assert {b"a", b"b"} == index.match("words")
