"""Two drivers, this process and another, run one query from one checkpoint at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from pyspark.errors import StreamingQueryException

from cordwood import sync

RECORDS = 600
PER_BATCH = 30

COPY = """
def copy(spark, url, folder, per_batch):
    query = (
        spark.readStream.format("cordwood").option("maxRecordsPerTrigger", per_batch)
        .option("cursor", "copy").load(url).select("body")
        .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True).start(f"{url}-copy")
    )
    query.awaitTermination()
"""

DRIVER = f"""
import sys, time
from pathlib import Path

from cordwood.spark import session
{COPY}
url, folder, per_batch = sys.argv[1:]
spark = session("local[1]", conf={{"spark.log.level": "OFF"}})
Path(folder, "ready").touch()
while not Path(folder, "go").exists():
    time.sleep(0.01)
copy(spark, url, folder, per_batch)
"""


@pytest.mark.slow
def test_two_drivers_on_one_checkpoint(spark, tmp_path):
    """One of them may fail, or both; nothing is doubled, and who goes on makes the copy exact."""
    # EVIDENCE-OF: G-62, G-64
    log = sync.Log(f"file://{tmp_path}/wood", "orders")
    log.create()
    names = {}
    exec(COPY, names)  # The same as what the other does.
    with log.writer() as writer:
        writer.append(b"1")
        # There is a checkpoint: else the two would fight over making it, and no further.
        names["copy"](spark, log.url, tmp_path, PER_BATCH)
        writer.append_many([b"%d" % n for n in range(2, RECORDS + 1)])
    other = drive(log.url, tmp_path)
    pause = threading.Event()
    while not (tmp_path / "ready").exists():
        assert other.poll() is None, said(tmp_path)
        pause.wait(0.05)
    (tmp_path / "go").touch()
    with suppress(StreamingQueryException):
        names["copy"](spark, log.url, tmp_path, PER_BATCH)
    other.wait(timeout=240)
    found = bodies(log.url)
    assert found == list(range(1, len(found) + 1))
    names["copy"](spark, log.url, tmp_path, PER_BATCH)
    assert bodies(log.url) == list(range(1, RECORDS + 1))
    assert sync.Log.from_url(f"{log.url}-copy").scrub(deep=True).ok


def drive(url, folder):
    """A driver under way."""
    command = [sys.executable, "-c", DRIVER, url, str(folder), str(PER_BATCH)]
    path = os.pathsep.join(path for path in sys.path if path)
    with open(folder / "driver.log", "wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
        )


def said(folder):
    """What the driver had to say."""
    return (folder / "driver.log").read_text()[-4000:]


def bodies(url):
    """Every record of the copy, verified."""
    with sync.Log.from_url(f"{url}-copy").reader() as reader:
        return [int(record.body) for record in reader.read()]
