"""A partition in a directory and on a store: appended here, uploaded there, read from both.

Records are acknowledged as their topic says: when they are in the journal, or, with `store`, when
they are on the store. What is in the journal, and synced, is uploaded in the background to the log
that the partition is on the store (shelf.py), in order and by one process at a time (the lock file
`upload`). A record has the same offset in both: what is uploaded next is what the log says, the
record at its next offset, and nothing else is kept of it. A block goes to the log only at the place
where it belongs: who finds that the log goes on elsewhere, since a block whose answer was lost has
arrived after all, writes nothing and looks again.

Extents that are uploaded, and old enough, are deleted here; what was in them is read from the
store. The store may be away: then nothing is uploaded or deleted, and appends go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from cordwood.base import portal
from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    CollectedError,
    CordwoodError,
    CorruptionError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.journal import frames
from cordwood.journal.extent import open_whatever
from cordwood.journal.group import Group, Ticket
from cordwood.journal.locks import Locks
from cordwood.journal.reading import READ_BYTES
from cordwood.log.writer import Writer
from cordwood.store.disk import Disk
from cordwood.topics.batch import Columns, Producer, Row
from cordwood.topics.config import TopicConfig
from cordwood.topics.home import Bounds, Offsets
from cordwood.topics.logged import LoggedPartition, LoggedScanning
from cordwood.topics.numbered import OvertakenError
from cordwood.topics.partition import LocalPartition, LocalScanning
from cordwood.topics.reserved import stored

UPLOAD_BYTES = 8_000_000
"""About so much is uploaded at once."""
UPLOAD_FIRST_S = 1.0
UPLOAD_MAX_S = 60.0
"""So long after an append it is uploaded; where that failed, twice as long, and so on."""
TRIES_MAX = 3

UploadProgress = Callable[[int, int], None]
"""Called with how many records were uploaded, and how many there are to upload."""

T = TypeVar("T")


class Uploaded(msgspec.Struct, frozen=True):
    """What became of a partition."""

    partition: int
    records: int
    """Uploaded now."""
    next: int
    """All records before this one are on the store."""


class UploadReport(msgspec.Struct, frozen=True):
    """What became of a topic."""

    partitions: list[Uploaded]


class TieredPartition(LocalPartition):
    """One partition. Any number of threads, tasks and processes append to it and read it."""

    def __init__(
        self,
        folder: str,
        config: TopicConfig,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        far: Callable[[], LoggedPartition],
    ) -> None:
        """No I/O. `far` opens the partition as it is on the store."""
        super().__init__(folder, config, disk, clock, entropy)
        self._open_far = far
        self._far: LoggedPartition | None = None
        self._locks = Locks(disk, entropy)
        self._uploads: Group[int, None] = Group(self._upload_for)
        self._delay_s = UPLOAD_FIRST_S
        self._uploaded: int | None = None
        """So far this process has uploaded."""

    def start_over(self) -> None:
        """See `LocalPartition`; and none is to upload."""
        super().start_over()
        self._waiting: threading.Timer | None = None

    def append(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`."""
        offsets = super().append(columns, producer)
        self._appended(int(offsets[-1]) + 1)
        return offsets

    def append_one(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        offset = super().append_one(row, producer)
        self._appended(offset + 1)
        return offset

    async def append_async(self, columns: Columns, producer: Producer | None = None) -> Offsets:
        """See `Partition`."""
        offsets = await super().append_async(columns, producer)
        await self._appended_async(int(offsets[-1]) + 1)
        return offsets

    async def append_one_async(self, row: Row, producer: Producer | None = None) -> int:
        """See `Partition`."""
        offset = await super().append_one_async(row, producer)
        await self._appended_async(offset + 1)
        return offset

    def bounds(self) -> Bounds:
        """See `Partition`. Asks the store if some were deleted here."""
        here = self.local_bounds()
        if not here.oldest:
            return here
        there = self.far.bounds()
        return here._replace(oldest=min(there.oldest, here.oldest)) if there.next else here

    def scan(self, offset: int) -> TieredScanning:
        """See `Partition`."""
        return TieredScanning(self, offset)

    @property
    def far(self) -> LoggedPartition:
        """The partition as it is on the store.

        Raises:
            StateError: what is there is another topic.
        """
        if self._far is None:
            found = self._open_far()
            if found.config.tier_id != self.config.tier_id:
                raise StateError(
                    f"{found.log.url} is not what {self.journal.folder} was uploaded to",
                    hint="two directories may not have one tier: move one of the topics away",
                )
            self._far = found
        return self._far

    def not_uploaded(self) -> int:
        """How many records are not on the store yet; at most so many, if it cannot be asked."""
        here = self.local_bounds()
        try:
            return max(0, here.next - self.far.bounds().next)
        except CordwoodError:
            return here.next - here.oldest

    def upload(self, progress: UploadProgress | None = None) -> int:
        """Upload all that is synced, and delete here what need not stay; where the log ends now.

        Raises:
            StoreError: the store failed; what it took is there.
            StateError: the log has records that are not here.
        """
        with self.journal.told("upload"):
            held = self._locks.wait(f"{self.journal.folder}/upload")
            try:
                end = self._upload(progress)
            finally:
                held.release()
        self._drop(end)
        return end

    def retain(self) -> int:
        """Let go of what is too old or too much, there and here; how many records went."""
        gone = self.far.retain()
        there = self.far.bounds()
        self._drop(there.next, there.oldest)
        return gone

    def close(self) -> None:
        """See `Partition`. What can be uploaded is, unless the store was away."""
        with self._mutex:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
            if not self.trouble:
                with suppress(CordwoodError):  # Whoever appends next uploads it.
                    self.upload()
        super().close()

    # Uploading.

    def _appended(self, end: int) -> None:
        if self.config.ack == "store":
            self._uploads.call(end, 0)
        else:
            self._upload_soon()

    async def _appended_async(self, end: int) -> None:
        if self.config.ack == "store":
            await self._uploads.call_async(end, 0)
        else:
            self._upload_soon()

    def _upload_for(self, tickets: Sequence[Ticket[int, None]]) -> None:
        """Upload for all who wait that their records are on the store."""
        try:
            end = self.upload()
        except CordwoodError as error:
            self._upload_soon()
            raise StoreError(
                f"the records are in {self.journal.folder} and not yet on the store: "
                f"{error.message}",
                applied=True,
                hint="they are uploaded later; to wait for that again, send them again with the "
                "same sequence numbers",
            ) from error
        for ticket in tickets:
            if ticket.item <= end:
                ticket.succeed(None)
            else:
                ticket.fail(StoreError(f"record {ticket.item - 1} was not uploaded", applied=True))

    def _upload(self, progress: UploadProgress | None) -> int:
        """Upload; by who holds the lock."""
        failure: CordwoodError | None = None
        for _ in range(TRIES_MAX):
            uploading = _Uploading(self.far)
            try:
                position = _run(uploading.open())
                try:
                    return self._upload_from(position, uploading, progress)
                finally:
                    _run(uploading.close())
            except (UncertainError, OvertakenError) as error:
                failure = error  # The log itself says how far it goes.
        assert failure is not None
        raise failure

    def _upload_from(
        self, position: int, uploading: _Uploading, progress: UploadProgress | None
    ) -> int:
        here, begin = self.local_bounds(), position
        if not here.oldest <= position <= here.next:
            raise StateError(
                f"{self.far.log.url} goes on with record {position}, and {self.journal.folder} has "
                f"{here.oldest} to {here.next - 1}: nothing was uploaded",
                hint="the directory is older than what was uploaded, or lost its newest records: "
                "bring it back, or read the topic on the store",
            )
        if position != self._uploaded and position > here.oldest:
            self._check_same(position - 1)
        scan = LocalScanning(self.journal, position)
        try:
            while batches := scan.take(UPLOAD_BYTES):
                block = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
                offsets = block.column("offset")
                if (offsets[0].as_py(), offsets[-1].as_py() + 1) != (
                    position,
                    position + block.num_rows,
                ):
                    raise frames.damage(
                        self.journal.folder, 0, f"records from {position} on are missing"
                    )
                _run(uploading.put(_content(block), position))
                position += block.num_rows
                if progress is not None:
                    progress(position - begin, max(position, here.next) - begin)
        finally:
            scan.close()
        self._uploaded = position
        return position

    def _check_same(self, last: int) -> None:
        """Make sure that the record that was uploaded last, by whomever, is the one that is here.

        Raises:
            StateError: it is another.
        """
        near = LocalScanning(self.journal, last)
        try:
            with suppress(CorruptionError, CollectedError):  # Then nobody can tell.
                mine, theirs = near.take(1)[0], self.far.scan(last).take(1)[0]
                columns = ["offset", "timestamp_us", "key", "value"]
                if mine.slice(0, 1).select(columns) != theirs.slice(0, 1).select(columns):
                    raise StateError(
                        f"record {last} of {self.far.log.url} is not the one that "
                        f"{self.journal.folder} has: nothing was uploaded",
                        hint="the directory is a copy of another that uploads as well: use that "
                        "one, or copy the records to a topic of another name",
                    )
        finally:
            near.close()

    def _upload_soon(self) -> None:
        """Make sure that what was appended is uploaded before long."""
        with self._mutex:
            if self._waiting is None:
                self._waiting = threading.Timer(self._delay_s, self._upload_now)
                self._waiting.daemon = True
                self._waiting.start()

    def _upload_now(self) -> None:
        with self._mutex:
            self._waiting = None
        try:
            self.upload()
            self.trouble, self._delay_s = "", UPLOAD_FIRST_S
        except NotFoundError as error:
            self.trouble = f"it is not uploaded: {error}"  # The topic is gone.
        except CordwoodError as error:
            self.trouble = f"it is not uploaded: {error}"
            self._delay_s = min(2 * self._delay_s, UPLOAD_MAX_S)
            self._upload_soon()

    def _drop(self, uploaded: int, gone: int = 0) -> None:
        """Delete extents that are on the store and old enough, or gone there; the oldest first."""
        keep_s = self.config.local_retention_s
        if keep_s is None:
            keep_s = self.config.retention_s
        if keep_s is None and not gone:
            return
        since_us = -1 if keep_s is None else self._clock.now_us() - int(keep_s * 1_000_000)
        with self.journal.told("delete"):
            old = [base for base, after in pairwise(self.journal.bases()) if after <= uploaded]
            if not old:
                return
            with self.journal.alone():
                for base, after in pairwise(self.journal.bases()):
                    extent, damage = open_whatever(self.journal.disk, self.journal.folder, after)
                    extent.close()
                    is_old = damage is None and extent.head.created_us <= since_us
                    if after > uploaded or not (is_old or after <= gone):
                        return
                    self.journal.disk.unlink(f"{self.journal.folder}/{base}.wal")
                    # One by one: no later one may be gone while an earlier one is back.
                    self.journal.disk.fsync_dir(self.journal.folder)


class _Uploading:
    """A writer of the log that puts blocks at their places, or not at all."""

    def __init__(self, far: LoggedPartition) -> None:
        """No I/O."""
        self._far = far
        self._writer: Writer = far.log.writer(before_naming=self._look)
        self._place: int | None = None

    async def open(self) -> int:
        """Adopt what a dead one left; the record that comes next."""
        await self._far.told(self._writer.open())
        return (await self._far.bounds_async()).next

    async def put(self, block: pa.RecordBatch, place: int) -> None:
        """Append a block whose first record is this one."""
        self._place = place
        try:
            found = await self._writer.append_arrow(block) - 1
        except StoreError as error:
            if isinstance(error.__cause__, OvertakenError | NotFoundError):
                raise error.__cause__ from error
            raise
        if found != place:
            raise StateError(
                f"record {place} became {found} in {self._far.log.url}",
                hint="something else wrote to the log; read the topic in the directory",
            )

    async def close(self) -> None:
        """Let go of the log."""
        await self._writer.close()

    async def _look(self, next_offset: int) -> None:
        await self._far.check_there()
        if self._place is not None and next_offset - 1 != self._place:
            raise OvertakenError(f"the log goes on with {next_offset - 1}, not {self._place}")


class TieredScanning:
    """A place in a partition: in the directory, or, if it was deleted there, on the store."""

    def __init__(self, partition: TieredPartition, offset: int) -> None:
        """No I/O."""
        self._partition = partition
        self._near = LocalScanning(partition.journal, offset, partition.flush_late)
        self._far: LoggedScanning | None = None
        self.offset = offset

    def take(self, max_bytes: int = READ_BYTES) -> list[pa.RecordBatch]:
        """See `Scanning`."""
        if self._far is None:
            try:
                found = self._near.take(max_bytes)
            except CollectedError:
                self._far = self._partition.far.scan(self.offset)
            else:
                self.offset = self._near.offset
                return found
        found = self._far.take(max_bytes)
        self.offset = self._far.offset
        if not found or self.offset >= self._partition.local_bounds().oldest:
            self.seek(self.offset)
        return found

    def may_have(self) -> bool:
        """See `Scanning`: to look is to take."""
        return True

    def seek(self, offset: int) -> None:
        """See `Scanning`."""
        self._near.seek(offset)
        self._far = None
        self.offset = offset

    def skip(self) -> int:
        """See `Scanning`."""
        self.offset = (self._near if self._far is None else self._far).skip()
        return self.offset

    def close(self) -> None:
        """See `Scanning`."""
        self._near.close()


def _content(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records of the directory as the log takes them, with the times that they have."""
    headers = batch.column("headers")
    return stored(
        Columns(
            batch.column("value"),
            batch.column("key"),
            None if headers.null_count == len(headers) else headers,
            batch.column("timestamp_us").to_numpy(),
        )
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
