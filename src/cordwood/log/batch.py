"""What to write next: appends gather into batches, a batch becomes a fragment. No I/O, no waiting.

    append ──▶ open batch ──(full)──▶ closed batches ──take──▶ one fragment each

1. A batch closes when it holds `batch_bytes`; `take` closes the open one early, at its time.
2. An atomic block (append_many, append_arrow) is never split: it lies in one batch, so in one
   fragment, and becomes visible in one manifest.
3. Everything accepted whose outcome is not known counts against `queue_bytes`, in the queue or in
   flight. The queue refuses what would pass it, unless it is empty.
4. A batch taken back after contention goes to the front, in its old order.

A waiter is anything with the three methods of a future that are used here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from cordwood.base.errors import Code, LimitError, Retry, UncertainError
from cordwood.log.records import Content, Headers, concat, content_of_rows

FullRow: TypeAlias = tuple[bytes, bytes | None, Headers | None, str | None]
"""Body, key, headers, stream."""


class Waiter(Protocol):
    """Who is told where its records went."""

    def done(self) -> bool:
        """Whether it stopped waiting (its caller was cancelled)."""
        ...

    def set_result(self, offset: int, /) -> None:
        """Its first record has this offset and is durable."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Its records were not, or not certainly, written."""
        ...


class Watcher(Protocol):
    """Who wants to know that a batch is done with."""

    def done(self) -> bool:
        """Whether it stopped watching."""
        ...

    def set_result(self, nothing: None, /) -> None:
        """It is."""
        ...


class Rows:
    """Single records, one waiter each."""

    __slots__ = ("bodies", "headers", "keys", "num_bytes", "streams", "waiters")

    def __init__(self, *, plain: bool) -> None:
        """Rows that hold bodies only, or (not `plain`) the other columns as well."""
        self.bodies: list[bytes] = []
        self.waiters: list[Waiter] = []
        self.keys: list[bytes | None] | None = None if plain else []
        self.headers: list[Headers | None] = []
        self.streams: list[str | None] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        """How many records."""
        return len(self.bodies)

    def content(self) -> Content:
        """The rows as columns."""
        if self.keys is None:
            return content_of_rows(self.bodies, num_bytes=self.num_bytes)
        return content_of_rows(
            self.bodies, self.keys, self.headers, self.streams, num_bytes=self.num_bytes
        )


class Block:
    """One atomic append: many records, one waiter."""

    __slots__ = ("columns", "waiter")

    def __init__(self, columns: Content, waiter: Waiter) -> None:
        """Records that belong together, and who waits for them."""
        self.columns = columns
        self.waiter = waiter

    def __len__(self) -> int:
        """How many records."""
        return len(self.columns)

    @property
    def num_bytes(self) -> int:
        """How many bytes."""
        return self.columns.num_bytes


class Batch:
    """Appends that will share a fragment."""

    __slots__ = ("num_bytes", "num_records", "parts", "rows", "watchers")

    def __init__(self) -> None:
        """Nothing yet."""
        self.parts: list[Rows | Block] = []
        self.rows: Rows | None = None
        """The last part, while single records may still join it."""
        self.num_records = 0
        self.num_bytes = 0
        self.watchers: list[Watcher] = []
        """Told when every waiter has been told, however it ended."""

    def add_row(self, body: bytes, num_bytes: int, waiter: Waiter) -> None:
        """A record with a body only: the hot path."""
        rows = self.rows
        if rows is None:
            rows = self._begin_rows(plain=True)
        rows.bodies.append(body)
        rows.waiters.append(waiter)
        rows.num_bytes += num_bytes
        if rows.keys is not None:
            rows.keys.append(None)
            rows.headers.append(None)
            rows.streams.append(None)
        self.num_records += 1
        self.num_bytes += num_bytes

    def add_full_row(self, row: FullRow, num_bytes: int, waiter: Waiter) -> None:
        """A record with a key, headers or a stream."""
        rows = self.rows
        if rows is None or rows.keys is None:
            rows = self._begin_rows(plain=False)
        assert rows.keys is not None
        body, key, headers, stream = row
        rows.bodies.append(body)
        rows.waiters.append(waiter)
        rows.keys.append(key)
        rows.headers.append(headers)
        rows.streams.append(stream)
        rows.num_bytes += num_bytes
        self.num_records += 1
        self.num_bytes += num_bytes

    def add_block(self, columns: Content, waiter: Waiter) -> None:
        """An atomic append."""
        self.parts.append(Block(columns, waiter))
        self.rows = None
        self.num_records += len(columns)
        self.num_bytes += columns.num_bytes

    def content(self) -> Content:
        """Everything in order, as columns."""
        return concat([p.columns if isinstance(p, Block) else p.content() for p in self.parts])

    def split(self) -> list[Batch]:
        """Its parts as batches of their own, so that one cannot spoil another."""
        batches = []
        for part in self.parts:
            batch = Batch()
            batch.parts = [part]
            batch.num_records = len(part)
            batch.num_bytes = part.num_bytes
            batches.append(batch)
        batches[-1].watchers = self.watchers
        return batches

    @property
    def num_waiters(self) -> int:
        """How many are to be told."""
        return sum(1 if isinstance(part, Block) else len(part) for part in self.parts)

    def resolve(self, start: int, most: int) -> Iterator[int]:
        """Tell every waiter its offset, at most so many at a time; the batch begins at `start`.

        Yields how many were told.
        """
        offset = start
        for part in self.parts:
            if isinstance(part, Block):
                if not part.waiter.done():
                    part.waiter.set_result(offset)
                offset += len(part)
                yield 1
                continue
            for at in range(0, len(part), most):
                some = part.waiters[at : at + most]
                for waiter in some:
                    if not waiter.done():
                        waiter.set_result(offset)
                    offset += 1
                yield len(some)

    def fail(self, error: BaseException) -> None:
        """Tell every waiter that its records were not written, or not certainly."""
        index = 0
        for part in self.parts:
            is_block = isinstance(part, Block)
            for waiter in (part.waiter,) if isinstance(part, Block) else part.waiters:
                if not waiter.done():
                    own = error.at(index) if isinstance(error, UncertainError) else error
                    waiter.set_exception(own)
                index += len(part) if is_block else 1

    def told(self) -> None:
        """Tell who watches that everybody was told."""
        for watcher in self.watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _begin_rows(self, *, plain: bool) -> Rows:
        self.rows = Rows(plain=plain)
        self.parts.append(self.rows)
        return self.rows


class Queue:
    """Batches waiting for a slot, oldest first."""

    def __init__(self, batch_bytes: int, queue_bytes: int) -> None:
        """A batch closes at `batch_bytes`; all that is unresolved stays below `queue_bytes`."""
        self._batch_bytes = batch_bytes
        self._queue_bytes = queue_bytes
        self._closed: deque[Batch] = deque()
        self.open = Batch()
        """The batch that single records join. Never full: see close_if_full."""
        self.unresolved_bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._closed) or self.open.num_records > 0

    @property
    def has_full(self) -> bool:
        """Whether a whole batch waits, which need not wait for its time."""
        return bool(self._closed)

    def admit(self, num_bytes: int) -> None:
        """Count bytes in.

        Raises:
            LimitError: the queue is full; nothing was counted.
        """
        if self.unresolved_bytes and self.unresolved_bytes + num_bytes > self._queue_bytes:
            raise LimitError(
                f"the writer's queue is full: {self.unresolved_bytes} bytes wait, "
                f"{num_bytes} more would pass the limit of {self._queue_bytes}",
                code=Code.QUEUE_FULL,
                retry=Retry.NOW,
                hint="await some of the appends made so far, or raise Options.queue_bytes",
            )
        self.unresolved_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        """Count bytes out: what became of them is known, or they will not come."""
        self.unresolved_bytes -= num_bytes

    def open_for_block(self, num_bytes: int) -> Batch:
        """The batch an atomic block of this size joins: the open one if it still fits."""
        if self.open.num_records and self.open.num_bytes + num_bytes > self._batch_bytes:
            self._close_open()
        return self.open

    def close_if_full(self) -> bool:
        """Close the open batch if it has grown to its size; call after adding to it."""
        if self.open.num_bytes < self._batch_bytes:
            return False
        self._close_open()
        return True

    def waiting(self) -> list[Batch]:
        """Every batch that waits, oldest first."""
        return [*self._closed, *([self.open] if self.open.num_records else [])]

    def take(self) -> Batch:
        """The oldest batch; the open one if no other waits."""
        if not self._closed:
            self._close_open()
        return self._closed.popleft()

    def take_back(self, batches: Sequence[Batch]) -> None:
        """Batches that must be written again, before everything else."""
        self._closed.extendleft(reversed(batches))

    def drain(self) -> list[Batch]:
        """Everything that waits, taken out."""
        if self.open.num_records:
            self._close_open()
        batches = list(self._closed)
        self._closed.clear()
        return batches

    def _close_open(self) -> None:
        self._closed.append(self.open)
        self.open = Batch()
