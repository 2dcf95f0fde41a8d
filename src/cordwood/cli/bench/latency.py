"""Append latency in an open loop, beside the table that wal3's authors published.

Their setting: 10,000 appends a second for a minute, against a store whose every put takes 100 ms.
With a put time of R and a batch interval of B, an append takes

    cas     U(0, R) + 2 R            it waits for the next manifest to start; fragment; manifest
    chain   U(0, B) + 2 R            manifests overlap: it waits for its batch only

A chain log is measured with enough manifests in the air for one in every batch interval.
"""

from __future__ import annotations

from typing import Any

from cordwood.cli.bench.harness import NUM_BODIES, Load, offer, random_bodies, slow_log
from cordwood.cli.bench.histogram import buckets
from cordwood.log.chain.options import Protocol
from cordwood.log.options import Options

PUBLISHED = {"p50_ms": 270.0, "p99_ms": 330.0, "max_ms": 360.0}
"""Of the older wal3: 10,000 appends/s, 60 s, 100 ms per put."""

CHAIN_INTERVAL_S = 0.008


def options_for(protocol: Protocol, put_latency_ms: float) -> Options:
    """How a log of this protocol is written here."""
    if protocol == "cas":
        return Options()
    at_once = max(4, round(1.5 * put_latency_ms / 1_000 / CHAIN_INTERVAL_S))
    return Options(batch_interval_s=CHAIN_INTERVAL_S, in_flight=2 * at_once, alpha=at_once)


async def latency(
    rate: float,
    body_bytes: int,
    put_latency_ms: float,
    seconds: float,
    protocol: Protocol = "cas",
    shards: int = 1,
) -> dict[str, Any]:
    """One run; the figures as they are printed."""
    log, meter = slow_log(put_latency_ms / 1_000)
    await log.create(protocol=protocol, shards=shards)
    bodies = random_bodies(body_bytes)
    options = options_for(protocol, put_latency_ms)
    async with log.writer(options=options) as writer:
        await writer.append(bodies[0])
        meter.reset()
        load = await offer(lambda i: writer.append(bodies[i % NUM_BODIES]), rate, seconds)
    puts = meter.snapshot().operations["put"]
    report = await log.scrub()
    interval_ms = 1_000 * options.batch_interval_s
    slack_ms = put_latency_ms if protocol == "cas" else interval_ms
    return {
        "protocol": protocol,
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
        "alpha": options.alpha if protocol == "chain" else 1,
        "batch_interval_ms": interval_ms,
        "shards": shards,
        "in_log": report.records - 1,
        "floor_ms": {
            "p50_ms": 2 * put_latency_ms + slack_ms / 2,
            "max_ms": 2 * put_latency_ms + slack_ms,
        },
        "published_wal3": PUBLISHED,
        "histogram": buckets(load.latencies_ms),
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
