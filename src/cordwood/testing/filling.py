"""Logs to look at: so many records, each in a fragment of its own, and nothing still under way."""

from __future__ import annotations

import asyncio

from cordwood.log.log import Log
from cordwood.log.writer import Writer


def names(count: int, name: str = "r") -> list[bytes]:
    """The records that `fill` appends."""
    return [f"{name}{number}".encode() for number in range(count)]


async def fill(log: Log, count: int, name: str = "r") -> None:
    """Append so many records, one after the other; the log is made if it is not there."""
    async with log.writer(create=True) as writer:
        for body in names(count, name):
            await writer.append(body)
        await settle(writer)


async def settle(writer: Writer) -> None:
    """Wait for the nodes that a writer makes ahead.

    One still under way when the writer closes is left to the store, and may land later (a directory
    store puts it in a thread): whoever lists the objects before and after would see it appear.
    """
    tasks = writer._pipeline._folder.tasks  # noqa: SLF001 - nobody else needs to know
    await asyncio.gather(*tasks)
