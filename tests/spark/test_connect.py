"""Reads, writes and streams through Spark Connect, where the client has no JVM: its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cordwood import sync
from cordwood.spark.session import missing

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys

from pyspark.sql import SparkSession

from cordwood import CordwoodError
from cordwood.spark import advance, read_log, release, session

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
    .writeStream.format("cordwood").option("checkpointLocation", folder)
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
print(json.dumps(found))
"""


def test_reads_writes_and_streams_through_connect(tmp_path, log, url, fill):
    """The same calls give the same results as with a JVM of one's own."""
    if reason := missing():
        pytest.skip(reason)
    fill(log, fragments=3)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, str(tmp_path / "checkpoint")],
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
    assert found["is_kept"]
    assert found["schema"] == "struct<offset:bigint,timestamp:timestamp,body:binary>"
    assert (found["sum"], found["records"]) == (465, 30)
    assert found["frozen"] == list(range(11, 31))
    assert "there is no log named 'orders-nothing'" in found["refused"]
    assert "no option 'startofset'" in found["option"]
    for name in ("written", "followed"):
        with sync.Log.from_url(f"{url}-{name}").reader() as reader:
            assert [r.body for r in reader.read()] == [b"%d" % n for n in range(1, 31)]
    assert log.cursors.load("copy").offset == 31
