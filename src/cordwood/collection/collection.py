"""A collection: documents that are found by the next search once they are durable in a log.

::

    {name}/log      operations on documents, in their order (index/operations.py)
    {name}/index    segments of all operations up to the mark (index/shelf.py)

A search takes the index's newest snapshot, which says by its mark how far it goes, then asks the
log where it ends, and reads what lies between (tail.py). So it sees every operation acknowledged
before it began. If that was collected meanwhile, the index has it: it is asked again.

`compact` brings the index up to the log (pipeline/indexing.py), on whichever engine, and lets
collection free the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.collection.tail import Tail
from cordwood.index import operations
from cordwood.index.build import as_ids
from cordwood.index.engine import CheckReport, IndexState
from cordwood.index.engine import Engine as IndexEngine
from cordwood.index.operations import Op
from cordwood.index.query import Query
from cordwood.index.rank import Scoring
from cordwood.index.shelf import Shelf
from cordwood.index.snapshot import Hit, Matches, Snapshot
from cordwood.index.tokens import as_texts
from cordwood.log import tree
from cordwood.log.log import Log
from cordwood.log.reader import Limits
from cordwood.log.writer import Writer
from cordwood.pipeline.engine import AUTO, Engine, Progress
from cordwood.pipeline.indexing import CURSOR, IndexReport, index_log, lost
from cordwood.pipeline.merging import merge_index
from cordwood.store.url import Store

TRIES_MAX = 10
"""How often a search begins again because the log was collected under it."""

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", Snapshot, IndexState)


@dataclass(frozen=True, slots=True)
class CollectionState:
    """What a collection has."""

    documents: int
    """In the index."""
    segments: int
    waiting: int
    """Operations in the log that the index does not have yet."""
    waiting_bytes: int
    next_offset: int
    oldest_offset: int
    tokenizer: str


class Collection:
    """Documents in a store, by id. Any number of processes may add, change and search."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a collection; no I/O."""
        self.store = store if isinstance(store, Store) else Store(store)
        if not name or name.startswith("/") or name.endswith("/"):
            raise InvalidInputError(
                f"{name!r} cannot name a collection", hint="use a name such as docs or team/docs"
            )
        self.name = name
        self.log = Log(self.store, f"{name}/log", clock=clock, entropy=entropy)
        self._index_name = f"{name}/index"
        self._index = IndexEngine(Shelf(self.store, self._index_name, clock=clock, entropy=entropy))
        self._opening: asyncio.Task[Writer] | None = None
        self._tail: Tail | None = None
        self._turn = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The collection that a single URL names: its store's, a slash, and its name."""
        named = Log.from_url(url, **options)
        return cls(named.store, named.name)

    async def create(
        self,
        tokenizer: str = "words",
        *,
        frequencies: bool = True,
        grace_s: float | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make it, empty.

        Args:
            tokenizer: how texts become terms: `words`, `whitespace`, `ngrams:3`, `edges:8`.
            frequencies: keep how often documents have their terms, which ranking needs.
            grace_s: of its log, see `Log.create`.
            exist_ok: one that is there and is like this is no error.

        Raises:
            AlreadyExistsError: there is something at this place.
        """
        if not isinstance(tokenizer, str):
            raise InvalidInputError(
                "a collection's tokenizer is named: whoever compacts it has to know it",
                hint="use words, whitespace, ngrams:3 or edges:8; an Index takes one of your own",
            )
        options: dict[str, Any] = {} if grace_s is None else {"grace_s": grace_s}
        # The log and its cursor first: an index that is there can be searched.
        await self.log.create(exist_ok=True, **options)
        with suppress(AlreadyExistsError, CollectedError):  # Somebody was here before us.
            await self.log.cursors.init(CURSOR, 1)
        await _off(self._index.create, tokenizer, frequencies=frequencies, exist_ok=exist_ok)

    # What changes it.

    async def add(self, user_id: bytes, text: str | bytes) -> int:
        """One more document of this id; its place in the log, once it is durable."""
        return await self._append("add", user_id, text)

    async def update(self, user_id: bytes, text: str | bytes) -> int:
        """A document in place of all of this id; its place in the log, once it is durable."""
        return await self._append("update", user_id, text)

    async def delete(self, user_id: bytes) -> int:
        """No document of this id; the place in the log, once that is durable."""
        return await self._append("delete", user_id, b"")

    async def add_arrow(self, ids: Any, texts: Any) -> int:
        """Many more documents, all at once or none; the first one's place in the log."""
        return await self._append_many("add", ids, texts)

    async def update_arrow(self, ids: Any, texts: Any) -> int:
        """Many documents, each in place of all of its id; the first one's place in the log."""
        return await self._append_many("update", ids, texts)

    async def delete_arrow(self, ids: Any) -> int:
        """No documents of these ids, all at once; the first one's place in the log."""
        return await self._append_many("delete", ids, None)

    async def _append(self, op: Op, user_id: bytes, text: str | bytes) -> int:
        key = as_ids([user_id])[0].as_py()
        body = as_texts([text], takes_bytes=True)[0].as_py()
        headers = {operations.HEADER: op.encode()}
        return await (await self._writer()).append(body, key=key, headers=headers)

    async def _append_many(self, op: Op, ids: Any, texts: Any) -> int:
        keys = as_ids(ids)
        if texts is None:
            bodies = pa.array([b""] * len(keys), pa.large_binary())
        else:
            bodies = as_texts(texts, takes_bytes=True)
        if len(keys) != len(bodies):
            raise InvalidInputError(f"{len(keys)} ids came with {len(bodies)} documents")
        if not len(keys):
            raise InvalidInputError("no documents came", hint="give one at least")
        table = operations.columns(keys, bodies, op)
        return await (await self._writer()).append_arrow(table)

    async def _writer(self) -> Writer:
        """The writer, opened at the first change; all who wait for it wait for the same."""
        if self._opening is None or _is_over(self._opening):
            self._opening = asyncio.ensure_future(self._opened())
        return await asyncio.shield(self._opening)

    async def _opened(self) -> Writer:
        await self._asked(lambda: self._index.config)  # Is there a collection?
        return await self.log.writer().open()

    # What asks it.

    async def search(
        self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25"
    ) -> list[Hit]:
        """The k ids that answer a query best; every change acknowledged before counts."""
        return (await self.snapshot()).search(query, k, scoring=scoring)

    async def match(self, query: str | Query) -> Matches:
        """All ids that a query finds; every change acknowledged before counts."""
        return (await self.snapshot()).match(query)

    async def snapshot(self) -> Snapshot:
        """The collection as it is now, for as many questions as you like.

        It stays as it is in memory; nothing has to be closed.
        """
        async with self._turn:
            return await self._followed(self._index.newest, self._joined)

    async def _followed(
        self, ask: Callable[[], A], follow: Callable[[A, int], Coroutine[Any, Any, T]]
    ) -> T:
        """Ask the index, then the log from where the index ends; again if that was collected.

        The index has it by then: a mark that has not moved says that it never will.
        """
        before = 0
        for _ in range(TRIES_MAX):
            found = await self._asked(ask)
            start = int(found.marks.get(f"log:{self.log.name}", b"1"))
            try:
                return await follow(found, start)
            except CollectedError as error:
                oldest = (await self.log.manifest()).oldest_offset
                if before == start < oldest:
                    raise lost(self.log.name, oldest, start) from error
                before = start
        raise self._too_fast()

    def _too_fast(self) -> ConflictError:
        return ConflictError(
            f"the log of collection {self.name!r} is collected faster than it is read",
            hint="let collection wait longer: create it with a larger grace_s",
        )

    async def _joined(self, base: Snapshot, start: int) -> Snapshot:
        try:
            return (await self._caught_up(start)).over(base)
        except CollectedError:
            self._tail = None
            raise

    async def _caught_up(self, start: int) -> Tail:
        """The tail behind a snapshot of the index, up to the log's end."""
        if self._tail is None:
            config = self._index.config
            self._tail = Tail(self._index.cutter, frequencies=config.frequencies)
            self._tail.begin(start)
        tail = self._tail
        if tail.start != start:
            tail.begin(start)
        limit = (await self.log.manifest()).next_offset
        if limit > tail.limit:
            async with self.log.reader() as reader:
                batches = reader.read_arrow(tail.limit, Limits(limit_offset=limit))
                parts = [operations.read(pa.Table.from_batches([b])) async for b in batches]
            await _off(tail.add, operations.joined(parts), limit)
        return tail

    async def state(self) -> CollectionState:
        """What there is, and what waits for a compaction."""
        return await self._followed(self._index.state, self._waiting)

    async def _waiting(self, index: IndexState, start: int) -> CollectionState:
        manifest = await self.log.manifest()
        async with self.log.reader() as reader:
            waiting = await reader.scan(start) if start < manifest.next_offset else []
        return CollectionState(
            index.documents,
            index.segments,
            manifest.next_offset - start,
            sum(fragment.num_bytes for fragment in waiting),
            manifest.next_offset,
            manifest.oldest_offset,
            index.tokenizer,
        )

    # What keeps it quick.

    async def compact(
        self, engine: str | Engine = AUTO, *, progress: Progress | None = None
    ) -> IndexReport:
        """Bring the index up to the log, and merge what is worth it.

        Args:
            engine: `local`, `spark`, or `auto`: by how much waits.
            progress: called with bytes done and bytes in all.
        """
        config = await self._asked(lambda: self._index.config)
        report = await index_log(
            self.log,
            self._index_name,
            tokenizer=config.tokenizer,
            frequencies=config.frequencies,
            is_whole=True,
            engine=engine,
            progress=progress,
        )
        await merge_index(self.store, self._index_name, engine=engine)
        await _off(self._index.compact)
        return report

    async def check(self, progress: Progress | None = None) -> CheckReport:
        """Read the index and prove the log; `progress` is called with bytes done and to do."""
        tell = progress or (lambda _done, _total: None)
        of_index = of_log = 0

        def read_index(done: int, total: int) -> None:
            nonlocal of_index
            of_index = total
            tell(done, total)

        found = await self._asked(self._index.check, read_index)
        of_log = sum(pointer.num_bytes for pointer in tree.roots(await self.log.manifest()))
        scrubbed = await self.log.scrub(
            deep=True, progress=lambda done, _: tell(of_index + done.bytes, of_index + of_log)
        )
        errors = (*found.errors, *map(str, scrubbed.errors))
        return CheckReport(found.segments, found.documents, errors)

    async def close(self) -> None:
        """Wait until every change is durable or has failed; then let go of everything."""
        opening, self._opening = self._opening, None
        try:
            if opening is not None:
                await (await opening).close()
        finally:
            self._tail = None
            await _off(self._index.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _asked(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the index something, in a thread; without an index there is no collection."""
        try:
            return await _off(call, *args, **kwargs)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no collection named {self.name!r} in {self.store.url}",
                hint="create it first (collection.create() or `cordwood collection create`), or "
                "check the name and the store's URL",
            ) from error

    def __repr__(self) -> str:
        return f"Collection({self.store.url!r}, {self.name!r})"


def _is_over(opening: asyncio.Task[Writer]) -> bool:
    """Whether a writer failed to open, or has broken down since: then another is opened."""
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or not opening.result().is_open


async def _off(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a thread."""
    return await asyncio.to_thread(call, *args, **kwargs)
