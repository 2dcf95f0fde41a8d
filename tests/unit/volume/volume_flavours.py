"""Volumes in both flavours behind one face, so that each test of what they do is written once."""

from __future__ import annotations

from contextlib import asynccontextmanager

from cordwood import Store, sync
from cordwood.base.clock import SeededEntropy
from cordwood.store.directory import DirectoryStore
from cordwood.store.memory import MemoryStore
from cordwood.testing.handclock import HandClock
from cordwood.volume.volume import Volume

PAGE = 512


def page(text):
    """A page that says something."""
    return str(text).encode().ljust(PAGE, b".")


ZEROS = bytes(PAGE)


class Awaited:
    """Something blocking, to be awaited; what it gives is wrapped if that blocks as well."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*args, **named):
            answer = found(*args, **named)
            return Awaited(answer) if type(answer).__module__ == "cordwood.sync.volume" else answer

        return call

    @asynccontextmanager
    async def begin(self):
        """A transaction: writes are plain, reads are awaited, as in the other flavour."""
        with self._inner.begin() as inner:
            yield Plain(inner)


class Plain(Awaited):
    """A transaction: only its reads wait."""

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "read" else getattr(self._inner, name)


def opened(flavour, store, name, directory, **rest):
    """A volume, async or blocking."""
    if flavour == "async":
        return Volume(store, name, directory=directory, **rest)
    return Awaited(sync.Volume(store, name, directory=directory, **rest))


async def write(volume, pages, truncate=None):
    """One transaction."""
    async with volume.begin() as transaction:
        if truncate is not None:
            for count in truncate:
                transaction.truncate(count)
        for number, text in pages.items():
            transaction.write(number, page(text))


async def seen(volume, at=None):
    """All pages that a volume shows, as the texts they were written with; zeros are None."""
    snapshot = await volume.snapshot(at)
    pages = [await snapshot.read(n) for n in range(1, snapshot.num_pages + 1)]
    await snapshot.close()
    return [None if p == ZEROS else p.rstrip(b".").decode() for p in pages]


class World:
    """A store, a clock in the test's hand, and as many directories as are asked for."""

    def __init__(self, flavour, kind, folder):
        self.flavour = flavour
        self.clock = HandClock()
        self.folder = folder
        back = (
            MemoryStore(self.clock)
            if kind == "memory"
            else DirectoryStore(str(folder / "store"), clock=self.clock)
        )
        self.back = back
        self.store = Store.over(back, f"{kind}:")
        self.open_ones = []

    def at(self, place, name="app", store=None):
        """A volume, from one directory; perhaps by another way to the store."""
        volume = opened(
            self.flavour,
            Store.over(store, "other:") if store is not None else self.store,
            name,
            self.folder / place,
            clock=self.clock,
            entropy=SeededEntropy(f"{place} {name} {len(self.open_ones)}"),
        )
        self.open_ones.append(volume)
        return volume

    async def made(self, place="a", versions=0, grace_s=600):
        """A volume of the world, with some versions, a minute apart."""
        volume = self.at(place)
        await volume.create(page_size=PAGE, grace_s=grace_s)
        for n in range(1, versions + 1):
            self.clock.pass_s(60)
            await write(volume, {n: f"v{n}"})
            await volume.push(f"version {n}")
        return volume
