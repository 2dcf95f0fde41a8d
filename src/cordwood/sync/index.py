"""The index, blocking. Unlike the other twins it needs no loop: the engine blocks by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.index.engine import CheckReport, Engine, IndexState, Writing
from cordwood.index.home import CompactReport
from cordwood.index.index import Place
from cordwood.index.merge import Progress
from cordwood.index.operations import Op
from cordwood.index.place import home_of
from cordwood.index.query import Query
from cordwood.index.rank import Scoring
from cordwood.index.snapshot import Hit, Matches, Snapshot
from cordwood.index.tokens import Splitter


class Index:
    """Documents by the words in them. See `cordwood.Index`."""

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
        """Name an index; no I/O."""
        home = home_of(place, name, durable=durable, clock=clock, entropy=entropy)
        self._engine = Engine(home, splitter=tokenizer)

    @property
    def name(self) -> str:
        """Where it is."""
        return self._engine.home.name

    def create(
        self,
        tokenizer: str | Splitter = "words",
        *,
        frequencies: bool = True,
        exist_ok: bool = False,
    ) -> None:
        """Make it, empty."""
        self._engine.create(tokenizer, frequencies=frequencies, exist_ok=exist_ok)

    def begin(
        self,
        *,
        marks: Mapping[str, bytes] | None = None,
        expected: Mapping[str, bytes | None] | None = None,
    ) -> Transaction:
        """A transaction, for a `with` block: leaving the block commits, raising rolls back."""
        return Transaction(self._engine, marks, expected)

    def search(self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25") -> list[Hit]:
        """The k ids that answer a query best, of the newest state."""
        return self._engine.newest().search(query, k, scoring=scoring)

    def match(self, query: str | Query) -> Matches:
        """All ids that a query finds, of the newest state."""
        return self._engine.newest().match(query)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """The index as it is when the `with` block begins, for as long as it goes on."""
        with self._engine.visiting() as (_, snapshot):
            yield snapshot

    def merge(self, *, tiered: bool = False, progress: Progress | None = None) -> int:
        """Merge segments; how many fewer there are then."""
        return self._engine.merge(tiered=tiered, progress=progress)

    def compact(self) -> CompactReport:
        """Drop merged segments, and shorten the ledger, as far as no handle needs them."""
        return self._engine.compact()

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read all of it and compare its parts."""
        return self._engine.check(progress)

    def state(self) -> IndexState:
        """What there is."""
        return self._engine.state()

    def new_id(self, name: str) -> int:
        """A number that nobody has had from the generator of this name: 1 or higher."""
        return self._engine.new_id(name)

    def close(self) -> None:
        """Close the handle that searching opened; it opens again when it is needed."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"sync.Index({self.name!r})"


class Transaction:
    """Documents to add and to delete, all at once or not at all."""

    def __init__(
        self,
        engine: Engine,
        marks: Mapping[str, bytes] | None,
        expected: Mapping[str, bytes | None] | None,
    ) -> None:
        """Made by `Index.begin`; it begins here."""
        self._writing = Writing(engine, marks, expected)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self._writing.roll_back()
        elif not self._writing.is_over:
            self._writing.commit()

    def add(self, user_id: bytes, text: str | bytes) -> None:
        """A document; several may have the same id."""
        self._do("add", user_id, text)

    def add_arrow(self, ids: Any, texts: Any) -> None:
        """Documents from Arrow arrays, or lists."""
        self._writing.add(ids, texts)

    def add_terms(self, user_id: bytes, terms: Sequence[bytes]) -> None:
        """A document with the terms that somebody else has made, repeated as they repeat."""
        self._writing.add_terms([user_id], [terms])

    def add_terms_arrow(self, ids: Any, terms: Any) -> None:
        """The same of many: an array of lists of terms."""
        self._writing.add_terms(ids, terms)

    def update(self, user_id: bytes, text: str | bytes) -> None:
        """Delete every document of an id, and add one."""
        self._do("update", user_id, text)

    def delete(self, user_id: bytes) -> None:
        """Delete every document of an id that is there now or was added before this call."""
        self._do("delete", user_id)

    def delete_arrow(self, ids: Any) -> None:
        """The same of many ids."""
        self._writing.delete(ids)

    def delete_matching(self, query: str | Query) -> int:
        """Delete every id that a query finds, without looking at what was added; how many."""
        return self._writing.delete_matching(query)

    def mark(self, name: str, value: bytes) -> None:
        """Keep something with the transaction."""
        self._writing.mark(name, value)

    def commit(self) -> int | None:
        """Make it count now; its number, or None if there was nothing to do."""
        return self._writing.commit()

    def roll_back(self) -> None:
        """Forget it."""
        self._writing.roll_back()

    def _do(self, op: Op, user_id: bytes, text: str | bytes = b"") -> None:
        if self._writing.do(op, user_id, text):
            self._writing.drain()
