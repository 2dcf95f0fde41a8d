"""A volume that is open on this machine: what is local, over a published version.

::

    desk ─┬─ local.py     commits that are not published, and which version lies below
          ├─ history.py   the local copy of what versions are made of
          ├─ cache.py     the local copy of their pages
          └─ remote.py    the store

A `Sight` is what a reader sees: the overlay first, else the published page. Reading is plain and
blocking where the page is at hand (`peek`); only what must be fetched waits for the store (`read`).

The directory may be used without the store: it remembers what its names mean. A directory that has
never seen the volume asks the store once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import msgspec

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import Code, CollectedError, CordwoodError, CorruptionError, StoreError
from cordwood.journal import document
from cordwood.journal.failures import told
from cordwood.journal.frames import damage
from cordwood.store.api import Buffer, ObjectStore
from cordwood.store.disk import Disk
from cordwood.volume.base import load
from cordwood.volume.cache import PackCache
from cordwood.volume.folders import make_folders
from cordwood.volume.format import NO_HASH, Commit, Manifest
from cordwood.volume.history import History
from cordwood.volume.local import Local
from cordwood.volume.locks import REMOTE, WRITE
from cordwood.volume.overlay import View
from cordwood.volume.reader import PageReader
from cordwood.volume.recovery import HEAD
from cordwood.volume.remote import Remote
from cordwood.volume.snapshot import Absent
from cordwood.volume.tags import look_up

CLIENT = "client"
LOCK_WAIT_S = 60.0
"""Nobody pushes or pulls for so long, unless a push is large: then the next one says so."""
_PAUSE_S = 0.005


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who this directory is, to those who read its commits."""

    id: str
    format: int = 1


class Sight:
    """One version as a reader sees it; local commits over a published version, or that alone."""

    __slots__ = ("num_pages", "published", "view")

    def __init__(self, view: View | None, published: PageReader) -> None:
        """Made by `Desk.sight`, or of a published version alone."""
        self.view = view
        """The local part; None for a published version."""
        self.published = published
        self.num_pages = published.snapshot.page_count if view is None else view.page_count

    @property
    def lsn(self) -> int:
        """The published version that it is, or that it builds upon."""
        return self.published.snapshot.lsn

    def peek(self, page: int) -> Buffer | None:
        """A page that is at hand; None if the store must be asked. Never waits."""
        if self.view is not None:
            found = self.view.read(page)
            if found is not None:
                return found
        return self.published.peek(page)

    async def read(self, page: int) -> Buffer:
        """A page, from the store if need be.

        Raises:
            CorruptionError: it is damaged, here or in the store.
            InvalidInputError: pages are numbered from 1.
            StoreError: the store cannot be reached, and the page is not here.
        """
        found = self.peek(page)
        return await self.published.read(page) if found is None else found

    def close(self) -> None:
        """Let go what it held; twice is no error."""
        if self.view is not None:
            self.view.close()

    def reopen(self) -> bool:
        """Open it once more, as it was, if nothing has changed since; False if something has."""
        return self.view is None or self.view.reopen()

    def advance(self, entry: int) -> bool:
        """Open it once more, as it is after a commit upon it, if that is all that has changed."""
        if self.view is None or not self.view.advance(entry):
            return False
        self.num_pages = self.view.page_count
        return True


class Desk:
    """One log of a volume, open in one process."""

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        local: Local,
        history: History,
        *,
        durable_cache: bool = False,
    ) -> None:
        """Made by `open_desk`."""
        self.name = name
        self.log = manifest.log
        self.page_size = manifest.page_size
        self.local = local
        self.history = history
        self.remote = history.remote
        self.cache = PackCache(self.remote, history.directory, history.disk, durable=durable_cache)
        self.client = _client(history)
        self._published: PageReader | None = None
        self._changes = -1
        """Of the history, when that was made."""

    @property
    def folder(self) -> str:
        """Where the files of the log are."""
        return self.history.folder(self.log)

    def sight(self) -> Sight:
        """What is there now, local commits and all.

        Raises:
            Absent: what the published version is made of is not here; `fetch_sight` brings it.
        """
        view = self.local.snapshot()
        try:
            return Sight(view, self._below(view.lsn))
        except BaseException:
            view.close()
            raise

    async def fetch_sight(self) -> Sight:
        """As `sight`; what is missing of the local copy is fetched."""
        while True:
            try:
                return self.sight()
            except Absent as absent:
                await self.history.fetch_absent(absent)

    async def below(self, lsn: int) -> PageReader:
        """The published version that lies below what is seen here."""
        while True:
            try:
                return self._below(lsn)
            except Absent as absent:
                await self.history.fetch_absent(absent)

    async def published(self, lsn: int | None = None) -> PageReader:
        """A published version, the newest that the store has by default; fetched as needed."""
        snapshot = await self.history.fetch(self.log, lsn)
        return PageReader(snapshot, self.history, self.cache, self.page_size)

    async def at_hand(self, lsn: int) -> PageReader:
        """A published version, from here if that can be: it is not looked for anything newer."""
        try:
            snapshot = self.history.snapshot(self.log, lsn)
        except Absent:
            return await self.published(lsn)
        return PageReader(snapshot, self.history, self.cache, self.page_size)

    async def commit(self, log: str, lsn: int) -> Commit:
        """A published commit, fetched if it is not here.

        Raises:
            CollectedError: it is gone.
        """
        while True:
            try:
                return self.history.commit(log, lsn)
            except Absent as absent:
                await self.history.fetch_absent(absent)

    @asynccontextmanager
    async def remote_work(self) -> AsyncIterator[None]:
        """One of all processes at a time pushes or pulls.

        Raises:
            StoreError: somebody has been at it for too long.
        """
        locks = self.local.locks
        self.local.check()
        waiting = self._waiting(REMOTE, "another push or pull has been under way")
        while not locks.try_alone(REMOTE):
            await anext(waiting)
        try:
            yield
        finally:
            locks.let_go(REMOTE)

    async def publish(
        self,
        lsn: int,
        commit_hash: bytes,
        watermark: int | None,
        page_count: int,
        *,
        own: bool = False,
        local_page_count: int | None = None,
        only_at: int | None = None,
    ) -> None:
        """Let another published version lie below. See `Local.publish`.

        Who writes may be another task of this loop, so it is waited for as tasks wait. A watermark
        of None is the last entry.

        Raises:
            ContendedError: somebody committed since `only_at`; nothing has changed.
            StoreError: somebody has been writing for too long, or the disk failed.
        """
        waiting = self._waiting(WRITE, "a transaction has been open")
        while not self.local.try_publish(
            lsn,
            commit_hash,
            watermark,
            page_count,
            own=own,
            local_page_count=local_page_count,
            only_at=only_at,
        ):
            await anext(waiting)

    def tidy(self) -> None:
        """Give back room that nothing needs any more; nobody is waited for."""
        with suppress(OSError, CordwoodError):
            self.local.reclaim()

    async def _waiting(self, lock: str, why: str) -> AsyncIterator[None]:
        """Wait a little with each step, and not for ever."""
        waited_s = 0.0
        while waited_s < LOCK_WAIT_S:
            await asyncio.sleep(_PAUSE_S)
            waited_s += _PAUSE_S
            yield
        raise StoreError(
            f"{self.folder}: {why} for {waited_s:.0f} s",
            code=Code.STORE_UNREACHABLE,
            transient=True,
            operation="lock",
            key=f"{self.folder}/locks/{lock}",
            hint="wait for it to end, or end that process",
        )

    def close(self) -> None:
        """Close the files; twice is no error."""
        self.local.close()
        self.cache.close()

    def _below(self, lsn: int) -> PageReader:
        """The published version that lies below; the last one asked for is kept.

        It is made anew when a manifest has changed: a checkpoint may have taken the place of
        commits and packs that are collected by now. What lies below local commits may itself be
        collected: then it is read from what is left of it here.
        """
        kept, changes = self._published, self.history.changes
        if kept is None or kept.snapshot.lsn != lsn or changes != self._changes:
            try:
                snapshot = self.history.snapshot(self.log, lsn)
            except CollectedError as error:
                try:
                    snapshot = self.history.remembered(self.log, lsn)
                except Absent:
                    raise error from None
            kept = PageReader(snapshot, self.history, self.cache, self.page_size)
            self._published, self._changes = kept, changes
        return kept


async def open_desk(
    store: ObjectStore,
    name: str,
    directory: str,
    *,
    clock: Clock,
    entropy: Entropy,
    disk: Disk | None = None,
    switch_pages: int = 1000,
    durable_cache: bool = False,
) -> Desk:
    """Open a volume. Without a request if the directory knows it; else a few.

    Raises:
        NotFoundError: there is no such volume.
        StoreError: the directory does not know it, and the store cannot be reached.
        CorruptionError: a file of the directory is damaged; nothing was changed.
    """
    remote = Remote(store, clock, entropy)
    history = History(remote, directory, disk)
    tag = history.tag(name)
    if tag is None:
        tag = await look_up(history, name)
    try:
        manifest = history.manifest(tag.log)
    except Absent:
        manifest = await history.refresh(tag.log)
    local = Local.open(
        history.folder(tag.log),
        manifest.page_size,
        disk=history.disk,
        clock=clock,
        entropy=entropy,
        switch_pages=switch_pages,
    )
    desk = Desk(name, manifest, local, history, durable_cache=durable_cache)
    try:
        await _begin(desk)
    except BaseException:
        desk.close()
        raise
    return desk


async def _begin(desk: Desk) -> None:
    """Give a directory that has never seen the log its newest version; later it asks nobody.

    A branch that nobody pushed to is at its parent's version.
    """
    if _has_begun(desk):
        return
    async with desk.remote_work():
        if not _has_begun(desk):
            with desk.local.snapshot() as view:
                if view.entry:
                    path = f"{desk.folder}/{HEAD}"
                    why = "it is missing, and there are commits that were made upon what it said"
                    raise damage(path, 0, why)
            _settle_folders(desk.history.disk, desk.folder)
            newest = await desk.history.fetch(desk.log)
            await desk.publish(newest.lsn, newest.hash or NO_HASH, 0, newest.page_count)


def _settle_folders(disk: Disk, folder: str) -> None:
    """Make the names of all folders above durable: nobody knows which of them we made just now.

    Files in a folder that has no name after a power cut are gone, however well they were synced.
    """
    while (parent := os.path.dirname(folder)) != folder:
        with suppress(OSError):  # who may not read a folder has not made one there
            disk.fsync_dir(parent)
        folder = parent


def _has_begun(desk: Desk) -> bool:
    """Whether the directory knows a version of the log, be it the one without pages."""
    with suppress(FileNotFoundError):
        desk.history.disk.stat(f"{desk.folder}/{HEAD}")
        return True
    return False


def _client(history: History) -> str:
    """The directory's id, made when it is first needed; of two who make one, one counts."""
    disk, path = history.disk, os.path.join(history.directory, CLIENT)
    with told("open", path):
        try:
            found = load(disk, path, CLIENT, Client)
        except CorruptionError:  # who it was is of no use to anybody any more
            found = None
            with suppress(FileNotFoundError):
                disk.unlink(path)
        if found is not None:
            return found.id
        make_folders(disk, history.directory)
        draft = f"{path}.{history.remote.entropy.token()}.tmp"
        disk.write(draft, document.encoded(CLIENT, Client(history.remote.new_id())), 0)
        with suppress(FileExistsError):
            disk.link(draft, path)
        disk.unlink(draft)
        disk.fsync_dir(history.directory)
        return cast(Client, load(disk, path, CLIENT, Client)).id
