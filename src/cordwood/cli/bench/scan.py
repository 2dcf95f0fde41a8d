"""Reading a log to Arrow beside pyarrow reading the same files; a deep scrub beside plain SHA3.

The files lie in a directory in memory where there is one (`/dev/shm`), so that the disk is not what
is measured. `wall_ratio` compares wall time, `cpu_ratio` CPU time; `ratio` is the one that `reach`
is about. For reading that is wall time: pyarrow file after file, each in one thread, ours as it
reads ahead on all cores. `pyarrow_parallel` is pyarrow reading on all cores too, in the order of
the files, beside itself file after file. For a scrub it is CPU time, so it is per core.

`hashing_cpu_s` is the setsum alone, of records decoded before, and `bound` the `cpu_ratio` of a
reader that costs what pyarrow does, and the hashing, and nothing else; of a scrub, about that of
one that computes the files' checksums (`checksum_cpu_s`) and hashes decoded records. For a reader
without the vector kernel the hashing counts as what it takes at least: one call of hashlib per
record, in a plain loop over items made before (`sha3_cpu_s`).
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
from pyarrow import dataset

from cordwood.base.setsum import Setsum
from cordwood.cli.bench.harness import Stopwatch, best_of, kernels, using_kernel
from cordwood.log.fragment import Compression, check_checksum
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.api import Buffer
from cordwood.store.url import Store

FRAGMENT_BYTES = 8 * 2**20

SCRUB_TIMES = 5
"""A scrub is measured so many times as often: what it is to reach is near what can be reached, and
a busy neighbour takes from it what the peer, which needs the memory less, does not notice."""


def scan(record_bytes: int, megabytes: int, repeats: int, *, mixed: bool) -> dict[str, Any]:
    """Every compression, verified by each kernel and not verified.

    `mixed`: records of sizes from half of `record_bytes` to half more.
    """
    results: dict[str, Any] = {"record_bytes": record_bytes, "megabytes": megabytes}
    results["mixed"] = mixed
    fill = partial(_fill, record_bytes=record_bytes, megabytes=megabytes, mixed=mixed)
    # First, while the memory of the process is in order: reading leaves it scattered.
    log = Log(Store("memory:"), "scrub")
    asyncio.run(fill(log, "none"))
    scrubbed = _measure_scrub(log, repeats)
    with memory_directory() as directory:
        for compression in ("none", "lz4", "zstd"):
            log = Log(Store(str(directory)), compression)
            asyncio.run(fill(log, compression))
            results[compression] = _measure(log, directory / compression, compression, repeats)
    results["deep_scrub"] = scrubbed
    return results


async def _fill(
    log: Log, compression: Compression, *, record_bytes: int, megabytes: int, mixed: bool
) -> None:
    count = FRAGMENT_BYTES // record_bytes
    spread = record_bytes // 2 if mixed else 0
    chance = np.random.default_rng(1)
    words = [chance.bytes(8).hex().encode() for _ in range(512)]
    options = Options(compression=compression, batch_bytes=FRAGMENT_BYTES)
    async with log.writer(create=True, options=options) as writer:
        for _ in range(megabytes * 2**20 // FRAGMENT_BYTES):
            least, most = record_bytes - spread, record_bytes + spread
            sizes = chance.integers(least, most, count, endpoint=True).tolist()
            if compression == "none":
                bodies = [chance.bytes(size) for size in sizes]
            else:
                picks = chance.integers(0, 512, (count, most // 16 + 1))
                rows = zip(picks, sizes, strict=True)
                bodies = [b"".join(words[i] for i in row)[:size] for row, size in rows]
            await writer.append_many(bodies)


def _measure(log: Log, directory: Path, compression: str, repeats: int) -> dict[str, Any]:
    files = sorted(directory.glob("log/*/*.parquet"))

    def peer() -> None:
        for file in files:
            pq.ParquetFile(str(file)).read(use_threads=False)

    def parallel_peer() -> None:
        for _ in dataset.dataset([str(file) for file in files]).to_batches():
            pass

    def ours(*, verify: bool) -> None:
        async def read() -> None:
            async with log.reader(verify=verify) as reader:
                async for _ in reader.read_arrow():
                    pass

        asyncio.run(read())

    state = asyncio.run(log.state())
    results: dict[str, Any] = {"records": state.records, "stored_bytes": state.bytes}
    unverified = partial(ours, verify=False)
    peer_took, parallel_took, we_took = best_of(repeats, peer, parallel_peer, unverified)
    results["pyarrow_mb_per_s"] = round(state.bytes / 1e6 / peer_took.wall_s, 1)
    results["unverified"] = _ratio(peer_took, we_took, 0.8)
    results["pyarrow_parallel"] = _ratio(peer_took, parallel_took)
    for kernel in kernels():
        with using_kernel(kernel):
            reach = (0.35 if compression == "none" else 0.5) if kernel == "numba" else 0.08
            peer_took, we_took = best_of(repeats, peer, partial(ours, verify=True))
            tables = [pq.ParquetFile(str(file)).read(use_threads=False) for file in files]
            least_s = hashing_s = _hashing_s(tables, repeats)
            result = _ratio(peer_took, we_took, reach) | {"hashing_cpu_s": round(hashing_s, 3)}
            if kernel == "hashlib":
                sha3_s = best_of(repeats, partial(_plain_sha3, _items(tables)))[0].cpu_s
                result["sha3_cpu_s"] = round(sha3_s, 3)
                least_s = min(hashing_s, sha3_s)
            del tables
        result["bound"] = round(peer_took.cpu_s / (peer_took.cpu_s + least_s), 3)
        results[f"verified_{kernel}"] = result
    return results


def _items(tables: list[pa.Table]) -> list[bytes]:
    """What is hashed for each record."""
    columns = ("offset", "timestamp_us", "body")
    return [
        struct.pack(">QQ", offset, timestamp) + body
        for table in tables
        for offset, timestamp, body in zip(
            *(table.column(name).to_pylist() for name in columns), strict=True
        )
    ]


def _plain_sha3(items: list[bytes]) -> None:
    """The peer: nothing but one call of hashlib per item."""
    for item in items:
        hashlib.sha3_256(item).digest()


def _hashing_s(tables: list[pa.Table], repeats: int) -> float:
    """CPU time of the setsums of these fragments."""

    def hashing() -> None:
        for table in tables:
            Setsum.of_fragment(table)

    return best_of(repeats, hashing)[0].cpu_s


def _measure_scrub(log: Log, repeats: int) -> dict[str, Any]:
    """In memory, as the peer's items are: what is compared is the hashing, not the disk."""

    async def tables_of() -> list[pa.Table]:
        async with log.reader() as reader:
            return [pa.Table.from_batches([batch]) async for batch in reader.read_arrow()]

    async def files_of() -> list[Buffer]:
        async with log.reader() as reader:
            return [await reader.fetch_bytes(fragment) for fragment in await reader.scan(1)]

    items, files = _items(asyncio.run(tables_of())), asyncio.run(files_of())

    def checksums() -> None:
        for file in files:
            check_checksum(file, "")

    def ours() -> None:
        asyncio.run(log.scrub(deep=True))

    checksum_s = best_of(repeats, checksums)[0].cpu_s
    results: dict[str, Any] = {"checksum_cpu_s": round(checksum_s, 3)}
    for kernel in kernels():
        with using_kernel(kernel):
            times = SCRUB_TIMES * repeats
            peer_took, we_took = best_of(times, partial(_plain_sha3, items), ours)
            hashing_s = _hashing_s(asyncio.run(tables_of()), repeats)
        results["sha3_records_per_s"] = round(len(items) / peer_took.cpu_s)
        results[kernel] = {
            **_ratio(peer_took, we_took, 4.0 if kernel == "numba" else 0.9, per_core=True),
            "hashing_cpu_s": round(hashing_s, 3),
            "bound": round(peer_took.cpu_s / (checksum_s + hashing_s), 3),
        }
    return results


def _ratio(
    peer: Stopwatch, ours: Stopwatch, reach: float | None = None, *, per_core: bool = False
) -> dict[str, float]:
    by_cpu, by_wall = peer.cpu_s / ours.cpu_s, peer.wall_s / ours.wall_s
    return {
        "cpu_s": round(ours.cpu_s, 3),
        "wall_s": round(ours.wall_s, 3),
        "ratio": round(by_cpu if per_core else by_wall, 3),
        "cpu_ratio": round(by_cpu, 3),
        "wall_ratio": round(by_wall, 3),
        **({} if reach is None else {"reach": reach}),
    }


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory for a while, in memory where that can be."""
    memory = Path("/dev/shm")  # noqa: S108 - a private directory is made below it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)
