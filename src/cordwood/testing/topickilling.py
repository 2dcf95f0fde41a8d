"""Processes that send to a topic, killed with SIGKILL again and again, and what they were told.

One process is the nursery: it has loaded everything, and forks those that are to die, two at a time
and each with two threads. They write down where a record is when it was acknowledged. In the end
each is where it was said to be, once; each thread's records of a partition are in order; and the
offsets of a partition have no gaps.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Entropy
from cordwood.sync.topics import Topics
from cordwood.testing.nursing import nurse, nursery

LIFE_MAX_S = 0.12
AT_ONCE = 2
EXTENT_BYTES = 64 << 10
"""So small that extents are closed and begun all the time."""


@dataclass(frozen=True, slots=True)
class TopicAccount:
    """What was said, and what was found."""

    kills: int
    acknowledged: dict[str, tuple[int, int]]
    found: dict[str, tuple[int, int]]
    doubled: list[str]
    disordered: list[str]

    @property
    def lost(self) -> list[str]:
        """Acknowledged, and not where it was said to be."""
        return [value for value, at in self.acknowledged.items() if self.found.get(value) != at]

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.disordered)


def kill_producers(folder: Path, kills: int, entropy: Entropy) -> TopicAccount:
    """Run and kill so many processes on a topic in a folder, then read it."""
    with Topics(folder / "topics") as topics:
        topics.create("shop", "clicks", partitions=2, extent_bytes=EXTENT_BYTES)
    said = folder / "said"
    pause = threading.Event()
    with nursery("cordwood.testing.topickilling", folder) as lives:
        for life in range(0, kills, AT_ONCE):
            with lives.life(str(life)) as children:
                until_s = SYSTEM_CLOCK.monotonic_s() + LIFE_MAX_S * entropy.uniform()
                for child in children:
                    pause.wait(max(0.0, until_s - SYSTEM_CLOCK.monotonic_s()))
                    until_s += LIFE_MAX_S * entropy.uniform() / 4
                    os.kill(child, signal.SIGKILL)
    return _account(folder, kills, said.read_text() if said.exists() else "")


def _account(folder: Path, kills: int, said: str) -> TopicAccount:
    acknowledged = {}
    for line in said.splitlines(keepends=True):
        if line.endswith("\n"):  # One cut in the middle was not said.
            value, partition, offset = line.split()
            acknowledged[value] = int(partition), int(offset)
    found: dict[str, tuple[int, int]] = {}
    doubled, disordered = [], []
    last: dict[tuple[str, int], int] = {}
    next_offsets: dict[int, int] = {}
    topics = Topics(folder / "topics")
    with topics, topics.consumer("shop", "clicks", timeout_s=0) as consumer:
        for record in consumer:
            value = (record.value or b"").decode()
            if value in found:
                doubled.append(value)
            found[value] = record.partition, record.offset
            who, number = value.rsplit("-", 1)
            before = last.get((who, record.partition), -1)
            if int(number) <= before or next_offsets.get(record.partition, 0) != record.offset:
                disordered.append(value)
            last[who, record.partition] = int(number)
            next_offsets[record.partition] = record.offset + 1
    return TopicAccount(kills, acknowledged, found, doubled, disordered)


def _produce(folder: Path, who: str, ready: int) -> None:
    """Send until the end; say when it has begun."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    topics = Topics(folder / "topics")

    def send(thread: int) -> None:
        number = 0
        with topics.producer("shop", "clicks") as producer:
            producer.send(f"{who}.{thread}-{number}".encode())
            os.write(ready, b".")
            while True:
                number += 1
                size = 1 if SYSTEM_ENTROPY.uniform() < 0.7 else int(100 * SYSTEM_ENTROPY.uniform())
                values = [f"{who}.{thread}-{number + step}" for step in range(size + 1)]
                number += size
                if size == 1:
                    places = [producer.send(value.encode()) for value in values]
                else:
                    places = list(producer.send_many([value.encode() for value in values]))
                lines = [
                    f"{value} {at[0]} {at[1]}\n" for value, at in zip(values, places, strict=True)
                ]
                os.write(said, "".join(lines).encode())

    for thread in range(2):
        threading.Thread(target=send, args=(thread,), daemon=True).start()
    signal.pause()


if __name__ == "__main__":
    _folder = Path(sys.argv[1])
    nurse(lambda line, place, begun: _produce(_folder, f"{line}.{place}", begun), AT_ONCE, ready=1)
