"""The log, blocking. Each method is its async twin run on the background loop (base/portal.py)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

import pyarrow as pa

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import Code, LimitError, UncertainError
from cordwood.base.given import given
from cordwood.log import cursors as async_cursors
from cordwood.log import log as async_log
from cordwood.log import pins as async_pins
from cordwood.log import reader as async_reader
from cordwood.log import streams as async_streams
from cordwood.log import writer as async_writer
from cordwood.log.bulk import Committed, Staged, Token
from cordwood.log.chain.options import Protocol
from cordwood.log.chain.rebuild import Progress as RebuildProgress
from cordwood.log.chain.rebuild import RebuildReport
from cordwood.log.collect import FRAGMENTS_MAX, CollectReport
from cordwood.log.copy import CopyReport
from cordwood.log.copy import Progress as CopyProgress
from cordwood.log.cursors import Witness
from cordwood.log.deletion import Progress as CollectProgress
from cordwood.log.destroy import Progress as DestroyProgress
from cordwood.log.format import GRACE_S_DEFAULT, Fragment, Manifest, Seal
from cordwood.log.fragment import Compression
from cordwood.log.log import DEFAULT_OPTIONS, LogState
from cordwood.log.options import Options
from cordwood.log.reader import NO_LIMITS, Limits
from cordwood.log.records import Headers, Record, check_record, iter_records
from cordwood.log.recovery import BeforeNaming
from cordwood.log.roll import Stream
from cordwood.log.scrub import Progress, ScrubReport
from cordwood.store.url import Store
from cordwood.sync.answers import Answer, Failures
from cordwood.sync.iterate import blocking

HANDED_BYTES_MAX = 4 * 2**20
"""How far `append_soon` runs ahead of the loop; the rest of what is under way is in the queue."""

HANDED_ROW_BYTES = 1024
"""What a record costs on its way to the loop, beside its content."""


class Log:
    """One linearizable log in a store. See `cordwood.Log`."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a log; no I/O."""
        self._log = async_log.Log(store, name, clock=clock, entropy=entropy)

    @classmethod
    def from_url(cls, url: str | os.PathLike[str], **options: Any) -> Self:
        """The log that a single URL names."""
        named = async_log.Log.from_url(url, **options)
        return cls(named.store, named.name)

    @property
    def store(self) -> Store:
        """The store it lies in."""
        return self._log.store

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._log.name

    @property
    def url(self) -> str:
        """The URL that `from_url` takes."""
        return self._log.url

    def __repr__(self) -> str:
        return f"sync.{self._log!r}"

    def __eq__(self, other: object) -> bool:
        return self._log == other._log if isinstance(other, Log) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._log)

    def create(
        self,
        *,
        exist_ok: bool = False,
        protocol: Protocol | None = None,
        grace_s: int = GRACE_S_DEFAULT,
        shards: int = 1,
    ) -> None:
        """Create the log."""
        work = self._log.create(
            exist_ok=exist_ok, protocol=protocol, grace_s=grace_s, shards=shards
        )
        portal.current().run(work)

    def writer(
        self,
        *,
        create: bool = False,
        options: Options = DEFAULT_OPTIONS,
        before_naming: BeforeNaming | None = None,
    ) -> Writer:
        """A writer, to be opened with `with`. `before_naming` is awaited on the background loop."""
        return Writer(self._log.writer(create=create, options=options, before_naming=before_naming))

    def stage(
        self,
        data: pa.Table | pa.RecordBatch,
        token: Token,
        *,
        compression: Compression = DEFAULT_OPTIONS.compression,
    ) -> Staged:
        """Upload records for a bulk commit: nobody sees them until then."""
        return portal.current().run(self._log.stage(data, token, compression=compression))

    def commit(
        self,
        staged: Sequence[Staged],
        token: Token,
        *,
        before_naming: BeforeNaming | None = None,
    ) -> Committed:
        """Make uploads visible, in this order: all of them, once, however often it is called."""
        return portal.current().run(self._log.commit(staged, token, before_naming=before_naming))

    def reader(self, *, verify: bool = True, pin: str | None = None) -> Reader:
        """A reader, to be opened with `with`. With `pin`, of what that pin holds."""
        return Reader(self._log.reader(verify=verify, pin=pin))

    def state(self) -> LogState:
        """Where the log stands."""
        return portal.current().run(self._log.state())

    def find_write(self, error: UncertainError) -> int | None:
        """What became of an append that ended in UncertainError."""
        return portal.current().run(self._log.find_write(error))

    def manifest(self) -> Manifest:
        """The manifest itself."""
        return portal.current().run(self._log.manifest())

    def scrub(
        self,
        *,
        deep: bool = False,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        sample: int | None = None,
        progress: Progress | None = None,
    ) -> ScrubReport:
        """Prove that the log is whole."""
        work = self._log.scrub(
            deep=deep, start=start, limits=limits, sample=sample, progress=progress
        )
        return portal.current().run(work)

    def copy(
        self, other: Log, start: int | None = None, progress: CopyProgress | None = None
    ) -> CopyReport:
        """Copy the log as it is now to `other`, in this store or another."""
        given(other, Log, "the other log")
        return portal.current().run(self._log.copy(other._log, start, progress))

    def rebuild(
        self,
        start: int | None = None,
        limit: int | None = None,
        progress: RebuildProgress | None = None,
    ) -> RebuildReport:
        """Make a chain log's manifest anew from its fragments."""
        return portal.current().run(self._log.rebuild(start, limit, progress))

    def fork(self, other: Log, start: int | None = None) -> None:
        """Make `other` a log that begins as this one is now, and shares its files."""
        given(other, Log, "the other log")
        portal.current().run(self._log.fork(other._log, start))

    @property
    def cursors(self) -> Cursors:
        """Named positions, which hold back collection."""
        return Cursors(self._log.cursors)

    @property
    def streams(self) -> Streams:
        """Which streams records may belong to."""
        return Streams(self._log.streams)

    def pin(self, name: str, start: int, limit: int, *, ttl_s: int = 3_600) -> Pin:
        """Keep the files of `[start, limit)` for `ttl_s` seconds, while collection goes on."""
        return Pin(portal.current().run(self._log.pin(name, start, limit, ttl_s=ttl_s)))

    def pinned(self, name: str) -> Pin:
        """A pin made before, to renew or release it."""
        return Pin(portal.current().run(self._log.pinned(name)))

    def mark(
        self,
        *,
        keep_from: int | None = None,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
    ) -> CollectReport:
        """First step of a collection: write down what goes."""
        work = self._log.mark(keep_from=keep_from, max_fragments=max_fragments, max_share=max_share)
        return portal.current().run(work)

    def unlink(self) -> CollectReport:
        """Second step: take what was marked out of the manifest."""
        return portal.current().run(self._log.unlink())

    def sweep(self, *, grace_s: float = 0.0, rate: float | None = None) -> CollectReport:
        """Third step: delete what was unlinked, once the grace interval has passed."""
        return portal.current().run(self._log.sweep(grace_s=grace_s, rate=rate))

    def collect(
        self,
        keep_from: int | None = None,
        *,
        max_fragments: int = FRAGMENTS_MAX,
        max_share: float = 1.0,
        grace_s: float = 0.0,
        rate: float | None = None,
        wait_s: float = 5.0,
        take_over: bool = False,
        progress: CollectProgress | None = None,
    ) -> CollectReport:
        """Free what lies before every cursor: mark, unlink, sweep."""
        work = self._log.collect(
            keep_from,
            max_fragments=max_fragments,
            max_share=max_share,
            grace_s=grace_s,
            rate=rate,
            wait_s=wait_s,
            take_over=take_over,
            progress=progress,
        )
        return portal.current().run(work)

    def seal(self, reason: str = "", moved_to: str = "") -> Seal:
        """End the log for ever: nothing is appended any more."""
        return portal.current().run(self._log.seal(reason, moved_to))

    def migrate(self, other: Log, reason: str = "moved") -> None:
        """Seal the log, then create `other` where this one ends."""
        given(other, Log, "the other log")
        portal.current().run(self._log.migrate(other._log, reason))

    def destroy(self, progress: DestroyProgress | None = None) -> int:
        """Delete the log and everything of it; the number of objects deleted."""
        return portal.current().run(self._log.destroy(progress))


class Cursors:
    """The cursors of one log. See `cordwood.Cursors`."""

    def __init__(self, cursors: async_cursors.Cursors) -> None:
        """Made by `Log.cursors`."""
        self._cursors = cursors

    def init(self, name: str, offset: int, *, owner: str = "") -> Witness:
        """Create a cursor."""
        return portal.current().run(self._cursors.init(name, offset, owner=owner))

    def load(self, name: str) -> Witness:
        """The cursor as it is now."""
        return portal.current().run(self._cursors.load(name))

    def save(self, name: str, offset: int, witness: Witness, *, owner: str = "") -> Witness:
        """Move a cursor."""
        return portal.current().run(self._cursors.save(name, offset, witness, owner=owner))

    def delete(self, name: str, witness: Witness) -> None:
        """Delete a cursor."""
        portal.current().run(self._cursors.delete(name, witness))

    def list(self, *, strict: bool = True) -> dict[str, Witness]:
        """Every cursor by its name."""
        return portal.current().run(self._cursors.list(strict=strict))


class Streams:
    """The streams of one log. See `cordwood.Streams`."""

    def __init__(self, streams: async_streams.Streams) -> None:
        """Made by `Log.streams`."""
        self._streams = streams

    def open(self, *names: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Open streams, all or none of them."""
        portal.current().run(self._streams.open(*names, metadata=metadata))

    def close(self, *names: str) -> None:
        """Close streams, all or none of them."""
        portal.current().run(self._streams.close(*names))

    def list(self, *, closed: bool = False) -> dict[str, Stream]:
        """The streams that are open, by name; with `closed`, all there ever were."""
        return portal.current().run(self._streams.list(closed=closed))

    def meta(self, name: str, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The metadata of a stream; with `metadata`, set it first."""
        return portal.current().run(self._streams.meta(name, metadata))


class Pin:
    """A hold on a range. See `cordwood.Pin`."""

    def __init__(self, pin: async_pins.Pin) -> None:
        """Made by `Log.pin`."""
        self._pin = pin
        self.name = pin.name

    @property
    def start(self) -> int:
        """The first offset held."""
        return self._pin.start

    @property
    def limit(self) -> int:
        """The first offset behind its range."""
        return self._pin.limit

    @property
    def ttl_s(self) -> int:
        """How long it holds after it was made or renewed."""
        return self._pin.ttl_s

    def renew(self, ttl_s: int | None = None) -> None:
        """Begin its time anew."""
        portal.current().run(self._pin.renew(ttl_s))

    def release(self) -> None:
        """End it."""
        portal.current().run(self._pin.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Writer:
    """Appends to one log; any thread may use it. See `cordwood.Writer`."""

    def __init__(self, writer: async_writer.Writer) -> None:
        """Not open yet."""
        self._writer = writer
        self._portal = portal.current()
        self._turn = asyncio.Lock()
        """Held on the loop by whoever appends: a record that waits for room is not overtaken."""
        self._handed_bytes = 0
        """What `append_soon` has handed to the loop and the writer has not taken yet."""
        self._mutex = threading.Lock()
        """Taken by itself, and not by way of the condition, where Ctrl-C could leave it taken."""
        self._taken = threading.Condition(self._mutex)
        self.failures = Failures()
        """Of `append_soon`."""

    @property
    def is_open(self) -> bool:
        """Whether it takes records."""
        return self._writer.is_open

    def open(self) -> Self:
        """Open, recover, adopt."""
        self._home().run(self._writer.open())
        return self

    def close(self) -> None:
        """Wait until everything appended is durable; then no more is taken.

        Raises:
            CordwoodError: what `append_soon` took was not appended, and nobody has asked its
                future. The writer is closed all the same.
        """
        self._close()
        self.failures.tell()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close()

    def append(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        stream: str | None = None,
    ) -> int:
        """Append one record; its offset, once it is durable."""
        return self._append(
            lambda: self._writer.append(body, key=key, headers=headers, stream=stream)
        )

    def append_many(self, bodies: Sequence[bytes], *, stream: str | None = None) -> int:
        """Append records as one atomic batch; the first one's offset, once they are durable."""
        return self._append(lambda: self._writer.append_many(bodies, stream=stream))

    def append_arrow(self, data: pa.Table | pa.RecordBatch) -> int:
        """Append Arrow data as one atomic batch; the first offset, once it is durable."""
        return self._append(lambda: self._writer.append_arrow(data))

    def append_soon(self, body: bytes, **fields: Any) -> Future[int]:
        """Append without waiting until it is durable: a future for the offset.

        Many records then share a fragment. They keep the order of the calls. Where `append` would
        raise because the queue is full, this waits for room, in the caller's thread.

        A record that fails does not hold up those after it. Whoever must not have a record without
        the ones before it waits for their offsets first, or appends them as one batch. A failure
        that nobody has asked the future for is raised by `close`, at the end of the `with` block.

        Raises:
            InvalidInputError, LimitError: as `append` does, but for a full queue. Whatever else
                `append` raises comes with the future.
        """
        num_bytes = check_record(body, **fields) + HANDED_ROW_BYTES
        body = bytes(body)
        home = self._home()
        home.check_outside()
        self._wait_for_the_loop(num_bytes)
        answer = Answer()

        def known(done: asyncio.Future[int]) -> None:
            answer.follow(done)
            self.failures.add(answer)

        async def take() -> None:
            try:
                async with self._turn:
                    taken = await self._when_there_is_room(body, fields)
                taken.add_done_callback(known)
            except BaseException as error:  # noqa: BLE001 - whatever it was, the caller must hear
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)
                    self.failures.add(answer)
            finally:
                with self._mutex:
                    self._handed_bytes -= num_bytes
                    if self._handed_bytes <= HANDED_BYTES_MAX // 2:
                        self._taken.notify_all()

        home.send(take())
        return answer

    def flush(self) -> None:
        """Wait until everything appended so far is durable or has failed."""
        self._home().run(self._after_all(self._writer.flush))

    def _close(self) -> None:
        self._home().run(self._after_all(self._writer.close))

    def _append(self, append: Callable[[], asyncio.Future[int]]) -> int:
        async def work() -> int:
            async with self._turn:
                taken = append()
            return await taken

        return self._home().run(work())

    def _wait_for_the_loop(self, num_bytes: int) -> None:
        with self._mutex:
            if self._handed_bytes + num_bytes > HANDED_BYTES_MAX:
                # Until half is taken: two threads that wake each other for every record are slow.
                half = HANDED_BYTES_MAX // 2
                self._taken.wait_for(
                    lambda: not self._handed_bytes or self._handed_bytes + num_bytes <= half
                )
            self._handed_bytes += num_bytes

    async def _when_there_is_room(self, body: bytes, fields: dict[str, Any]) -> asyncio.Future[int]:
        while True:
            try:
                return self._writer.append(body, **fields)
            except LimitError as error:
                if error.code is not Code.QUEUE_FULL:
                    raise
            await self._writer.flush()

    async def _after_all(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something when the writer has taken everything that was handed to it before."""
        async with self._turn:
            pass
        await work()

    def _home(self) -> portal.Portal:
        return portal.check_same(self._portal, "this writer")


class Reader:
    """Reads one log. See `cordwood.Reader`."""

    def __init__(self, reader: async_reader.Reader) -> None:
        """No I/O."""
        self._reader = reader

    def __enter__(self) -> Self:
        portal.current().run(self._reader.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def scan(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        stream: str | None = None,
    ) -> list[Fragment]:
        """The fragments that hold the records from `start` on, oldest first."""
        return portal.current().run(self._reader.scan(start, limits, stream=stream))

    def fetch(self, fragment: Fragment, *, verify: bool | None = None) -> pa.Table:
        """The records of a fragment."""
        return portal.current().run(self._reader.fetch(fragment, verify=verify))

    def fetch_bytes(self, fragment: Fragment) -> bytes:
        """The object as stored, unchecked."""
        return portal.current().run(self._reader.fetch_bytes(fragment))

    def read(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        verify: bool | None = None,
        stream: str | None = None,
    ) -> Iterator[Record]:
        """Records, in order."""
        for batch in self.read_arrow(start, limits, verify=verify, stream=stream):
            yield from iter_records(batch)

    def read_arrow(
        self,
        start: int | None = None,
        limits: Limits = NO_LIMITS,
        *,
        verify: bool | None = None,
        stream: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Record batches with exactly the records asked for, in order."""
        work = self._reader.read_arrow(start, limits, verify=verify, stream=stream)
        with blocking(work) as batches:
            yield from batches

    def tail(
        self, start: int | None = None, *, verify: bool | None = None, stream: str | None = None
    ) -> Iterator[Record]:
        """Records from `start` on, for ever: waits for more at the end."""
        for batch in self.tail_arrow(start, verify=verify, stream=stream):
            yield from iter_records(batch)

    def tail_arrow(
        self, start: int | None = None, *, verify: bool | None = None, stream: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `tail`, in record batches."""
        with blocking(self._reader.tail_arrow(start, verify=verify, stream=stream)) as batches:
            yield from batches

    def offset_at(self, time_us: int) -> int:
        """The first offset stamped at `time_us` or later; the next offset if there is none."""
        return portal.current().run(self._reader.offset_at(time_us))
