"""What the benchmarks share: a loop, a store with a delay, an open-loop generator, CPU time."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.setsum import kernel_name, use_kernel
from cordwood.log.log import Log
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore
from cordwood.store.url import Store
from cordwood.testing.faults import FaultyStore, Latency

T = TypeVar("T")

NUM_BODIES = 1_024

TICK_S = 0.001
"""How often the generator wakes; it then issues every append that is due."""


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on uvloop where it is installed, with the collector told to leave old objects alone."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(20_000, 20, 100)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(main())
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def slow_log(put_latency_s: float, name: str = "bench") -> tuple[Log, MeteredStore]:
    """A log in memory whose every put takes this long, and the meter on its store."""
    slow = FaultyStore(
        MemoryStore(), SYSTEM_ENTROPY, SYSTEM_CLOCK, latency={"put": Latency(put_latency_s)}
    )
    meter = MeteredStore(slow, SYSTEM_CLOCK)
    return Log(Store.over(meter, "bench:"), name), meter


@dataclass(frozen=True, slots=True)
class Load:
    """What an open-loop run gave."""

    latencies_ms: npt.NDArray[np.float64]
    """Completion minus *intended* send time: a stall is charged to every append it delays."""
    errors: int
    elapsed_s: float
    """From the first intended send to the last completion."""
    acknowledged_per_s: float
    """Between the first completion and the last."""
    cpu_cores: float

    def quantile(self, q: float) -> float:
        """A latency in milliseconds."""
        return float(np.quantile(self.latencies_ms, q)) if len(self.latencies_ms) else float("nan")


async def offer(
    issue: Callable[[int], asyncio.Future[int]], rate: float, seconds: float, per_issue: int = 1
) -> Load:
    """Offer `rate` records a second in an open loop, `per_issue` to a call."""
    loop = asyncio.get_running_loop()
    total = int(rate * seconds / per_issue)
    step_s = per_issue / rate
    done = np.full(total, np.nan)
    errors = 0
    left = total
    finished = loop.create_future()
    start_s = loop.time() + 0.01

    def landed(i: int, future: asyncio.Future[int]) -> None:
        nonlocal left, errors
        if future.exception() is None:
            done[i] = loop.time()
        else:
            errors += 1
        left -= 1
        if left == 0:
            finished.set_result(None)

    cpu_s = cpu_seconds()
    sent = 0
    while sent < total:
        due = min(total, int((loop.time() - start_s) / step_s) + 1)
        while sent < due:
            try:
                future = issue(sent)
            except Exception:  # noqa: BLE001 - a refused append is a result of the run
                errors += 1
                left -= 1
            else:
                future.add_done_callback(partial(landed, sent))
            sent += 1
        await asyncio.sleep(TICK_S)
    if left:
        await finished
    elapsed_s = loop.time() - start_s
    intended = start_s + np.arange(total) * step_s
    latencies = (done - intended) * 1_000
    first_s, last_s = np.nanmin(done), np.nanmax(done)
    acknowledged = int(np.count_nonzero(~np.isnan(done))) * per_issue
    return Load(
        latencies_ms=latencies[~np.isnan(latencies)],
        errors=errors,
        elapsed_s=elapsed_s,
        acknowledged_per_s=acknowledged / max(TICK_S, float(last_s - first_s)),
        cpu_cores=(cpu_seconds() - cpu_s) / elapsed_s,
    )


def random_bodies(body_bytes: int) -> list[bytes]:
    """Bodies that do not compress, to be used in turn."""
    chance = np.random.default_rng(1)
    return [chance.bytes(body_bytes) for _ in range(NUM_BODIES)]


def cpu_seconds() -> float:
    """CPU used by this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def tree_cpu_s() -> float:
    """CPU used so far by this process and those below it that live: a JVM, its workers."""
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(one, 0) for one in ours) / os.sysconf("SC_CLK_TCK")


def rss_bytes() -> int:
    """Memory this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Stopwatch:
    """CPU and wall time of a block."""

    def __init__(self) -> None:
        """Not started."""
        self.cpu_s = 0.0
        self.wall_s = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure a block."""
    watch = Stopwatch()
    cpu_s, wall_s = cpu_seconds(), SYSTEM_CLOCK.monotonic_s()
    try:
        yield watch
    finally:
        watch.cpu_s = cpu_seconds() - cpu_s
        watch.wall_s = SYSTEM_CLOCK.monotonic_s() - wall_s


def best_of(times: int, *works: Callable[[], object]) -> list[Stopwatch]:
    """The least CPU time and the least wall time of each, taken in turn."""
    best = [Stopwatch() for _ in works]
    for attempt in range(times):
        for work, least in zip(works, best, strict=True):
            with stopwatch() as watch:
                work()
            least.cpu_s = min(watch.cpu_s, least.cpu_s) if attempt else watch.cpu_s
            least.wall_s = min(watch.wall_s, least.wall_s) if attempt else watch.wall_s
    return best


@contextmanager
def using_kernel(name: str) -> Iterator[None]:
    """Compute setsums with one kernel for a while."""
    before = use_kernel(name)
    try:
        yield
    finally:
        use_kernel(before)


def kernels() -> list[str]:
    """The setsum kernels that can be used here."""
    return ["numba", "hashlib"] if kernel_name() == "numba" else ["hashlib"]
