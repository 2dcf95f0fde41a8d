"""An index on an object store, shared by any number of machines.

::

    {name}/config                       what the index is; written last
    {name}/ledger/…                     the ledger: a log of transactions (cordwood.log)
    {name}/segment.{id}.idx             documents; never changed
    {name}/segment.{id}.tomb            deleted documents that the ledger speaks of no more
    {name}/segment.{id}.idmap           where documents of merged segments went
    {name}/handles/{tx}_{id}.active     leases: open handles
    {name}/ids/{name}                   numbers handed out once

The log gives transactions their order, and with it their ids: a transaction's id is its offset. A
writer appends what fits the state it knows. Whether it counts is decided by who reads, in the order
of the log and for all alike (ledger.py): if something came in between that it does not fit, it is
void, and its writer, who reads as far as its own transaction, sees that and tries again.

A compaction removes files of segments that were merged before every handle there is, and appends a
record that holds the ledger in short; it counts if nothing came between it and what it was made
from. From then on reading begins there, and the log before it is collected. Who opens a handle
takes its lease first and reads the ledger after that. So a compaction that has not seen the lease
looked at the ledger before the handle did, and removes nothing that the handle's state has as live.

Segments are kept in a folder on this machine once they were read.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pyroaring import BitMap

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    ConflictError,
    CorruptionError,
    LimitError,
    NotFoundError,
    StateError,
    UncertainError,
)
from cordwood.index import tombs
from cordwood.index.cache import SegmentCache
from cordwood.index.config import decoded, encoded
from cordwood.index.draft import Draft, entries, idmaps_for
from cordwood.index.home import CompactReport, Config, Files
from cordwood.index.leases import TTL_S, Lease, Leases
from cordwood.index.ledger import Compaction, State, Transaction, compacted, folded
from cordwood.index.merge import IdMap
from cordwood.log.log import Log
from cordwood.store.api import Match
from cordwood.store.url import Store

CURSOR = "ledger"
"""The ledger's cursor: where reading begins."""

TRIES_MAX = 100
"""How often a transaction is tried that others come before."""

UPLOAD_TRUSTED_S = 86_400.0
ORPHAN_S = 7 * 86_400.0
"""What was uploaded is committed within a day or not at all; after a week it may go."""

T = TypeVar("T")


class Shortened(msgspec.Struct, frozen=True):
    """The ledger in short."""

    after: int
    """It counts only as the record next to this one."""
    kept: tuple[Transaction, ...]
    last: int
    tombs: tuple[int, ...]
    """Segments that have tombstones."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record of the ledger's log holds: one of these."""

    transaction: Transaction | None = None
    shortened: Shortened | None = None


_decoder = msgspec.msgpack.Decoder(Record)


@dataclass(slots=True)
class _Reader:
    """A state that follows the ledger."""

    state: State = field(default_factory=State)
    next: int = 0
    """The offset to read next; 0 before the first time."""
    transactions: list[Transaction] = field(default_factory=list)
    """All that count, for who compacts."""
    tombs: set[int] = field(default_factory=set)

    def copy(self) -> _Reader:
        return _Reader(self.state.copy(), self.next, list(self.transactions), set(self.tombs))

    def restart(self) -> None:
        """Forget everything."""
        self.state, self.next = State(), 0
        self.transactions, self.tombs = [], set()

    def take(self, offset: int, record: Record) -> bool:
        """The next record; whether it counts."""
        is_first = not self.next
        self.next = offset + 1
        if record.transaction is not None:
            transaction = msgspec.structs.replace(record.transaction, id=offset)
            try:
                self.state.apply(transaction)
            except ConflictError:
                return False
            self.transactions.append(transaction)
            return True
        short = record.shortened
        if short is None or (short.after != offset - 1 and not is_first):
            return False
        if is_first:
            self.state = folded(short.kept)
            self.state.id = max(self.state.id, short.last)
        self.transactions, self.tombs = list(short.kept), set(short.tombs)
        return True


@dataclass(slots=True, eq=False)
class ShelfVisit:
    """An open handle."""

    reader: _Reader
    lease: Lease
    tombstones: dict[int, BitMap]
    is_open: bool = True

    @property
    def state(self) -> State:
        """See `Visit`."""
        return self.reader.state


class Shelf:
    """The objects of an index."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        ttl_s: float = TTL_S,
        cache: str | None = None,
    ) -> None:
        """Name an index; no I/O. `cache` is the folder for segments on this machine."""
        self._store = store
        self._prefix = f"{name}/" if name else ""
        self._clock = clock
        self._entropy = entropy
        self._log = Log(store, f"{self._prefix}ledger", clock=clock, entropy=entropy)
        self._leases = Leases(store, self._prefix, clock, entropy, ttl_s=ttl_s)
        self._cache = SegmentCache(cache, self.name)

    @property
    def store_url(self) -> str:
        """The store it is in."""
        return self._store.url

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with."""
        return self._prefix

    @property
    def name(self) -> str:
        """Its place."""
        return f"{self._store.url}/{self._prefix}".rstrip("/")

    def create(self, config: Config) -> None:
        """See `Home`. The config comes last; whoever puts it first has created the index."""
        _run(self._create(config))

    async def _create(self, config: Config) -> None:
        key = f"{self._prefix}config"
        with suppress(NotFoundError):
            await self._store.head(key)
            raise self._there()
        await self._log.create(exist_ok=True)
        if (await self._log.state()).next_offset == 1:
            first = Record(shortened=Shortened(0, (), 0, ()))
            async with self._log.writer() as writer:
                await writer.append(msgspec.msgpack.encode(first))
        with suppress(AlreadyExistsError):
            await self._log.cursors.init(CURSOR, 1)
        try:
            await self._store.put(key, encoded(config), "create")
        except AlreadyExistsError as error:
            raise self._there() from error

    def _there(self) -> AlreadyExistsError:
        return AlreadyExistsError(f"{self.name} exists already", hint="open it, or name another")

    def config(self) -> Config:
        """See `Home`."""
        key = f"{self._prefix}config"
        try:
            data = _run(self._store.get(key)).data
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no index at {self.name}", hint="create the index first"
            ) from error
        return decoded(data, f"{self.name}/config")

    def enter(self) -> ShelfVisit:
        """See `Home`."""
        return _run(self._enter(_Reader()))

    async def _enter(self, reader: _Reader) -> ShelfVisit:
        """A handle at the newest state: the lease first, then the ledger once more."""
        await self._catch_up(reader)
        lease = await self._leases.take(reader.state.id)
        try:
            await self._catch_up(reader)
            buried = await self._all_buried(reader)
        except BaseException:
            await lease.release()
            raise
        lease.keep()
        return ShelfVisit(reader, lease, buried)

    def advance(self, visit: Any) -> bool:
        """See `Home`."""
        return _run(self._advance(visit))

    async def _advance(self, visit: ShelfVisit) -> bool:
        if not visit.is_open:
            raise StateError("the handle is closed", code=Code.CLOSED)
        visit.lease.check()
        if (await self._log.manifest()).next_offset == visit.reader.next:
            return False
        fresh = await self._enter(visit.reader)
        old, visit.lease = visit.lease, fresh.lease
        visit.tombstones = fresh.tombstones
        await old.release()
        return True

    def leave(self, visit: Any) -> None:
        """See `Home`."""
        if visit.is_open:
            visit.is_open = False
            _run(visit.lease.release())

    def new_segment(self) -> int:
        """See `Home`: chance, which needs to ask nobody."""
        return int(self._entropy.token()[:15], 16) + 1

    def new_ids(self, name: str) -> StoreIds:
        """See `Home`."""
        return StoreIds(self._store, f"{self._prefix}ids/{name}", self._entropy)

    def open_segment(self, number: int) -> Any:
        """See `Home`: from the folder on this machine, into which it is brought first."""
        found = self._cache.find(number)
        if found is not None:
            return found
        key = f"{self._prefix}segment.{number}.idx"
        try:
            return self._cache.keep(number, bytes(_run(self._store.get(key)).data))
        except NotFoundError as error:
            raise CorruptionError(f"{self.name}: {key} is missing", where=key) from error

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """See `Home`: anywhere on this machine."""
        with tempfile.TemporaryDirectory(prefix="cordwood-index-") as folder:
            yield Path(folder)

    def commit(self, visit: Any, draft: Draft, files: Files) -> int:
        """See `Home`."""
        return _run(self._commit(visit, draft, files))

    async def _commit(self, visit: ShelfVisit, draft: Draft, files: Files) -> int:
        begun_s = self._clock.monotonic_s()
        visit.lease.check()
        await self._upload(files)
        reader = visit.reader.copy()
        for _ in range(TRIES_MAX):
            await self._catch_up(reader)
            visit.lease.check()
            if self._clock.monotonic_s() - begun_s > UPLOAD_TRUSTED_S:
                raise StateError("the commit took more than a day", hint="begin again")
            head = reader.state
            idmaps = {n: await self._idmap(n, files) for n in idmaps_for(draft, head)}
            transaction = Transaction(
                head.id + 1,
                self._clock.now_us(),
                tuple(entries(draft, head, idmaps)),
                dict(draft.marks),
                dict(draft.expected),
                self._entropy.token(),
            )
            head.copy().apply(transaction)
            if draft.start:
                transaction = msgspec.structs.replace(transaction, by=visit.lease.key)
            offset = await self._append(Record(transaction=transaction))
            if await self._counts(reader, offset):
                return offset
        raise ConflictError(
            f"a transaction of {self.name} was overtaken {TRIES_MAX} times",
            hint="try again: others commit very often",
        )

    async def _append(self, record: Record) -> int:
        async with self._log.writer() as writer:
            try:
                return await writer.append(msgspec.msgpack.encode(record))
            except UncertainError as error:
                offset = await self._log.find_write(error)
                if offset is None:
                    raise
                return offset

    async def _counts(self, reader: _Reader, offset: int) -> bool:
        """Read as far as a record of ours; whether it counts."""
        is_counted = False
        async for place, record in self._records(reader.next, offset + 1):
            is_counted = reader.take(place, record)
        return is_counted

    async def _catch_up(self, reader: _Reader) -> None:
        """Read on to the ledger's end; from where it begins if what comes next was collected."""
        for _ in range(TRIES_MAX):
            start = reader.next or await self._beginning()
            try:
                async for offset, record in self._records(start, None):
                    reader.take(offset, record)
            except CollectedError:
                reader.restart()
                continue
            return
        raise ConflictError(f"the ledger of {self.name} is collected faster than it is read")

    async def _beginning(self) -> int:
        try:
            return (await self._log.cursors.load(CURSOR)).offset
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no index at {self.name}", hint="create the index first"
            ) from error

    async def _records(self, start: int, limit: int | None) -> Any:
        async with self._log.reader() as reader:
            async for record in reader.read(start):
                if limit is not None and record.offset >= limit:
                    return
                try:
                    yield record.offset, _decoder.decode(record.body)
                except msgspec.MsgspecError as error:
                    raise CorruptionError(
                        f"record {record.offset} of the ledger of {self.name} cannot be read: "
                        f"{error}",
                        where=self.name,
                        hint="it may have been written by something newer: update cordwood",
                    ) from error

    async def _upload(self, files: Files) -> None:
        puts = []
        for number, path in files.segments.items():
            puts.append((f"{self._prefix}segment.{number}.idx", path))
        for number, path in files.idmaps.items():
            puts.append((f"{self._prefix}segment.{number}.idmap", path))
        for key, path in puts:
            await self._store.put(key, await asyncio.to_thread(path.read_bytes), "overwrite")

    async def _idmap(self, number: int, files: Files) -> IdMap:
        name = f"segment.{number}.idmap"
        if number in files.idmaps:
            return IdMap(files.idmaps[number].read_bytes(), name)
        return IdMap((await self._store.get(f"{self._prefix}{name}")).data, f"{self.name}/{name}")

    def release_merge(self, started: int) -> None:
        """See `Home`: a merge lives as long as the handle it was begun with."""

    def cancel_dead_merges(self) -> int:
        """See `Home`."""
        return _run(self._cancel_dead())

    async def _cancel_dead(self) -> int:
        reader = _Reader()
        await self._catch_up(reader)
        if not reader.state.merges:
            return 0
        live = await self._leases.live()
        by = {tx.id: tx.by for tx in reader.transactions}
        dead = tuple(tx for tx in reader.state.merges if by.get(tx, "") not in live)
        if not dead:
            return 0
        visit = await self._enter(reader)
        try:
            await self._commit(visit, Draft(cancel=dead), Files({}, {}))
        except ConflictError:
            return 0  # Somebody else has cancelled them, or one has ended after all.
        finally:
            await visit.lease.release()
        return len(dead)

    def compact(self) -> CompactReport:
        """See `Home`."""
        return _run(self._compact())

    async def _compact(self) -> CompactReport:
        cancelled = await self._cancel_dead()
        for _ in range(TRIES_MAX):
            reader = _Reader()
            await self._catch_up(reader)
            state, before = reader.state, len(reader.transactions)
            oldest = min([state.id, *(await self._leases.live()).values()])
            plan = compacted(reader.transactions, state.id, oldest)
            for segment, docs in plan.tombstones.items():
                await self._bury(segment, docs, state.live[segment].documents)
            await self._remove(plan)
            if plan.kept == reader.transactions:
                return CompactReport(0, 0, before, before, cancelled, 0)
            buried = (reader.tombs | plan.tombstones.keys()) & state.live.keys()
            short = Shortened(reader.next - 1, tuple(plan.kept), plan.last, tuple(sorted(buried)))
            offset = await self._append(Record(shortened=short))
            if await self._counts(reader, offset):
                await self._begin_at(offset)
                return CompactReport(
                    len(plan.segments),
                    sum(map(len, plan.tombstones.values())),
                    before,
                    len(plan.kept),
                    cancelled,
                    await self._sweep_orphans(reader),
                )
        raise ConflictError(
            f"a compaction of {self.name} was overtaken {TRIES_MAX} times",
            hint="try again when fewer commit",
        )

    async def _remove(self, plan: Compaction) -> None:
        keys = [
            f"{self._prefix}segment.{number}.{kind}"
            for number in plan.segments
            for kind in ("idx", "tomb", "idmap")
        ]
        keys += [f"{self._prefix}segment.{number}.idmap" for number in plan.idmaps]
        if keys:
            await self._store.delete(keys)
            self._cache.forget(plan.segments)

    async def _begin_at(self, offset: int) -> None:
        """Reading begins at a record; the log before it may go."""
        witness = await self._log.cursors.load(CURSOR)
        if witness.offset < offset:
            # Somebody else may have moved it, further than we would.
            with suppress(ConflictError):
                await self._log.cursors.save(CURSOR, offset, witness)
        await self._log.collect()

    async def _sweep_orphans(self, reader: _Reader) -> int:
        """Remove what was uploaded long ago and never committed."""
        known = reader.state.live.keys() | reader.state.dead.keys()
        now_us = await self._leases.now_us()
        old = []
        async for meta in self._store.list(f"{self._prefix}segment."):
            number = meta.key.removeprefix(f"{self._prefix}segment.").partition(".")[0]
            age_us = now_us - meta.modified_us
            if number.isdecimal() and int(number) not in known and age_us > ORPHAN_S * 1e6:
                old.append(meta.key)
        if old:
            await self._store.delete(old)
        return len(old)

    def check(self) -> list[str]:
        """See `Home`: the ledger is proved, and files it speaks of are there."""
        return _run(self._check())

    async def _check(self) -> list[str]:
        report = await self._log.scrub(deep=True)
        wrong = [str(error) for error in report.errors]
        reader = _Reader()
        await self._catch_up(reader)
        for number in reader.state.live:
            key = f"{self._prefix}segment.{number}.idx"
            try:
                await self._store.head(key)
            except NotFoundError:
                wrong.append(f"{key} is missing")
        return wrong

    async def _bury(self, segment: int, docs: BitMap, documents: int) -> None:
        key = f"{self._prefix}segment.{segment}.tomb"
        while True:
            try:
                there = await self._store.get(key)
                mode: Any = Match(there.etag)
                docs = docs | tombs.decoded(there.data, documents, key)
            except NotFoundError:
                mode = "create"
            try:
                await self._store.put(key, tombs.encoded(docs, documents), mode)
            except UncertainError:
                raise
            except (AlreadyExistsError, ConflictError):
                continue
            return

    async def _all_buried(self, reader: _Reader) -> dict[int, BitMap]:
        found = {}
        for number in reader.tombs & reader.state.live.keys():
            key = f"{self._prefix}segment.{number}.tomb"
            data = (await self._store.get(key)).data
            found[number] = tombs.decoded(data, reader.state.live[number].documents, key)
        return found


class StoreIds:
    """Numbers from one object, from 1 on; any number of machines share it."""

    def __init__(self, store: Store, key: str, entropy: Entropy, *, block: int = 64) -> None:
        """The object is made when the first number is asked for."""
        self._store = store
        self._key = key
        self._entropy = entropy
        self._block = block
        self._next = self._limit = 0

    def next(self) -> int:
        """A number that nobody has had."""
        if self._next == self._limit:
            self._next = _run(self._take())
            self._limit = self._next + self._block
        number = self._next
        self._next += 1
        return number

    async def _take(self) -> int:
        for _ in range(TRIES_MAX):
            try:
                there = await self._store.get(self._key)
                begin = int(there.data.split()[0])
                mode: Any = Match(there.etag)
            except NotFoundError:
                begin, mode = 1, "create"
            text = f"{begin + self._block} {self._entropy.token()}"
            try:
                await self._store.put(self._key, text.encode(), mode)
            except UncertainError:
                continue  # Numbers may be passed over, but none is handed out twice.
            except (AlreadyExistsError, ConflictError):
                continue
            return begin
        raise LimitError(f"{self._key}: others take numbers all the time")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
