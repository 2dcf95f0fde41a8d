"""Selection: which dirty logs are worth a compaction now, and why. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from cordwood.base.errors import InvalidInputError


class Dirty(Struct, frozen=True, kw_only=True):
    """A log with records that no compaction has seen."""

    log: str
    start: int
    """The first of them."""
    limit: int
    """The log's next offset."""
    num_bytes: int
    """About how much they are, as stored."""
    first_us: int
    """Since when it is dirty."""
    reinserts: int
    """Roll-ups it has outlasted."""
    members: tuple[str, ...]
    """Whose dirty logs say so."""

    @property
    def num_records(self) -> int:
        """How many they are."""
        return self.limit - self.start


class Reason(StrEnum):
    """Why a log is to be compacted."""

    SIZE = "size"
    AGE = "age"
    REINSERTIONS = "reinsertions"


class Policy(Struct, frozen=True, kw_only=True):
    """When a log is worth a compaction: any one of these is enough."""

    min_records: int = 1_000
    min_bytes: int = 8_000_000
    max_age_s: float = 3_600.0
    max_reinserts: int = 100
    """Counts roll-ups, so it holds also where clocks are wrong."""
    limit: int = 100
    """Logs in one answer."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise InvalidInputError(f"{name} is a number of at least 0, not {value!r}")


class Selected(Struct, frozen=True):
    """A log to compact."""

    dirty: Dirty
    reasons: tuple[Reason, ...]


DEFAULT_POLICY = Policy()


def reasons(dirty: Dirty, policy: Policy, now_us: int) -> tuple[Reason, ...]:
    """Why this log is to be compacted; empty if it is not."""
    is_due = {
        Reason.SIZE: dirty.num_records >= policy.min_records or dirty.num_bytes >= policy.min_bytes,
        Reason.AGE: now_us - dirty.first_us >= policy.max_age_s * 1_000_000,
        Reason.REINSERTIONS: dirty.reinserts >= policy.max_reinserts,
    }
    return tuple(reason for reason, due in is_due.items() if due)


def select(dirty: Iterable[Dirty], now_us: int, policy: Policy = DEFAULT_POLICY) -> list[Selected]:
    """What to compact, oldest first, at most `policy.limit`."""
    due = [Selected(one, why) for one in dirty if (why := reasons(one, policy, now_us))]
    return sorted(due, key=lambda one: (one.dirty.first_us, one.dirty.log))[: policy.limit]


def merge(dirty: Iterable[Dirty]) -> list[Dirty]:
    """Each log once, oldest first: one that several members wrote is marked by each of them."""
    by_log: dict[str, Dirty] = {}
    for one in dirty:
        other = by_log.get(one.log, one)
        by_log[one.log] = Dirty(
            log=one.log,
            # Seen one after the other: the later look saw both ends at least as far on.
            start=max(one.start, other.start),
            limit=max(one.limit, other.limit),
            num_bytes=max(one.num_bytes, other.num_bytes),
            first_us=min(one.first_us, other.first_us),
            reinserts=max(one.reinserts, other.reinserts),
            members=tuple(sorted({*one.members, *other.members})),
        )
    return sorted(by_log.values(), key=lambda one: (one.first_us, one.log))
