"""From a pointer to records: fetch, verify, decode, and how far ahead.

Large fragments are decoded in a worker thread, not to hold up the event loop. Where the store lies
on this machine, the same worker reads the file: what it read is still at hand, and a change of
threads per fragment is saved. A remote store is read far ahead instead, to hide its latency.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa

from cordwood.base.kernels import has_vector_kernel
from cordwood.base.workers import Turns, in_worker
from cordwood.log import fragment as fragments
from cordwood.log.format import Fragment
from cordwood.log.objects import LogObjects
from cordwood.store.api import Buffer

AHEAD_BYTES = 32 * 2**20
AHEAD_FILES = 8
"""How far a read runs ahead of its consumer: enough to hide a request, bounded in memory."""

DECODED_AHEAD = 2
"""Fragments decoded at a time: one for the consumer, one being made ready. A decoded fragment is a
second copy of it, so not more."""

THREAD_BYTES_MIN = 256 * 1024
"""Fragments from this size are decoded in a thread."""

RECORD_BYTES = 64
"""What a record counts for beside its stored bytes: of a million empty ones there are few."""

HASHLIB_FREE_BYTES = 2048
"""While hashlib hashes a value of this size or more, other threads may run."""

Runner = Callable[..., Coroutine[Any, Any, Any]]


async def fetch_table(
    objects: LogObjects, fragment: Fragment, *, verify: bool, turns: Turns | None = None
) -> pa.Table:
    """The records of a fragment, by `turns` with what else is being hashed. One ranged GET.

    Raises:
        CorruptionError: it is missing, or not what its pointer says.
    """
    with objects.located(fragment):
        if objects.is_local and _is_large(fragment):
            run = _runner(fragment, turns)
            return await run(_read_and_decode, objects, fragment, verify)
        data = await objects.get_fragment(fragment)
        return await decode_table(data, fragment, verify=verify, turns=turns)


async def decode_table(
    data: Buffer, fragment: Fragment, *, verify: bool, turns: Turns | None = None
) -> pa.Table:
    """The records in a fragment's bytes."""
    if not _is_large(fragment):
        return fragments.decode(data, fragment, verify=verify)
    run = _runner(fragment, turns)
    return await run(_decode, data, fragment, verify)


async def check_fragment(objects: LogObjects, fragment: Fragment, turns: Turns) -> None:
    """Read a fragment and check all of it, without making records of it. One ranged GET.

    Raises:
        CorruptionError: it is missing, or not what its pointer says.
    """
    with objects.located(fragment):
        run = _runner(fragment, turns)
        if objects.is_local and _is_large(fragment):
            await run(_read_and_check, objects, fragment)
            return
        data = await objects.get_fragment(fragment)
        if _is_large(fragment):
            await run(fragments.check_in_steps, data, fragment)
        else:
            fragments.check(data, fragment)


def _is_large(fragment: Fragment) -> bool:
    return fragment.num_bytes + fragment.num_records * RECORD_BYTES >= THREAD_BYTES_MIN


def _runner(fragment: Fragment, turns: Turns | None) -> Runner:
    """How work that hashes the records of a fragment comes to a worker.

    Where hashing holds the interpreter, workers that wait for each other are no faster, and cost a
    tenth more: such work takes turns.
    """
    is_small = fragment.num_bytes < fragment.num_records * HASHLIB_FREE_BYTES
    if turns is None or not is_small or has_vector_kernel():
        return in_worker
    return turns.take


def _read_and_check(objects: LogObjects, fragment: Fragment) -> None:
    # Not step by step: files would be in memory until the last of them is hashed.
    fragments.check(objects.read_fragment_now(fragment), fragment)


def _read_and_decode(objects: LogObjects, fragment: Fragment, verify: bool) -> pa.Table:
    return _decode(objects.read_fragment_now(fragment), fragment, verify)


def _decode(data: Buffer, fragment: Fragment, verify: bool) -> pa.Table:
    return fragments.decode(data, fragment, verify=verify)


class Ahead:
    """Fragments on their way to a reader, oldest first."""

    def __init__(self, objects: LogObjects, *, verify: bool) -> None:
        """Nothing yet."""
        self._objects = objects
        self._verify = verify
        self._turns = Turns() if verify else None
        self._num_bytes = 0
        self._fetches: deque[asyncio.Task[Buffer]] = deque()
        """Bytes of those that are not being decoded yet; none where the store is local."""
        self._tables: deque[asyncio.Task[pa.Table]] = deque()
        self.fragments: deque[Fragment] = deque()

    @property
    def is_full(self) -> bool:
        """Whether enough is on its way."""
        return len(self.fragments) >= AHEAD_FILES or self._num_bytes >= AHEAD_BYTES

    def add(self, fragment: Fragment) -> None:
        """Begin with one more."""
        self.fragments.append(fragment)
        self._num_bytes += fragment.num_bytes
        if not self._objects.is_local:
            fetch = asyncio.ensure_future(self._objects.get_fragment(fragment))
            # Whoever would await it may be cancelled before it begins.
            fetch.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._fetches.append(fetch)

    async def take(self) -> pa.Table:
        """The oldest, decoded."""
        while len(self._tables) < min(DECODED_AHEAD, len(self.fragments)):
            fetch = self._fetches.popleft() if self._fetches else None
            work = self._make_table(self.fragments[len(self._tables)], fetch)
            self._tables.append(asyncio.ensure_future(work))
        table = await self._tables[0]
        self._tables.popleft()
        self._num_bytes -= self.fragments.popleft().num_bytes
        return table

    async def drop(self) -> None:
        """Stop everything."""
        tasks = [*self._tables, *self._fetches]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._turns is not None:
            await self._turns.stop()

    async def _make_table(self, fragment: Fragment, fetch: asyncio.Task[Buffer] | None) -> pa.Table:
        if fetch is None:
            return await fetch_table(
                self._objects, fragment, verify=self._verify, turns=self._turns
            )
        data = await fetch
        with self._objects.located(fragment):
            return await decode_table(data, fragment, verify=self._verify, turns=self._turns)
