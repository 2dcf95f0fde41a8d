"""What the tests of volumes share: a store, and histories that are made in a line."""

from __future__ import annotations

import numpy as np

from cordwood.base.clock import SeededEntropy
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock
from cordwood.volume.branches import create_branch, create_volume
from cordwood.volume.cache import PackCache
from cordwood.volume.format import NO_HASH, Commit, Provenance, seal
from cordwood.volume.history import History
from cordwood.volume.pack import build_packs
from cordwood.volume.reader import PageReader
from cordwood.volume.remote import Fetched, Remote

PAGE = 512


def page(version, number, size=PAGE):
    """A page that says which version of which page it is, and compresses somewhat."""
    return f"{number}@{version}|".encode().ljust(24, b".") * (size // 24 + 1)


def bytes_of(version, number, size=PAGE):
    """The same, of the right length."""
    return page(version, number, size)[:size]


class Desk:
    """A store with volumes, and a client that pushes without a local half."""

    def __init__(self, directory, store=None, seed=1, clock=None):
        self.clock = clock or HandClock()
        self.entropy = SeededEntropy(seed)
        self.store = store if store is not None else MemoryStore(self.clock)
        self.remote = Remote(self.store, self.clock, self.entropy)
        self.directory = str(directory)
        self.history = History(self.remote, self.directory)
        self.cache = PackCache(self.remote, self.directory)

    def sealed(self, log, before, written, *, page_count=None, cut=None, page_size=PAGE):
        """A commit after `before` (a snapshot), and its packs; `written` maps pages to bytes."""
        packs = []
        if written:
            numbers = np.array(sorted(written), np.uint32)
            data = b"".join(written[n] for n in sorted(written))
            ids = iter(self.remote.new_id, None)
            packs = list(build_packs(page_size, [(numbers, data)], ids, log))
        count = max([before.page_count, *written]) if page_count is None else page_count
        commit = Commit(
            log,
            before.lsn + 1,
            before.hash or NO_HASH,
            self.clock.now_us(),
            "",
            Provenance(f"{7:032x}", 0, self.entropy.token()),
            page_size,
            count,
            min(before.page_count, count) if cut is None else cut,
            tuple(built.pack for built in packs),
        )
        return seal(commit), packs

    async def push(self, log, written, **shape):
        """One more version; its snapshot."""
        before = await self.history.fetch(log)
        sealed, packs = self.sealed(log, before, written, **shape)
        for built in packs:
            await self.remote.put_pack(built)
        await self.remote.put_commit(sealed)
        self.history.keep(Fetched(*sealed))
        return await self.history.fetch(log, sealed.commit.lsn)

    async def volume(self, name="app", **rest):
        """A new volume's log."""
        return (await create_volume(self.remote, name, page_size=PAGE, **rest)).log

    async def branch(self, log, at, name):
        """A branch's log."""
        return (await create_branch(self.remote, log, await self.history.fetch(log, at), name)).log

    async def reader(self, log, lsn=None):
        """A reader of a version."""
        snapshot = await self.history.fetch(log, lsn)
        return PageReader(snapshot, self.history, self.cache, PAGE)

    async def content(self, log, lsn=None, limit=None):
        """All pages of a version, one by one."""
        reader = await self.reader(log, lsn)
        pages = range(1, (limit or reader.snapshot.page_count) + 1)
        return {number: await reader.read(number) for number in pages}

    async def keys(self, prefix=""):
        """What is in the store."""
        return [meta.key async for meta in self.store.list(prefix)]
