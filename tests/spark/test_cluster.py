"""A real cluster on loopback, and a worker killed in a read, a write, a stream, a compaction.

Clusters and drivers take long to start, so one driver on one cluster does all of it, step by step,
and at last a write with speculative execution, for which it makes a second session; the tests look
at what it found.
"""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from cordwood import Setsum, sync
from cordwood.testing.cluster import spark_cluster

pytestmark = pytest.mark.slow

FRAGMENTS, EACH = 12, 50
RECORDS = FRAGMENTS * EACH
STEPS = ("read", "write", "stream")
LARGE, LARGE_EACH = 24, 1_500
"""The log that is compacted: fragments of 1.5 MB, each a unit."""
SPLITS, SPLIT_EACH = 6, 20_000
"""What is written speculatively."""

DRIVER = """
import json, os, sys, time
from pathlib import Path

from cordwood import sync
from cordwood.base import portal
from cordwood.pipeline.compact import Compact, CompactSettings
from cordwood.pipeline.engine import run
from cordwood.spark import session
from cordwood.spark.engine import SparkEngine

url, denied, folder, splits, each = sys.argv[1:]
splits, each = int(splits), int(each)
conf = {"spark.executor.memory": "512m", "spark.log.level": "OFF"}
spark = session(os.environ["SPARK_MASTER"], conf=conf)


def slowly(marks):
    # A task leaves its process's number when it begins, and takes its time: enough to be killed.
    def take(batches):
        Path(marks, f"{time.time_ns()}-{os.getpid()}").touch()
        for batch in batches:
            time.sleep(0.3)
            yield batch

    return take


def load(reader):
    return reader.format("cordwood").option("splitBytes", "1").load(url)


found = {}
columns = "offset BIGINT, body BINARY"
frame = load(spark.read).select("offset", "body").mapInArrow(slowly(f"{folder}/read"), columns)
found["rows"] = sorted((row.offset, bytes(row.body).decode()) for row in frame.collect())

frame = load(spark.read).select("body").mapInArrow(slowly(f"{folder}/write"), "body BINARY")
frame.write.format("cordwood").mode("append").save(f"{url}-written")

frame = load(spark.readStream.option("maxFragmentsPerTrigger", 6)).select("body")
query = (
    frame.mapInArrow(slowly(f"{folder}/stream"), "body BINARY")
    .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True).start(f"{url}-followed")
)
query.awaitTermination()

engine = SparkEngine(spark)
store = sync.Log.from_url(url).store
settings = CompactSettings(
    store=store.url, logs=("large",), table_store=store.url, table="t", unit_bytes=1_600_000
)
job = Compact(settings, [store], sync.Table(store, "t").twin)
report = portal.current().run(run(job, engine))
large = sync.Log(store, "large")
scrub = sync.scrub_log(large, engine=engine)
found["compaction"] = {
    "records": report.records, "committed": report.committed,
    "setsum": report.setsum, "kept": report.kept_setsum,
    "ok": scrub.ok, "same": scrub == large.scrub(deep=True),
}

try:
    spark.read.format("cordwood").load(denied).count()
except Exception as error:
    found["error"] = str(error)
spark.stop()

spark = session(os.environ["SPARK_MASTER"], conf=conf | {
    "spark.sql.execution.arrow.maxRecordsPerBatch": 500,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "500ms",
})


def stuck(batches):
    # The first attempt at one split brings most of its records, and then takes for ever.
    from pyspark import TaskContext

    task = TaskContext.get()
    Path(folder, "twice", f"{task.partitionId()}-{task.attemptNumber()}").touch()
    for number, batch in enumerate(batches):
        if number == 30 and task.partitionId() == 2 and task.attemptNumber() == 0:
            for _ in range(600):
                time.sleep(0.1)
        yield batch


frame = spark.range(0, splits * each, 1, splits).selectExpr("CAST(id AS STRING) AS body")
frame = frame.mapInArrow(stuck, "body STRING")
frame.write.format("cordwood").mode("append").option("fragmentBytes", "16k").save(f"{url}-twice")
print(json.dumps(found))
spark.stop()
"""


def kill_one(cluster, driver, marks):
    """Kill a worker while a task of its has just begun; there were two before."""
    pause = threading.Event()
    while True:
        begun = sorted(marks.iterdir())
        if len(begun) >= 4:
            worker = cluster.owner(int(begun[-1].name.partition("-")[2]))
            if worker is not None:
                cluster.kill(worker)
                return
        assert driver.is_running, driver.result()
        pause.wait(0.02)


def kill_oldest(cluster, driver, data):
    """Kill the worker that has been there longest, once a unit of the compaction has a file."""
    pause = threading.Event()
    while not (data.is_dir() and any(data.iterdir())):
        assert driver.is_running, driver.result()
        pause.wait(0.01)
    cluster.kill(cluster.workers[0])


@pytest.fixture(scope="module")
def story(tmp_path_factory, s3, quick_spark):
    """What the driver found, the log it read, and where the marks of its tasks are."""
    folder = tmp_path_factory.mktemp("cluster")
    for step in (*STEPS, "twice"):
        (folder / step).mkdir()
    wood = sync.Store(f"file://{folder}/wood")
    log = sync.Log(wood, "orders")
    with log.writer(create=True) as writer:
        for start in range(1, RECORDS + 1, EACH):
            writer.append_many([b"%d" % n for n in range(start, start + EACH)])
    chance = np.random.default_rng(5)
    with sync.Log(wood, "large").writer(create=True) as writer:
        for _ in range(LARGE):
            bodies = [chance.bytes(1_000) for _ in range(LARGE_EACH)]
            writer.append_arrow(pa.table({"body": bodies}))
    sync.Table(wood, "t").create()
    secrets = {f"AWS_{option.upper()}": value for option, value in s3.options.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secrets.items():
            patch.setenv(name, value)
        denied = sync.Log(f"{s3.url}/cluster", "orders")
        denied.create()
        with denied.writer() as writer:
            writer.append(b"x")
    words = (log.url, denied.url, str(folder), str(SPLITS), str(SPLIT_EACH))
    with spark_cluster(apart=True) as cluster:
        driver = cluster.drive(DRIVER, *words, environment=secrets)
        for step in STEPS:
            kill_one(cluster, driver, folder / step)
            cluster.add_worker()
        kill_oldest(cluster, driver, folder / "wood" / "t" / "data")
        cluster.add_worker()
        return driver.result(), log, folder


@pytest.mark.parametrize("step", STEPS)
def test_somebody_was_killed_at_work(story, step):
    """More tasks began than there are splits: without that the other tests mean little."""
    _, _, folder = story
    assert len(list((folder / step).iterdir())) > FRAGMENTS


def test_a_worker_killed_during_a_read(story):
    """Every record once."""
    found, _, _ = story
    assert [tuple(row) for row in found["rows"]] == [(n, str(n)) for n in range(1, RECORDS + 1)]


@pytest.mark.parametrize("target", ["written", "followed"])
def test_a_worker_killed_during_a_write_or_a_stream(story, target):
    """An exact copy, in order, and its deep scrub agrees."""
    log = sync.Log.from_url(f"{story[1].url}-{target}")
    with log.reader() as reader:
        assert [r.body for r in reader.read()] == [b"%d" % n for n in range(1, RECORDS + 1)]
    assert log.scrub(deep=True).ok


def test_a_worker_killed_during_a_compaction(story):
    """With its executor and its Python workers: the table has everything once, as it should be."""
    # EVIDENCE-OF: G-66, G-79
    found, store = story[0]["compaction"], story[1].store
    large, table = sync.Log(store, "large"), sync.Table(store, "t")
    assert (LARGE * LARGE_EACH, True) == (found["records"], found["committed"])
    assert (True, True) == (found["ok"], found["same"])
    offsets = table.to_arrow(["offset"]).column("offset").to_pylist()
    assert list(range(1, LARGE * LARGE_EACH + 1)) == sorted(offsets)
    assert large.state().setsum == found["setsum"]
    assert found["kept"] == Setsum.sum(file.setsum for file in table.files()).hexdigest()
    assert [] == table.scrub()


def test_credentials_that_only_the_driver_has(story):
    """The job fails; the error names the executor's machine and says what to set there."""
    error = story[0]["error"]
    assert "refused the worker on" in error
    assert "every executor must hold the credentials" in error
    assert "AWS_ACCESS_KEY_ID" in error


def test_a_task_that_is_run_twice_counts_once(story):
    """In order, nothing lost or doubled; what the slow one had uploaded is named by nobody."""
    # EVIDENCE-OF: G-61, G-62
    _, orders, folder = story
    assert {"2-0", "2-1"} <= {mark.name for mark in (folder / "twice").iterdir()}
    log = sync.Log.from_url(f"{orders.url}-twice")
    with log.reader() as reader:
        assert [int(record.body) for record in reader.read()] == list(range(SPLITS * SPLIT_EACH))
        named = len(reader.scan())
    assert named < len(list((folder / "wood" / "orders-twice" / "log").glob("Uuid=*")))
    assert log.scrub(deep=True).ok
