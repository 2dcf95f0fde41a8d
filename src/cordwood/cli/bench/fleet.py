"""What a fleet costs: memory of open logs, requests to open one, bytes of a mark."""

from __future__ import annotations

import gc
from typing import Any

from cordwood.cli.bench.harness import rss_bytes
from cordwood.fleet.dirty import DirtyLog
from cordwood.fleet.fleet import Fleet
from cordwood.fleet.marks import encode
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore
from cordwood.store.url import Store

FRAGMENTS = 12
"""Appended to each log first, so that its manifest is of an ordinary size."""


async def fleet(logs: int) -> dict[str, Any]:
    """Append to so many logs and let them rest, open."""
    metered = MeteredStore(MemoryStore())
    store = Store.over(metered, "memory:")
    names = [f"tenants/{number:08x}/events" for number in range(logs)]
    async with Fleet(store, "filler", create=True, max_open=1) as filler:
        for name in names:
            for _ in range(FRAGMENTS):
                await filler.append(name, b"x")
    gc.collect()
    before = rss_bytes()
    async with Fleet(store, "bench", max_open=logs, idle_s=float("inf")) as opened:
        for name in names:
            await opened.append(name, b"y")
        gc.collect()
        after = rss_bytes()
    marks = (await DirtyLog(store, "bench").read(None)).marks
    counted = metered.snapshot().requests
    async with Fleet(store, "bench", max_open=logs) as opened:
        for name in names:
            async with opened.writer(name):
                pass
    return {
        "logs": logs,
        "bytes_per_open_log": round((after - before) / logs),
        "limit_bytes": 100_000,
        "requests_to_open_and_close": (metered.snapshot().requests - counted) / logs,
        "marks": len(marks),
        "bytes_per_mark": round(sum(len(encode(mark)) for mark in marks) / len(marks), 1),
        "includes": "an open writer, its manifest, one record and one mark, in a store in memory",
    }
