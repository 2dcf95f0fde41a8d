"""Lists as generators that can be closed.

A list is an `AsyncIterator`; most are async generators, which hold a connection or a thread until
they are closed. Whoever wraps one closes it when its own consumer stops early, and this gives
every list the method to do that with.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from cordwood.store.api import Meta


def as_generator(metas: AsyncIterator[Meta]) -> AsyncGenerator[Meta, None]:
    """The list itself if it is a generator, else a generator over it; for `contextlib.aclosing`."""
    return metas if isinstance(metas, AsyncGenerator) else _generate(metas)


async def _generate(metas: AsyncIterator[Meta]) -> AsyncGenerator[Meta, None]:
    async for meta in metas:
        yield meta
