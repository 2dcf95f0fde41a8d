"""A store with hooks: a test steps between a call and the store, and sees which calls came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode

OPERATIONS = ("get", "get_range", "head", "put", "delete", "sync", "list")

Hook = Callable[..., Awaitable[Any]]
"""Awaited as `hook(call, *arguments)`; `await call()` is the request itself."""


class Hooked:
    """A store over another one."""

    def __init__(self, inner: ObjectStore, **hooks: Hook) -> None:
        """`put=hook` makes every put `await hook(call, key, data, mode)`; so for the others.

        A hook of `list` steps in before the list begins, and its call does nothing.
        """
        self.inner = inner
        self.hooks = hooks
        self.calls: list[tuple[str, Any]] = []
        """Operation and first argument of each request, in order."""

    async def _through(self, operation: str, *args: Any) -> Any:
        self.calls.append((operation, args[0]))

        async def call() -> Any:
            return await getattr(self.inner, operation)(*args)

        hook = self.hooks.get(operation)
        return await (hook(call, *args) if hook else call())

    async def get(self, key: str) -> Object:
        """The whole object."""
        found: Object = await self._through("get", key)
        return found

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object."""
        found: Buffer = await self._through("get_range", key, start, length)
        return found

    async def head(self, key: str) -> Meta:
        """Size, etag and time."""
        found: Meta = await self._through("head", key)
        return found

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object."""
        etag: str = await self._through("put", key, data, mode)
        return etag

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects."""
        await self._through("delete", list(keys))

    async def sync(self, keys: Iterable[str]) -> None:
        """Make these durable."""
        await self._through("sync", list(keys))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order."""
        self.calls.append(("list", prefix))
        if hook := self.hooks.get("list"):
            await hook(_nothing, prefix, start_after)
        async for meta in self.inner.list(prefix, start_after):
            yield meta


async def _nothing() -> None:
    """The call of a list's hook."""
