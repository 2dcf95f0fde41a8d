"""Pins of reads: what keeps the files of a read while it goes on, and who renews them.

Spark plans a read in a Python process of its own, which it may end as soon as the plan is made. So
nothing there can go on renewing a pin. Two others can:

* `read_log` plans in the driver's own process. Its pin is renewed there, on the background loop,
  until it is released or the process ends; a driver that dies leaves a pin that expires.
* `load` leaves it to the tasks: one that begins, or begins with the next file, when a third of the
  time to live has passed, renews the pin. It expires when no task has run for as long.

Either way a pin that has ended costs no record: files that are still there are read, and one that
is gone ends the read with an error that says so.
"""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import Future
from contextlib import suppress

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import Code, CordwoodError, StoreError
from cordwood.log.log import Log
from cordwood.log.pins import RENEWALS, Pin, keep_pin, under_free_name
from cordwood.spark.splits import Hold


async def make_pin(
    log: Log, begin: int, end: int, ttl_s: int, *, entropy: Entropy = SYSTEM_ENTROPY
) -> Pin:
    """A pin under a name that is free.

    Raises:
        CollectedError: the range has been collected, or is about to be.
        StoreError: the store takes no pin from us.
    """
    try:
        return await under_free_name(
            "spark", lambda name: log.pin(name, begin, end, ttl_s=ttl_s), entropy
        )
    except StoreError as error:
        if error.code is not Code.STORE_DENIED:
            raise
        raise StoreError(
            f"a read pins what it reads, and {log.url} may not be written: {error.message}",
            code=error.code,
            hint="allow writing below pin/, or set option pinTtl to 0: without a pin a read "
            "has to end within the log's grace",
        ) from error


class Renewal:
    """The pin of a read, as a task sees it."""

    def __init__(self, log: Log, hold: Hold, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """No I/O."""
        self._log = log
        self._hold = hold
        self._clock = clock

    async def renew_if_due(self) -> None:
        """Renew it if a part of its time has passed. Seldom a GET and a PUT, else nothing."""
        now_us = self._clock.now_us()
        key = (self._log.url, self._hold.name)
        last_us = max(self._hold.planned_us, _renewed_us.get(key, 0))
        if now_us - last_us < self._hold.ttl_s * 1_000_000 // RENEWALS:
            return
        _renewed_us[key] = now_us
        # It may have ended, another task may be at it, or we may not write: reading will show.
        with suppress(CordwoodError):
            await (await self._log.pinned(self._hold.name)).renew()


_renewed_us: dict[tuple[str, str], int] = {}
"""When this process last renewed which pin: tasks of one process need not do it twice."""


class KeptPin:
    """A pin that this process keeps until it is released."""

    def __init__(self, log: Log, pin: Pin) -> None:
        """Begin to renew it, on the background loop."""
        self.log = log
        self.pin = pin
        self._home = portal.current()
        self._work: Future[None] = self._home.start(keep_pin(self.pin))
        _kept.add(self)

    def release(self) -> None:
        """End it; to end it twice is no error."""
        _kept.discard(self)
        try:
            if self._home is portal.current():
                # First: a renewal that is cut off could leave a pin that we do not know.
                self._home.run(self.pin.release())
        finally:
            self._work.cancel()


_kept: set[KeptPin] = set()


def release_all() -> None:
    """End the pins of this process."""
    for kept in list(_kept):
        # Whatever goes wrong now, the pin expires by itself.
        with suppress(CordwoodError, RuntimeError):
            kept.release()


# Before the pools that a store writes with are shut down, which happens before atexit's own calls.
getattr(threading, "_register_atexit", atexit.register)(release_all)
