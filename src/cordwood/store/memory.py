"""Objects in this process's memory: the reference every other store is compared with.

It is the shortest complete statement of the contract in `store/api.py`: a dictionary, a sorted
list of its keys, and a counter that makes every etag new. What it adds to a plain dictionary:

1. **Nothing here waits.** No call suspends, so a simulation that runs on it is deterministic: the
   only interleavings are those that its callers or a fault-injecting wrapper make.
2. **Threads and forks.** One lock guards the dictionary and the sorted keys together; it is held
   for a lookup or an insertion and never across a yield, so several event loops may share a store.
   All stores share that lock, and a fork takes it first: no child finds a half-made change.
3. **Lists are live.** A list keeps no copy: it remembers the last key it gave and looks up the
   next greater one. An object that is there from start to end is therefore always given, once.
4. **Names.** `MemoryStore.named` gives one store per name and process, for `memory:name` URLs.
   A child made by fork inherits a copy, which from then on is its own.

Memory is not durable, and `sync` says nothing about power cuts: there is nothing left to be wrong.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from cordwood.base.clock import SYSTEM_CLOCK, Clock
from cordwood.base.errors import AlreadyExistsError, ContendedError, NotFoundError
from cordwood.store.api import Buffer, Match, Meta, Object, PutMode, check_key
from cordwood.store.ranges import check_range, check_start

_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


class _Entry(NamedTuple):
    data: bytes
    etag: str
    modified_us: int


class MemoryStore:
    """An object store in a dictionary. Linearizable, never waits, forgets at exit."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """An empty store; `clock` gives the objects' times."""
        self._clock = clock
        self._objects: dict[str, _Entry] = {}
        self._keys: list[str] = []
        """The keys of `_objects`, sorted. Code-point order of text is the order of its UTF-8."""
        self._puts = 0
        """Puts so far, also those of objects deleted since: an etag never returns."""

    @staticmethod
    def named(name: str, *, private: bool = False) -> MemoryStore:
        """The store of this name in this process, made on first use.

        A named store lives as long as the process; a `private` one (a `memory:` URL without a
        name, which gets an unguessable one) lives as long as somebody holds it.
        """
        with _lock:
            store = _named.get(name) or _private.get(name)
            if store is None:
                store = MemoryStore()
                if private:
                    _private[name] = store
                else:
                    _named[name] = store
            return store

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        entry = self._find("get", key)
        return Object(entry.data, entry.etag)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        check_range(key, start, length)
        data = self._find("get_range", key).data
        check_start(key, start, len(data))
        return memoryview(data)[start : start + length]

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        entry = self._find("head", key)
        return Meta(key, len(entry.data), entry.etag, entry.modified_us)

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object, atomically. See `ObjectStore.put`."""
        check_key(key)
        body = bytes(data)
        with _lock:
            present = self._objects.get(key)
            if mode == "create" and present is not None:
                raise AlreadyExistsError(f"put {key!r}: the object exists")
            if isinstance(mode, Match) and (present is None or present.etag != mode.etag):
                found = "nothing" if present is None else f"etag {present.etag}"
                raise ContendedError(f"put {key!r}: expected etag {mode.etag}, found {found}")
            if present is None:
                insort(self._keys, key)
            self._puts += 1
            etag = f"m{self._puts:x}"
            self._objects[key] = _Entry(body, etag, self._clock.now_us())
            return etag

    async def copy(self, source: str, target: str) -> None:
        """A second object with the same bytes. See `ServerCopies.copy`."""
        data = self._find("copy", source).data
        await self.put(target, data, "create")

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. See `ObjectStore.delete`."""
        for key in [check_key(key) for key in keys]:
            with _lock:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_right(self._keys, key) - 1]

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order. See `ObjectStore.list`."""
        meta = self._next(prefix, start_after, inclusive=prefix > start_after)
        while meta is not None:
            yield meta
            meta = self._next(prefix, meta.key, inclusive=False)

    async def sync(self, keys: Iterable[str]) -> None:
        """Nothing to do: see `ObjectStore.sync`."""
        for key in keys:
            check_key(key)

    def _find(self, operation: str, key: str) -> _Entry:
        check_key(key)
        with _lock:
            entry = self._objects.get(key)
        if entry is None:
            raise NotFoundError(f"{operation} {key!r}: no such object")
        return entry

    def _next(self, prefix: str, position: str, *, inclusive: bool) -> Meta | None:
        """The first object at or after the prefix and after the position, if it has the prefix."""
        with _lock:
            if inclusive:
                at = bisect_left(self._keys, prefix)
            else:
                at = bisect_right(self._keys, position)
            if at == len(self._keys) or not self._keys[at].startswith(prefix):
                return None
            key = self._keys[at]
            entry = self._objects[key]
        return Meta(key, len(entry.data), entry.etag, entry.modified_us)


_named: dict[str, MemoryStore] = {}
_private: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()
