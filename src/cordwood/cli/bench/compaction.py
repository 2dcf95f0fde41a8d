"""`cordwood topic bench --keys N`: many distinct keys through a compaction topic, in little memory.

A process sends, another one compacts, a third one reads the last record of each key: so each has
its own peak of memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK
from cordwood.cli.bench.harness import rss_bytes
from cordwood.sync.topics import Topics

BATCH = 20_000
UPDATED = 0.3
"""So many of the keys come a second time."""
STEPS = ("send", "compact", "read")


def measure_compaction(
    place: Path, keys: int, record: int, report: Callable[[int, int], None]
) -> dict[str, Any]:
    """The steps one after the other, each in a process of its own."""
    with Topics(place / "topics") as topics:
        topics.create("bench", "keys", compaction=True, extent_bytes=256 << 20)
    found: dict[str, Any] = {"keys": keys, "record_bytes": record}
    for number, step in enumerate(STEPS):
        report(number, len(STEPS))
        words = [sys.executable, "-m", __name__, step, str(place), str(keys), str(record)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE)  # noqa: S603
        found[step] = msgspec.json.decode(done.stdout)
    report(len(STEPS), len(STEPS))
    return found


def _send(topics: Topics, keys: int, record: int) -> int:
    """Each key once, in no order, and then some of them again; how many bytes."""
    generator = np.random.default_rng(1)
    body = pa.py_buffer(generator.bytes(BATCH * record))
    ends = pa.py_buffer(np.arange(BATCH + 1, dtype=np.int32) * record)
    values = pa.Array.from_buffers(pa.binary(), BATCH, [None, ends, body])
    rounds = [generator.permutation(keys), generator.integers(0, keys, int(keys * UPDATED))]
    sent = 0
    with topics.producer("bench", "keys") as producer:
        for numbers in rounds:
            for begin in range(0, len(numbers), BATCH):
                some = pa.array(numbers[begin : begin + BATCH]).cast(pa.string()).cast(pa.binary())
                table = pa.table({"key": some, "value": values.slice(0, len(some))})
                producer.send_arrow(table)
                sent += table.nbytes
    return sent


def _read(topics: Topics, keys: int) -> int:
    """Make sure that each key is there once; how many bytes."""
    count = size = 0
    for _, batch in topics.latest_batches("bench", "keys"):
        count += batch.num_rows
        size += batch.nbytes
    if count != keys:
        raise RuntimeError(f"{count} keys were found, and {keys} were sent")
    return size


def _main(step: str, place: str, keys: int, record: int) -> dict[str, float]:
    """One step, and what it took."""
    before = rss_bytes()
    begin_s = SYSTEM_CLOCK.monotonic_s()
    with Topics(Path(place) / "topics", compacts=False, retains=False) as topics:
        if step == "send":
            size = _send(topics, keys, record)
        elif step == "compact":
            size = sum(one.bytes for one in topics.describe("bench", "keys").partitions)
            topics.compact("bench", "keys")
        else:
            size = _read(topics, keys)
    took_s = SYSTEM_CLOCK.monotonic_s() - begin_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "bytes": size,
        "seconds": round(took_s, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "mb_per_s": round(size / took_s / 1e6, 1),
        "rss_before_bytes": before,
        "rss_peak_bytes": used.ru_maxrss * 1024,
    }


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(_main(name, folder, *map(int, numbers))))
