"""How much one process takes in: single appends, atomic batches, Arrow data.

Single appends and batches are offered in an open loop against a store with a slow put; what counts
is the rate that was acknowledged, and whether the latency stayed near that of a light load. Arrow
data is compared with pyarrow writing the same Parquet file: by wall time (`ratio`), since a large
fragment is hashed and encoded at the same time, and by CPU time (`cpu_ratio`). `bound` is the
`cpu_ratio` of a writer that costs what pyarrow does, and the hashing, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cordwood.base.setsum import Setsum
from cordwood.cli.bench.harness import (
    NUM_BODIES,
    Load,
    best_of,
    kernels,
    offer,
    random_bodies,
    slow_log,
    using_kernel,
)
from cordwood.cli.bench.latency import quantiles
from cordwood.log import flight as flights
from cordwood.log import records
from cordwood.log.batch import Batch
from cordwood.log.options import Options
from cordwood.log.recovery import Tail
from cordwood.log.writer import Writer

INGEST_BYTES = 8 * 2**20
BATCH_RECORDS = 1_000


async def appends(
    rate: float, body_bytes: int, put_latency_ms: float, seconds: float
) -> dict[str, Any]:
    """Single appends at `rate`, beside a light load of the same kind."""
    bodies = random_bodies(body_bytes)
    results = {}
    for name, offered in (("light", 1_000.0), ("full", rate)):
        log, _ = slow_log(put_latency_ms / 1_000)
        await log.create()
        async with log.writer() as writer:
            await writer.append(bodies[0])
            load = await offer(partial(_append, writer, bodies), offered, seconds)
        results[name] = _figures(load, offered)
    full, light = results["full"], results["light"]
    return {**results, "p99_ratio": round(full["p99_ms"] / light["p99_ms"], 2), "reach": 1.5}


async def batches(
    rates: dict[str, float], body_bytes: int, put_latency_ms: float, seconds: float
) -> dict[str, Any]:
    """`append_many`, a thousand records to a call, with each setsum kernel there is."""
    results: dict[str, Any] = {}
    bodies = random_bodies(body_bytes)[:BATCH_RECORDS]
    for kernel in kernels():
        with using_kernel(kernel):
            log, _ = slow_log(put_latency_ms / 1_000)
            await log.create()
            async with log.writer(options=Options(queue_bytes=2**30)) as writer:
                await writer.append_many(bodies)
                issue = partial(_append_many, writer, bodies)
                load = await offer(issue, rates[kernel], seconds, BATCH_RECORDS)
        reach = 1_000_000 if kernel == "numba" else 300_000
        results[kernel] = {**_figures(load, rates[kernel]), "reach_per_s": reach}
    return results


def _append(writer: Writer, bodies: list[bytes], i: int) -> asyncio.Future[int]:
    return writer.append(bodies[i % NUM_BODIES])


def _append_many(writer: Writer, bodies: list[bytes], _: int) -> asyncio.Future[int]:
    return writer.append_many(bodies)


def _figures(load: Load, offered: float) -> dict[str, Any]:
    return {
        "offered_per_s": offered,
        "acknowledged_per_s": round(load.acknowledged_per_s),
        "errors": load.errors,
        "cpu_cores": round(load.cpu_cores, 3),
        **quantiles(load),
    }


def ingest(record_bytes: int, repeats: int) -> dict[str, Any]:
    """An Arrow batch from the caller's hands to a fragment's bytes, beside pyarrow."""
    count = INGEST_BYTES // record_bytes
    chance = np.random.default_rng(1)
    body = pa.array(
        [chance.bytes(record_bytes) for _ in range(count)],
        pa.binary(),
    )
    data = pa.table({"body": body})
    tail = Tail("0" * 32, "0" * 64, 1, 1, 0)

    def ours() -> None:
        batch = Batch()
        batch.add_block(records.content_of_arrow(data), asyncio.Future(loop=_NO_LOOP))
        flights.build(batch, tail, 1_700_000_000_000_000, "1" * 32, "none")

    plain = pa.table(
        {
            "offset": pa.array(np.arange(1, count + 1, dtype=np.uint64)),
            "timestamp_us": pa.array(np.full(count, 1_700_000_000_000_000, dtype=np.uint64)),
            "body": body,
        }
    )

    def peer() -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(plain, sink, compression="none", use_dictionary=False)
        sink.getvalue()

    results: dict[str, Any] = {"record_bytes": record_bytes}
    for kernel, reach in (("numba", 0.4), ("hashlib", 0.1)):
        if kernel in kernels():
            with using_kernel(kernel):
                ours()
                results[kernel] = _compare(repeats, peer, ours, reach, plain)
    with mock.patch.object(Setsum, "of_fragment", return_value=Setsum()):
        results["off"] = _compare(repeats, peer, ours, 0.8)
    return results


def _compare(
    repeats: int,
    peer: Callable[[], None],
    ours: Callable[[], None],
    reach: float,
    hashed: pa.Table | None = None,
) -> dict[str, float]:
    peer_took, we_took = best_of(repeats, peer, ours)
    results = {
        "mb_per_s": _mb(we_took.wall_s),
        "pyarrow_mb_per_s": _mb(peer_took.wall_s),
        "ratio": round(peer_took.wall_s / we_took.wall_s, 3),
        "cpu_ratio": round(peer_took.cpu_s / we_took.cpu_s, 3),
        "reach": reach,
    }
    if hashed is not None:
        hashing_s = best_of(repeats, partial(Setsum.of_fragment, hashed))[0].cpu_s
        results["bound"] = round(peer_took.cpu_s / (peer_took.cpu_s + hashing_s), 3)
    return results


def _mb(seconds: float) -> float:
    return round(INGEST_BYTES / 1e6 / seconds, 1)


_NO_LOOP = asyncio.new_event_loop()
