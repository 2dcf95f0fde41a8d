"""Answers: who waits for a batch is told, in order, and not too many at once.

A manifest may make ten thousand records durable. To wake all who wait for them takes the event loop
longer than everything else it does for that manifest; in one go it would hold up the next one, and
whoever wants to append meanwhile. So only some are told before the loop gets to look around.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from cordwood.log.batch import Batch

TOLD_AT_ONCE = 512
"""Waiters told before others have their turn: about a millisecond, with what they do then."""


class Answers:
    """What became of batches, oldest first, where somebody is still to be told."""

    def __init__(self, on_told: Callable[[Batch], None], on_rest: Callable[[], None]) -> None:
        """`on_told` hears of each batch; `on_rest`, from the event loop, that nobody waits."""
        self._on_told = on_told
        self._on_rest = on_rest
        self._batches: deque[tuple[Batch, Iterator[int]]] = deque()
        self._next: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        """Whether somebody is still to be told."""
        return bool(self._batches)

    def tell(self, batch: Batch, outcome: int | BaseException) -> None:
        """Tell who waits for the batch: its first offset, or why it failed.

        A failure is told at once, to all, after everything before it: nobody knows what comes next.
        """
        if isinstance(outcome, BaseException):
            self._go_on(None)
            batch.fail(outcome)
            self._on_told(batch)
            return
        self._batches.append((batch, batch.resolve(outcome, TOLD_AT_ONCE)))
        if self._next is None:
            self._go_on(TOLD_AT_ONCE)
            self._next = asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._next = None
        if self._batches:
            self._go_on(TOLD_AT_ONCE)
            self._next = asyncio.get_running_loop().call_soon(self._look_again)
        else:
            self._on_rest()

    def _go_on(self, most: int | None) -> None:
        num_told = 0
        while self._batches and (most is None or num_told < most):
            batch, pieces = self._batches[0]
            num = next(pieces, 0)
            num_told += num
            if not num:
                self._batches.popleft()
                self._on_told(batch)
