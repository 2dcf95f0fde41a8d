"""The engine that is Spark: units are tasks (spark/jobs.py), on one machine or on a cluster.

Works in the session that is there, or makes one; the same through Spark Connect. A task that fails
or dies is done again by Spark; units may be done twice, so that is no harm. If a unit fails for
good, the job fails with its error, and what other tasks wrote is named by nobody.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import CordwoodError, InternalError, StateError, StoreError
from cordwood.pipeline.engine import Drops, Progress, failed
from cordwood.pipeline.job import Job, Unit
from cordwood.spark.session import active, first_words, missing, session
from cordwood.store.url import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ResultT = TypeVar("ResultT", bound=Struct)

CONNECT_SLOTS = 8
"""What is assumed of a session behind Spark Connect, which does not tell."""

POLL_S = 0.25
"""How often the bar moves."""

BUCKET_ROWS = 32_768
"""Rows that one bitmap of Spark's `bitmap_construct_agg` stands for."""

_starting = threading.Lock()
"""Held while a session is made: two at once would lead each other's output astray."""


class SparkEngine:
    """Does units as tasks of Spark."""

    name = "spark"

    def __init__(self, spark: SparkSession | None = None) -> None:
        """Nothing is started yet. Without `spark`, in the session that is active, or a new one."""
        self._spark = spark

    @property
    def missing(self) -> str:
        """What keeps it from running here, in one line; empty if nothing does."""
        return missing() if self._spark is None and active() is None else ""

    def refuses(self, stores: Iterable[Store]) -> str:
        """Why a task cannot find one of these stores by its URL; empty if it can."""
        try:
            for store in stores:
                check_can_travel(store)
        except StateError as error:
            return error.message
        return ""

    async def start(self) -> None:
        """Have a session."""
        await self._session()

    async def slots(self) -> int:
        """How many tasks the session runs at once, as far as it says."""
        spark = await self._session()
        context = getattr(spark, "_sc", None)
        return CONNECT_SLOTS if context is None else int(context.defaultParallelism)

    async def work(
        self, job: Job[Any, Any, ResultT, Any], units: Sequence[Unit], progress: Progress | None
    ) -> list[ResultT]:
        """The results of the units, in their order."""
        from cordwood.spark.jobs import Failure  # noqa: PLC0415 - loads pyspark

        results: list[Any] = [None] * len(units)
        make = partial(self._frame, job, units, rows=False)
        for place, done, text in await self._collect(job, make, units, progress):
            if not done:
                error = msgspec.json.decode(text, type=Failure).error()
                raise failed(job, units[place], error)
            results[place] = msgspec.json.decode(text, type=job.result_type)
        lacking = sum(result is None for result in results)
        if lacking:
            raise InternalError(f"{job.name}: {lacking} of {len(units)} units gave no result")
        return results

    async def losers(
        self, job: Job[Any, Any, Any, Any], fresh: Sequence[Unit], old: Sequence[Unit]
    ) -> Drops:
        """The rows that a newer one replaces: a window over keys and offsets, bitmaps of it.

        Of the old rows only those count whose key is among the fresh ones: they are found first, by
        a semi-join that Spark may broadcast.
        """
        make = partial(self._losers, job, fresh, old)
        found: dict[int, dict[int, bytes]] = {}
        for source, bucket, bitmap in await self._collect(job, make, [], None):
            found.setdefault(source, {})[bucket - 1] = bytes(bitmap)
        return {source: _joined(parts) for source, parts in found.items()}

    # Below.

    async def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = await asyncio.to_thread(_session)
        return self._spark

    def _losers(
        self, job: Job[Any, Any, Any, Any], fresh: Sequence[Unit], old: Sequence[Unit]
    ) -> DataFrame:
        """Bitmaps of the rows that lose, by source and bucket."""
        from pyspark.sql import Window  # noqa: PLC0415 - loaded on first use
        from pyspark.sql import functions as f  # noqa: PLC0415

        rows = self._frame(job, fresh, rows=True)
        if old:
            there = self._frame(job, old, rows=True)
            rows = rows.unionByName(there.join(rows, ["log", "key"], "left_semi"))
        of_key = Window.partitionBy("log", "key")
        lost = rows.withColumn("newest", f.max("offset").over(of_key)).where("offset < newest")
        # Bits are counted from 1, in the lowest bit of the first byte.
        bits = lost.select("source", (f.col("row") + 1).cast("bigint").alias("row"))
        return bits.groupBy("source", f.bitmap_bucket_number("row").alias("bucket")).agg(
            f.bitmap_construct_agg(f.bitmap_bit_position("row")).alias("bits")
        )

    def _frame(
        self, job: Job[Any, Any, Any, Any], units: Sequence[Unit], *, rows: bool
    ) -> DataFrame:
        """The data frame whose reading does the units."""
        from cordwood.spark.jobs import FORMAT, options_for  # noqa: PLC0415 - loads pyspark

        assert self._spark is not None, "there is a session by now"
        return self._spark.read.format(FORMAT).options(**options_for(job, units, rows=rows)).load()

    async def _collect(
        self,
        job: Job[Any, Any, Any, Any],
        make: Callable[[], DataFrame],
        units: Sequence[Unit],
        progress: Progress | None,
    ) -> list[Any]:
        """The rows of a frame, while the bar moves; stopped with the task that waits for it."""
        from cordwood.spark.jobs import failure_in  # noqa: PLC0415 - loads pyspark

        for store in job.stores:
            check_can_travel(store)
        watched = Watched(
            await self._session(), f"cordwood-{job.name}-{SYSTEM_ENTROPY.token()[:8]}"
        )
        work = asyncio.ensure_future(asyncio.to_thread(watched.collect, make))
        total = sum(unit.num_bytes for unit in units)
        try:
            while not work.done():
                if progress is not None:
                    progress(int(total * watched.share(len(units))), total)
                await asyncio.wait([work], timeout=POLL_S)
            found = work.result()
        except asyncio.CancelledError:
            watched.stop()
            raise
        except CordwoodError:
            raise
        except Exception as error:
            if (known := failure_in(str(error))) is not None:
                raise known from error
            raise StoreError(
                f"{job.name}: Spark failed: {first_words(error)}",
                hint=f"nothing was changed; the driver's log, or {chatter()}, has the whole story",
            ) from error
        if progress is not None:
            progress(total, total)
        return found


def chatter() -> str:
    """The file that Spark's own messages go to, where the engine makes the session."""
    return os.path.join(tempfile.gettempdir(), f"cordwood-spark-{os.getuid()}.log")


def _session() -> SparkSession:
    """The session that is there; or one of our own, which does not talk into our output.

    The JVM keeps for its whole life the error stream that this process has when it starts it.
    """
    with _starting:
        if (there := active()) is not None:
            return there
        ours = os.dup(2)
        file = os.open(chatter(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.dup2(file, 2)
            return session()
        finally:
            os.dup2(ours, 2)
            os.close(ours)
            os.close(file)


class Watched:
    """A Spark action that can be followed and stopped."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        """Nothing runs yet."""
        self._spark = spark
        self._tag = tag
        # There is no context behind Spark Connect: no progress there, all else works.
        self._context = getattr(spark, "_sc", None)

    def collect(self, make: Callable[[], DataFrame]) -> list[Any]:
        """The rows of the frame that `make` gives; blocks."""
        if self._context is not None:
            self._context.setJobGroup(self._tag, self._tag, interruptOnCancel=True)
        self._spark.addTag(self._tag)
        try:
            return make().collect()
        finally:
            self._spark.removeTag(self._tag)
            if self._context is not None:
                self._context.setLocalProperty("spark.jobGroup.id", None)

    def share(self, num_units: int) -> float:
        """How much is done, from 0 to 1; 0 where nobody knows."""
        if self._context is None:
            return 0.0
        tracker = self._context.statusTracker()
        done = 0
        for number in tracker.getJobIdsForGroup(self._tag):
            if (about := tracker.getJobInfo(number)) is not None:
                stages = filter(None, map(tracker.getStageInfo, about.stageIds))
                done += sum(stage.numCompletedTasks for stage in stages)
        return min(1.0, done / max(1, num_units))

    def stop(self) -> None:
        """End it."""
        self._spark.interruptTag(self._tag)


def _joined(parts: dict[int, bytes]) -> bytes:
    """One bitmap out of those of its buckets."""
    size = BUCKET_ROWS // 8
    whole = bytearray((max(parts) + 1) * size)
    for bucket, bits in parts.items():
        whole[bucket * size : bucket * size + len(bits)] = bits
    return bytes(whole).rstrip(b"\0")


def check_can_travel(store: Store) -> None:
    """Raise unless a task finds the same store by its URL."""
    if store.scheme not in {"file", "s3", "gs", "az"}:
        raise StateError(
            f"{store.url} lives in this process: no task of Spark can reach it",
            hint="use the engine local",
        )
    if not store.is_same_as(Store(store.url)):
        raise StateError(
            f"{store.url} was opened with options, which do not travel to Spark's workers",
            hint="set endpoint, region and credentials in the environment of driver and executors",
        )
