"""The reader: find fragments, fetch them, prove them, hand out records.

A reader holds nothing open. Each call starts from the manifest as it is then, so it sees everything
whose append returned before the call began, and never half an append: what is atomic lies in one
fragment, and a fragment is named whole. Once begun, a call reads the range it found; collection
keeps the files of an open reader for the log's grace interval.

Costs: one GET for the manifest, one per tree node that overlaps the range (none at the tail), one
per fragment. Every fragment is checked against its checksum and its setsum unless `verify=False`.
Who reads one stream passes over the fragments that cannot hold it (log/sieve.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import (
    Code,
    CollectedError,
    CorruptionError,
    InvalidInputError,
)
from cordwood.base.given import given, given_number
from cordwood.base.limits import OFFSET_LIMIT
from cordwood.log import tree
from cordwood.log.fetch import Ahead, fetch_table
from cordwood.log.filters import Filter
from cordwood.log.format import STREAMS, Fragment, NodePointer
from cordwood.log.objects import LogObjects
from cordwood.log.pins import load_pin
from cordwood.log.records import STREAM, Record, check_record, iter_records
from cordwood.log.sieve import Sieve, root_sets

T = TypeVar("T")

POLL_MIN_S = 0.05
POLL_MAX_S = 1.0
"""How often a tail looks for more: often while it finds something, seldom while it does not."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a read ends. Every limit that is given holds; a scan gives at least one fragment."""

    max_records: int | None = None
    """Where one stream is read, of that stream."""
    max_bytes: int | None = None
    """Of fragment files, as stored."""
    max_files: int | None = None
    limit_offset: int | None = None
    """The first offset not wanted."""
    start_time_us: int | None = None
    """Only records stamped at this time or later."""
    limit_time_us: int | None = None
    """Only records stamped before this time."""

    def __post_init__(self) -> None:
        """Refuse negative limits."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise InvalidInputError(f"{name} is a number of at least 0, not {value!r}")


NO_LIMITS = Limits()


class View(NamedTuple):
    """What one read sees: the log as its manifest was then, or what a pin holds."""

    pointers: tuple[NodePointer | Fragment, ...]
    oldest_offset: int
    next_offset: int
    is_final: bool
    """Whether nothing can follow: the log is sealed, or this is what a pin holds."""
    sets: Mapping[int, Filter] = MappingProxyType({})
    """Which streams fragments among the pointers hold, by slot, where that is known."""
    has_filters: bool = False
    """Whether it is worth looking for the filters of nodes."""


class Reader:
    """Reads one log. Made by `Log.reader()`."""

    def __init__(self, objects: LogObjects, *, verify: bool = True, pin: str | None = None) -> None:
        """No I/O. `verify=False` skips checksum and setsum of every fragment read.

        With `pin`, only what the pin of that name holds is read.
        """
        self._objects = objects
        self._verify = verify
        self._pin = pin

    async def _load(self) -> tuple[View, str]:
        manifest, etag = await self._objects.load()
        if self._pin is not None:
            pin = await load_pin(self._objects, self._pin)
            has_filters = STREAMS in manifest.features
            view = View(pin.pointers, pin.start, pin.limit, is_final=True, has_filters=has_filters)
            return view, etag
        bounds = manifest.oldest_offset, manifest.next_offset
        is_final, has_filters = manifest.seal is not None, STREAMS in manifest.features
        sets = root_sets(manifest)
        return View(tree.roots(manifest), *bounds, is_final, sets, has_filters), etag

    async def __aenter__(self) -> Self:
        await self._load()
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    # Fragments.

    async def scan(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        stream: str | None = None,
    ) -> list[Fragment]:
        """The fragments that hold the records from `start` on, oldest first.

        The first may begin before `start`, the last may end after the limit; at least one is given
        if there is any. Without `start`, from the oldest record. With `stream`, those that may hold
        records of it.

        Raises:
            CollectedError: `start` has been collected.
        """
        given(limits, Limits, "what limits a read")
        view, _ = await self._load()

        async def select() -> list[Fragment]:
            return [f async for f in self._limited(view, start, limits, stream)]

        return await self._unless_collected(select(), view)

    async def fetch(self, fragment: Fragment, *, verify: bool | None = None) -> pa.Table:
        """The records of a fragment: offset, timestamp_us, body, and key, headers, stream if any.

        Raises:
            CollectedError: it has been collected since the scan.
            CorruptionError: it is missing, or not what the manifest says.
        """
        given(fragment, Fragment, "what is fetched")
        work = fetch_table(self._objects, fragment, verify=self._checks(verify))
        return await self._unless_collected(work, _view_of(fragment))

    async def fetch_bytes(self, fragment: Fragment) -> bytes:
        """The object as stored, unchecked. Raises as `fetch` does if it is not there."""
        given(fragment, Fragment, "what is fetched")
        work = self._objects.get_fragment(fragment)
        return bytes(await self._unless_collected(work, _view_of(fragment)))

    # Records.

    async def read_arrow(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        verify: bool | None = None,
        stream: str | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Record batches with exactly the records asked for, in order; one per fragment.

        With `stream`, only records of that stream, open or closed.

        Raises:
            CollectedError: `start` has been collected, also while reading.
            CorruptionError: a fragment is missing or damaged.
        """
        given(limits, Limits, "what limits a read")
        view, _ = await self._load()
        async with aclosing(self._read(view, start, limits, verify, stream)) as batches:
            while (batch := await self._unless_collected(anext(batches, None), view)) is not None:
                yield batch

    async def read(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        verify: bool | None = None,
        stream: str | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Records, in order. As `read_arrow` otherwise."""
        async with aclosing(
            self.read_arrow(start, limits, verify=verify, stream=stream)
        ) as batches:
            async for batch in batches:
                for record in iter_records(batch):
                    yield record

    async def tail(
        self, start: int | None = None, *, verify: bool | None = None, stream: str | None = None
    ) -> AsyncGenerator[Record, None]:
        """Records from `start` on, for ever: waits for more at the end. Leave the loop to stop.

        It ends by itself where nothing can follow: behind a sealed log, or what a pin holds.
        Without `start`, from the end of the log as it is now. While nothing comes it costs one HEAD
        per poll.
        """
        async with aclosing(self.tail_arrow(start, verify=verify, stream=stream)) as batches:
            async for batch in batches:
                for record in iter_records(batch):
                    yield record

    async def tail_arrow(
        self, start: int | None = None, *, verify: bool | None = None, stream: str | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `tail`, in record batches."""
        view, etag = await self._load()
        position = view.next_offset if start is None else check_offset(start)
        poll_s = POLL_MIN_S
        while True:
            if position < view.next_offset:
                poll_s = POLL_MIN_S
                work = self._read(view, position, NO_LIMITS, verify, stream)
                async with aclosing(work) as batches:
                    while True:
                        batch = await self._unless_collected(anext(batches, None), view)
                        if batch is None:
                            break
                        yield batch
                position = view.next_offset
            else:
                poll_s = min(poll_s * 1.5, POLL_MAX_S)
            if view.is_final:
                return
            await asyncio.sleep(poll_s)
            if await self._objects.manifest_etag() != etag:
                view, etag = await self._load()

    def _checks(self, verify: bool | None) -> bool:
        return self._verify if verify is None else verify

    # Below: ranges.

    async def _limited(
        self, view: View, start: int | None, limits: Limits, stream: str | None = None
    ) -> AsyncGenerator[Fragment, None]:
        if stream is not None:
            check_record(b"", stream=stream)
            # How many records of a stream a fragment has is known when it is read.
            limits = msgspec.structs.replace(limits, max_records=None)
        begin, end = await self._bounds(view, start, limits)
        num_files = num_bytes = 0
        while begin < end:
            found = self._objects.walk(view.pointers, begin, end)
            if stream is not None and view.has_filters:
                found = Sieve(self._objects, stream).sift(view.pointers, view.sets, begin, end)
            try:
                async with aclosing(found) as walk:
                    async for fragment in walk:
                        num_files += 1
                        num_bytes += fragment.num_bytes
                        if num_files > 1 and (
                            (limits.max_files is not None and num_files > limits.max_files)
                            or (limits.max_bytes is not None and num_bytes > limits.max_bytes)
                        ):
                            return
                        yield fragment
                        begin = fragment.limit
            except CorruptionError as error:
                view = await self._newer(view, begin, error)
            else:
                return

    async def _bounds(self, view: View, start: int | None, limits: Limits) -> tuple[int, int]:
        """The offsets `[begin, end)` that offset, record and time limits leave."""
        begin = view.oldest_offset if start is None else check_offset(start)
        if begin < view.oldest_offset:
            # Offset 0 is before the first record of a log that starts at 1.
            if begin == 0 and view.oldest_offset == 1:
                begin = 1
            else:
                raise collected(self._objects.name, begin, view)
        end = view.next_offset
        if limits.start_time_us is not None:
            begin = max(begin, await self._offset_at(limits.start_time_us, view))
        if limits.limit_time_us is not None:
            end = min(end, await self._offset_at(limits.limit_time_us, view))
        if limits.limit_offset is not None:
            end = min(end, limits.limit_offset)
        if limits.max_records is not None:
            end = min(end, begin + limits.max_records)
        return begin, max(begin, end)

    async def _read(
        self,
        view: View,
        start: int | None,
        limits: Limits,
        verify: bool | None,
        stream: str | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        left = OFFSET_LIMIT - 1
        if stream is not None and limits.max_records is not None:
            left, limits = limits.max_records, msgspec.structs.replace(limits, max_records=None)
        begin, end = await self._bounds(view, start, limits)
        within = msgspec.structs.replace(
            limits, limit_offset=end, max_records=None, start_time_us=None, limit_time_us=None
        )
        ahead = Ahead(self._objects, verify=self._checks(verify))
        try:
            async with aclosing(self._limited(view, begin, within, stream)) as selected:
                fragment = await anext(selected, None) if left else None
                while (fragment is not None or ahead.fragments) and left:
                    while fragment is not None and not ahead.is_full:
                        ahead.add(fragment)
                        fragment = await anext(selected, None)
                    covered = ahead.fragments[0]
                    for rows in _cut(await ahead.take(), covered, begin, end):
                        batch = rows if stream is None else _of_stream(rows, stream).slice(0, left)
                        if batch.num_rows:
                            left -= batch.num_rows
                            yield batch
        finally:
            await ahead.drop()

    async def _unless_collected(self, work: Awaitable[T], view: View) -> T:
        """The result; if an object of an old manifest is gone because it was collected, say so."""
        try:
            return await work
        except CorruptionError as error:
            await self._newer(view, view.oldest_offset, error)
            raise

    async def _newer(self, view: View, begin: int, error: CorruptionError | CollectedError) -> View:
        """What is there now, for who was slow: a node of an old manifest was collected meanwhile.

        Raises:
            CollectedError: so were records from `begin` on.
            CorruptionError: nothing was, so what is missing is missing.
        """
        if error.code not in (Code.MISSING_OBJECT, Code.COLLECTED):
            raise error
        now, _ = await self._load()
        if now.oldest_offset <= view.oldest_offset:
            raise error
        if begin < now.oldest_offset:
            raise collected(self._objects.name, begin, now) from error
        return now

    # Time.

    async def offset_at(self, time_us: int) -> int:
        """The first offset stamped at `time_us` or later; the next offset if there is none.

        Timestamps never go back along a log that Cordwood wrote, so this is a bisection: a ranged
        GET per step. In a log written by others it finds one such place, not always the first.
        """
        given_number(time_us, "time_us")
        view, _ = await self._load()
        return await self._offset_at(time_us, view)

    async def _offset_at(self, time_us: int, view: View) -> int:
        low, high = view.oldest_offset, view.next_offset
        while low < high:
            try:
                fragment = await self._objects.find(view.pointers, (low + high) // 2)
                is_before = fragment is not None and await self._time_of(fragment) < time_us
            except (CorruptionError, CollectedError) as error:
                # Who is late looks again, among what is left.
                view = await self._newer(view, OFFSET_LIMIT, error)
                low, high = view.oldest_offset, max(high, view.oldest_offset)
                continue
            if fragment is None:
                break
            if is_before:
                low = fragment.limit
            else:
                high = fragment.start
        return max(low, view.oldest_offset)

    async def _time_of(self, fragment: Fragment) -> int:
        link = await self._objects.get_link(fragment)
        if link is not None:
            return link.at
        table = await self.fetch(fragment)
        return int(pc.max(table.column("timestamp_us")).as_py())


def _view_of(fragment: Fragment) -> View:
    return View((fragment,), fragment.start, fragment.limit, is_final=True)


def check_offset(offset: object) -> int:
    """The offset, if it can be one.

    Raises:
        InvalidInputError: it is not a number in range.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < OFFSET_LIMIT:
        raise InvalidInputError(f"an offset is a number from 0 to 2^63 - 1, not {offset!r}")
    return offset


def collected(name: str, offset: int, view: View) -> CollectedError:
    """The error for a range that is gone."""
    return CollectedError(
        f"log {name!r}: offset {offset} has been collected; "
        f"the oldest record is {view.oldest_offset}",
        hint=f"start at {view.oldest_offset} or later",
    )


def _cut(table: pa.Table, fragment: Fragment, begin: int, end: int) -> list[pa.RecordBatch]:
    """The rows of a fragment inside `[begin, end)`."""
    first = max(0, begin - fragment.start)
    last = min(fragment.limit, end) - fragment.start
    rows: list[pa.RecordBatch] = table.slice(first, max(0, last - first)).to_batches()
    return [batch for batch in rows if batch.num_rows]


def _of_stream(batch: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """The rows of a batch that belong to a stream."""
    if STREAM.name not in batch.schema.names:
        return batch.slice(0, 0)
    return batch.filter(pc.equal(batch.column(STREAM.name), stream))
