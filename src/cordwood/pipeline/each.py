"""The same for each of many things, some at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cordwood.base.errors import Code, CordwoodError, StoreError

T = TypeVar("T")
R = TypeVar("R")


async def each(things: Iterable[T], call: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """What a call gives for each thing, in order; at most `at_once` are under way.

    If one fails, the others are stopped, and have ended when this raises.
    """
    todo = list(things)
    results: list[Any] = [None] * len(todo)

    async def work(places: Iterator[int]) -> None:
        for place in places:
            results[place] = await call(todo[place])

    places = iter(range(len(todo)))
    tasks = [asyncio.ensure_future(work(places)) for _ in range(min(at_once, len(todo)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


async def by_halves(
    things: Sequence[T],
    call: Callable[[Sequence[T]], Awaitable[R]],
    spoils: Callable[[T, CordwoodError], None],
) -> list[R]:
    """What a call gives for all things together; if that fails, for each half by itself, and so on.

    So a few bad ones are found and left out, in a few calls for each. `spoils` is told what failed
    alone, and why. A store that fails would fail for all of them: then nothing is tried again.
    """
    try:
        return [await call(things)]
    except CordwoodError as error:
        of_all = isinstance(error, StoreError) and error.code is not Code.STORE_DENIED
        if len(things) == 1 or of_all:
            for thing in things:
                spoils(thing, error)
            return []
    middle = len(things) // 2
    first = await by_halves(things[:middle], call, spoils)
    return first + await by_halves(things[middle:], call, spoils)
