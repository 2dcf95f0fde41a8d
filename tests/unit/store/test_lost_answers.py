"""A list that writers append to by swapping, over a store that loses answers: ours and two others.

The three writers differ only in what they do when a swap fails. "Read again and retry" appends
twice when the lost answer was a success; "an error is a failure" tells its caller that nothing
happened when it did. Ours (`RetryingStore`, and a look into the history when it says uncertain)
does neither.
"""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import ContendedError, StoreError, UncertainError
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

WRITERS = 8
APPENDS = 20

WRITE_FAULTS = {
    Fault.ERROR_BEFORE: 0.06,
    Fault.ERROR_AFTER: 0.08,
    Fault.HANG_AFTER: 0.04,
    Fault.ZOMBIE: 0.06,
    Fault.THROTTLED: 0.02,
}
"""About a quarter of all puts."""


async def read_again_and_retry(store, line):
    """Take any failure for "nothing happened" and start over."""
    while True:
        found = await store.get("log")
        try:
            async with asyncio.timeout(1.0):
                await store.put("log", found.data + line, Match(found.etag))
        except (ContendedError, StoreError, TimeoutError):
            continue
        return True


async def failure_is_failure(store, line):
    """Take contention for a reason to start over, and any other failure for "it failed"."""
    while True:
        found = await store.get("log")
        try:
            async with asyncio.timeout(1.0):
                await store.put("log", found.data + line, Match(found.etag))
        except ContendedError:
            continue
        except (StoreError, TimeoutError):
            return False
        return True


async def ours(store, line):
    """Start over on contention; where it is uncertain, look for the line itself."""
    while True:
        found = await store.get("log")
        if line in found.data.splitlines(keepends=True):
            return True
        try:
            await store.put("log", found.data + line, Match(found.etag))
        except (ContendedError, UncertainError):
            continue
        return True


def run(append, seed, *, with_retries):
    """The lines in the log at the end, and which of them their writers were told are there."""
    told = {}

    async def write(store, name):
        for num in range(APPENDS):
            line = f"{name}.{num}\n".encode()
            told[line] = await append(store, line)

    async def main():
        ground = MemoryStore(LoopClock())
        await ground.put("log", b"", "create")
        faulty = FaultyStore(
            ground,
            SeededEntropy(seed),
            LoopClock(),
            latency=Latency(0.02, p99_s=0.1),
            write_faults=WRITE_FAULTS,
            zombie_delay=Latency(0.05, p99_s=1.0),
        )
        stores = [
            RetryingStore(
                faulty, LoopClock(), SeededEntropy(f"{seed} {num}"), deadline_s=600, attempt_s=1.0
            )
            if with_retries
            else faulty
            for num in range(WRITERS)
        ]
        await asyncio.gather(*(write(store, num) for num, store in enumerate(stores)))
        await faulty.drain()
        assert faulty.counts["put:zombie"] > 0
        return (await ground.get("log")).data.splitlines(keepends=True)

    return simulate(seed, main), told


@pytest.mark.parametrize("seed", range(5))
def test_ours_is_exact(seed):
    """Every append is in the log exactly once, and its writer knows."""
    lines, told = run(ours, seed, with_retries=True)
    assert WRITERS * APPENDS == len(lines)
    assert set(told) == set(lines)
    assert all(told.values())


def test_reading_again_doubles():
    """The writer that reads again and retries puts some lines in twice."""
    lines, _ = run(read_again_and_retry, 1, with_retries=False)
    assert len(lines) > len(set(lines))


def test_failure_lies():
    """The writer that takes an error for a failure denies some of the lines that are there."""
    lines, told = run(failure_is_failure, 1, with_retries=False)
    assert len(lines) == len(set(lines))
    assert [line for line in lines if not told[line]]


def test_the_run_depends_on_its_seed_alone():
    """Two runs with one seed end with the same bytes: failures can be replayed."""
    assert run(ours, 7, with_retries=True) == run(ours, 7, with_retries=True)
