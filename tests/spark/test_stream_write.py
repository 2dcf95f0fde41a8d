"""A stream is appended batch by batch, each once: through restarts and replays."""

from __future__ import annotations

import shutil

import pytest

from cordwood import NotFoundError, sync


@pytest.fixture
def files(tmp_path):
    """A directory that a stream is read from: `files(3)` adds so many files of 50 lines."""
    directory = tmp_path / "in"
    directory.mkdir()
    state = {"next": 0}

    def add(count):
        for _ in range(count):
            number = state["next"]
            lines = [f"{number}:{i}" for i in range(50)]
            (directory / f"{number:04}.txt").write_text("\n".join(lines) + "\n")
            state["next"] += 1

    add.directory = directory
    return add


@pytest.fixture
def run(spark, files, url, tmp_path):
    """`run()`: one query over what there is, a file a batch, into the log."""

    def start(checkpoint=tmp_path / "checkpoint", where="true", **options):
        lines = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(files.directory))
            .withColumnRenamed("value", "body")
            .where(where)
        )
        query = (
            lines.writeStream.format("cordwood")
            .options(**options)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(url)
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    return start


def bodies(url):
    """Every record, verified."""
    with sync.Log.from_url(url).reader() as reader:
        return [record.body.decode() for record in reader.read()]


def expected(files):
    """What the files hold."""
    found = sorted(files.directory.glob("*.txt"))
    return [line for path in found for line in path.read_text().splitlines()]


def test_batches_restarts_and_replays(run, files, url, tmp_path):
    """Nothing is lost or doubled when Spark forgets that the last batch was committed."""
    # EVIDENCE-OF: G-62
    files(3)
    run()
    assert sorted(expected(files)) == sorted(bodies(url))
    files(2)
    run()
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("4", ".4.crc"):
        # As if the driver had died between our commit and its own note of it.
        (commits / name).unlink()
    files(1)
    run()
    assert sorted(expected(files)) == sorted(bodies(url))
    producers = sync.Log.from_url(url).manifest().producers
    assert [5] == [producer.batch for producer in producers]
    assert sync.Log.from_url(url).scrub(deep=True).ok


def test_an_old_copy_of_a_checkpoint_is_refused(run, files, url, tmp_path):
    """Two drivers on one checkpoint, or one that was restored: the second is told, not doubled."""
    # EVIDENCE-OF: G-62
    files(2)
    run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    files(2)
    run()
    with pytest.raises(Exception, match="comes after its batch 3"):
        run(tmp_path / "old")
    assert sorted(expected(files)) == sorted(bodies(url))


def test_two_queries_into_one_log(run, files, url, tmp_path):
    """Each has an id of its own."""
    files(1)
    run(tmp_path / "a")
    run(tmp_path / "b")
    assert sorted(expected(files) * 2) == sorted(bodies(url))


def test_a_log_that_was_destroyed_is_not_made_again(run, files, url):
    """Only a query's first batch makes its log; later ones belong to that, and to no other."""
    # EVIDENCE-OF: G-64
    files(2)
    run()
    log = sync.Log.from_url(url)
    log.destroy()
    files(1)
    with pytest.raises(Exception, match="the log that the batches before batch 2 went to is gone"):
        run()
    with pytest.raises(NotFoundError):
        log.state()
    log.create()
    with pytest.raises(Exception, match="knows nothing of producer"):
        run()
    assert 1 == log.state().next_offset


def test_a_query_whose_first_batch_is_empty(run, files, url):
    """It has begun all the same: the next batch goes to the same log."""
    files(2)
    run(where="body LIKE '1:%'")
    assert [f"1:{i}" for i in range(50)] == bodies(url)


def test_a_stream_has_its_own_id(run, files):
    """The options of batch jobs are refused."""
    files(1)
    with pytest.raises(Exception, match="a streaming query has an id of its own"):
        run(txnAppId="mine")


def test_a_bad_schema_is_refused(spark, files, url, tmp_path):
    """Before anything runs, or in the first batch: one clear line."""
    files(1)
    lines = spark.readStream.format("text").load(str(files.directory))
    query = lines.writeStream.format("cordwood").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="have no body"):
        query.trigger(availableNow=True).start(url).awaitTermination()
