"""Reads, writes, streams and jobs through Spark Connect, where the client has no JVM and no RDDs.

A server takes long to start, so one process does all of it; the tests look at what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cordwood import sync

pytestmark = pytest.mark.slow

SCRIPT = """
import asyncio, json, sys

from pyspark.sql import SparkSession

import cordwood
from cordwood import CordwoodError
from cordwood.spark import advance, read_log, release, session
from cordwood.spark.engine import SparkEngine

url, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
found = {"is_connect": "connect" in type(spark).__module__, "is_kept": session() is spark}

frame = spark.read.format("cordwood").load(url)
found["schema"] = frame.schema.simpleString()
found["sum"] = frame.selectExpr("sum(offset) s").first().s

frozen = read_log(spark, url, ["offset"], start=11)
found["frozen"] = [row.offset for row in frozen.collect()]
release(frozen)

fragments = spark.read.format("cordwood").option("view", "fragments").load(url)
found["records"] = fragments.selectExpr("sum(records) s").first().s

frame.select("body").write.format("cordwood").mode("append").save(f"{url}-written")

query = (
    spark.readStream.format("cordwood").option("cursor", "copy").load(url).select("body")
    .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True).start(f"{url}-followed")
)
query.awaitTermination()
advance(query)

try:
    read_log(spark, url + "-nothing")
except CordwoodError as error:
    found["refused"] = error.message
try:
    spark.read.format("cordwood").option("startOfset", 1).load(url).collect()
except Exception as error:
    found["option"] = str(error)


async def run_jobs(store, engine):
    log, table = cordwood.Log(store, "a"), cordwood.Table(store, "t")
    await table.create(mode="upsert")
    reports = []
    for number in range(2):
        async with log.writer(create=True) as writer:
            pairs = [(b"%d" % (n % 7), b"%d" % number) for n in range(50)]
            await asyncio.gather(*(writer.append(body, key=key) for key, body in pairs))
        reports.append(await cordwood.compact(log, table, engine=engine))
    scrub = await cordwood.scrub_log(log, engine=engine)
    rows = (await table.to_arrow()).to_pylist()
    try:
        await cordwood.compact(log, cordwood.Table(store, "none"), engine=engine)
    except cordwood.NotFoundError as error:
        refused = error.message
    return {
        "same": scrub == await log.scrub(deep=True),
        "bodies": sorted(row["body"].decode() for row in rows),
        "replaced": [report.replaced for report in reports],
        "refused": refused,
    }


store = cordwood.Store(f"file://{folder}/jobs")
found["jobs"] = asyncio.run(run_jobs(store, SparkEngine(spark)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory, quick_spark):
    """What the process found, and the log that it read."""
    folder = tmp_path_factory.mktemp("connect")
    log = sync.Log(f"file://{folder}/wood", "orders")
    log.create()
    with log.writer() as writer:
        for start in (1, 11, 21):
            writer.append_many([b"%d" % n for n in range(start, start + 10)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log.url, str(folder)],
        capture_output=True,
        # A port of its own, should another server run on this machine.
        env={**os.environ, "SPARK_TESTING": "1"},
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["is_connect"]
    return found, log


def test_reads_writes_and_streams_through_connect(story):
    """The same calls give the same results as with a JVM of one's own."""
    found, log = story
    assert found["is_kept"]
    assert found["schema"] == "struct<offset:bigint,timestamp:timestamp,body:binary>"
    assert (found["sum"], found["records"]) == (465, 30)
    assert found["frozen"] == list(range(11, 31))
    assert "there is no log named 'orders-nothing'" in found["refused"]
    assert "no option 'startofset'" in found["option"]
    for name in ("written", "followed"):
        with sync.Log.from_url(f"{log.url}-{name}").reader() as reader:
            assert [r.body for r in reader.read()] == [b"%d" % n for n in range(1, 31)]
    assert log.cursors.load("copy").offset == 31


def test_jobs_through_connect(story):
    """Compaction by key and a scrub give what they give elsewhere."""
    # EVIDENCE-OF: G-79
    jobs = story[0]["jobs"]
    assert jobs["same"]
    assert (["1"] * 7, [0, 7]) == (jobs["bodies"], jobs["replaced"])
    assert "no table named 'none'" in jobs["refused"]
