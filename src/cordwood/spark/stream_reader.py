"""`spark.readStream.format("cordwood")`: one log or several, followed batch by batch.

The object lives on the driver, in one process for the whole query; what it needs to go on after a
restart is in the checkpoint (spark/positions.py). Tasks read their splits as those of a batch read
do.

A batch ends where its limits say, in whole records, fragments or bytes, and the logs share them
fairly (spark/admission.py). With `availableNow` it also ends where the logs ended when the query
began. Between the plan of a batch and its end its files are kept by the query's cursor, or without
one for as long as the log's grace interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.base.errors import CollectedError, InvalidInputError, NotFoundError, StateError
from cordwood.log import tree
from cordwood.log.format import COLUMNS, Fragment, Manifest
from cordwood.log.log import Log
from cordwood.log.reader import NO_LIMITS, Limits
from cordwood.spark.admission import Allowance, Amount, Backlog, admit
from cordwood.spark.keeper import claim, hold, move_all
from cordwood.spark.options import parse
from cordwood.spark.plan import Planner, find, in_turns
from cordwood.spark.positions import Position, Positions, shares
from cordwood.spark.schema import KEY, check
from cordwood.spark.splits import Split, Work, cut
from cordwood.spark.task import open_store, read_split


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs."""

    def __init__(
        self, schema: StructType, options: Mapping[str, str], *, is_inferred: bool = False
    ) -> None:
        """No I/O: it is pickled, and sent to every task.

        Args:
            schema: the columns.
            options: as Spark hands them over.
            is_inferred: whether the columns are those that the logs had, not the user's choice.
        """
        check(schema)
        self._schema = schema
        self._is_plain = is_inferred and KEY.name not in schema.fieldNames()
        self._options = parse(options, streaming=True)
        self._ceiling: dict[str, int] | None = None
        """With `availableNow`: where the logs ended when the query began."""
        self._held: set[str] = set()
        """Logs whose cursor was looked after since this process began."""
        self._claimed: set[str] = set()
        """Those whose cursor is known to be this query's."""
        self._id = SYSTEM_ENTROPY.token()
        """Of the query, if it has none in its checkpoint."""
        self._turn = 0
        """Which log comes first among equals, where they share a batch."""

    # What Spark asks the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint yet."""
        return portal.current().run(self._begin()).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a batch may hold; `latestOffset` looks at all of the options."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.max_fragments is not None:
            return ReadMaxFiles(options.max_fragments)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the logs end now."""
        found = portal.current().run(self._look())
        self._ceiling = {name: manifest.next_offset for name, manifest in found.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        work = self._end(Positions.of(start), is_limited=is_limited)
        return portal.current().run(work).to_dict()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the logs end, for the query's progress: the difference is the lag."""
        found = portal.current().run(self._look())
        ends = {name: _position(m, m.next_offset) for name, m in found.items()}
        return self._positions(ends).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of a batch, the logs one after the other."""
        begin, limit = Positions.of(start), Positions.of(end)
        portal.current().run(self._claim(limit, is_new=begin.is_first))
        if begin.is_first:
            # Made again, the first batch may be told of another beginning: it knows its own.
            begin = limit.beginning()
        return portal.current().run(self._plan(begin, limit))

    def commit(self, end: dict[str, Any]) -> None:
        """An earlier batch is finished: its records are needed no more."""
        portal.current().run(move_all(Positions.of(end), open_store(self._options.place.store)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a split, in a task."""
        return read_split(partition, self._schema, self._options)

    def stop(self) -> None:
        """Nothing is open."""

    # How it is found out.

    async def _look(self, known: Positions | None = None) -> dict[str, Manifest]:
        """The manifest of every log that is meant, if they are those that a checkpoint knows.

        Raises:
            StateError: the checkpoint is of other logs; or they have more columns than the query.
        """
        logs = await find(self._options.place)
        names = [log.name for log in logs]
        for name in set(known.logs if known is not None else ()) - set(names):
            await self._check_gone(name)
        found = await in_turns(log.manifest() for log in logs)
        for log, manifest in zip(logs, found, strict=True):
            if self._is_plain and COLUMNS in manifest.features:
                raise StateError(
                    f"log {log.name!r} has keys, headers or streams, which it had not when the "
                    "query was made: it has no columns for them",
                    hint="make the query again, and it has; or give it a schema without them",
                )
        return dict(zip(names, found, strict=True))

    async def _check_gone(self, name: str) -> None:
        """A log that was destroyed no longer matches a pattern; any other is somebody else's."""
        place = self._options.place
        if place.is_pattern:
            try:
                await self._log(name).manifest()
            except NotFoundError:
                return
        raise StateError(
            f"the checkpoint is of log {name!r}, and the query reads {', '.join(place.names)}",
            hint="start the query with a checkpoint of its own",
        )

    async def _begin(self) -> Positions:
        found = await self._look()
        starts = {
            name: _position(manifest, await self._start_of(self._log(name), manifest))
            for name, manifest in found.items()
        }
        positions = self._positions(starts)
        await self._hold(positions)
        return replace(positions, is_first=True)

    async def _start_of(self, log: Log, manifest: Manifest) -> int:
        """Where a query begins in a log."""
        options = self._options
        if (options.start_offset or 0) > manifest.next_offset:
            raise InvalidInputError(
                f"option startOffset is {options.start_offset}, and log {log.name!r} ends at "
                f"{manifest.next_offset}",
                hint="set option startingAt to latest to begin with what comes next",
            )
        if options.start_offset is not None or options.start_time_us is not None:
            limits = Limits(start_time_us=options.start_time_us)
            _, begin, _ = await Planner(log).bounds(options.start_offset, limits)
            return begin
        if options.starting_at == "latest":
            return manifest.next_offset
        if options.cursor is not None and options.starting_at is None:
            try:
                return (await log.cursors.load(options.cursor)).offset
            except NotFoundError:
                pass
        return manifest.oldest_offset

    async def _hold(self, positions: Positions) -> None:
        """Make the cursors, where there are none, once in the life of this process."""
        cursor = self._options.cursor
        for name, position in positions.logs.items():
            if cursor is not None and name not in self._held:
                await hold(self._log(name), cursor, position.offset)
                self._held.add(name)

    async def _claim(self, end: Positions, *, is_new: bool) -> None:
        """Make the cursors this query's, once in the life of this process.

        Not before the query's id is in the checkpoint: what belongs to an id that nobody has
        written down would be nobody's for ever.
        """
        options = self._options
        if options.cursor is None or not end.query:
            return
        for name in (end.logs.keys() & self._held) - self._claimed:
            with suppress(NotFoundError):  # The log was destroyed a moment ago, or the cursor.
                take = options.take_cursor and is_new
                await claim(self._log(name), options.cursor, end.query, take=take)
            self._claimed.add(name)

    async def _end(self, start: Positions, *, is_limited: bool) -> Positions:
        found = await self._look(start)
        begins = {name: self._begin_of(name, m, start) for name, m in found.items()}
        await self._hold(
            self._positions({n: _position(found[n], begin) for n, begin in begins.items()})
        )
        # A log that is new is only entered: where it begins must be in the checkpoint before any
        # record of it is read, or a batch made again might begin elsewhere.
        ends = {n: m.next_offset if n in start.logs else begins[n] for n, m in found.items()}
        if self._ceiling is not None:
            ends = {n: min(end, self._ceiling.get(n, begins[n])) for n, end in ends.items()}
        ends = {name: max(begins[name], end) for name, end in ends.items()}
        if is_limited:
            ends = await self._limited(found, begins, ends)
        reached = {n: _position(m, ends[n]) for n, m in found.items()}
        if start.is_first:
            reached = {n: replace(p, begin=begins[n]) for n, p in reached.items()}
            return self._positions(reached, self._id)
        before = {name: replace(position, begin=-1) for name, position in start.logs.items()}
        # The very same if nothing came: anything else is a batch for Spark.
        if {**before, **reached} == before:
            return start
        return self._positions({**before, **reached}, start.query or self._id)

    def _begin_of(
        self, name: str, manifest: Manifest, start: Positions, end: int | None = None
    ) -> int:
        """Where a batch begins in a log. One that the checkpoint does not know is new.

        With `end`, the batch has been planned before, and may be in the sink already.

        Raises:
            StateError: the checkpoint is of another log.
            CollectedError: what comes next is gone.
        """
        there = start.logs.get(name)
        if there is None:
            return manifest.oldest_offset
        is_other = {there.incarnation, manifest.incarnation} - {""}
        if len(is_other) > 1 or there.offset > manifest.next_offset:
            raise StateError(
                f"the checkpoint is of another log than {name!r}: it was destroyed and made anew, "
                "or an older state of it was restored",
                hint="start the query with a checkpoint of its own",
            )
        if there.offset >= manifest.oldest_offset:
            return there.offset
        if self._options.on_collected == "oldest":
            return manifest.oldest_offset
        is_done = f"; if the sink has it already, up to {end}: start a new query from there"
        raise CollectedError(
            f"log {name!r}: the query goes on at offset {there.offset}, which has been collected; "
            f"the oldest is {manifest.oldest_offset}",
            hint="give the query a cursor (option cursor), which holds back collection; to go on "
            "without what is gone, set option onCollected to oldest"
            f"{'' if end is None else is_done}",
        )

    async def _limited(
        self, found: Mapping[str, Manifest], begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, int]:
        options = self._options
        lags = {name: ends[name] - begins[name] for name in found if ends[name] > begins[name]}
        limited = dict(ends)
        self._turn += 1
        if options.max_records is not None:
            for name, share in shares(lags, options.max_records, self._turn).items():
                limited[name] = begins[name] + share
        allowance = Allowance(None, options.max_bytes, options.max_fragments)
        if allowance.is_unlimited:
            return limited
        names = list(lags)
        backlogs = await in_turns(
            self._backlog(self._log(name), found[name], begins[name], limited[name], allowance)
            for name in names
        )
        admitted = admit(backlogs, allowance, self._turn)
        for name, end in zip(names, admitted, strict=True):
            limited[name] = min(limited[name], end)
        return limited

    async def _backlog(
        self, log: Log, manifest: Manifest, begin: int, end: int, allowance: Allowance
    ) -> Backlog:
        """What is waiting in a log, as far as a batch could take it."""
        found: list[Fragment] = []
        backlog, total = Backlog(begin, found), Amount()
        async with aclosing(log.objects.walk(tree.roots(manifest), begin, end)) as fragments:
            async for fragment in fragments:
                found.append(fragment)
                total = total + backlog.amount(-1)
                if allowance.share(total) > 1:
                    break
        return backlog

    async def _plan(self, start: Positions, end: Positions) -> list[Split]:
        found = await self._look(end)
        works: list[Work] = []
        for name, position in end.logs.items():
            if name not in start.logs or position.offset == start.logs[name].offset:
                continue
            if name not in found:
                raise NotFoundError(f"log {name!r}, which a batch of the query reads, is gone")
            begin = self._begin_of(name, found[name], start, position.offset)
            if begin < position.offset:
                planner = Planner(self._log(name))
                view, _, _ = await planner.bounds(begin, NO_LIMITS)
                if position.offset > view.next_offset:
                    raise StateError(
                        f"log {name!r} ends at {view.next_offset}, before the end of the batch, "
                        f"{position.offset}: an older state of it was restored",
                        hint="start the query with a checkpoint of its own",
                    )
                wanted = self._options.split_bytes, self._options.stream
                works.append(await planner.range(view, begin, position.offset, *wanted))
        return cut(works, self._options.split_bytes)

    def _log(self, name: str) -> Log:
        return Log(open_store(self._options.place.store), name)

    def _positions(self, logs: dict[str, Position], query: str = "") -> Positions:
        options = self._options
        return Positions(logs, options.place.store, options.cursor or "", query)


def _position(manifest: Manifest, offset: int) -> Position:
    return Position(offset, manifest.incarnation)
