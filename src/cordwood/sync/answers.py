"""What became of records that were appended without waiting, and who was told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

FAILED_MAX = 1000
"""So many failures are kept for who closes the writer; that is enough to tell one."""


class Answer(Future[int]):
    """The offset of a record, once it is durable."""

    def __init__(self) -> None:
        """Not known yet."""
        super().__init__()
        self.is_heard = False
        """Whether somebody has asked for it, and been told."""

    def result(self, timeout: float | None = None) -> int:
        """Wait for the offset."""
        try:
            return super().result(timeout)
        finally:
            self.is_heard |= self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; why there is none, if there is none."""
        try:
            return super().exception(timeout)
        finally:
            self.is_heard |= self.done()

    def add_done_callback(self, fn: Callable[[Future[int]], Any]) -> None:
        """Have this called, when it is known, with the answer."""
        self.is_heard = True
        super().add_done_callback(fn)

    def follow(self, done: asyncio.Future[int]) -> None:
        """Tell a thread what the loop was told, unless it gave up the answer."""
        if not self.set_running_or_notify_cancel():
            done.exception()  # Seen: the loop need not report an error that nobody wants.
        elif (error := done.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(done.result())


class Failures:
    """The answers that are errors."""

    def __init__(self) -> None:
        """None yet."""
        self._answers: deque[Answer] = deque(maxlen=FAILED_MAX)

    def add(self, answer: Answer) -> None:
        """One is known; what is no failure is not kept."""
        if not answer.cancelled() and super(Answer, answer).exception() is not None:
            self._answers.append(answer)

    def tell(self) -> None:
        """Raise the first that nobody has heard of."""
        unheard = [answer for answer in self._answers if not answer.is_heard]
        self._answers.clear()
        if unheard:
            unheard[0].result()
