"""Logs on a disk that loses power: work until it is gone, and look at what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.log.log import Log
from cordwood.store.directory import DirectoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.simloop import abandon


def log_on(disk: CrashDisk, name: str = "log", clock: Clock = SYSTEM_CLOCK) -> Log:
    """A log of the directory store on this disk; `clock` gives its objects their times."""
    return Log(Store.over(DirectoryStore("/wood", disk=disk, clock=clock), "crash:"), name)


def work_until_cut(disk: CrashDisk, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Work until done or until the power is gone; then drop everything where it stands."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)

    async def watched() -> None:
        task = asyncio.ensure_future(work())
        while not task.done() and disk.has_power:  # noqa: ASYNC110 - a disk has no events
            await asyncio.sleep(0)
        if disk.has_power:
            task.result()

    try:
        with suppress(PowerCut):
            loop.run_until_complete(watched())
    finally:
        abandon(loop)
        loop.close()
