"""Two drivers, each a process of its own, run one query from one checkpoint at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

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
url, folder, name, per_batch = sys.argv[1:]
options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = session("local[1]", conf={{"spark.driver.extraJavaOptions": options}})
spark.sparkContext.setLogLevel("OFF")
Path(folder, f"{{name}}.ready").touch()
while not Path(folder, "go").exists():
    time.sleep(0.01)
try:
    copy(spark, url, folder, per_batch)
finally:
    spark.stop()
"""


@pytest.mark.slow
def test_two_drivers_on_one_checkpoint(spark, tmp_path):
    """One of them may fail, or both; nothing is doubled, and who goes on makes the copy exact."""
    # EVIDENCE-OF: G-62, G-64
    log = sync.Log(f"file://{tmp_path}/wood", "orders")
    log.create()
    names = {}
    exec(COPY, names)  # The same as what both do.
    with log.writer() as writer:
        writer.append(b"1")
        # There is a checkpoint: else the two would fight over making it, and no further.
        names["copy"](spark, log.url, tmp_path, PER_BATCH)
        writer.append_many([b"%d" % n for n in range(2, RECORDS + 1)])
    both = [drive(log.url, tmp_path, name) for name in ("a", "b")]
    pause = threading.Event()
    while not all((tmp_path / f"{name}.ready").exists() for name in "ab"):
        assert all(driver.poll() is None for driver in both), said(tmp_path)
        pause.wait(0.05)
    (tmp_path / "go").touch()
    for driver in both:
        driver.wait(timeout=240)
    found = bodies(log.url)
    assert found == list(range(1, len(found) + 1))
    names["copy"](spark, log.url, tmp_path, PER_BATCH)
    assert bodies(log.url) == list(range(1, RECORDS + 1))
    assert sync.Log.from_url(f"{log.url}-copy").scrub(deep=True).ok


def drive(url, folder, name):
    """A driver under way."""
    command = [sys.executable, "-c", DRIVER, url, str(folder), name, str(PER_BATCH)]
    path = os.pathsep.join(path for path in sys.path if path)
    with open(folder / "drivers.log", "ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
        )


def said(folder):
    """What the drivers had to say."""
    return (folder / "drivers.log").read_text()[-4000:]


def bodies(url):
    """Every record of the copy, verified."""
    with sync.Log.from_url(f"{url}-copy").reader() as reader:
        return [int(record.body) for record in reader.read()]
