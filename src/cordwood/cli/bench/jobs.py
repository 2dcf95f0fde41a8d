"""Jobs: a deep scrub by Spark beside one process, and a compaction beside reading the same bytes.

The log lies in a directory in memory where there is one, so that the disk is not what is measured.
The first run on Spark, with its start, is given apart.

`ratio` compares wall time: what counts is how soon it is done. On a machine whose cores are not
free that says more about the neighbours; `cpu_ratio` is what it would be if they were: the CPU time
of the one process, beside that of Spark and its workers shared by all cores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cordwood.base.setsum import Setsum, kernel_name, use_kernel
from cordwood.cli.bench.harness import stopwatch, tree_cpu_s
from cordwood.cli.bench.scan import FRAGMENT_BYTES, memory_directory
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.pipeline.compact import compact
from cordwood.pipeline.engine import Engine, engine
from cordwood.pipeline.scrub import scrub_log
from cordwood.pipeline.table import Table
from cordwood.store.url import Store

REACH = 1.6
"""How much sooner two cores are to be done than one process, which keeps one of them busy."""


def scrub(record_bytes: int, megabytes: int, repeats: int, kernel: str) -> dict[str, Any]:
    """A deep scrub, both ways, with one kernel of the setsum."""
    use_kernel(kernel)
    # Spark's workers inherit it from the JVM, which is not there yet.
    os.environ["CORDWOOD_KERNEL"] = kernel
    spark = engine("spark")
    with memory_directory() as place:
        log = Log(Store(str(place)), "log")
        asyncio.run(_fill(log, record_bytes, megabytes, keys=False))
        return _log_facts(log) | _scrubs(log, spark, repeats)


def compaction(record_bytes: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """A compaction into a table, here and on Spark."""
    spark = engine("spark")
    with memory_directory() as place:
        store = Store(str(place))
        log = Log(store, "log")
        asyncio.run(_fill(log, record_bytes, megabytes, keys=True))
        results = _log_facts(log)
        for name, does in (("process", engine("local")), ("spark", spark)):
            for mode in ("append", "upsert"):
                took = _least([_compact(store, log, mode, does, i) for i in range(repeats)])
                results[f"{name}_{mode}"] = {
                    "mb_per_s": round(results["stored_mb"] / took.wall_s, 1),
                    "mb_per_cpu_s": round(results["stored_mb"] / took.cpu_s, 1),
                }
        return results


def _compact(store: Store, log: Log, mode: Any, does: Engine, number: int) -> Took:
    table = Table(store, f"{mode}-{does.name}-{number}")
    asyncio.run(table.create(mode=mode))
    before = tree_cpu_s()
    with stopwatch() as watch:
        work = compact(log, table, cursor=f"{mode}_{does.name}_{number}", engine=does)
        assert asyncio.run(work).committed
    return Took(watch.wall_s, tree_cpu_s() - before)


def _scrubs(log: Log, spark: Engine, repeats: int) -> dict[str, Any]:
    expected = asyncio.run(log.state()).setsum

    def here() -> Setsum:
        return asyncio.run(log.scrub(deep=True)).setsum

    def there() -> Setsum:
        return asyncio.run(scrub_log(log, engine=spark)).setsum

    first = _time(there, expected)
    rounds = [[_time(work, expected) for work in (here, there)] for _ in range(repeats)]
    process, spark_took = map(_least, zip(*rounds, strict=True))
    return {
        "process_s": round(process.wall_s, 2),
        "spark_s": round(spark_took.wall_s, 2),
        "spark_first_s": round(first.wall_s, 2),
        "process_cpu_s": round(process.cpu_s, 2),
        "spark_cpu_s": round(spark_took.cpu_s, 2),
        "ratio": round(process.wall_s / spark_took.wall_s, 2),
        "cpu_ratio": round(process.cpu_s * (os.cpu_count() or 1) / spark_took.cpu_s, 2),
        "reach": REACH,
    }


class Took(NamedTuple):
    """How long something took."""

    wall_s: float
    cpu_s: float
    """Of this process and all that it started."""


def _least(times: Sequence[Took]) -> Took:
    """What it takes when nobody disturbs."""
    return Took(min(took.wall_s for took in times), min(took.cpu_s for took in times))


def _time(work: Callable[[], Setsum], expected: Setsum) -> Took:
    before = tree_cpu_s()
    with stopwatch() as watch:
        assert work() == expected
    return Took(watch.wall_s, tree_cpu_s() - before)


async def _fill(log: Log, record_bytes: int, megabytes: int, *, keys: bool) -> None:
    """Records that do not compress; a tenth of the keys come again."""
    chance = np.random.default_rng(1)
    count = FRAGMENT_BYTES // record_bytes
    total = max(1, megabytes * 2**20 // FRAGMENT_BYTES)
    options = Options(compression="none", batch_bytes=FRAGMENT_BYTES)
    async with log.writer(create=True, options=options) as writer:
        for _ in range(total):
            columns = {"body": [chance.bytes(record_bytes) for _ in range(count)]}
            if keys:
                numbers = chance.integers(0, 5 * count * total, count)
                columns["key"] = [b"%d" % number for number in numbers]
            await writer.append_arrow(pa.table(columns))


def _log_facts(log: Log) -> dict[str, Any]:
    state = asyncio.run(log.state())
    return {
        "records": state.records,
        "stored_mb": round(state.bytes / 1e6, 1),
        "cores": os.cpu_count(),
        "kernel": kernel_name(),
    }
