"""A fleet: any number of logs of one store, appended to through one object.

`Fleet(store, "node-7")` opens a log when it is first appended to and closes it when it was not used
for a while, or when its place is needed (fleet/pool.py). Before it names records it says in the
dirty log of its member that this log changes (fleet/dirty.py), so that compaction finds it at the
cost of the logs that changed, not of all there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Self

import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import ConflictError, InvalidInputError, StateError, UncertainError
from cordwood.fleet.dirty import MARK_INTERVAL_S, MARKS_MAX, PREFIX, DirtyLog
from cordwood.fleet.pool import Pool
from cordwood.fleet.rollup import QUIET_S, RollUpReport, roll_up
from cordwood.log.bulk import Committed, Staged, Token
from cordwood.log.log import DEFAULT_OPTIONS, Log
from cordwood.log.options import Options
from cordwood.log.records import Headers
from cordwood.log.recovery import BeforeNaming, find_write
from cordwood.log.writer import Writer
from cordwood.store.url import Store

MAX_OPEN = 1_000
IDLE_S = 60.0


class Fleet:
    """Appends to many logs, and knows which of them need compaction.

    All writers of a log must be fleets, of any members: another one would leave no mark.
    """

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
        """Nothing is open yet; no I/O.

        Args:
            store: a Store or a store's URL.
            member: names this process among those that write; its dirty log goes by it.
            options: of every writer.
            create: make logs that do not exist.
            max_open: logs open at once, at most; further ones wait for a place.
            idle_s: a log that nobody used for so long is closed.
            mark_interval_s: how long a mark waits for the marks of other logs while there are many.
            clock: what time it is.
            entropy: where ids come from.
        """
        self.store = store if isinstance(store, Store) else Store(store)
        self.member = member
        self._options = options
        self._create = create
        self._clock = clock
        self._entropy = entropy
        self._dirty = self._dirty_log(member, mark_interval_s)
        self._pool = Pool(self._make, max_open=max_open, idle_s=idle_s, clock=clock)

    async def close(self) -> None:
        """Wait until everything appended is durable or has failed; then close every log."""
        await self._pool.close()
        await self._dirty.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        raise StateError("a fleet cannot be pickled", hint="make one where it is used")

    def __repr__(self) -> str:
        return f"Fleet({self.store.url!r}, {self.member!r})"

    @property
    def num_open(self) -> int:
        """How many logs are open now, or about to be."""
        return self._pool.num_open

    # Appending.

    def writer(self, log_name: str) -> AbstractAsyncContextManager[Writer]:
        """A log's writer, for an `async with` block: open within it, shared, not to be closed.

        Opening a log costs two GETs; its first append since then also a mark.
        """
        return self._pool.use(self._log(log_name).name)

    async def append(
        self,
        log_name: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        stream: str | None = None,
    ) -> int:
        """Append one record to a log; its offset, once it is durable. See `Writer.append`."""
        async with self.writer(log_name) as writer:
            return await writer.append(body, key=key, headers=headers, stream=stream)

    async def append_many(self, log_name: str, bodies: Sequence[bytes]) -> int:
        """Append records as one atomic batch; the first one's offset. See `Writer.append_many`."""
        async with self.writer(log_name) as writer:
            return await writer.append_many(bodies)

    async def append_arrow(self, log_name: str, data: pa.Table | pa.RecordBatch) -> int:
        """Append Arrow data as one atomic batch; the first offset. See `Writer.append_arrow`."""
        async with self.writer(log_name) as writer:
            return await writer.append_arrow(data)

    async def commit(self, log_name: str, staged: Sequence[Staged], token: Token) -> Committed:
        """Make uploads visible in a log, and mark it. See `Log.commit`; stage with `Log.stage`."""
        log = self._log(log_name)
        return await log.commit(staged, token, before_naming=self._marker(log_name))

    async def find_write(self, log_name: str, error: UncertainError) -> int | None:
        """What became of an append that ended in UncertainError. See `Log.find_write`."""
        log = self._log(log_name)
        return await find_write(log.objects, self._entropy, error, self._marker(log_name))

    # Dirty logs.

    async def mark(self, log_name: str) -> None:
        """Mark a log by hand: it was forked or copied, or its compaction cursor was moved back.

        Do it afterwards; and again if you cannot know whether it was done.
        """
        manifest = await self._log(log_name).manifest()
        await self._dirty.mark(log_name, manifest.oldest_offset)

    async def purge(self, log_name: str) -> None:
        """Say that nothing in a log needs compaction, up to where it ends now.

        The next roll-up of this member's dirty log then drops what was marked before, unless the
        log was written since; it is how to end the marks of a log that cannot be read.
        """
        await self._dirty.purge(self._log(log_name).name)

    async def roll_up(
        self,
        member: str | None = None,
        *,
        quiet_s: float = QUIET_S,
        max_marks: int = MARKS_MAX,
        collect: bool = True,
    ) -> RollUpReport:
        """Find out which logs need compaction, and make the dirty log short again.

        Call it every few seconds, for each member, from whichever process `owners` names.

        Args:
            member: whose dirty log; by default our own.
            quiet_s: a mark younger than this stays although its log needs no compaction.
            max_marks: read about so many at most; the next roll-up goes on.
            collect: also free the part of the dirty log that is no longer needed.

        Raises:
            NotFoundError: another member was named, and has not written anything.
            ContendedError: another roll-up was faster; nothing is lost.
        """
        if member is None or member == self.member:
            if not await self._dirty.exists():
                return RollUpReport(self.member)
            return await self._roll_up(self._dirty, quiet_s, max_marks, collect=collect)
        async with self._dirty_log(member, MARK_INTERVAL_S) as dirty_log:
            return await self._roll_up(dirty_log, quiet_s, max_marks, collect=collect)

    async def _roll_up(
        self, dirty_log: DirtyLog, quiet_s: float, max_marks: int, *, collect: bool
    ) -> RollUpReport:
        report = await roll_up(dirty_log, quiet_s=quiet_s, max_marks=max_marks)
        if collect and report.limit > report.start:
            # Should somebody else collect it now, there is nothing to do.
            with suppress(ConflictError):
                await dirty_log.log.collect(wait_s=0.0)
        return report

    # Below.

    def _log(self, log_name: str) -> Log:
        if str(log_name).startswith(PREFIX):
            raise InvalidInputError(
                f"{log_name!r} belongs to the fleet itself",
                hint=f"choose a name that does not begin with {PREFIX}",
            )
        return Log(self.store, log_name, clock=self._clock, entropy=self._entropy)

    def _make(self, log_name: str) -> Writer:
        return self._log(log_name).writer(
            create=self._create, options=self._options, before_naming=self._marker(log_name)
        )

    def _marker(self, log_name: str) -> BeforeNaming:
        async def mark(offset: int) -> None:
            await self._dirty.mark(log_name, offset)

        return mark

    def _dirty_log(self, member: str, mark_interval_s: float) -> DirtyLog:
        return DirtyLog(
            self.store,
            member,
            mark_interval_s=mark_interval_s,
            clock=self._clock,
            entropy=self._entropy,
        )
