"""What changes in a log, on a store that only creates: a chain of versions for each of it.

A cas log replaces its cursors, pins, holds and GARBAGE by compare-and-swap. In a chain log each of
them is a folder of versions, and the newest counts::

    cursor/app.json  ─▶  cursor/app/fffffffffffffffd      version 2: where it stands now
                         cursor/app/fffffffffffffffe      version 1: where it stood
                         cursor/app/ffffffffffffffff      version 0

The number counts moves, not offsets: a cursor may move back, and still its newest version is the
first in a list. To replace version v is to create version v + 1, and of two who try one is refused.
This store does that behind the six operations that all log code uses, so nothing above it knows.

A version that is not the newest goes a grace interval after it was written (log/chain/sweep.py).
So whoever replaces one looks first whether it still is the newest, and if the answer took longer
than half of that, whether it is still there. Numbers begin anew when a log is destroyed and made
again; so an etag of ours has the store's own as well. Costs: reading is a LIST and a GET, replacing
a LIST and a PUT.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Literal, Protocol

from cordwood.base.clock import Clock
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.log.chain import names
from cordwood.store.api import Buffer, LocalReads, Match, Meta, Object, ObjectStore, PutMode
from cordwood.store.streams import as_generator

_ETAG = "version-"

Kind = Literal["cas", "chain"]

FOLDERS = ("cursor/", "pin/", "fork/", "producer/")
"""What is kept as versions, beside GARBAGE."""


class Asked(Protocol):
    """Who knows what kind of log it is."""

    @property
    def kind(self) -> Kind | None:
        """The protocol, as far as it is known."""
        ...

    def is_cas(self) -> None:
        """Something was found that only a cas log has."""
        ...

    async def is_chain(self) -> bool:
        """Whether the log is a chain; asks the store if need be."""
        ...

    @property
    def grace_s(self) -> float:
        """The log's grace interval, as far as it is known."""
        ...


class Registers:
    """A store that keeps what changes in a chain log as versions. A cas log it leaves alone."""

    def __init__(self, inner: ObjectStore, asked: Asked, clock: Clock) -> None:
        """No I/O."""
        self._inner = inner
        self._asked = asked
        self._clock = clock

    def __repr__(self) -> str:
        return f"Registers({self._inner!r})"

    @property
    def local(self) -> LocalReads | None:
        """How to read in the calling thread, where the store lies on this machine."""
        found: LocalReads | None = getattr(self._inner, "local", None)
        return found

    # Reading.

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        if not _is_register(key) or self._asked.kind == "cas":
            return await self._inner.get(key)
        if self._asked.kind is None:
            # It need not cost a request to find out.
            try:
                plain = await self._inner.get(key)
            except NotFoundError:
                if not await self._asked.is_chain():
                    raise
            else:
                self._asked.is_cas()
                return plain
        while True:
            meta = await self._newest(key)
            try:
                found = await self._inner.get(meta.key)
            except NotFoundError:
                # It was replaced and swept since we looked, or all of it was deleted.
                continue
            return Object(found.data, _etag(meta.key, found.etag))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        return await self._inner.get_range(key, start, length)

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        if not _is_register(key) or not await self._asked.is_chain():
            return await self._inner.head(key)
        meta = await self._newest(key)
        return replace(meta, key=key, etag=_etag(meta.key, meta.etag))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order; what changes once, as it is now. See `ObjectStore.list`."""
        after = start_after
        if _is_folder(prefix) and _is_register(start_after):
            after = _behind(start_after)
        while True:
            async with aclosing(as_generator(self._inner.list(prefix, after))) as metas:
                async for meta in metas:
                    logical = _logical(meta.key) if _is_folder(prefix) else None
                    if logical is not None:
                        yield replace(meta, key=logical, etag=_etag(meta.key, meta.etag))
                        after = _behind(logical)
                        break
                    yield meta
                else:
                    return

    # Writing.

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object. See `ObjectStore.put`."""
        if not _is_register(key) or not await self._asked.is_chain():
            return await self._inner.put(key, data, mode)
        looked_s, looked_us = self._clock.monotonic_s(), self._clock.now_us()
        number, seen = 0, ""
        with suppress(NotFoundError):
            newest = await self._newest(key)
            number, seen = _number(newest.key) + 1, _etag(newest.key, newest.etag)
        if mode == "create" and number:
            raise AlreadyExistsError(f"put {key!r}: there is one")
        if isinstance(mode, Match) and mode.etag != seen:
            raise ContendedError(f"put {key!r}: it was replaced since it was seen")
        version = _version(key, number)
        try:
            etag = await self._inner.put(version, data, "create")
        except AlreadyExistsError as error:
            if mode == "create":
                raise
            raise ContendedError(f"put {key!r}: somebody else replaced it") from error
        clock = self._clock
        took_s = max(clock.monotonic_s() - looked_s, (clock.now_us() - looked_us) / 1_000_000)
        if took_s > self._asked.grace_s / 2:
            await self._check_there(key, version)
        return _etag(version, etag)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, with all their versions. See `ObjectStore.delete`."""
        wanted: list[str] = []
        for key in keys:
            if _is_register(key) and await self._asked.is_chain():
                prefix = _folder(key)
                # The newest last: cut off in between, it is still what it was.
                wanted += reversed([meta.key async for meta in self._inner.list(prefix)])
            else:
                wanted.append(key)
        await self._inner.delete(wanted)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make what is visible durable. See `ObjectStore.sync`."""
        wanted: list[str] = []
        for key in keys:
            if _is_register(key) and await self._asked.is_chain():
                try:
                    wanted.append((await self._newest(key)).key)
                except NotFoundError:
                    continue
            else:
                wanted.append(key)
        await self._inner.sync(wanted)

    # Below.

    async def _newest(self, key: str) -> Meta:
        """The newest version. One LIST."""
        folder = _folder(key)
        async with aclosing(as_generator(self._inner.list(folder))) as metas:
            async for meta in metas:
                if _logical(meta.key) == key:
                    return meta
        raise NotFoundError(f"get {key!r}: there is none")

    async def _check_there(self, key: str, version: str) -> None:
        """A put that took too long may have met a name that was swept: it counts if it is newest.

        Raises:
            UncertainError: it is not.
        """
        try:
            newest = await self._newest(key)
        except (NotFoundError, StoreError):
            newest = None
        if newest is None or newest.key != version:
            raise UncertainError(
                f"put {key!r}: it took too long to be sure of it",
                hint="look whether it is there before writing it again",
            )


def _split(key: str) -> tuple[str, str]:
    """The log's name, and the path inside it, if the path has a register's form."""
    parts = key.rsplit("/", 2)
    return (parts[0], "/".join(parts[1:])) if len(parts) == 3 else ("", key)


def _is_folder(prefix: str) -> bool:
    return prefix.endswith(tuple(f"/{folder}" for folder in FOLDERS))


def _is_register(key: str) -> bool:
    return names.is_register(_split(key)[1])


def _folder(key: str) -> str:
    log, path = _split(key)
    return f"{log}/{names.versions(path)}"


def _version(key: str, number: int) -> str:
    log, path = _split(key)
    return f"{log}/{names.version(path, number)}"


def _logical(version_key: str) -> str | None:
    """What a version is one of; None if it is none."""
    parts = version_key.rsplit("/", 3)
    parsed = names.parse_version("/".join(parts[1:])) if len(parts) == 4 else None
    return f"{parts[0]}/{parsed[0]}" if parsed else None


def _number(version_key: str) -> int:
    parsed = names.parse_version("/".join(version_key.rsplit("/", 3)[1:]))
    assert parsed is not None
    return parsed[1]


def _etag(version_key: str, etag: str) -> str:
    """The version, and which put of it: on Google a list gives only the last part of an etag."""
    return f"{_ETAG}{_number(version_key)}.{etag.rpartition(' ')[2]}"


def _behind(key: str) -> str:
    """What sorts behind all versions, and before whatever comes next: "0" is the sign after "/"."""
    return key.removesuffix(".json") + "0"
