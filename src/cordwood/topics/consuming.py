"""Reading a topic: the partitions that are ours, one after the other, as they grow."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import compress
from typing import Literal, NamedTuple

import pyarrow as pa

from cordwood.base.clock import Clock
from cordwood.base.errors import (
    Code,
    CollectedError,
    ConflictError,
    CordwoodWarning,
    CorruptionError,
    InvalidInputError,
    StateError,
)
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.topics.home import Home, Membership, Pace, Scanning, missing_topic

Start = Literal["oldest", "newest"]
Positions = Callable[[int], int | None]

STOPPED_S = 0.05
"""A task that waits looks so often whether it was stopped."""


class Fetched(NamedTuple):
    """Records of one partition."""

    partition: int
    batch: pa.RecordBatch
    next: int
    """The offset that comes after them."""


class Skipped(NamedTuple):
    """Records that cannot be read, and were passed over."""

    partition: int
    begin: int
    end: int
    """The offset that comes next."""


def checked_offset(offset: object) -> int:
    """A record's offset, as a user gives it.

    Raises:
        InvalidInputError: it cannot be one.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < OFFSET_LIMIT:
        raise InvalidInputError(
            f"{offset!r} is no offset", hint="offsets are whole numbers, from 0 on"
        )
    return offset


class Waiting:
    """The pauses of one poll between looks for records: each twice as long, up to a limit."""

    def __init__(self, pace: Pace, clock: Clock, timeout_s: float | None) -> None:
        """From now on, for so long; None: for ever."""
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and timeout_s >= 0):
            raise InvalidInputError(
                f"timeout_s is {timeout_s!r}, and has to be seconds from 0 on, or None"
            )
        self._clock = clock
        self._until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        self._pause_s, self._most_s = pace.pause_first_s, pace.pause_max_s

    def next_s(self) -> float | None:
        """How long to wait before the next look; None if the time is over."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._most_s)
        if self._until_s is None:
            return pause_s
        left_s = self._until_s - self._clock.monotonic_s()
        return min(pause_s, left_s) if left_s > 0 else None


class Consuming:
    """A consumer, whatever it is made of; one thread uses it, any may close it."""

    def __init__(
        self,
        home: Home,
        namespace: str,
        topic: str,
        clock: Clock,
        *,
        group: str | None,
        start: Start,
        positions: Positions | None,
    ) -> None:
        """Join the group, if there is one; without, all partitions are read."""
        if start not in ("oldest", "newest"):
            raise InvalidInputError(f"start is 'oldest' or 'newest', not {start!r}")
        if positions is not None and not callable(positions):
            raise InvalidInputError(
                f"positions is a {type(positions).__name__}",
                hint="give a function that says for a partition where to go on",
            )
        self._home = home
        self._topic = namespace, topic
        self._clock = clock
        self._start = start
        self._known = positions
        self._stopped = threading.Event()
        self._at_work = threading.RLock()
        """Held by who reads: one who closes waits, and so does who comes after a task that was
        cancelled, whose thread goes on for a moment."""
        self._is_closed = False
        self._scans: dict[int, Scanning] = {}
        self._done: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._refreshed_s = float("-inf")
        self._round: list[int] = []
        """The partitions whose turn comes next."""
        self._had: list[int] = []
        """Those that had records when it was their turn."""
        self._damaged: int | None = None
        self._first = home.partition(namespace, topic, 0)
        self._count = self._first.config.partitions
        self._member: Membership | None = None
        if group is not None:
            self._member = home.join(namespace, topic, group)
        self.when_closed: Callable[[], None] | None = None
        """Called once."""

    @property
    def assigned(self) -> frozenset[int]:
        """The partitions that are read."""
        return frozenset(self._scans)

    def poll(self, timeout_s: float | None, max_bytes: int) -> Fetched | None:
        """The next records of some partition; None if there are none in that time, or on close."""
        waiting = self.waiting(timeout_s)
        while not self._stopped.is_set():
            found = self.look(max_bytes)
            if found is not None:
                return found
            pause_s = waiting.next_s()
            if pause_s is None or self._stopped.wait(pause_s):
                return None
        return None

    async def poll_async(self, timeout_s: float | None, max_bytes: int) -> Fetched | None:
        """The same for a task. While it waits it takes no thread: a loop has few of them."""
        waiting = self.waiting(timeout_s)
        while not self._stopped.is_set():
            found = await asyncio.to_thread(self.look, max_bytes)
            if found is not None:
                return found
            pause_s = waiting.next_s()
            if pause_s is None:
                return None
            while pause_s > 0 and not self._stopped.is_set():
                await asyncio.sleep(min(pause_s, STOPPED_S))
                pause_s -= STOPPED_S
        return None

    def waiting(self, timeout_s: float | None) -> Waiting:
        """The pauses of a poll that begins now."""
        return Waiting(self._home.pace, self._clock, timeout_s)

    def look(self, max_bytes: int) -> Fetched | None:
        """The next records of some partition, if there are any."""
        with self._at_work:
            if self._is_closed:
                return None
            self.refresh()
            return self._fetch(max_bytes)

    def refresh(self) -> None:
        """Ask, if it is time, which partitions are ours."""
        now_s = self._clock.monotonic_s()
        if now_s - self._refreshed_s < self._home.pace.refresh_s and self._scans:
            return
        self._refreshed_s = now_s
        if self._home.partition(*self._topic, 0) is not self._first:
            raise missing_topic(*self._topic)
        owned = frozenset(range(self._count)) if self._member is None else self._member.owned()
        for partition in set(self._scans) - owned:
            self._scans.pop(partition).close()
            self._done.pop(partition, None)
            self._committed.pop(partition, None)
        fresh = sorted(owned - set(self._scans))
        if not fresh:
            return
        committed = {} if self._member is None else self._member.positions()
        begun = self._home.pace.each(
            lambda partition: self._begin(partition, committed.get(partition)), fresh
        )
        self._scans.update(zip(fresh, begun, strict=True))
        if self._start == "newest" and self._known is None and self._member is not None:
            # What comes from now on is the group's, also if this member dies before it commits.
            self._remember({one: self._scans[one].offset for one in fresh if one not in committed})

    def _remember(self, first: dict[int, int]) -> None:
        assert self._member is not None
        with suppress(ConflictError):  # Then it is another's by now, who does the same.
            if first:
                self._member.commit(first)
                self._committed.update(first)

    def done(self, partition: int, offset: int) -> None:
        """All records of a partition before this one were handed out."""
        self._done[partition] = offset

    def position(self, partition: int) -> int | None:
        """The record of a partition that comes next; None if the partition is not ours."""
        scan = self._scans.get(partition)
        return self._done.get(partition, scan.offset) if scan is not None else None

    def seek(self, partition: int, offset: int) -> None:
        """Go on from another record."""
        checked_offset(offset)
        with self._at_work:
            if partition not in self._scans:
                raise StateError(f"partition {partition} is not this consumer's")
            self._scans[partition].seek(offset)
            self._done[partition] = offset

    def skip(self, partition: int | None) -> Skipped:
        """Go on behind what cannot be read, where damage was told last, or in this partition."""
        number = self._damaged if partition is None else partition
        if number not in self._scans:
            raise StateError(
                "no damage was told"
                if number is None
                else f"partition {number} is not this consumer's"
            )
        scan = self._scans[number]
        begin = self._done.get(number, scan.offset)
        if begin != scan.offset:
            scan.seek(begin)
        try:
            scan.take()
            scan.seek(begin)  # There is nothing to skip.
        except CorruptionError:
            scan.skip()
        self._done[number] = scan.offset
        return Skipped(number, begin, scan.offset)

    def commit(self, positions: Mapping[int, int] | None) -> None:
        """Let the group go on behind what was handed out, or from here."""
        self.check_open()
        if self._member is None:
            raise StateError(
                "a consumer without a group has nowhere to commit to", hint="name a group"
            )
        if not isinstance(positions or {}, Mapping):
            raise InvalidInputError("positions maps partitions to the offsets to go on from")
        moved = {partition: checked_offset(at) for partition, at in dict(positions or {}).items()}
        if positions is None:
            moved = {
                partition: offset
                for partition, offset in self._done.items()
                if self._committed.get(partition) != offset
            }
        self._member.commit(moved)
        self._committed.update(moved)

    def stop(self) -> None:
        """End a poll under way, in whatever thread, and let no other begin."""
        self._stopped.set()

    def close(self) -> None:
        """Leave the group; twice is no error."""
        self._stopped.set()
        with self._at_work:
            self._is_closed = True
            for scan in self._scans.values():
                scan.close()
            self._scans.clear()
        done, self.when_closed = self.when_closed, None
        if done is not None:
            done()
        if self._member is not None:
            self._member.leave()

    def _begin(self, partition: int, committed: int | None) -> Scanning:
        part = self._home.partition(*self._topic, partition)
        at = self._known(partition) if self._known is not None else committed
        if at is not None and self._known is not None:
            checked_offset(at)
        if at is None:
            bounds = part.bounds()
            at = bounds.oldest if self._start == "oldest" else bounds.next
        elif committed is not None:
            self._committed[partition] = committed
        return part.scan(at)

    def _fetch(self, max_bytes: int) -> Fetched | None:
        """Records of the next partition that has some.

        In each round all partitions have their turn: those that had something in the last one, and
        of the others those that may have by now, which is asked of all at once.
        """
        for is_asked in (False, True):
            while self._round:
                partition = self._round.pop(0)
                found = self._fetch_from(partition, max_bytes) if partition in self._scans else None
                if found is not None:
                    self._had.append(partition)
                    return found
            if not is_asked:
                others = sorted(set(self._scans) - set(self._had))
                news = self._home.pace.each(lambda one: self._scans[one].may_have(), others)
                self._round, self._had = [*self._had, *compress(others, news)], []
        return None

    def _fetch_from(self, partition: int, max_bytes: int) -> Fetched | None:
        """Records of a partition, if it has some."""
        scan = self._scans[partition]
        done = self._done.get(partition, scan.offset)
        if done != scan.offset:  # Not all that was fetched was handed out.
            scan.seek(done)
        batches = self._taken(partition, scan, max_bytes)
        if not batches:
            self._done[partition] = scan.offset
            return None
        self._done[partition] = done
        joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return Fetched(partition, joined[0], scan.offset)

    def _taken(self, partition: int, scan: Scanning, max_bytes: int) -> list[pa.RecordBatch]:
        while True:
            try:
                return scan.take(max_bytes)
            except CorruptionError as error:
                self._damaged = partition
                raise CorruptionError(
                    f"partition {partition}: {error.message}",
                    where=error.where,
                    hint=f"{error.hint}; or pass over it: consumer.skip(), consume --skip-damaged",
                ) from error
            except CollectedError as error:
                oldest = self._home.partition(*self._topic, partition).bounds().oldest
                warnings.warn(
                    f"partition {partition}: records {scan.offset} to {oldest - 1} were deleted "
                    f"before they were read; going on from {oldest} ({error.message})",
                    CordwoodWarning,
                    stacklevel=2,
                )
                scan.seek(oldest)

    def check_open(self) -> None:
        """Raise if it is closed."""
        if self._is_closed:
            raise StateError("the consumer is closed", code=Code.CLOSED)
