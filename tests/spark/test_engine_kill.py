"""A worker of Spark is killed in the middle of a compaction: its task is done again, once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa

import cordwood
from cordwood import Setsum, Table
from cordwood.pipeline.compact import Compact, CompactSettings
from cordwood.pipeline.engine import run
from cordwood.spark.engine import SparkEngine

FRAGMENTS = 16
RECORDS = 1_500


def workers():
    """The Python workers of the JVM that this process started: children of its daemons."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(status[1])
            except OSError:
                continue

    def is_ours(number):
        while number > 1:
            if number == os.getpid():
                return True
            number = parents.get(number, 0)
        return False

    daemons = {n for n, name in names.items() if b"pyspark.daemon" in name and is_ours(n)}
    return [number for number in daemons if parents[number] in daemons]


async def test_a_worker_is_killed(tmp_path, spark):
    """Everything is in the table once; what the dead one had written is named by nobody."""
    # EVIDENCE-OF: G-66, G-79
    wood = cordwood.Store(f"file://{tmp_path}/wood")
    log, table = cordwood.Log(wood, "a"), Table(wood, "t")
    chance = np.random.default_rng(5)
    async with log.writer(create=True) as writer:
        for _ in range(FRAGMENTS):
            bodies = [chance.bytes(1_000) for _ in range(RECORDS)]
            await writer.append_arrow(pa.table({"body": bodies}))
    await table.create()
    settings = CompactSettings(
        store=wood.url, logs=("a",), table_store=wood.url, table="t", unit_bytes=1_600_000
    )
    job = Compact(settings, [wood], table)
    work = asyncio.ensure_future(run(job, SparkEngine(spark)))
    data = tmp_path / "wood" / "t" / "data"
    while not work.done() and not (data.is_dir() and any(data.iterdir())):
        await asyncio.sleep(0.005)
    killed = workers()[:1]
    for number in killed:
        os.kill(number, signal.SIGKILL)
    assert 1 == len(killed)
    report = await work
    assert (FRAGMENTS * RECORDS, True) == (report.records, report.committed)
    found = (await table.to_arrow(["offset"])).column("offset").to_pylist()
    assert list(range(1, FRAGMENTS * RECORDS + 1)) == sorted(found)
    assert [] == await table.scrub()
    assert (await log.state()).setsum == report.setsum
    kept = Setsum.sum(file.setsum for file in await table.files())
    assert report.kept_setsum == kept.hexdigest()
