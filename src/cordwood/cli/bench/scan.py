"""Reading a log to Arrow beside pyarrow reading the same files; a deep scrub beside plain SHA3.

The files lie in a directory in memory where there is one (`/dev/shm`), so that the disk is not what
is measured. `ratio` compares CPU time, so it is per core: on a shared machine wall time says more
about the neighbours. `wall_ratio` compares wall time; we use all cores, the peers one.

`hashing_cpu_s` is the setsum alone, of records decoded before, and `bound` the ratio of a reader
that costs what pyarrow does, and the hashing, and nothing else; of a scrub, one that only hashes.
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
import pyarrow as pa
import pyarrow.parquet as pq

from cordwood.base.setsum import Setsum
from cordwood.cli.bench.harness import Stopwatch, best_of, kernels, using_kernel
from cordwood.log.fragment import Compression
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.url import Store

FRAGMENT_BYTES = 8 * 2**20


def scan(record_bytes: int, megabytes: int, repeats: int) -> dict[str, Any]:
    """Every compression, verified by each kernel and not verified."""
    results: dict[str, Any] = {"record_bytes": record_bytes, "megabytes": megabytes}
    with memory_directory() as directory:
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
    peer_took, we_took = best_of(repeats, peer, partial(ours, verify=False))
    results["pyarrow_mb_per_s"] = round(state.bytes / 1e6 / peer_took.cpu_s, 1)
    results["unverified"] = _ratio(peer_took, we_took, 0.8)
    for kernel in kernels():
        with using_kernel(kernel):
            reach = (0.35 if compression == "none" else 0.5) if kernel == "numba" else 0.08
            peer_took, we_took = best_of(repeats, peer, partial(ours, verify=True))
            tables = [pq.ParquetFile(str(file)).read(use_threads=False) for file in files]
            hashing_s = _hashing_s(tables, repeats)
            del tables
        results[f"verified_{kernel}"] = {
            **_ratio(peer_took, we_took, reach),
            "hashing_cpu_s": round(hashing_s, 3),
            "bound": round(peer_took.cpu_s / (peer_took.cpu_s + hashing_s), 3),
        }
    return results


def _hashing_s(tables: list[pa.Table], repeats: int) -> float:
    """CPU time of the setsums of these fragments."""

    def hashing() -> None:
        for table in tables:
            Setsum.of_fragment(table)

    return best_of(repeats, hashing)[0].cpu_s


def _measure_scrub(log: Log, repeats: int) -> dict[str, Any]:
    """In memory, as the peer's items are: what is compared is the hashing, not the disk."""

    async def items_of() -> list[bytes]:
        async with log.reader() as reader:
            return [
                struct.pack(">QQ", r.offset, r.timestamp_us) + r.body async for r in reader.read()
            ]

    async def tables_of() -> list[pa.Table]:
        async with log.reader() as reader:
            return [pa.Table.from_batches([batch]) async for batch in reader.read_arrow()]

    items = asyncio.run(items_of())

    def peer() -> None:
        for item in items:
            hashlib.sha3_256(item).digest()

    def ours() -> None:
        asyncio.run(log.scrub(deep=True))

    results: dict[str, Any] = {}
    for kernel in kernels():
        with using_kernel(kernel):
            peer_took, we_took = best_of(repeats, peer, ours)
            hashing_s = _hashing_s(asyncio.run(tables_of()), repeats)
        results["sha3_records_per_s"] = round(len(items) / peer_took.cpu_s)
        results[kernel] = {
            **_ratio(peer_took, we_took, 4.0 if kernel == "numba" else 0.9),
            "hashing_cpu_s": round(hashing_s, 3),
            "bound": round(peer_took.cpu_s / hashing_s, 3),
        }
    return results


def _ratio(peer: Stopwatch, ours: Stopwatch, reach: float) -> dict[str, float]:
    return {
        "cpu_s": round(ours.cpu_s, 3),
        "ratio": round(peer.cpu_s / ours.cpu_s, 3),
        "wall_ratio": round(peer.wall_s / ours.wall_s, 3),
        "reach": reach,
    }


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory for a while, in memory where that can be."""
    memory = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
