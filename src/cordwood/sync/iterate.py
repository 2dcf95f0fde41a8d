"""An async generator, read by a thread that has no loop."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cordwood.base import portal

T = TypeVar("T")


@contextmanager
def blocking(items: AsyncGenerator[T, None]) -> Iterator[Iterator[T]]:
    """An async generator as a plain iterator, closed on the loop it ran on."""
    home = portal.current()
    end = object()

    async def following() -> Any:
        return await anext(items, end)

    def iterate() -> Iterator[T]:
        while (item := portal.check_same(home, "this iterator").run(following())) is not end:
            yield item

    try:
        yield iterate()
    finally:
        # At the end of the program the loop's thread no longer runs: nothing can be waited for. And
        # in that thread itself Python frees an iterator that was dropped: the loop closes what is
        # behind it.
        if not sys.is_finalizing() and home is portal.current() and not home.is_here:
            home.run(items.aclose())
