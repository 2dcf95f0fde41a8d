"""What shards bring on a store that limits requests for each prefix.

S3 takes about 3,500 writes and 5,500 reads a second for a prefix; here both are a hundred times
less, so that the limit and not this process decides. Every fragment is read at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.limited import LimitedStore

WRITES_PER_S, READS_PER_S = 35.0, 55.0


async def shards(counts: tuple[int, ...], fragments: int) -> dict[str, Any]:
    """The same log written and read with so many shards each time."""
    runs = [await _run(count, fragments) for count in counts]
    return {
        "fragments": fragments,
        "writes_per_s_and_prefix": WRITES_PER_S,
        "reads_per_s_and_prefix": READS_PER_S,
        "runs": runs,
    }


async def _run(count: int, fragments: int) -> dict[str, Any]:
    near = FaultyStore(
        MemoryStore(),
        SYSTEM_ENTROPY,
        SYSTEM_CLOCK,
        latency={"put": Latency(0.01), "get": Latency(0.01), "get_range": Latency(0.01)},
    )
    store = LimitedStore(near, SYSTEM_CLOCK, writes_per_s=WRITES_PER_S, reads_per_s=READS_PER_S)
    log = Log(Store.over(store, "bench:"), "bench")
    await log.create(protocol="chain", shards=count)
    options = Options(batch_bytes=1, in_flight=64, batch_interval_s=0.0, alpha=4)
    started_s = SYSTEM_CLOCK.monotonic_s()
    async with log.writer(options=options) as writer:
        await asyncio.gather(*(writer.append(b"%d" % number) for number in range(fragments)))
    wrote_s = SYSTEM_CLOCK.monotonic_s() - started_s
    async with log.reader() as reader:
        # The nodes are read once, so that what is measured is fragments.
        pointers = await reader.scan()
        started_s = SYSTEM_CLOCK.monotonic_s()
        await asyncio.gather(*(reader.fetch(pointer) for pointer in pointers))
        read_s = SYSTEM_CLOCK.monotonic_s() - started_s
    return {
        "shards": count,
        "fragments_written_per_s": round(fragments / wrote_s, 1),
        "fragments_read_per_s": round(fragments / read_s, 1),
    }
