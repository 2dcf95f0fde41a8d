"""Spark at work on logs, killed with SIGKILL again and again.

`kill_copies`: a streaming query copies one log to another. Each life is a process group of its own
(driver, JVM, Python workers), killed as a whole a random moment after it was seen to commit
something. The last life runs to the end, in this process, in its session if it has one. Then the
copy has the bodies of the original, as many, in the same order.

`write_many`: a batch job appends numbered records while its Python processes are killed, one every
few seconds: those of tasks, which Spark tries again, and those of the driver (planning, commit),
whereupon the job itself is run again, under the same name. Then the plain reader finds every number
at its place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time  # noqa: TID251 - waits for other processes
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordwood import sync
from cordwood.base.clock import Entropy
from cordwood.base.errors import NotFoundError
from cordwood.base.setsum import Setsum

LIFE_MAX_S = 120.0
"""A life that commits nothing in this time is killed as well."""

AFTER_MAX_S = 2.0
"""How long a life goes on at most after its first commit."""

RECORDS_PER_BATCH = 2_000

TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class Account:
    """How the copying went."""

    kills: int
    records: int
    copied: int
    batches: int
    """Batches that were committed, as far as the last one tells."""
    is_exact: bool
    orphans: int
    """Uploads that lives left behind, named by nobody."""

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.kills} kills: {self.copied:,} of {self.records:,} records copied in "
            f"{self.batches} batches, {self.orphans} uploads left over, "
            f"{'an exact copy' if self.is_exact else 'NOT an exact copy'}"
        )


def kill_copies(directory: str, kills: int, records: int, entropy: Entropy) -> Account:
    """Make a log, have it copied by a query that dies so often, compare."""
    source = sync.Log(f"file://{directory}", "source")
    target = sync.Log(f"file://{directory}", "target")
    source.create()
    with source.writer() as writer:
        for start in range(0, records, 5_000):
            bodies = [b"%08d" % n * 8 for n in range(start, min(start + 5_000, records))]
            writer.append_many(bodies)
    for _ in range(kills):
        _live(directory, target, AFTER_MAX_S * entropy.uniform())
    _copy(directory, is_last=True)
    total, ordered = _sum(target)
    named = len(_fragments(target))
    there = sum(1 for meta in _uploads(target))
    expected, expected_order = _sum(source)
    copied = target.state().next_offset - 1
    is_exact = (total, ordered, copied) == (expected, expected_order, records)
    producers = target.manifest().producers
    batches = producers[-1].batch + 1 if producers else 0
    is_exact &= target.scrub(deep=True).ok
    return Account(kills, records, copied, batches, is_exact, there - named)


def _live(directory: str, target: sync.Log, after_s: float) -> None:
    """One life, until so long after it has committed something."""
    command = [sys.executable, "-m", "cordwood.testing.sparkkilling", directory]
    before = _next_offset(target)
    with open(os.path.join(directory, "lives.log"), "ab") as output:
        child = subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=output, stderr=output, start_new_session=True
        )
    until_s = time.monotonic() + LIFE_MAX_S
    while child.poll() is None and time.monotonic() < until_s and _next_offset(target) == before:
        time.sleep(0.02)
    time.sleep(after_s)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _next_offset(log: sync.Log) -> int:
    try:
        return log.manifest().next_offset
    except NotFoundError:
        return 1


def _sum(log: sync.Log) -> tuple[str, str]:
    """Setsums over the bodies alone, and over the bodies with their places."""
    bodies, ordered = Setsum(), Setsum()
    with log.reader() as reader:
        for batch in reader.read_arrow():
            for offset, body in zip(*map(pa.Array.to_pylist, batch.columns[::2][:2]), strict=True):
                bodies.insert(body)
                ordered.insert(offset.to_bytes(8, "big"), body)
    return bodies.hexdigest(), ordered.hexdigest()


def _fragments(log: sync.Log) -> list[str]:
    with log.reader() as reader:
        return [fragment.path for fragment in reader.scan()]


def _uploads(log: sync.Log) -> list[str]:
    root = os.path.join(log.store.url.removeprefix("file://"), log.name, "log")
    return [name for name in os.listdir(root) if name.startswith("Uuid=")]


def _copy(directory: str, *, is_last: bool) -> None:
    """The life itself."""
    from cordwood.spark.session import session  # noqa: PLC0415 - loaded only where it is used

    spark = session("local[2,2]")
    query = (
        spark.readStream.format("cordwood")
        .option("maxRecordsPerTrigger", RECORDS_PER_BATCH)
        .option("splitBytes", "32k")
        .load(f"file://{directory}/source")
        .select("body")
        .writeStream.format("cordwood")
        .option("checkpointLocation", f"{directory}/checkpoint")
    )
    query = query.trigger(availableNow=True) if is_last else query.trigger(processingTime="0 s")
    query.start(f"file://{directory}/target").awaitTermination()


@dataclass(frozen=True, slots=True)
class Written:
    """How a batch write went."""

    records: int
    kills: int
    tries: int
    """Times that the job was run: a kill may hit the driver's part of it."""
    seconds: float
    wrong: int
    """Records that are not where they should be."""
    is_whole: bool
    orphans: int

    def __str__(self) -> str:
        """One line."""
        rate = self.records / self.seconds
        return (
            f"{self.records:,} records written in {self.seconds:.0f} s ({rate:,.0f}/s), "
            f"{self.kills} workers killed, {self.tries} tries, {self.orphans} uploads left over: "
            f"{self.wrong} records wrong, {'whole' if self.is_whole else 'DAMAGED'}"
        )


def write_many(
    directory: str, records: int, entropy: Entropy, *, kill: bool, record_bytes: int = 100
) -> Written:
    """Write numbered records by Spark, read them by the plain reader."""
    from cordwood.spark.session import session  # noqa: PLC0415 - not for `kill_copies`

    spark = session("local[2,1000]", conf={"spark.sql.execution.arrow.maxRecordsPerBatch": 10_000})
    url = f"file://{directory}/many"
    text = f"rpad(lpad(CAST(id AS STRING), 12, '0'), {record_bytes}, 'x')"
    df = spark.range(0, records, 1, 16).selectExpr(f"CAST({text} AS BINARY) AS body")
    killer = _Killer(entropy)
    if kill:
        killer.start()
    started_s = time.monotonic()
    job = df.write.format("cordwood").mode("append").option("fragmentBytes", "16m")
    tries = 0
    try:
        while tries < TRIES_MAX:
            tries += 1
            # A kill that hits the driver's part fails the job; its name makes it safe to repeat.
            with suppress(Exception):
                job.option("txnAppId", "many").save(url)
                break
    finally:
        killer.is_over = True
    seconds = time.monotonic() - started_s
    log = sync.Log.from_url(url)
    wrong = abs(log.state().next_offset - 1 - records)
    place = 0
    with log.reader() as reader:
        for batch in reader.read_arrow():
            numbers = np.char.zfill(np.arange(place, place + batch.num_rows).astype("U12"), 12)
            expected = pa.array(numbers).cast(pa.binary())
            found = pc.binary_slice(batch.column("body"), 0, 12)
            wrong += batch.num_rows - pc.sum(pc.equal(found, expected)).as_py()
            place += batch.num_rows
    report = log.scrub(deep=True)
    orphans = len(_uploads(log)) - len(_fragments(log))
    return Written(records, killer.kills, tries, seconds, wrong, report.ok, orphans)


class _Killer(threading.Thread):
    """Kills a Python worker of Spark every few seconds."""

    def __init__(self, entropy: Entropy) -> None:
        super().__init__(daemon=True)
        self._entropy = entropy
        self.is_over = False
        self.kills = 0

    def run(self) -> None:
        """Until it is over."""
        while not self.is_over:
            time.sleep(0.5 + 2.0 * self._entropy.uniform())
            workers = _python_workers()
            if workers and not self.is_over:
                victim = workers[int(self._entropy.uniform() * len(workers))]
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    self.kills += 1


def _python_workers() -> list[int]:
    """Processes that a Spark daemon below this process has forked for its tasks."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            with open(f"/proc/{name}/stat", encoding="utf-8") as stat:
                parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", "rb") as command:
                if b"pyspark.daemon" in command.read():
                    daemons.add(int(name))
    return [pid for pid in daemons if parents.get(pid) in daemons and _is_below(pid, parents)]


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


if __name__ == "__main__":
    _copy(sys.argv[1], is_last=False)
