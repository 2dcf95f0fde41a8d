"""A store seen from below one of its folders: keys get the folder in front, and lose it again.

The view keeps no state and adds no requests. A log, a topic or an index is handed one, so that it
can neither see nor touch what lies beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import replace

from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode, check_key
from cordwood.store.streams import as_generator


class PrefixStore:
    """The objects of `inner` whose keys start with `prefix/`, by the rest of their keys."""

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        """A view of `inner` below the folder `prefix`.

        Raises:
            InvalidInputError: `prefix` is not a valid key.
        """
        self._inner = inner
        self._folder = check_key(prefix) + "/"

    def __repr__(self) -> str:
        """The folder, and what it is a folder of."""
        return f"PrefixStore({self._inner!r}, {self._folder[:-1]!r})"

    def child(self, prefix: str) -> PrefixStore:
        """A view of a folder of this view."""
        return PrefixStore(self._inner, self._folder + check_key(prefix))

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        return await self._inner.get(self._full(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        return await self._inner.get_range(self._full(key), start, length)

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return self._short(await self._inner.head(self._full(key)))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object. See `ObjectStore.put`."""
        return await self._inner.put(self._full(key), data, mode)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        await self._inner.delete([self._full(key) for key in keys])

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        position = self._folder + start_after if start_after else ""
        async with aclosing(
            as_generator(self._inner.list(self._folder + prefix, position))
        ) as found:
            async for meta in found:
                yield self._short(meta)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        await self._inner.sync([self._full(key) for key in keys])

    def _full(self, key: str) -> str:
        return self._folder + check_key(key)

    def _short(self, meta: Meta) -> Meta:
        return replace(meta, key=meta.key.removeprefix(self._folder))
