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

A compaction appends a record that holds the ledger in short, without the segments that were merged
before every handle there is; it counts if no transaction came between it and what it was made from.
Then their files are removed, reading begins there, and the log before it is collected. Who opens a
handle takes its lease first and reads the ledger after that. So a compaction that has not seen the
lease looked at the ledger before the handle did, and removes nothing that its state has as live.

Segments are kept in a folder on this machine once they were read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
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
    FormatError,
    LimitError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.index import tombs
from cordwood.index.cache import SegmentCache
from cordwood.index.config import decoded, encoded
from cordwood.index.draft import Draft, entries, idmaps_for
from cordwood.index.home import CompactReport, Config, Files
from cordwood.index.leases import Leases
from cordwood.index.ledger import Compaction, State, Transaction, compacted, folded
from cordwood.index.ledgerlog import LogReader, Record, Shortened, decoded_record
from cordwood.index.merge import IdMap
from cordwood.index.sections import Sections
from cordwood.index.storeids import StoreIds
from cordwood.log.log import Log
from cordwood.store.api import Buffer, Match
from cordwood.store.leases import TTL_S, Lease
from cordwood.store.url import Store

CURSOR = "ledger"
"""The ledger's cursor: where reading begins."""

TRIES_MAX = 100
"""How often a transaction is tried that others come before."""

UPLOAD_TRUSTED_S = 86_400.0
ORPHAN_S = 7 * 86_400.0
"""What was uploaded is committed within a day or not at all; after a week it may go."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ShelfVisit:
    """An open handle."""

    reader: LogReader
    lease: Lease
    tombstones: dict[int, BitMap]
    is_open: bool = True

    @property
    def state(self) -> State:
        """See `Visit`."""
        return self.reader.state

    @property
    def kept(self) -> dict[int, Any]:
        """See `Visit`: its lease keeps them all."""
        return {}

    def check(self) -> None:
        """See `Visit`."""
        if not self.is_open:
            raise StateError("the handle is closed", code=Code.CLOSED)
        self.lease.check()


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
            first = Record(shortened=Shortened(0, (), ()))
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
            raise self._none() from error
        return decoded(data, f"{self.name}/config")

    def enter(self) -> ShelfVisit:
        """See `Home`."""
        return _run(self._enter(LogReader()))

    async def _enter(self, reader: LogReader) -> ShelfVisit:
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
        visit.check()
        if (await self._log.manifest()).next_offset == visit.reader.next:
            return False
        fresh = await self._enter(visit.reader.copy())  # If that fails, it stays where it was.
        old, visit.lease = visit.lease, fresh.lease
        visit.reader, visit.tombstones = fresh.reader, fresh.tombstones
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
            raise self._missing(key) from error

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """See `Home`: anywhere on this machine."""
        folder, owner = tempfile.mkdtemp(prefix="cordwood-index-"), os.getpid()
        try:
            yield Path(folder)
        finally:
            if os.getpid() == owner:  # Else this is a forked child, and the folder its parent's.
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, visit: Any, draft: Draft, files: Files) -> int:
        """See `Home`."""
        return _run(self._commit(visit, draft, files))

    async def _commit(self, visit: ShelfVisit, draft: Draft, files: Files) -> int:
        begun_s = self._clock.monotonic_s() if files.since_s is None else files.since_s
        visit.lease.check()
        await self._upload(files)
        reader = visit.reader.copy()
        for _ in range(TRIES_MAX):
            await self._catch_up(reader)
            visit.lease.check()
            if self._clock.monotonic_s() - begun_s > UPLOAD_TRUSTED_S:
                raise StateError(
                    "what is to be committed was uploaded more than a day ago, and may be removed",
                    hint="begin again; nothing of it counts",
                )
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
            try:
                counted = await self._counts(reader, offset)
                if counted:
                    return offset
                if counted is None:
                    visit.lease.check()  # While it holds, what the ledger leaves out is void.
            except (StoreError, StateError) as error:
                raise UncertainError(
                    f"transaction {offset} of {self.name} was written, and whether it counts could "
                    f"not be read: {error.message}",
                    hint="look whether the transaction is there before it is done again",
                ) from error
        raise ConflictError(
            f"a transaction of {self.name} was overtaken {TRIES_MAX} times",
            hint="try again: others commit very often",
        )

    async def _append(self, record: Record) -> int:
        """Append a record, once; if the answer is lost, look for it."""
        for _ in range(TRIES_MAX):
            try:
                return await self._write(record)
            except UncertainError as error:
                offset = await self._find(error)
                if offset is not None:
                    return offset
        raise LimitError(f"the ledger of {self.name} could not be written {TRIES_MAX} times")

    async def _write(self, record: Record) -> int:
        async with self._log.writer() as writer:
            return await writer.append(msgspec.msgpack.encode(record))

    async def _find(self, lost: UncertainError) -> int | None:
        try:
            try:
                return await self._log.find_write(lost)
            except UncertainError:
                # Its place is still empty. A record that says nothing closes it; then we know.
                await self._write(Record())
                return await self._log.find_write(lost)
        except StoreError as error:
            raise lost from error

    async def _counts(self, reader: LogReader, offset: int) -> bool | None:
        """Read as far as a record of ours; whether it counts.

        None says that the ledger was shortened past it and does not speak of it: it did not count,
        or, if our handle lapsed, was told more briefly.
        """
        for _ in range(TRIES_MAX):
            is_counted = False
            try:
                start = reader.next or await self._beginning()
                async for place, record in self._records(start, offset + 1):
                    is_counted = reader.take(place, record)
            except CollectedError:
                reader.restart()
                continue
            if start <= offset:
                return is_counted
            await self._catch_up(reader)
            return True if any(tx.id == offset for tx in reader.transactions) else None
        raise self._too_fast()

    async def _catch_up(self, reader: LogReader) -> None:
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
        raise self._too_fast()

    def _too_fast(self) -> ConflictError:
        return ConflictError(f"the ledger of {self.name} is collected faster than it is read")

    async def _beginning(self) -> int:
        try:
            return (await self._log.cursors.load(CURSOR)).offset
        except NotFoundError as error:
            with suppress(NotFoundError):
                await self._store.head(f"{self._prefix}config")
                raise self._missing(f"the cursor of {self._prefix}ledger") from error
            raise self._none() from error

    def _none(self) -> NotFoundError:
        return NotFoundError(f"there is no index at {self.name}", hint="create the index first")

    async def _records(self, start: int, limit: int | None) -> Any:
        async with self._log.reader() as reader:
            async for record in reader.read(start):
                if limit is not None and record.offset >= limit:
                    return
                try:
                    yield record.offset, decoded_record(record.body)
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
        try:
            data = (await self._store.get(f"{self._prefix}{name}")).data
        except NotFoundError as error:
            raise self._missing(name) from error
        return IdMap(data, f"{self.name}/{name}")

    def _missing(self, key: str) -> CorruptionError:
        return CorruptionError(
            f"{self.name}: {key} is missing", where=key, hint="bring it back from a copy"
        )

    def release_merge(self, started: int) -> None:
        """See `Home`: a merge lives as long as the handle it was begun with."""

    def cancel_dead_merges(self) -> int:
        """See `Home`."""
        return _run(self._cancel_dead())

    async def _cancel_dead(self) -> int:
        reader = LogReader()
        await self._catch_up(reader)
        if not reader.state.merges:
            return 0
        dead = reader.dead_merges(await self._leases.live())
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
        cancelled = 0
        for _ in range(TRIES_MAX):
            reader = LogReader()
            await self._catch_up(reader)
            state, before = reader.state, len(reader.transactions)
            live = await self._leases.live()
            if reader.dead_merges(live):
                # Before anything is dropped that its end, should it come after all, is judged by.
                cancelled += await self._cancel_dead()
                continue
            oldest = min([state.id, *live.values()])
            plan = compacted(reader.transactions, state.id, oldest)
            for segment, docs in plan.tombstones.items():
                await self._bury(segment, docs, state.live[segment].documents)
            if plan.kept == reader.transactions:
                orphans = await self._sweep_orphans(reader)
                return CompactReport(0, 0, before, before, cancelled, orphans)
            buried = (reader.tombs | plan.tombstones.keys()) & state.live.keys()
            short = Shortened(plan.last, tuple(plan.kept), tuple(sorted(buried)))
            offset = await self._append(Record(shortened=short))
            if await self._counts(reader, offset):
                # Not before: what the ledger speaks of is there. A crash leaves it to the sweep.
                await self._remove(plan)
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

    async def _sweep_orphans(self, reader: LogReader) -> int:
        """Remove what was uploaded long ago and never committed, or left by a compaction."""
        state = folded(reader.transactions)  # Who read more than the ledger in short knows more.
        known = state.live.keys() | state.dead.keys()
        idmaps = _idmaps_of(state)
        now_us = await self._leases.now_us()
        old = []
        async for meta in self._store.list(f"{self._prefix}segment."):
            name = meta.key.removeprefix(f"{self._prefix}segment.")
            number, _, kind = name.partition(".")
            if not number.isdecimal() or now_us - meta.modified_us <= ORPHAN_S * 1e6:
                continue
            if int(number) not in (idmaps if kind == "idmap" else known):
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
        visit = await self._enter(LogReader())
        try:
            for number, live in visit.state.live.items():
                name = f"segment.{number}.idx"
                wrong += await self._check_one(name, lambda data, _: Sections(data, _).check())
                if number in visit.reader.tombs:
                    read = partial(_check_tombs, live.documents)
                    wrong += await self._check_one(f"segment.{number}.tomb", read)
            for number in sorted(_idmaps_of(folded(visit.reader.transactions))):
                wrong += await self._check_idmap(number)
        finally:
            await visit.lease.release()
        return wrong

    async def _check_idmap(self, number: int) -> list[str]:
        wrong = await self._check_one(f"segment.{number}.idmap", _check_idmap)
        if not wrong:
            return []
        newest = LogReader()
        await self._catch_up(newest)  # A compaction may have removed it just now.
        return wrong if number in _idmaps_of(folded(newest.transactions)) else []

    async def _check_one(self, name: str, read: Callable[[Any, str], list[str]]) -> list[str]:
        """Read an object as it is on the store, not in the folder on this machine."""
        try:
            data = (await self._store.get(f"{self._prefix}{name}")).data
            return await asyncio.to_thread(read, data, name)
        except NotFoundError:
            return [f"{self._prefix}{name} is missing"]
        except FormatError as error:
            return [error.message]

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

    async def _all_buried(self, reader: LogReader) -> dict[int, BitMap]:
        found = {}
        for number in reader.tombs & reader.state.live.keys():
            key = f"{self._prefix}segment.{number}.tomb"
            try:
                data = (await self._store.get(key)).data
            except NotFoundError as error:
                raise self._missing(key) from error
            found[number] = tombs.decoded(data, reader.state.live[number].documents, key)
        return found


def _idmaps_of(state: State) -> set[int]:
    """The segments whose idmaps the ledger needs."""
    return {dead.into for dead in state.dead.values()}


def _check_tombs(documents: int, data: Buffer, name: str) -> list[str]:
    tombs.decoded(bytes(data), documents, name)
    return []


def _check_idmap(data: Buffer, name: str) -> list[str]:
    IdMap(data, name)
    return []


def _run(work: Coroutine[Any, Any, T]) -> T:
    return portal.current().run(work)
