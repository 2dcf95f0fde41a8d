"""Reading a log to Arrow beside pyarrow reading the same files; a deep scrub beside plain SHA3.

The files lie in a directory in memory where there is one (`/dev/shm`), so that the disk is not what
is measured. Figures are CPU time: on a shared machine wall time says more about the neighbours.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cordwood.cli.bench.harness import best_of_both, kernels, using_kernel
from cordwood.log.fragment import Compression
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.url import Store

FRAGMENT_BYTES = 8 * 2**20


def scan(record_bytes: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """Every compression, verified by each kernel and not verified."""
    results: dict[str, Any] = {"record_bytes": record_bytes, "megabytes": megabytes}
    with _directory() as directory:
        for compression in ("none", "lz4", "zstd"):
            log = Log(Store(str(directory)), compression)
            asyncio.run(_fill(log, record_bytes, megabytes, compression))
            results[compression] = _measure(log, directory / compression, compression, repeats)
    log = Log(Store("memory:"), "scrub")
    asyncio.run(_fill(log, record_bytes, megabytes, "none"))
    results["deep_scrub"] = _measure_scrub(log, repeats)
    return results


async def _fill(log: Log, record_bytes: int, megabytes: int, compression: Compression) -> None:
    count = FRAGMENT_BYTES // record_bytes
    chance = np.random.default_rng(1)
    words = [chance.bytes(8).hex().encode() for _ in range(512)]
    options = Options(compression=compression, batch_bytes=FRAGMENT_BYTES)
    async with log.writer(create=True, options=options) as writer:
        for _ in range(megabytes * 2**20 // FRAGMENT_BYTES):
            if compression == "none":
                bodies = [chance.bytes(record_bytes) for _ in range(count)]
            else:
                picks = chance.integers(0, 512, (count, record_bytes // 16 + 1))
                bodies = [b"".join(words[i] for i in row)[:record_bytes] for row in picks]
            await writer.append_many(bodies)


def _measure(log: Log, directory: Path, compression: str, repeats: int) -> dict[str, Any]:
    files = sorted(directory.glob("log/*/*.parquet"))

    def peer() -> None:
        for file in files:
            pq.ParquetFile(str(file)).read(use_threads=False)

    def ours(*, verify: bool) -> None:
        async def read() -> None:
            async with log.reader(verify=verify) as reader:
                async for _ in reader.read_arrow():
                    pass

        asyncio.run(read())

    state = asyncio.run(log.state())
    results: dict[str, Any] = {"records": state.records, "stored_bytes": state.bytes}
    unverified = partial(ours, verify=False)
    peer_s, our_s = best_of_both(repeats, peer, unverified)
    results["pyarrow_mb_per_s"] = round(state.bytes / 1e6 / peer_s, 1)
    results["unverified"] = _ratio(peer_s, our_s, 0.8)
    for kernel in kernels():
        with using_kernel(kernel):
            reach = (0.35 if compression == "none" else 0.5) if kernel == "numba" else 0.08
            peer_s, our_s = best_of_both(repeats, peer, partial(ours, verify=True))
        results[f"verified_{kernel}"] = _ratio(peer_s, our_s, reach)
    return results


def _measure_scrub(log: Log, repeats: int) -> dict[str, Any]:
    """In memory, as the peer's items are: what is compared is the hashing, not the disk."""

    async def items_of() -> list[bytes]:
        async with log.reader() as reader:
            return [
                struct.pack(">QQ", r.offset, r.timestamp_us) + r.body async for r in reader.read()
            ]

    items = asyncio.run(items_of())

    def peer() -> None:
        for item in items:
            hashlib.sha3_256(item).digest()

    def ours() -> None:
        asyncio.run(log.scrub(deep=True))

    results: dict[str, Any] = {}
    for kernel in kernels():
        with using_kernel(kernel):
            peer_s, our_s = best_of_both(repeats, peer, ours)
        results["sha3_records_per_s"] = round(len(items) / peer_s)
        results[kernel] = _ratio(peer_s, our_s, 4.0 if kernel == "numba" else 0.9)
    return results


def _ratio(peer_s: float, our_s: float, reach: float) -> dict[str, float]:
    return {"cpu_s": round(our_s, 3), "ratio": round(peer_s / our_s, 3), "reach": reach}


@contextmanager
def _directory() -> Iterator[Path]:
    memory = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
