"""Answers: who waits for a batch is told, in order, and not too many at once.

A manifest may make ten thousand records durable. To wake all who wait for them takes the event loop
longer than everything else it does for that manifest; in one go it would hold up the next one, and
whoever wants to append meanwhile. So only some are told before the loop gets to look around.

1. Who waits is told in the order of the appends, each once.
2. The bytes of a batch stop counting against the queue when its outcome is known, not when the last
   one was told: what is durable holds up nobody.
3. However fast somebody appends, nobody falls behind for ever: the more wait, the more are told.
4. A failure is told at once, to all, after everything before it; and so is the rest when the writer
   ends (`tell_all`): nobody knows whether the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cordwood.log.batch import Batch, Queue

TOLD_AT_ONCE = 512
"""Waiters told before others have their turn: about a millisecond, with what they do then."""

_SHARE = 8
"""Of those who wait, one in so many is told at once, if that is more."""


class Answers:
    """What became of batches, oldest first, where somebody is still to be told."""

    def __init__(self, queue: Queue, on_rest: Callable[[], None]) -> None:
        """Of batches of this queue. `on_rest` hears, from the event loop, that nobody waits."""
        self._queue = queue
        self._on_rest = on_rest
        self._answers: deque[_Answer] = deque()
        self._num_waiters = 0
        self._next: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        """Whether somebody is still to be told."""
        return bool(self._answers)

    @property
    def batches(self) -> list[Batch]:
        """Those of which somebody is still to be told."""
        return [answer.batch for answer in self._answers]

    def tell(self, batch: Batch, outcome: int | BaseException) -> None:
        """Tell who waits for the batch: its first offset, or why it failed."""
        self._queue.release(batch.num_bytes)
        if isinstance(outcome, BaseException):
            self.tell_all()
            batch.fail(outcome)
            batch.told()
            return
        num_waiters = batch.num_waiters
        self._answers.append(_Answer(batch, batch.resolve(outcome, TOLD_AT_ONCE), num_waiters))
        self._num_waiters += num_waiters
        if self._next is None:
            self._tell_some()

    def tell_all(self) -> None:
        """Tell everybody now."""
        self._tell(self._num_waiters)

    def _look_again(self) -> None:
        self._next = None
        if self._answers:
            self._tell_some()
        else:
            self._on_rest()

    def _tell_some(self) -> None:
        self._tell(max(TOLD_AT_ONCE, self._num_waiters // _SHARE))
        self._next = asyncio.get_running_loop().call_soon(self._look_again)

    def _tell(self, most: int) -> None:
        num_told = 0
        while self._answers and num_told < most:
            answer = self._answers[0]
            num = next(answer.pieces)
            num_told += num
            self._num_waiters -= num
            answer.num_waiters -= num
            if not answer.num_waiters:
                self._answers.popleft()
                answer.batch.told()


@dataclass(slots=True)
class _Answer:
    """A batch, and who of it is still to be told."""

    batch: Batch
    pieces: Iterator[int]
    num_waiters: int
