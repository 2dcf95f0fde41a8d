"""Time and chance, handed in from outside.

This is the only module that reads a clock or makes a random number. Everything else takes a
`Clock` and an `Entropy`, so that a simulation can replace both and replay a run from its seed.
Waiting goes through asyncio, whose loop a simulation replaces as well.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    pass


class Clock(Protocol):
    """What time it is, in two ways."""

    def now_us(self) -> int:
        """Microseconds since the epoch, for people and for records; it may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment, for measuring durations; it never goes back."""
        ...


class Entropy(Protocol):
    """Where ids and jitter come from."""

    def token(self) -> str:
        """A fresh id: 32 lower-case hex digits, unique for ever."""
        ...

    def uniform(self) -> float:
        """A number in [0, 1), for jitter."""
        ...


_SLEEPLESS: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""On Linux, CLOCK_MONOTONIC stands still while the machine sleeps; on macOS it does not."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        """Wall clock in microseconds."""
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        """The machine's monotonic clock, which goes on while the machine sleeps.

        Others see that time pass: a lease, or an upload, is as old as they take it to be.
        """
        return time.monotonic() if _SLEEPLESS is None else time.clock_gettime(_SLEEPLESS)


class SystemEntropy:
    """The machine's random numbers."""

    def token(self) -> str:
        """Sixteen random bytes, as hex."""
        return os.urandom(16).hex()

    def uniform(self) -> float:
        """Jitter needs no secrecy."""
        import random  # noqa: PLC0415 - who waits for nobody does not wait for it to load

        return random.random()


class LoopClock:
    """The running event loop's own time, which a simulation controls."""

    def __init__(self, epoch_us: int = 1_700_000_000_000_000) -> None:
        """Start wall time at `epoch_us` when the loop's time is zero."""
        self._epoch_us = epoch_us

    def now_us(self) -> int:
        """Loop time on top of the chosen epoch."""
        return self._epoch_us + int(self.monotonic_s() * 1_000_000)

    def monotonic_s(self) -> float:
        """Loop time."""
        # Who waits for no loop does not wait for this to load either.
        import asyncio  # noqa: PLC0415

        return asyncio.get_running_loop().time()


class SeededEntropy:
    """Ids and jitter that depend on a seed alone."""

    def __init__(self, seed: int | str) -> None:
        """Equal seeds give equal sequences."""
        import random  # noqa: PLC0415

        self._random = random.Random(seed)

    def token(self) -> str:
        """The next id of the sequence."""
        return f"{self._random.getrandbits(128):032x}"

    def uniform(self) -> float:
        """The next number of the sequence."""
        return self._random.random()


SYSTEM_CLOCK = SystemClock()
SYSTEM_ENTROPY = SystemEntropy()
