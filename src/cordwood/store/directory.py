"""A local directory as an object store: the conditional puts of S3, and durable.

An object is a regular file, its key the path below the root. Beside the objects a folder holds two
kinds of files of ours, which no list shows and no key can name::

    root/orders/MANIFEST             an object; its key is orders/MANIFEST
    root/orders/.cordwood-lock       the lock of this folder's names; empty, stays for ever
    root/orders/.cordwood-tmp-4f1c…  a put on its way, or what a killed one left (swept later)

This module is the async shell: it checks keys, hands blocking work to a thread (or runs it in
place on a disk that never waits), and walks folders for `list`. The protocol that makes a put
atomic, conditional and durable is in `store/files.py`.

Listing reads one folder at a time, in the order of the keys it yields, so memory is bounded by the
largest folder and a consumer that stops early stops the walk. Text order of a folder's entries,
with a slash behind each folder's name, is the order of all the keys they stand for: `a-b` comes
before everything in `a/`, and `a0` after it. Folders that can hold nothing wanted are not read.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.workers import in_worker
from cordwood.store.api import Buffer, Meta, Object, PutMode, at_rest, check_key
from cordwood.store.disk import Disk, FileStat
from cordwood.store.files import LOCK_WAIT_S, Files
from cordwood.store.keys import is_key
from cordwood.store.patience import Patience
from cordwood.store.ranges import check_range, check_start

_PAGE_FILES = 256
"""Files looked at in one go, and unlinked in one go: it bounds how long a delete holds a lock."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DirectoryStore:
    """Objects as files under a root directory, shared by any number of processes.

    Every put is durable when it returns. Nothing is kept open between calls, so a store works in
    threads, in several event loops and in forked children. Folders are made as needed and stay.
    Cancelling a call does not stop a write that has begun: whether it happened is then open. One
    that still waits for a folder's lock gives up.
    """

    def __init__(
        self,
        root: str,
        *,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        """Name the directory; nothing is read or made until the first call.

        Args:
            root: the directory, made by the first put. A relative path is resolved now.
            disk: the file operations to use; a crash model in tests.
            clock: gives the objects' times.
            entropy: names the temporary files, and the jitter of pauses.
            lock_wait_s: how long a put or delete waits for a folder's lock.
        """
        self._root = os.path.abspath(root)
        self._disk = Disk() if disk is None else disk
        self._files = Files(self._root, self._disk, clock, entropy)
        self._entropy = entropy
        self._lock_wait_s = lock_wait_s

    @property
    def is_modelled(self) -> bool:
        """Whether its disk is a model in memory, for one thread only."""
        return self._disk.inline

    def __repr__(self) -> str:
        """The root."""
        return f"DirectoryStore({self._root!r})"

    async def get(self, key: str) -> Object:
        """The whole object. See `ObjectStore.get`."""
        status, data = await self._read("get", check_key(key))
        return Object(bytes(data), status.etag)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object. See `ObjectStore.get_range`."""
        check_range(check_key(key), start, length)
        status, data = await self._read("get_range", key, start, length)
        check_start(key, start, status.size_bytes)
        return data

    def read_now(self, key: str, start: int, length: int) -> Buffer:
        """Part of the object, read in the calling thread. See `LocalReads`."""
        check_range(check_key(key), start, length)
        status, data = self._files.read("get_range", key, start, length)
        check_start(key, start, status.size_bytes)
        return data

    async def head(self, key: str) -> Meta:
        """Size, etag and time. See `ObjectStore.head`."""
        return await self._run(self._files.head, check_key(key))

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object, atomically and durably. See `ObjectStore.put`."""
        if mode == "create":
            return await self._run(self._files.create, check_key(key), at_rest(data))
        with self._patience() as patience:
            return await self._run(
                self._files.replace, check_key(key), at_rest(data), mode, patience
            )

    async def copy(self, source: str, target: str) -> None:
        """A second name for the same file. See `ServerCopies.copy`."""
        await self._run(self._files.copy, check_key(source), check_key(target))

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, durably. See `ObjectStore.delete`."""
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for key in keys:
            folders[check_key(key).rpartition("/")[0]].append(key)
        for members in folders.values():
            for at in range(0, len(members), _PAGE_FILES):
                with self._patience() as patience:
                    page = members[at : at + _PAGE_FILES]
                    await self._run(self._files.delete, page, patience)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """Objects in key order, folder by folder. See `ObjectStore.list`."""
        first = prefix[: prefix.rfind("/") + 1]
        if first and not is_key(first[:-1]):
            return
        # Keys still to come, the next one last; one that ends in "/" is a folder to look into.
        pending = [first]
        while pending:
            if not pending[-1] or pending[-1].endswith("/"):
                folder = pending.pop()
                names = await self._run(self._files.scan, folder)
                keys = (folder + name for name in names)
                wanted = (key for key in keys if _may_hold(key, prefix, start_after))
                pending.extend(sorted(wanted, reverse=True))
            else:
                page: list[str] = []
                while pending and len(page) < _PAGE_FILES and not pending[-1].endswith("/"):
                    page.append(pending.pop())
                for meta in await self._run(self._files.heads, page):
                    yield meta

    async def sync(self, keys: Iterable[str]) -> None:
        """Sync the folders of these keys, and those above them. See `ObjectStore.sync`."""
        folders = {check_key(key).rpartition("/")[0] for key in keys}
        if folders:
            await self._run(self._files.sync, sorted(folders))

    @contextmanager
    def _patience(self) -> Iterator[Patience]:
        """For one call. If that is cancelled, its thread must not wait on: exit would wait too."""
        patience = Patience(self._lock_wait_s, self._entropy)
        try:
            yield patience
        finally:
            patience.stop()

    async def _read(
        self, operation: str, key: str, start: int = 0, length: int | None = None
    ) -> tuple[FileStat, Buffer]:
        """Read in a worker: large buffers are cheap only where few threads handle them."""
        if self._disk.inline:
            return self._files.read(operation, key, start, length)
        return await in_worker(self._files.read, operation, key, start, length)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._disk.inline:
            return call(*args, **kwargs)
        return await asyncio.to_thread(call, *args, **kwargs)


def _may_hold(key: str, prefix: str, start_after: str) -> bool:
    """Whether a list wants this key; for a folder (it ends in a slash), any key below it."""
    if key.endswith("/"):
        return (key.startswith(prefix) or prefix.startswith(key)) and (
            key > start_after or start_after.startswith(key)
        )
    return key.startswith(prefix) and key > start_after
