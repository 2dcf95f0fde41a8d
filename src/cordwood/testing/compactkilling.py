"""Processes that send to a compaction topic and compact it, killed with SIGKILL again and again.

One process is the nursery, as in topickilling.py: it forks a producer and a compactor at a time,
which are killed at random moments. The producer writes down what it is about to send, and where it
is when it was acknowledged. In the end each key has the value that was acknowledged last, or one
that was being sent when its producer was killed; nothing deleted is back; offsets and numbers rise.
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

LIFE_MAX_S = 0.15
KEYS = 30
EXTENT_BYTES = 4096
"""So small that there is always something to compact."""
PAD = bytes(400)
STRIDE = 1_000_000
"""Numbers of one life, at most."""


@dataclass(frozen=True, slots=True)
class CompactAccount:
    """What was said, and what was found."""

    kills: int
    acknowledged: int
    left: int
    """Records that are in the topic in the end."""
    wrong: list[str]
    """Keys whose last value is none that it may be, and records that are not as they should be."""


def kill_compactors(folder: Path, kills: int, entropy: Entropy) -> CompactAccount:
    """Run and kill so many processes on a compaction topic in a folder, then read it."""
    with Topics(folder / "topics") as topics:
        topics.create("shop", "prices", compaction=True, extent_bytes=EXTENT_BYTES, tombstone_s=0)
    pause = threading.Event()
    with nursery("cordwood.testing.compactkilling", folder) as lives:
        for life in range(kills // 2):
            with lives.life(str(life)) as children:
                until_s = SYSTEM_CLOCK.monotonic_s() + LIFE_MAX_S * entropy.uniform()
                for child in children if entropy.uniform() < 0.5 else reversed(children):
                    pause.wait(max(0.0, until_s - SYSTEM_CLOCK.monotonic_s()))
                    until_s += LIFE_MAX_S * entropy.uniform() / 2
                    os.kill(child, signal.SIGKILL)
    return _account(folder, kills)


def _account(folder: Path, kills: int) -> CompactAccount:
    may_be: dict[str, list[str]] = {}
    acknowledged: dict[int, str] = {}
    for line in (folder / "said").read_text().splitlines():
        word, key, value, *offset = line.split()
        if word == "try":
            may_be.setdefault(key, [""]).append(value)
        else:
            acknowledged[int(offset[0])] = f"{key} {value}"
            may_be[key] = [value]
    wrong = []
    with Topics(folder / "topics", compacts=False) as topics:
        topics.compact("shop", "prices")
        for key, values in may_be.items():
            found = topics.latest("shop", "prices", key.encode())
            value = "" if found is None else (found.value or b"").decode()
            if value not in ["" if one.startswith("-") else one for one in values]:
                wrong.append(f"{key} is {value!r}, and not one of {values}")
        last, count = -1, 0
        with topics.consumer("shop", "prices", timeout_s=0) as consumer:
            for record in consumer:
                count += 1
                told = record.headers["n"].decode()
                said = acknowledged.get(record.offset)
                if record.offset <= last or said not in (None, f"{record.key.decode()} {told}"):  # type: ignore[union-attr]
                    wrong.append(f"{record.offset} is {record.key!r} {told}, said was {said}")
                last = record.offset
    return CompactAccount(kills, len(acknowledged), count, wrong)


def _produce(folder: Path, life: int, ready: int) -> None:
    """Send until the end: each number once, some of them to say that a key is deleted."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    topics = Topics(folder / "topics")
    with topics.producer("shop", "prices") as producer:
        for number in range(life * STRIDE, (life + 1) * STRIDE):
            key = f"k{int(KEYS * SYSTEM_ENTROPY.uniform())}"
            is_deleted = SYSTEM_ENTROPY.uniform() < 0.2
            value = f"-{number}" if is_deleted else f"{number}"
            os.write(said, f"try {key} {value}\n".encode())
            body = None if is_deleted else value.encode()
            at = producer.send(body, key=key.encode(), headers={"n": value.encode(), "pad": PAD})
            os.write(said, f"is {key} {value} {at.offset}\n".encode())
            if number % STRIDE == 0:
                os.write(ready, b".")


def _compact(folder: Path, ready: int) -> None:
    """Compact until the end."""
    topics = Topics(folder / "topics", compacts=False)
    os.write(ready, b".")
    while True:
        topics.compact("shop", "prices")


def _work(line: str, place: int, begun: int) -> None:
    """One of them compacts, the other sends."""
    folder = Path(sys.argv[1])
    if place:
        _compact(folder, begun)
    _produce(folder, int(line), begun)


if __name__ == "__main__":
    nurse(_work, 2, ready=2)
