"""The index, as a user holds it: async, over an engine that blocks (engine.py).

Searching is quick and needs no waiting once a snapshot is open, so a snapshot's methods are plain
functions. Everything that reads or writes files runs in threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import Code, StateError
from cordwood.index.engine import CheckReport, Engine, IndexState, Writing
from cordwood.index.home import CompactReport
from cordwood.index.merge import Progress
from cordwood.index.operations import Op
from cordwood.index.place import home_of
from cordwood.index.query import Query
from cordwood.index.rank import Scoring
from cordwood.index.snapshot import Hit, Matches
from cordwood.index.snapshot import Snapshot as Taken
from cordwood.index.tokens import Splitter
from cordwood.store.url import Store

P = ParamSpec("P")
T = TypeVar("T")

Place = str | os.PathLike[str] | Store


class Index:
    """Documents by the words in them. Any number of tasks, threads and processes may use one."""

    def __init__(
        self,
        place: Place,
        name: str = "",
        *,
        tokenizer: Splitter | None = None,
        durable: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name an index; no I/O.

        Args:
            place: a directory, or a store.
            name: where in the store.
            tokenizer: your own, for an index that was created with it.
            durable: wait for the disk at every commit. Without it a power cut may cost the last
                commits, or the ledger's end; the death of a process costs nothing either way.
            clock: gives transactions their times.
            entropy: names what is made.
        """
        home = home_of(place, name, durable=durable, clock=clock, entropy=entropy)
        self._engine = Engine(home, splitter=tokenizer)

    @property
    def name(self) -> str:
        """Where it is."""
        return self._engine.home.name

    async def create(
        self,
        tokenizer: str | Splitter = "words",
        *,
        frequencies: bool = True,
        exist_ok: bool = False,
    ) -> None:
        """Make it, empty.

        Args:
            tokenizer: how texts become terms: `words`, `whitespace`, `ngrams:3`, `edges:8`,
                `trigrams`, or your own.
            frequencies: keep how often documents have their terms, which ranking needs.
            exist_ok: one that is there and is like this is no error.

        Raises:
            AlreadyExistsError: there is something at this place.
        """
        await _off(self._engine.create, tokenizer, frequencies=frequencies, exist_ok=exist_ok)

    def begin(
        self,
        *,
        marks: Mapping[str, bytes] | None = None,
        expected: Mapping[str, bytes | None] | None = None,
    ) -> Transaction:
        """A transaction, for an `async with` block: leaving the block commits, raising rolls back.

        Args:
            marks: what is to be kept with the transaction, by name, such as how far a source was
                read; a snapshot's `marks` has the newest of each.
            expected: marks that must be so when the transaction commits, else it is refused; None
                is for one that is not there. So work that is done twice counts once.
        """
        return Transaction(self._engine, marks, expected)

    async def search(
        self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25"
    ) -> list[Hit]:
        """The k ids that answer a query best, of the newest state. See `Snapshot.search`."""
        return (await _off(self._engine.newest)).search(query, k, scoring=scoring)

    async def match(self, query: str | Query) -> Matches:
        """All ids that a query finds, of the newest state. See `Snapshot.match`."""
        return (await _off(self._engine.newest)).match(query)

    def snapshot(self) -> Snapshot:
        """The index as it is when the `async with` block begins, for as long as it goes on."""
        return Snapshot(self._engine)

    async def merge(self, *, tiered: bool = False, progress: Progress | None = None) -> int:
        """Merge segments; how many fewer there are then.

        All that nobody else is merging become one; with `tiered` only those that are worth it.
        `progress` is called, in a thread, with steps done and steps to do.
        """
        return await _off(self._engine.merge, tiered=tiered, progress=progress)

    async def compact(self) -> CompactReport:
        """Drop merged segments, and shorten the ledger, as far as no handle needs them."""
        return await _off(self._engine.compact)

    async def check(self, progress: Progress | None = None) -> CheckReport:
        """Read all of it and compare its parts; `progress` is called with bytes done and to do."""
        return await _off(self._engine.check, progress)

    async def state(self) -> IndexState:
        """What there is."""
        return await _off(self._engine.state)

    async def new_id(self, name: str) -> int:
        """A number that nobody has had from the generator of this name: 1 or higher."""
        return await _off(self._engine.new_id, name)

    async def close(self) -> None:
        """Close the handle that searching opened; it opens again when it is needed."""
        await _off(self._engine.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Index({self.name!r})"


class Transaction:
    """Documents to add and to delete, all at once or not at all."""

    def __init__(
        self,
        engine: Engine,
        marks: Mapping[str, bytes] | None,
        expected: Mapping[str, bytes | None] | None,
    ) -> None:
        """Made by `Index.begin`."""
        self._engine = engine
        self._given = (marks, expected)
        self._opened: Writing | None = None

    async def __aenter__(self) -> Self:
        self._opened = await _off(Writing, self._engine, *self._given)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        if kind is not None:
            await _off(self._writing.roll_back)
        elif not self._writing.is_over:
            await _off(self._writing.commit)

    async def add(self, user_id: bytes, text: str | bytes) -> None:
        """A document; several may have the same id."""
        await self._do("add", user_id, text)

    async def add_arrow(self, ids: Any, texts: Any) -> None:
        """Documents from Arrow arrays, or lists."""
        await _off(self._writing.add, ids, texts)

    async def add_terms(self, user_id: bytes, terms: Sequence[bytes]) -> None:
        """A document with the terms that somebody else has made, repeated as they repeat."""
        await _off(self._writing.add_terms, [user_id], [terms])

    async def add_terms_arrow(self, ids: Any, terms: Any) -> None:
        """The same of many: an array of lists of terms."""
        await _off(self._writing.add_terms, ids, terms)

    async def update(self, user_id: bytes, text: str | bytes) -> None:
        """Delete every document of an id, and add one."""
        await self._do("update", user_id, text)

    async def delete(self, user_id: bytes) -> None:
        """Delete every document of an id that is there now or was added before this call."""
        await self._do("delete", user_id)

    async def delete_arrow(self, ids: Any) -> None:
        """The same of many ids."""
        await _off(self._writing.delete, ids)

    async def delete_matching(self, query: str | Query) -> int:
        """Delete every id that a query finds, without looking at what was added; how many."""
        return await _off(self._writing.delete_matching, query)

    def mark(self, name: str, value: bytes) -> None:
        """Keep something with the transaction."""
        self._writing.mark(name, value)

    async def commit(self) -> int | None:
        """Make it count now; its number, or None if there was nothing to do."""
        return await _off(self._writing.commit)

    async def roll_back(self) -> None:
        """Forget it."""
        await _off(self._writing.roll_back)

    async def _do(self, op: Op, user_id: bytes, text: str | bytes = b"") -> None:
        if self._writing.do(op, user_id, text):
            await _off(self._writing.drain)

    @property
    def _writing(self) -> Writing:
        if self._opened is None:
            raise StateError(
                "the transaction has not begun",
                code=Code.CLOSED,
                hint="use it as `async with index.begin() as txn:`",
            )
        return self._opened


class Snapshot:
    """An index at one moment: the same question gets the same answer."""

    def __init__(self, engine: Engine) -> None:
        """Made by `Index.snapshot`."""
        self._engine = engine
        self._open: Any = None
        self._seen: Taken | None = None

    async def __aenter__(self) -> Self:
        self._open = self._engine.visiting()
        _, self._seen = await _off(self._open.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._seen = None
        await _off(self._open.__exit__, None, None, None)

    def search(self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25") -> list[Hit]:
        """The k ids that answer a query best, the best first; equal ones in the order of ids.

        Raises:
            InvalidInputError: the query cannot be read, or k is not positive.
            StateError: the index keeps no frequencies, so nothing can be ranked.
        """
        return self._taken.search(query, k, scoring=scoring)

    def match(self, query: str | Query) -> Matches:
        """All ids that a query finds: a set, in no order and without ranking."""
        return self._taken.match(query)

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return self._taken.documents

    @property
    def marks(self) -> dict[str, bytes]:
        """What writers left with their transactions: of each name the newest."""
        return self._taken.marks

    @property
    def number(self) -> int:
        """The last transaction that it sees."""
        return self._taken.number

    @property
    def _taken(self) -> Taken:
        if self._seen is None:
            raise StateError(
                "the snapshot is not open",
                code=Code.CLOSED,
                hint="use it as `async with index.snapshot() as s:`",
            )
        return self._seen


async def _off(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a thread."""
    return await asyncio.to_thread(call, *args, **kwargs)
