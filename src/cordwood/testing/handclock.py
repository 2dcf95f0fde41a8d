"""A clock in the test's hand: time passes when the test says so."""

from __future__ import annotations


class HandClock:
    """Both kinds of time, from one number."""

    def __init__(self) -> None:
        """Some day, not at a whole second."""
        self.us = 1_700_000_000_123_456

    def now_us(self) -> int:
        """Wall time."""
        return self.us

    def monotonic_s(self) -> float:
        """The same, in seconds."""
        return self.us / 1_000_000

    def pass_s(self, seconds: float) -> None:
        """Later."""
        self.us += int(seconds * 1_000_000)


class FlyingClock(HandClock):
    """Every look is a grace interval later: as a store's clock, so that no sweep waits."""

    def now_us(self) -> int:
        """Later."""
        self.pass_s(601)
        return super().now_us()
