"""Append latency in an open loop, beside the table that wal3's authors published.

Their setting: 10,000 appends a second for a minute, against a store whose every put takes 100 ms.
The floor of any protocol with one serial manifest, at a put time of R, is U(0, R) + 2 R: an append
waits for the next manifest to start, its fragment takes R, the manifest takes R.
"""

from __future__ import annotations

from typing import Any

from cordwood.cli.bench.harness import NUM_BODIES, Load, offer, random_bodies, slow_log

PUBLISHED = {"p50_ms": 270.0, "p99_ms": 330.0, "max_ms": 360.0}
"""Of the older wal3: 10,000 appends/s, 60 s, 100 ms per put."""


async def latency(
    rate: float, body_bytes: int, put_latency_ms: float, seconds: float
) -> dict[str, Any]:
    """One run; the figures as they are printed."""
    log, meter = slow_log(put_latency_ms / 1_000)
    await log.create()
    bodies = random_bodies(body_bytes)
    async with log.writer() as writer:
        await writer.append(bodies[0])
        meter.reset()
        load = await offer(lambda i: writer.append(bodies[i % NUM_BODIES]), rate, seconds)
    puts = meter.snapshot().operations["put"]
    report = await log.scrub()
    return {
        "protocol": "cas",
        **quantiles(load),
        "appends": len(load.latencies_ms),
        "errors": load.errors,
        "puts_per_s": round(puts.requests / load.elapsed_s, 1),
        "bytes_per_append": round(puts.bytes_up / max(1, len(load.latencies_ms)), 1),
        "cpu_cores": round(load.cpu_cores, 3),
        "rate": rate,
        "body_bytes": body_bytes,
        "put_latency_ms": put_latency_ms,
        "seconds": seconds,
        "in_log": report.records - 1,
        "floor_ms": {"p50_ms": 2.5 * put_latency_ms, "max_ms": 3 * put_latency_ms},
        "published_wal3": PUBLISHED,
    }


def quantiles(load: Load) -> dict[str, float]:
    """The latency figures of a run."""
    return {
        "p50_ms": round(load.quantile(0.5), 1),
        "p90_ms": round(load.quantile(0.9), 1),
        "p99_ms": round(load.quantile(0.99), 1),
        "p999_ms": round(load.quantile(0.999), 1),
        "max_ms": round(load.quantile(1.0), 1),
    }
