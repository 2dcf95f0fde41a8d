"""How long one call waits for a lock, and how it is told to stop.

A lock file is taken or refused at once; whoever is refused pauses and tries again. That can be
ended from outside, which a thread that waits inside the system's own call cannot, and it ends by
itself.

The pauses are added up, and no clock is read. So the time in which this process was itself stopped
does not count: had a whole job been suspended and continued, the waiting process would otherwise
give up before the holder could move.
"""

from __future__ import annotations

import threading

from cordwood.base.clock import Entropy

PAUSE_FIRST_S = 0.0005
PAUSE_MAX_S = 0.004
"""Pauses double from the first to the longest; each is cut by a random part of up to one half.

The longest is short: nobody queues for a lock, so one who pauses for long finds that others were
there first. With eight busy processes in one folder, 20 ms made the slowest puts twice as slow.
"""


class Patience:
    """The patience of one call. `pause` belongs to the thread that waits; any may `stop` it."""

    def __init__(self, limit_s: float, entropy: Entropy) -> None:
        """Pauses that add up to `limit_s`."""
        self._limit_s = limit_s
        self._entropy = entropy
        self._pause_s = PAUSE_FIRST_S
        self._stopped = threading.Event()
        self.waited_s = 0.0
        """All pauses so far."""

    def stop(self) -> None:
        """Nobody wants the result any more: end the pause under way and grant no other."""
        self._stopped.set()

    def pause(self) -> bool:
        """Wait a little; False, without waiting, if patience is at its end."""
        if self.waited_s >= self._limit_s:
            return False
        pause_s = self._pause_s * (1.0 - 0.5 * self._entropy.uniform())
        self._pause_s = min(2.0 * self._pause_s, PAUSE_MAX_S)
        self.waited_s += pause_s
        return not self._stopped.wait(pause_s)
