"""Reading a log into Spark, beside Spark's own Parquet reader on the same files.

Every row is made and none is kept (the `noop` sink). The peer reads the fragments as plain Parquet,
with BIGINT for the numbers, which is what a log's columns are in Spark. Before anything is timed,
both have to give the same records.

The log lies in a directory in memory where there is one. The works take turns, and the best of each
counts. `ratio` compares wall time; `cpu_ratio` the CPU time of everything that takes part, the JVM
and the Python workers, which says more on a machine whose cores are not free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from cordwood.base.errors import InternalError
from cordwood.base.setsum import kernel_name
from cordwood.cli.bench.harness import Stopwatch, stopwatch, tree_cpu_s
from cordwood.cli.bench.scan import FRAGMENT_BYTES, memory_directory
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.spark import session
from cordwood.store.url import Store

REACH = {1024: 0.9, 100: 0.7}
"""Of the peer's speed, unverified, by the size of a record."""

WARM = 2
"""Runs that do not count: the JVM compiles what it runs often."""

Frame = Callable[[], Any]
"""Makes a DataFrame; pyspark itself is imported below cordwood.spark alone."""


def read(record_bytes: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """Unverified and verified, beside the peer."""
    spark = session("local[2]", conf={"spark.driver.memory": "2g"})
    with memory_directory() as place:
        log = Log(Store(str(place)), "log")
        asyncio.run(_fill(log, record_bytes, megabytes))
        state = asyncio.run(log.state())
        files = [str(file) for file in sorted((place / "log").glob("log/*/*.parquet"))]

        def peer() -> Any:
            columns = "offset BIGINT, timestamp_us BIGINT, body BINARY"
            return spark.read.schema(columns).parquet(*files)

        def ours(verify: str) -> Frame:
            reader = spark.read.format("cordwood").option("verify", verify)
            return lambda: reader.load(log.url)

        frames = {"parquet": peer, "unverified": ours("false"), "verified": ours("true")}
        _check_same(frames)
        took = _measure(frames, repeats)
    facts = {
        "record_bytes": record_bytes,
        "records": state.records,
        "stored_mb": round(state.bytes / 1e6, 1),
        "kernel": kernel_name(),
    }
    reach = REACH.get(record_bytes)
    return facts | {
        name: _figures(watch, took["parquet"], state.bytes)
        | ({"reach": reach} if name == "unverified" and reach else {})
        for name, watch in took.items()
    }


async def _fill(log: Log, record_bytes: int, megabytes: int) -> None:
    """Records that do not compress, in fragments of the size that a writer makes."""
    chance = np.random.default_rng(1)
    count = FRAGMENT_BYTES // record_bytes
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * record_bytes)
    options = Options(compression="none", batch_bytes=FRAGMENT_BYTES)
    async with log.writer(create=True, options=options) as writer:
        for _ in range(max(1, megabytes * 2**20 // FRAGMENT_BYTES)):
            data = pa.py_buffer(chance.bytes(count * record_bytes))
            bodies = pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], data])
            await writer.append_arrow(pa.table({"body": bodies}))


def _check_same(frames: dict[str, Frame]) -> None:
    """Raise unless all of them give the same records."""
    sums = ("count(*)", "sum(offset)", "min(offset)", "sum(crc32(body))")
    found = {name: tuple(frame().selectExpr(*sums).collect()[0]) for name, frame in frames.items()}
    if len(set(found.values())) != 1:
        raise InternalError(f"the readers disagree: {found}")


def _measure(frames: dict[str, Frame], repeats: int) -> dict[str, Stopwatch]:
    best: dict[str, Stopwatch] = {}
    for attempt in range(WARM + repeats):
        for name, frame in frames.items():
            watch = _time(frame)
            if attempt < WARM:
                continue
            least = best.setdefault(name, watch)
            least.cpu_s = min(least.cpu_s, watch.cpu_s)
            least.wall_s = min(least.wall_s, watch.wall_s)
    return best


def _time(frame: Frame) -> Stopwatch:
    before_s = tree_cpu_s()
    with stopwatch() as watch:
        frame().write.format("noop").mode("overwrite").save()
    watch.cpu_s = tree_cpu_s() - before_s
    return watch


def _figures(watch: Stopwatch, peer: Stopwatch, num_bytes: int) -> dict[str, float]:
    return {
        "wall_s": round(watch.wall_s, 2),
        "cpu_s": round(watch.cpu_s, 2),
        "mb_per_s": round(num_bytes / 1e6 / watch.wall_s, 1),
        "ratio": round(peer.wall_s / watch.wall_s, 2),
        "cpu_ratio": round(peer.cpu_s / watch.cpu_s, 2),
    }
