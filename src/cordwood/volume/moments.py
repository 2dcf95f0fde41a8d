"""Which version is meant: an LSN, a time, or a text that says one. Pure, but for the walk.

======================  =====================================================
`7`, `"7"`              the LSN
a `datetime`            the newest version at that time; one without a zone is in local time
`"2026-05-01T12:00"`    the same, in ISO form
`"5 minutes ago"`       so long before now: seconds, minutes, hours, days, weeks
======================  =====================================================
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime

from cordwood.base.errors import InvalidInputError, NotFoundError
from cordwood.volume.format import Commit

Moment = int | str | datetime

_AGO = re.compile(
    r"\s*(\d+(?:\.\d+)?|an?)\s+(second|minute|hour|day|week)s?\s+ago\s*", re.IGNORECASE
)
_UNIT_US = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_HINT = "give an LSN, a datetime, an ISO time, or something like '5 minutes ago'"


def lsn_or_time(at: object, now_us: int) -> tuple[int | None, int | None]:
    """An LSN, or a time in microseconds.

    Raises:
        InvalidInputError: it is neither.
    """
    if isinstance(at, bool):
        raise InvalidInputError(f"{at!r} names no version", hint=_HINT)
    if isinstance(at, int):
        if at < 0:
            raise InvalidInputError(f"LSN {at}", hint="LSNs are counted from 1")
        return at, None
    try:
        if isinstance(at, datetime):
            return None, round(at.timestamp() * 1_000_000)
        if isinstance(at, str):
            if at.strip().isdecimal() and at.isascii():
                return int(at), None
            ago = _AGO.fullmatch(at)
            if ago is not None:
                number = 1.0 if ago[1].lower() in {"a", "an"} else float(ago[1])
                return None, now_us - round(number * _UNIT_US[ago[2].lower()])
            return None, round(datetime.fromisoformat(at.strip()).timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):  # no such time, or none that a clock could show
        pass
    raise InvalidInputError(f"{at!r} names no version", hint=_HINT)


async def newest_at(
    time_us: int, oldest: int, newest: int, commit_at: Callable[[int], Awaitable[Commit]]
) -> int:
    """The newest LSN that had been published at a time; times never go back along a history.

    Asks for about as many commits as the number of versions has binary digits.

    Raises:
        NotFoundError: the oldest version that is kept is younger.
    """
    low, high = oldest - 1, newest
    while low < high:
        middle = (low + high + 1) // 2
        if (await commit_at(middle)).timestamp_us <= time_us:
            low = middle
        else:
            high = middle - 1
    if low < oldest:
        raise NotFoundError(
            "no version that is kept is so old",
            hint=f"the oldest is LSN {oldest}; `log` lists versions with their times",
        )
    return low
