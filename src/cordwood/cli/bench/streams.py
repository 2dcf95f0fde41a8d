"""Reading one of many streams: the fragments touched, beside those that hold it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.log.log import Log
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore
from cordwood.store.url import Store
from cordwood.testing.filling import settle

SEED = 7


async def streams(fragments: int, names: int, per_fragment: int, reads: int) -> dict[str, Any]:
    """One run; the figures as they are printed."""
    meter = MeteredStore(MemoryStore(), SYSTEM_CLOCK)
    log = Log(Store.over(meter, "bench:"), "bench")
    await log.create()
    chance = np.random.default_rng(SEED)
    known = np.array([f"stream-{n:07}" for n in range(names)])
    await log.streams.open(*known.tolist())
    held = np.zeros(names, np.int64)
    async with log.writer() as writer:
        for _ in range(fragments):
            # The first of them far more often than the last.
            drawn = np.unique((names * chance.random(per_fragment) ** 2).astype(np.int64))
            held[drawn] += 1
            bodies = pa.array([b"x" * 100] * len(drawn))
            await writer.append_arrow(pa.table({"body": bodies, "stream": known[drawn]}))
        await settle(writer)
    asked = chance.choice(np.flatnonzero(held), reads)
    touched = requests = bytes_down = 0
    async with log.reader() as reader:
        meter.reset()
        for number in asked:
            touched += len(await reader.scan(stream=str(known[number])))
        scans = meter.snapshot()
        meter.reset()
        whole = len(await reader.scan())
        of_whole = meter.snapshot()
    requests = sum(one.requests for one in scans.operations.values())
    bytes_down = sum(one.bytes_down for one in scans.operations.values())
    root = await meter.get("bench/manifest/MANIFEST")
    return {
        "fragments": whole,
        "streams": names,
        "streams_per_fragment": round(float(held.sum()) / fragments, 1),
        "streams_read": reads,
        "fragments_that_hold_them": int(held[asked].sum()),
        "fragments_touched": touched,
        "touched_too_many_percent": round(100 * (touched / int(held[asked].sum()) - 1), 3),
        "per_stream": {
            "fragments": round(touched / reads, 2),
            "requests_to_find_them": round(requests / reads, 1),
            "bytes_to_find_them": bytes_down // reads,
        },
        "requests_to_find_all": sum(one.requests for one in of_whole.operations.values()),
        "manifest_bytes": len(root.data),
    }
