"""How much of what is waiting goes into the next batch of a stream, and whose. Pure.

A batch is filled fragment by fragment, each time from the log that has the least share of it so
far, until a limit is reached. So a log that is far behind does not keep the others waiting, and
what one log does not need is there for the rest. Logs that are equal take turns from batch to
batch, so that one whose next fragment is large comes first some time.

A batch ends between fragments, and what was appended at once is in one batch. There are two
exceptions, so that there is always progress: a first fragment that is over a limit of bytes goes in
all the same, and one that has more records than allowed is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from cordwood.log.format import Fragment


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a batch may have; None for no limit."""

    records: int | None = None
    num_bytes: int | None = None
    fragments: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether everything may go in."""
        return self.records is None and self.num_bytes is None and self.fragments is None

    def share(self, amount: Amount) -> float:
        """Which part of the batch it is: above 1 it is too much."""
        limits = (self.records, self.num_bytes, self.fragments)
        used = (amount.records, amount.num_bytes, amount.fragments)
        return max(u / limit for u, limit in zip(used, limits, strict=True) if limit is not None)


@dataclass(frozen=True, slots=True)
class Amount:
    """Some records."""

    records: int = 0
    num_bytes: int = 0
    fragments: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Both."""
        return Amount(
            self.records + other.records,
            self.num_bytes + other.num_bytes,
            self.fragments + other.fragments,
        )


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is waiting in one log: the fragments from `start` on, not necessarily all of them."""

    start: int
    fragments: Sequence[Fragment]

    def amount(self, i: int) -> Amount:
        """What of its fragment `i` is waiting."""
        fragment = self.fragments[i]
        records = fragment.limit - max(self.start, fragment.start)
        return Amount(records, fragment.num_bytes, 1)


def admit(backlogs: Sequence[Backlog], allowance: Allowance, turn: int) -> list[int]:
    """Where the batch ends in each log. `turn` is the log that comes first among equals."""
    ends = [backlog.start for backlog in backlogs]
    total = Amount()
    # Each with its share of the batch, its place among equals, and its next fragment.
    waiting = [
        (0.0, (i - turn) % len(backlogs), i, 0, total)
        for i, backlog in enumerate(backlogs)
        if backlog.fragments
    ]
    heapify(waiting)
    while waiting:
        _, place, i, at, taken = heappop(waiting)
        amount = backlogs[i].amount(at)
        if total.fragments and allowance.share(total + amount) > 1:
            continue  # It does not fit; a smaller one of another log may.
        if allowance.records is not None and amount.records > allowance.records:
            ends[i] += allowance.records
            break
        ends[i] = backlogs[i].fragments[at].limit
        taken, total = taken + amount, total + amount
        if at + 1 < len(backlogs[i].fragments):
            heappush(waiting, (allowance.share(taken), place, i, at + 1, taken))
    return ends
