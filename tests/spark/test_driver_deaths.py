"""A driver dies at the worst moments: after its uploads and before the commit; just after that.

A life is a process group of its own. What dies is told by the environment: a module that Python
loads at its start, in every process of the life, wraps the swap that makes a commit visible, and
kills the whole group before or after it. So it does not depend on luck which moment is met. A JVM
takes long to start, so the first life has two jobs: its stream waits at its moment until a batch
job is just behind its own commit, and then both die.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cordwood import sync

pytestmark = pytest.mark.slow

RECORDS = 300
PER_BATCH = 100

DYING = """
import asyncio, os, signal, time
from pathlib import Path

moment, _, batch = os.environ.get("TEST_DIES", "").partition(" ")
held = Path(os.environ.get("TEST_HELD", "/"))
if moment:
    from cordwood.log.bulk import Committer

    swap = Committer._swap

    def die():
        while not held.exists():
            time.sleep(0.01)
        Path(os.environ["TEST_DIED"]).write_text(f"{moment} {batch}")
        os.killpg(int(os.environ["TEST_GROUP"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    async def dying(self, ground, staged, token):
        if token.id == "job":
            await swap(self, ground, staged, token)
            held.touch()
            await asyncio.Event().wait()
        if (moment, batch) == ("before", str(token.batch)):
            die()
        done = await swap(self, ground, staged, token)
        if (moment, batch) == ("after", str(token.batch)):
            die()
        return done

    Committer._swap = dying
"""

JOBS = """
def work(spark, jobs, url, folder, per_batch):
    if "stream" in jobs:
        stream = spark.readStream.format("cordwood").option("maxRecordsPerTrigger", per_batch)
        query = (
            stream.option("splitBytes", "1").load(url).select("body")
            .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True).start(f"{url}-stream")
        )
    if "batch" in jobs:
        frame = spark.read.format("cordwood").option("splitBytes", "1").load(url).select("body")
        frame.write.format("cordwood").mode("append").option("txnAppId", "job").save(f"{url}-batch")
    if "stream" in jobs:
        query.awaitTermination()
"""

LIFE = f"""
import os, sys

os.environ["TEST_GROUP"] = str(os.getpid())
from cordwood.spark import session
{JOBS}
spark = session("local[1]", conf={{"spark.log.level": "OFF"}})
work(spark, *sys.argv[1:])
"""


@pytest.fixture
def source(tmp_path, quick_spark):
    """What is copied, in fragments of fifty."""
    log = sync.Log(f"file://{tmp_path}/wood", "orders")
    log.create()
    with log.writer() as writer:
        for start in range(1, RECORDS + 1, 50):
            writer.append_many([b"%d" % n for n in range(start, start + 50)])
    return log


@pytest.fixture
def finish(spark, source, tmp_path):
    """`finish("stream")`: a life that does not die, in the session of all tests."""
    names = {}
    exec(JOBS, names)  # The same as in the other lives.
    return lambda jobs: names["work"](spark, jobs, source.url, tmp_path, PER_BATCH)


@pytest.fixture
def die(source, tmp_path):
    """`die("stream", "before 1")`: one life with these jobs; its stream dies there."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DYING)
    died = tmp_path / "died"

    def run(jobs, dies):
        paths = [str(tmp_path / "site"), *(path for path in sys.path if path)]
        told = {"TEST_DIES": dies, "TEST_DIED": str(died), "PYTHONPATH": os.pathsep.join(paths)}
        if "batch" in jobs:
            told["TEST_HELD"] = str(tmp_path / "held")
        command = [sys.executable, "-c", LIFE, jobs, source.url, str(tmp_path), str(PER_BATCH)]
        with open(tmp_path / "lives.log", "ab") as output:
            child = subprocess.run(
                command,
                env={**os.environ, **told},
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=240,
                check=False,
            )
        assert -signal.SIGKILL == child.returncode, (tmp_path / "lives.log").read_text()[-4000:]
        assert dies == died.read_text()

    return run


def bodies(log):
    """Every record, verified."""
    with log.reader() as reader:
        return [int(record.body) for record in reader.read()]


def orphans(log, tmp_path):
    """Uploads that nobody names."""
    with log.reader() as reader:
        named = {fragment.path.rpartition("/")[2] for fragment in reader.scan()}
    there = {path.name for path in (tmp_path / "wood" / log.name / "log").glob("Uuid=*")}
    return there - named


def test_drivers_that_die(die, finish, source, tmp_path):
    """Before a commit, between commit and checkpoint, before the job knows: all are exact."""
    # EVIDENCE-OF: G-61, G-62, G-64
    copy, batch = [sync.Log.from_url(f"{source.url}-{job}") for job in ("stream", "batch")]
    die("batch and stream", "before 1")
    assert list(range(1, PER_BATCH + 1)) == bodies(copy)
    assert orphans(copy, tmp_path)
    assert list(range(1, RECORDS + 1)) == bodies(batch)
    die("stream", "after 1")
    assert list(range(1, 2 * PER_BATCH + 1)) == bodies(copy)
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    # Under its name the batch job takes effect once: it had already, and nobody knew.
    finish("batch and stream")
    for log in (copy, batch):
        assert list(range(1, RECORDS + 1)) == bodies(log)
        assert log.scrub(deep=True).ok
