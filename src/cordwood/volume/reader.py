"""The pages of one published version: quickly where they are at hand, else from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import numpy.typing as npt

from cordwood.base.errors import Code, CorruptionError
from cordwood.volume.cache import PackCache, Progress
from cordwood.volume.history import History
from cordwood.volume.pagesets import PageArray
from cordwood.volume.snapshot import Absent, Resolution, Snapshot

BATCH_BYTES = 4 * 2**20
"""Pages that are handed out together, about."""


class PageReader:
    """Reads pages of a snapshot. Hold one for each version; they share history and cache."""

    def __init__(
        self, snapshot: Snapshot, history: History, cache: PackCache, page_size: int
    ) -> None:
        """No I/O."""
        self.snapshot = snapshot
        self.page_size = page_size
        self.history = history
        self.cache = cache
        self._zeros = bytes(page_size)

    def peek(self, page: int) -> bytes | None:
        """A page that is at hand, or zeros; None if the store must be asked. Never waits.

        About a microsecond for a page in memory.
        """
        try:
            place = self.snapshot.find(page)
        except Absent:
            return None
        if place is None:
            return self._zeros
        plain = self.cache.peek(place.pack, place.frame)
        if plain is None:
            return None
        start = place.position * self.page_size
        return plain[start : start + self.page_size]

    async def read(self, page: int) -> bytes:
        """A page. One request if it is not at hand.

        Raises:
            CorruptionError: its bytes in the store are damaged or missing.
            CollectedError: the version is gone.
        """
        while True:
            try:
                place = self.snapshot.find(page)
            except Absent as absent:
                await self.history.fetch_absent(absent)
                continue
            if place is None:
                return self._zeros
            try:
                plain = await self.cache.fetch(place.pack, place.frame)
            except CorruptionError as error:
                await self._renew(error)
                continue
            start = place.position * self.page_size
            return plain[start : start + self.page_size]

    async def read_many(self, pages: PageArray) -> bytes:
        """Pages in order, their bytes one after the other; zeros where there is nothing."""
        while True:
            version = await self.resolve()
            rows = np.flatnonzero(np.isin(version.pages, pages))
            if not len(rows):
                return bytes(len(pages) * self.page_size)
            try:
                found = await self._gather(version, rows)
            except CorruptionError as error:
                await self._renew(error)
                continue
            room = np.zeros((len(pages), self.page_size), np.uint8)
            at = np.searchsorted(pages, version.pages[rows])
            room[at] = np.frombuffer(found, np.uint8).reshape(-1, self.page_size)
            return room.tobytes()

    async def resolve(self) -> Resolution:
        """Where all pages are; what was lost of the local copy meanwhile is fetched."""
        while True:
            try:
                return self.snapshot.resolve()
            except Absent as absent:
                await self.history.fetch_absent(absent)

    async def hydrate(self, progress: Progress | None = None) -> int:
        """Bring every page to this machine; how many bytes were fetched.

        Raises:
            StoreError: the disk is full or fails; what was written stays.
        """
        before = self.cache.fetched_bytes
        while True:
            version = await self.resolve()
            try:
                for number, pack in enumerate(version.packs):
                    await self.cache.hydrate(pack, version.frame[version.pack == number], progress)
            except CorruptionError as error:
                await self._renew(error)
                continue
            return self.cache.fetched_bytes - before

    async def cached_share(self) -> float:
        """The part of the pages that is on this machine's disk, from 0 to 1."""
        version = await self.resolve()
        if not len(version.pages):
            return 1.0
        here = 0
        for number, pack in enumerate(version.packs):
            here += int(self.cache.present(pack, version.frame[version.pack == number]).sum())
        return here / len(version.pages)

    async def batches(
        self, version: Resolution, chosen: PageArray | None = None
    ) -> AsyncIterator[tuple[PageArray, bytes]]:
        """Pages in order, some at a time, with their bytes one after the other.

        Args:
            version: where they are.
            chosen: which of its pages, in order; all by default.
        """
        rows = np.arange(len(version.pages))
        if chosen is not None:
            rows = np.searchsorted(version.pages, chosen)
        step = max(1, BATCH_BYTES // self.page_size)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            yield version.pages[some], await self._gather(version, some)

    async def _renew(self, error: CorruptionError) -> None:
        """A pack is gone: look whether a checkpoint took its place since the path was made.

        Raises:
            CorruptionError: none did.
            CollectedError: the version itself is gone.
        """
        path = self.snapshot.path
        if error.code is not Code.MISSING_OBJECT:
            raise error
        log = path.spans[0].log if path.spans else path.checkpoint[0] if path.checkpoint else ""
        snapshot = await self.history.fetch(log, path.lsn)
        if snapshot.path == path:
            raise error
        self.snapshot = snapshot

    async def _gather(self, version: Resolution, rows: npt.NDArray[np.int64]) -> bytes:
        """The bytes of some rows of a resolution: each frame is opened once."""
        for number in np.unique(version.pack[rows]).tolist():
            mine = rows[version.pack[rows] == number]
            await self.cache.hydrate(version.packs[number], version.frame[mine])
        keys = np.stack((version.pack[rows], version.frame[rows]), axis=1)
        frames, which = np.unique(keys, axis=0, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(which.reshape(-1)))[:-1])
        room = np.zeros((len(rows), self.page_size), np.uint8)
        for (number, frame), mine in zip(frames.tolist(), groups, strict=True):
            plain = await self.cache.fetch(version.packs[number], frame)
            pages = np.frombuffer(plain, np.uint8).reshape(-1, self.page_size)
            room[mine] = pages[version.position[rows[mine]]]
        return room.tobytes()
