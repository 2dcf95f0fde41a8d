"""The fleet, blocking: each method is its async twin on the background loop (base/portal.py)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import pyarrow as pa

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import StateError, UncertainError
from cordwood.fleet import fleet as async_fleet
from cordwood.fleet import survey as async_survey
from cordwood.fleet.dirty import MARK_INTERVAL_S, MARKS_MAX
from cordwood.fleet.fleet import IDLE_S, MAX_OPEN
from cordwood.fleet.rollup import QUIET_S, RollUpReport
from cordwood.fleet.survey import Survey
from cordwood.log.bulk import Committed, Staged, Token
from cordwood.log.log import DEFAULT_OPTIONS
from cordwood.log.options import Options
from cordwood.log.records import Headers
from cordwood.store.url import Store
from cordwood.sync.log import Writer

T = TypeVar("T")


class Fleet:
    """Appends to many logs; any thread may use it. See `cordwood.Fleet`."""

    def __init__(
        self,
        store: Store | str,
        member: str,
        *,
        options: Options = DEFAULT_OPTIONS,
        create: bool = False,
        max_open: int = MAX_OPEN,
        idle_s: float = IDLE_S,
        mark_interval_s: float = MARK_INTERVAL_S,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Nothing is open yet; no I/O."""
        self._fleet = async_fleet.Fleet(
            store,
            member,
            options=options,
            create=create,
            max_open=max_open,
            idle_s=idle_s,
            mark_interval_s=mark_interval_s,
            clock=clock,
            entropy=entropy,
        )
        self._portal = portal.current()

    @property
    def store(self) -> Store:
        """Where its logs lie."""
        return self._fleet.store

    @property
    def member(self) -> str:
        """Its name among those that write."""
        return self._fleet.member

    @property
    def num_open(self) -> int:
        """How many logs are open now, or about to be."""
        return self._fleet.num_open

    def close(self) -> None:
        """Wait until everything appended is durable or has failed; then close every log."""
        self._run(self._fleet.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise StateError("a fleet cannot be pickled", hint="make one where it is used")

    def __repr__(self) -> str:
        return f"sync.{self._fleet!r}"

    @contextmanager
    def writer(self, log_name: str) -> Iterator[Writer]:
        """A log's writer, for a `with` block: open within it, shared, not to be closed."""
        used = self._fleet.writer(log_name)
        writer = Writer(self._run(used.__aenter__()))
        try:
            yield writer
        finally:
            # What `append_soon` handed over may still be on its way: it needs the log open.
            try:
                writer.flush()
            finally:
                self._run(used.__aexit__(None, None, None))
        writer.failures.tell()

    def append(
        self,
        log_name: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        stream: str | None = None,
    ) -> int:
        """Append one record to a log; its offset, once it is durable."""
        work = self._fleet.append(log_name, body, key=key, headers=headers, stream=stream)
        return self._run(work)

    def append_many(self, log_name: str, bodies: Sequence[bytes]) -> int:
        """Append records as one atomic batch; the first one's offset, once they are durable."""
        return self._run(self._fleet.append_many(log_name, bodies))

    def append_arrow(self, log_name: str, data: pa.Table | pa.RecordBatch) -> int:
        """Append Arrow data as one atomic batch; the first offset, once it is durable."""
        return self._run(self._fleet.append_arrow(log_name, data))

    def commit(self, log_name: str, staged: Sequence[Staged], token: Token) -> Committed:
        """Make uploads visible in a log, and mark it."""
        return self._run(self._fleet.commit(log_name, staged, token))

    def find_write(self, log_name: str, error: UncertainError) -> int | None:
        """What became of an append that ended in UncertainError."""
        return self._run(self._fleet.find_write(log_name, error))

    def mark(self, log_name: str) -> None:
        """Mark a log by hand: it was forked or copied, or its compaction cursor was moved back."""
        self._run(self._fleet.mark(log_name))

    def purge(self, log_name: str) -> None:
        """Say that nothing in a log needs compaction, up to where it ends now."""
        self._run(self._fleet.purge(log_name))

    def roll_up(
        self,
        member: str | None = None,
        *,
        quiet_s: float = QUIET_S,
        max_marks: int = MARKS_MAX,
        collect: bool = True,
    ) -> RollUpReport:
        """Find out which logs need compaction, and make the dirty log short again."""
        work = self._fleet.roll_up(member, quiet_s=quiet_s, max_marks=max_marks, collect=collect)
        return self._run(work)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            home = portal.check_same(self._portal, "this fleet")
        except StateError:
            work.close()
            raise
        return home.run(work)


def members(store: Store | str) -> list[str]:
    """The members that have a dirty log, by name."""
    return portal.current().run(async_survey.members(store))


def survey(
    store: Store | str, only: Sequence[str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> Survey:
    """Look at the dirty logs of all members, or of some, and at every log they mark."""
    return portal.current().run(async_survey.survey(store, only, clock=clock))
