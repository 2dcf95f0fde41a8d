"""What asking twice is worth: append latency over a store with a slow tail, hedged and not.

One put in a hundred is late by 100 to 600 ms; the others take a log-normal time, 30 ms in the
middle. The run is simulated: time is virtual and chance is seeded, so the figures are the same on
every machine, and both runs meet the same store.
"""

from __future__ import annotations

import asyncio
from typing import Any

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.cli.bench.harness import Load, offer, random_bodies
from cordwood.cli.bench.latency import quantiles
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.hedged import HEDGES_PER_S, QUANTILE, WINDOW, HedgedStore
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.simloop import simulate

TAIL = Latency(0.03, p99_s=0.09, tail_probability=0.01, tail_even_s=(0.1, 0.6))
READ = Latency(0.02, p99_s=0.06, tail_probability=0.01, tail_even_s=(0.1, 0.6))

WARM_APPENDS = 60
"""Before the measuring: until then the store does not know what slow is."""


def tail(rate: float, body_bytes: int, seconds: float, seed: int) -> dict[str, Any]:
    """Both runs; the figures as they are printed."""
    plain, hedged = (_run(rate, body_bytes, seconds, seed, hedge=h) for h in (False, True))
    return {
        "plain": plain,
        "hedged": hedged,
        "p99_plain_over_hedged": round(plain["p99_ms"] / hedged["p99_ms"], 2),
        "budget": {"hedges_per_s": HEDGES_PER_S, "window": WINDOW, "quantile": QUANTILE},
    }


def _run(rate: float, body_bytes: int, seconds: float, seed: int, *, hedge: bool) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        clock, entropy = LoopClock(), SeededEntropy(f"tail {seed}")
        latencies = {"put": TAIL} | dict.fromkeys(("get", "get_range", "head", "list"), READ)
        slow = FaultyStore(MemoryStore(clock), entropy, clock, latency=latencies)
        store = HedgedStore(slow, clock) if hedge else slow
        log = Log(Store.over(store, "bench:"), "bench", clock=clock, entropy=entropy)
        await log.create()
        bodies = random_bodies(body_bytes)
        async with log.writer(options=Options()) as writer:
            for body in bodies[:WARM_APPENDS]:
                await writer.append(body)
            puts, started_s = slow.counts["put"], clock.monotonic_s()
            hedges = getattr(store, "hedges", 0)
            load: Load = await offer(
                lambda i: writer.append(bodies[i % len(bodies)]), rate, seconds
            )
            hedges = getattr(store, "hedges", 0) - hedges
            puts, elapsed_s = slow.counts["put"] - puts, clock.monotonic_s() - started_s
        await asyncio.sleep(5)
        return {
            **quantiles(load),
            "appends": len(load.latencies_ms),
            "puts": puts,
            "hedges": hedges,
            "hedges_per_s": round(hedges / elapsed_s, 2),
        }

    return simulate(seed, main)
