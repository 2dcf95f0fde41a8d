"""What a process knows of a log's streams, and how long it may rely on it.

Writers ask before they take a record of a stream, and are answered from memory:

1. A stream is admitted if it was open when the roll was last looked at, and that look began less
   than `FRESH_S` ago.
2. Where a stream is not admitted, the roll is looked at again, from then on. So a record is taken
   whose append was called after `open` returned, in whatever process; and none is taken whose
   append was called `FRESH_S` after `close` returned. Through the `Log` that closed it, at once.
3. What a writer has taken it writes, also when the stream is closed meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cordwood.base.clock import Clock
from cordwood.base.errors import Code, StateError
from cordwood.log.objects import LogObjects
from cordwood.log.roll import Roll, load_roll

FRESH_S = 10.0
"""How long a look at the roll is good for: so long a writer may not know of a close."""

SHOWN_CHARS_MAX = 80


class RollWatch:
    """The roll of one log as this process knows it."""

    def __init__(self, objects: LogObjects, clock: Clock) -> None:
        """No I/O; nothing is known yet."""
        self._objects = objects
        self._clock = clock
        self.roll: Roll | None = None
        self._open: frozenset[str] = frozenset()
        """The streams that are open in it: asked for each record."""
        self._seen_s = float("-inf")
        """When the look began that gave us the roll."""

    @property
    def age_s(self) -> float:
        """How long ago the last look began."""
        return self._clock.monotonic_s() - self._seen_s

    def admits(self, names: Collection[str]) -> bool:
        """Whether records of all these may be taken, as far as is known and fresh."""
        return self.age_s <= FRESH_S and self._open.issuperset(names)

    def knows(self, names: Collection[str]) -> bool:
        """Whether all of them were open at the last look, however long ago that was."""
        return self._open.issuperset(names)

    async def look(self) -> Roll:
        """Look at the roll. One GET and one LIST if nothing changed."""
        started_s = self._clock.monotonic_s()
        roll = await load_roll(self._objects, self.roll)
        self.keep(roll, started_s)
        return roll

    def keep(self, roll: Roll, started_s: float) -> None:
        """Remember what a look that began then has found, unless a later one came meanwhile."""
        known = self.roll
        if known is None or known.incarnation != roll.incarnation or known.number <= roll.number:
            if roll is not known:
                self._open = frozenset(filter(roll.is_open, roll.streams))
            self.roll = roll
            self._seen_s = max(self._seen_s, started_s)

    async def check(self, names: Collection[str]) -> None:
        """Raise unless records of all these may be taken.

        Raises:
            StateError: one is not open.
        """
        if names and not self.admits(names):
            await self.look()
            if (error := self.refusal(names)) is not None:
                raise error

    def refusal(self, names: Iterable[str]) -> StateError | None:
        """The error for those that were not open at the last look; None if all of them were."""
        roll = self.roll
        shut = [name for name in names if roll is None or not roll.is_open(name)]
        if not shut:
            return None
        what = "is closed" if roll is not None and shut[0] in roll.streams else "is not open"
        more = f", nor are {len(shut) - 1} more" if len(shut) > 1 else ""
        return StateError(
            f"nothing was written: stream {shown(shut[0])} of log {self._objects.name!r} "
            f"{what}{more}",
            code=Code.STREAM_NOT_OPEN,
            hint="open it first: log.streams.open(name), or `cordwood log stream open URL NAME`",
        )


def shown(name: object) -> str:
    """A name for people, cut where it is long."""
    text = repr(name)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
