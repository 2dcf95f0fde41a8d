"""Simulated processes: each sees the shared store through its own door, which can be shut.

A process that is killed never reaches the store again; requests it had on the wire arrive or not,
as the store decides. A process that is paused (a stopped container, a long collection of garbage, a
sleeping laptop) goes on later as if nothing had happened, which is the harder case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode


class Door:
    """One process's way to a store."""

    def __init__(self, inner: ObjectStore) -> None:
        """Open."""
        self._inner = inner
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        """Kill or pause the process: its next request waits."""
        self._open.clear()

    def reopen(self) -> None:
        """Let a paused process go on."""
        self._open.set()

    async def get(self, key: str) -> Object:
        """As the store's, once the door is open; so are the others."""
        await self._open.wait()
        answer = await self._inner.get(key)
        await self._open.wait()
        return answer

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of an object."""
        await self._open.wait()
        answer = await self._inner.get_range(key, start, length)
        await self._open.wait()
        return answer

    async def head(self, key: str) -> Meta:
        """Size, etag and time."""
        await self._open.wait()
        answer = await self._inner.head(key)
        await self._open.wait()
        return answer

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write an object."""
        await self._open.wait()
        answer = await self._inner.put(key, data, mode)
        await self._open.wait()
        return answer

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        await self._open.wait()
        await self._inner.delete(keys)
        await self._open.wait()

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """List objects."""
        await self._open.wait()
        async for meta in self._inner.list(prefix, start_after):
            await self._open.wait()
            yield meta

    async def sync(self, keys: Iterable[str]) -> None:
        """Make objects durable."""
        await self._open.wait()
        await self._inner.sync(keys)
