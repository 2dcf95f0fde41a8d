"""A driver dies at the worst moments: after its uploads and before the commit; just after that.

A life is a process group of its own. What dies is told by the environment: a module that Python
loads at its start, in every process of the life, wraps the swap that makes a commit visible, and
kills the whole group before or after it. So it does not depend on luck which moment is met.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cordwood import sync
from cordwood.spark import missing

pytestmark = pytest.mark.slow

RECORDS = 300
PER_BATCH = 100

DYING = """
import os, signal
from pathlib import Path

moment, _, batch = os.environ.get("TEST_DIES", "").partition(" ")
if moment:
    from cordwood.log.bulk import Committer

    swap = Committer._swap

    def die():
        Path(os.environ["TEST_DIED"]).write_text(f"{moment} {batch}")
        os.killpg(int(os.environ["TEST_GROUP"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    async def dying(self, ground, staged, token):
        if (moment, batch) == ("before", str(token.batch)):
            die()
        done = await swap(self, ground, staged, token)
        if (moment, batch) == ("after", str(token.batch)):
            die()
        return done

    Committer._swap = dying
"""

JOB = """
def work(spark, job, url, folder, per_batch):
    if job == "stream":
        stream = spark.readStream.format("cordwood").option("maxRecordsPerTrigger", per_batch)
        query = (
            stream.option("splitBytes", "1").load(url).select("body")
            .writeStream.format("cordwood").option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True).start(f"{url}-stream")
        )
        query.awaitTermination()
    else:
        frame = spark.read.format("cordwood").option("splitBytes", "1").load(url).select("body")
        frame.write.format("cordwood").mode("append").option("txnAppId", "job").save(f"{url}-batch")
"""

LIFE = f"""
import os, sys

os.environ["TEST_GROUP"] = str(os.getpid())
from cordwood.spark import session
{JOB}
spark = session("local[1]", conf={{"spark.log.level": "OFF"}})
work(spark, *sys.argv[1:])
"""


@pytest.fixture
def source(tmp_path):
    """What is copied, in fragments of fifty."""
    if reason := missing():
        pytest.skip(reason)
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
    exec(JOB, names)  # The same as in the other lives.
    return lambda job: names["work"](spark, job, source.url, tmp_path, PER_BATCH)


@pytest.fixture
def die(source, tmp_path):
    """`die("stream", "before 1")`: one life, which dies there."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DYING)
    died = tmp_path / "died"

    def run(job, dies):
        paths = [str(tmp_path / "site"), *(path for path in sys.path if path)]
        told = {"TEST_DIES": dies, "TEST_DIED": str(died), "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-c", LIFE, job, source.url, str(tmp_path), str(PER_BATCH)]
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


def test_a_stream_whose_driver_dies(die, finish, source, tmp_path):
    """Between upload and commit, then between commit and checkpoint: the copy is exact."""
    # EVIDENCE-OF: G-62, G-64
    copy = sync.Log.from_url(f"{source.url}-stream")
    die("stream", "before 1")
    assert list(range(1, PER_BATCH + 1)) == bodies(copy)
    assert orphans(copy, tmp_path)
    die("stream", "after 1")
    assert list(range(1, 2 * PER_BATCH + 1)) == bodies(copy)
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    finish("stream")
    assert list(range(1, RECORDS + 1)) == bodies(copy)
    assert copy.scrub(deep=True).ok


def test_a_batch_job_whose_driver_dies(die, finish, source):
    """Run again under its name it takes effect once: it had already, and nobody knew."""
    # EVIDENCE-OF: G-61, G-62
    copy = sync.Log.from_url(f"{source.url}-batch")
    die("batch", "after 0")
    assert list(range(1, RECORDS + 1)) == bodies(copy)
    finish("batch")
    assert list(range(1, RECORDS + 1)) == bodies(copy)
    assert copy.scrub(deep=True).ok
