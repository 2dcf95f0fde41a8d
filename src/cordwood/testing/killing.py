"""A real writer process, killed with SIGKILL again and again, and an account of what it was told.

The child appends numbered records and prints each one's number and offset when its append returned.
The parent kills it at a random moment and starts the next, which goes on with fresh numbers. In the
end every printed record is in the log, at its offset, once; nothing is in the log twice; and the
log scrubs clean.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass

from cordwood.base.clock import SYSTEM_CLOCK, Entropy
from cordwood.log.chain.options import Protocol
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.url import Store

LIFE_MIN_S = 0.05
LIFE_MAX_S = 0.6
"""How long a child lives after it has opened its writer."""

BURST = 7
"""Records appended at once, so that several fragments are in flight when the end comes."""


@dataclass(frozen=True, slots=True)
class Account:
    """What was printed, and what was found."""

    kills: int
    acknowledged: dict[str, int]
    found: dict[str, int]
    doubled: list[str]
    is_whole: bool

    @property
    def lost(self) -> list[str]:
        """Acknowledged, and not where it was said to be."""
        return [body for body, at in self.acknowledged.items() if self.found.get(body) != at]


def kill_writers(url: str, kills: int, entropy: Entropy, protocol: Protocol = "cas") -> Account:
    """Run and kill so many writers on the log at `url`, then read it."""
    asyncio.run(Log.from_url(url).create(exist_ok=True, protocol=protocol))
    acknowledged: dict[str, int] = {}
    for life in range(kills):
        for line in _live_and_die(url, life, entropy):
            body, offset = line.split()
            acknowledged[body] = int(offset)
    return asyncio.run(_account(url, kills, acknowledged))


def _live_and_die(url: str, life: int, entropy: Entropy) -> list[str]:
    command = [sys.executable, "-m", "cordwood.testing.killing", url, str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        if child.stdout.readline() != "open\n":
            raise RuntimeError(f"writer {life} did not open")
        span_s = LIFE_MAX_S - LIFE_MIN_S
        until_s = SYSTEM_CLOCK.monotonic_s() + LIFE_MIN_S + span_s * entropy.uniform()
        try:
            child.wait(timeout=max(0.0, until_s - SYSTEM_CLOCK.monotonic_s()))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        # A line cut in the middle was not printed whole: it was not acknowledged to anybody.
        return [line for line in child.stdout.read().splitlines(keepends=True) if line[-1] == "\n"]


async def _account(url: str, kills: int, acknowledged: dict[str, int]) -> Account:
    log = Log.from_url(url)
    async with log.writer():
        pass
    found: dict[str, int] = {}
    doubled = []
    async with log.reader() as reader:
        async for record in reader.read():
            body = record.body.decode()
            if body in found:
                doubled.append(body)
            found[body] = record.offset
    report = await log.scrub(deep=True)
    return Account(kills, acknowledged, found, doubled, report.ok)


async def _child(url: str, life: str) -> None:
    # What the first append imports takes longer than a life, on a busy machine.
    async with Log(Store("memory:"), "warm").writer(create=True) as writer:
        await writer.append(b"")
    number = 0
    options = Options(batch_bytes=40, batch_interval_s=0.001)
    async with Log.from_url(url).writer(create=True, options=options) as writer:
        sys.stdout.write("open\n")
        sys.stdout.flush()
        while True:
            bodies = [f"{life}-{number + i}" for i in range(BURST)]
            number += BURST
            offsets = await asyncio.gather(*(writer.append(body.encode()) for body in bodies))
            lines = (f"{body} {at}\n" for body, at in zip(bodies, offsets, strict=True))
            sys.stdout.write("".join(lines))
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_child(sys.argv[1], sys.argv[2]))
