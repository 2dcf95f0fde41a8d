"""A store that takes so many requests a second for each prefix, as S3 does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable

from cordwood.base.clock import Clock
from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode


class LimitedStore:
    """Requests of one kind to one folder of a log go through one after the other, at a pace."""

    def __init__(
        self, inner: ObjectStore, clock: Clock, *, writes_per_s: float, reads_per_s: float
    ) -> None:
        """The limits are those of each prefix: `orders/shard01`, `orders/manifest`."""
        self._inner = inner
        self._clock = clock
        self._gaps_s = {"write": 1 / writes_per_s, "read": 1 / reads_per_s}
        self._next_s: defaultdict[tuple[str, str], float] = defaultdict(float)

    async def _turn(self, kind: str, key: str) -> None:
        place = kind, key.rpartition("/")[0]
        now_s = self._clock.monotonic_s()
        start_s = max(now_s, self._next_s[place])
        self._next_s[place] = start_s + self._gaps_s[kind]
        await asyncio.sleep(start_s - now_s)

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        await self._turn("read", key)
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        await self._turn("read", key)
        return await self._inner.get_range(key, start, length)

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        await self._turn("read", key)
        return await self._inner.head(key)

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object. See `ObjectStore.put`."""
        await self._turn("write", key)
        return await self._inner.put(key, data, mode)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        await self._inner.delete(keys)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        async for meta in self._inner.list(prefix, start_after):
            yield meta

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        await self._inner.sync(keys)
