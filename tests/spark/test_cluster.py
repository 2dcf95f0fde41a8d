"""A real cluster on loopback, and a worker killed in the middle of a read, a write, a stream.

A driver takes long to start, so one driver does all of it, step by step; the tests look at what it
found.
"""

from __future__ import annotations

import threading

import pytest

from cordwood import sync
from cordwood.spark.session import missing
from cordwood.testing.cluster import spark_cluster

pytestmark = pytest.mark.slow

FRAGMENTS, EACH = 16, 50
RECORDS = FRAGMENTS * EACH
STEPS = ("read", "write", "stream")

DRIVER = """
import json, os, sys, time
from pathlib import Path

from cordwood.spark import session

url, denied, folder = sys.argv[1:]
spark = session(os.environ["SPARK_MASTER"], conf={
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
})


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

frame = load(spark.readStream.option("maxFragmentsPerTrigger", 8)).select("body")
query = (
    frame.mapInArrow(slowly(f"{folder}/stream"), "body BINARY")
    .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True).start(f"{url}-followed")
)
query.awaitTermination()

try:
    spark.read.format("cordwood").load(denied).count()
except Exception as error:
    found["error"] = str(error)
print(json.dumps(found))
spark.stop()
"""


def kill_one(cluster, driver, marks):
    """Kill a worker while a task of its has just begun; there were two before."""
    if len(cluster.workers) < 2:
        cluster.add_worker()
    pause = threading.Event()
    while True:
        begun = sorted(marks.iterdir())
        if len(begun) >= 5:
            worker = cluster.owner(int(begun[-1].name.partition("-")[2]))
            if worker is not None:
                cluster.kill(worker)
                return
        assert driver.is_running, driver.result()
        pause.wait(0.02)


@pytest.fixture(scope="module")
def story(tmp_path_factory, s3):
    """What the driver found, and where its logs and the marks of its tasks are."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cluster")
    for step in STEPS:
        (folder / step).mkdir()
    log = sync.Log(f"file://{folder}/wood", "orders")
    log.create()
    with log.writer() as writer:
        for start in range(1, RECORDS + 1, EACH):
            writer.append_many([b"%d" % n for n in range(start, start + EACH)])
    secrets = {f"AWS_{option.upper()}": value for option, value in s3.options.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secrets.items():
            patch.setenv(name, value)
        denied = sync.Log(f"{s3.url}/cluster", "orders")
        denied.create()
        with denied.writer() as writer:
            writer.append(b"x")
    with spark_cluster() as cluster:
        driver = cluster.drive(DRIVER, log.url, denied.url, str(folder), environment=secrets)
        for step in STEPS:
            kill_one(cluster, driver, folder / step)
        return driver.result(), log.url, folder


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
    _, url, _ = story
    log = sync.Log.from_url(f"{url}-{target}")
    with log.reader() as reader:
        assert [r.body for r in reader.read()] == [b"%d" % n for n in range(1, RECORDS + 1)]
    assert log.scrub(deep=True).ok


def test_credentials_that_only_the_driver_has(story):
    """The job fails; the error names the executor's machine and says what to set there."""
    error = story[0]["error"]
    assert "refused the worker on" in error
    assert "every executor must hold the credentials" in error
    assert "AWS_ACCESS_KEY_ID" in error
