"""Volumes in both flavours behind one face, so that each test of what they do is written once."""

from __future__ import annotations

from contextlib import asynccontextmanager

import cordwood
from cordwood import sync
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


def is_error(error, *kinds):
    """Whether an error is one of ours and says what to do."""
    return isinstance(error, kinds or (cordwood.CordwoodError,)) and bool(error.hint)
