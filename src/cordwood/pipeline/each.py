"""The same for each of many things, some at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

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
