"""Memory of many open, idle logs."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack
from typing import Any

from cordwood.cli.bench.harness import rss_bytes
from cordwood.log.log import Log
from cordwood.store.url import Store

FRAGMENTS = 12
"""Appended to each log first, so that its manifest is of an ordinary size."""


async def memory(logs: int) -> dict[str, Any]:
    """Open writers on so many logs and let them rest."""
    store = Store("memory:")
    for number in range(logs):
        async with Log(store, f"log-{number}").writer(create=True) as writer:
            for _ in range(FRAGMENTS):
                await writer.append(b"x")
    gc.collect()
    before = rss_bytes()
    async with AsyncExitStack() as stack:
        for number in range(logs):
            writer = await stack.enter_async_context(Log(store, f"log-{number}").writer())
            await writer.append(b"y")
        gc.collect()
        after = rss_bytes()
    return {
        "logs": logs,
        "bytes_per_log": round((after - before) / logs),
        "limit_bytes": 100_000,
        "includes": "an open writer, its manifest, and one record appended to a store in memory",
    }
