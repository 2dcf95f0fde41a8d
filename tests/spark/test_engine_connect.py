"""The engine through Spark Connect, where there are no RDDs and no context: in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cordwood.spark.session import missing

SCRIPT = """
import asyncio, json, sys

from pyspark.sql import SparkSession

import cordwood
from cordwood.spark.engine import SparkEngine

spark = SparkSession.builder.remote("local[2]").getOrCreate()
engine = SparkEngine(spark)


async def main(url):
    store = cordwood.Store(url)
    log, table = cordwood.Log(store, "a"), cordwood.Table(store, "t")
    await table.create(mode="upsert")
    reports = []
    for number in range(2):
        async with log.writer(create=True) as writer:
            pairs = [(b"%d" % (n % 7), b"%d" % number) for n in range(50)]
            await asyncio.gather(*(writer.append(body, key=key) for key, body in pairs))
        reports.append(await cordwood.compact(log, table, engine=engine))
    found = await cordwood.scrub_log(log, engine=engine)
    rows = (await table.to_arrow()).to_pylist()
    try:
        await cordwood.compact(log, cordwood.Table(store, "none"), engine=engine)
    except cordwood.NotFoundError as error:
        refused = error.message
    print(json.dumps({
        "is_connect": "connect" in type(spark).__module__,
        "same": found == await log.scrub(deep=True),
        "bodies": sorted(row["body"].decode() for row in rows),
        "replaced": [report.replaced for report in reports],
        "refused": refused,
    }))


asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_jobs_through_connect(tmp_path):
    """Compaction by key and a scrub give what they give elsewhere."""
    # EVIDENCE-OF: G-79
    if reason := missing():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"file://{tmp_path}/wood"],
        capture_output=True,
        # A port of its own, should another server run on this machine.
        env={**os.environ, "SPARK_TESTING": "1"},
        text=True,
        timeout=240,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-4_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (True, True) == (found["is_connect"], found["same"])
    assert (["1"] * 7, [0, 7]) == (found["bodies"], found["replaced"])
    assert "no table named 'none'" in found["refused"]
