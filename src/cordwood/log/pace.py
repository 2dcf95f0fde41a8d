"""When a writer may put again: the batch interval, and the throttle."""

from __future__ import annotations


class Pace:
    """Plain arithmetic on moments; the caller brings the time."""

    def __init__(self, interval_s: float, throttle: float | None) -> None:
        """A fragment every `interval_s` at most; `throttle` puts a second at most, if given."""
        self._interval_s = interval_s
        self._throttle = throttle
        self._launched_s = float("-inf")
        self.next_put_s = float("-inf")
        """Before this no put may start, because of the throttle."""

    @property
    def is_throttled(self) -> bool:
        """Whether there is a throttle at all."""
        return self._throttle is not None

    @property
    def next_part_s(self) -> float:
        """When a part of a batch has waited long enough for company."""
        return max(self._launched_s + self._interval_s, self.next_put_s)

    def launch(self, now_s: float) -> None:
        """A fragment goes out."""
        self._launched_s = now_s
        self.put(now_s)

    def put(self, now_s: float) -> None:
        """A put goes out."""
        if self._throttle is not None:
            self.next_put_s = max(now_s, self.next_put_s) + 1 / self._throttle
