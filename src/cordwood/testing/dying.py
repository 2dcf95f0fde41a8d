"""A process that dies in its k-th request to the store, for tests that try every k.

Each death comes in two kinds: the last request never reached the store, or it took effect and its
answer was lost. From then on the dead process reaches the store no more.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cordwood.base.clock import Clock
from cordwood.store.api import ObjectStore
from cordwood.store.memory import MemoryStore
from cordwood.testing.hooked import Hooked


class DeadError(BaseException):
    """The process is gone."""


def dying(inner: ObjectStore, last: int, *, takes_effect: bool) -> Hooked:
    """The store as a process reaches it that dies in its request number `last`, from 1."""
    left = last

    async def step(call: Callable[[], Awaitable[Any]], *_: object) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or (left == 0 and not takes_effect):
            raise DeadError
        answer = await call()
        if left == 0:
            raise DeadError
        return answer

    async def delete(_: object, keys: Iterable[str]) -> None:
        # One request for each object: it may die between two.
        for key in keys:
            await step(functools.partial(inner.delete, [key]))

    counted = ("get", "get_range", "head", "put", "list")
    return Hooked(inner, **dict.fromkeys(counted, step), delete=delete)


def copy_of(memory: MemoryStore, clock: Clock) -> MemoryStore:
    """The same objects, with the same etags, and a clock of its own."""
    copied = MemoryStore(clock=clock)
    state = {"_objects": dict, "_keys": list, "_puts": int}
    for name, kind in state.items():
        setattr(copied, name, kind(getattr(memory, name)))
    return copied
