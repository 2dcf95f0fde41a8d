"""Retention by itself: one thread of a process, for the topics that somebody has open in it.

A topic's turn comes once in a period, spread by chance so that many processes do not all come at
once, and soon after a file of it is full: it grows by full files only. Two who are at it at once do
no harm. A topic itself is never deleted here, be it empty: somebody has it open.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import CordwoodError, NotFoundError
from cordwood.base.forks import starts_over

TopicName = tuple[str, str]

STOP_S = 5.0
"""So long it is waited for: a store may be away."""


class Keeping:
    """Which topics are open, when the turn of each comes, and the thread that waits for that."""

    def __init__(
        self, retain: Callable[[str, str], object], clock: Clock, entropy: Entropy, period_s: float
    ) -> None:
        """No topic is open."""
        self._retain = retain
        self._clock = clock
        self._entropy = entropy
        self.period_s = period_s
        self.start_over()
        starts_over(self)

    def start_over(self) -> None:
        """No topic is open."""
        self._mutex = threading.Lock()
        """Taken by itself, and not by way of the condition, where Ctrl-C could leave it taken."""
        self._changed = threading.Condition(self._mutex)
        self._opened: Counter[TopicName] = Counter()
        self._due_s: dict[TopicName, float] = {}
        self._thread: threading.Thread | None = None
        self.troubles: dict[TopicName, str] = {}
        """What failed last."""

    def open(self, topic: TopicName) -> None:
        """Look after a topic until it is closed as often as it was opened."""
        with self._mutex:
            self._opened[topic] += 1
            self._due_s.setdefault(topic, self._next_s())
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cordwood-retention", daemon=True
                )
                self._thread.start()

    def close(self, topic: TopicName) -> None:
        """Somebody does not need it any more."""
        with self._mutex:
            self._opened[topic] -= 1
            if self._opened[topic] <= 0:
                self._forget(topic)

    def soon(self, topic: TopicName) -> None:
        """A file of it is full: let its turn come now."""
        with self._mutex:
            if topic in self._due_s:
                self._due_s[topic] = self._clock.monotonic_s()
                self._changed.notify()

    def stop(self) -> None:
        """Look after no topic any more; wait a little for what is under way."""
        with self._mutex:
            for topic in list(self._due_s):
                self._forget(topic)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_S)

    def _forget(self, topic: TopicName) -> None:
        self._opened.pop(topic, None)
        self._due_s.pop(topic, None)
        self._changed.notify()

    def _next_s(self) -> float:
        return self._clock.monotonic_s() + self.period_s * (0.5 + self._entropy.uniform() / 2)

    def _run(self) -> None:
        while (topic := self._wait()) is not None:
            try:
                self._retain(*topic)
                self.troubles.pop(topic, None)
            except NotFoundError:
                self.troubles.pop(topic, None)  # It was deleted: whoever has it open is told.
            except CordwoodError as error:  # Told by `describe`: nobody waits for this.
                self.troubles[topic] = f"its retention failed: {error}"

    def _wait(self) -> TopicName | None:
        """The topic whose turn it is, when that has come; None if no topic is open."""
        with self._mutex:
            while self._due_s:
                topic = min(self._due_s, key=self._due_s.__getitem__)
                left_s = self._due_s[topic] - self._clock.monotonic_s()
                if left_s <= 0:
                    self._due_s[topic] = self._next_s()
                    return topic
                self._changed.wait(left_s)
            self._thread = None
            return None
