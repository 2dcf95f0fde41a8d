"""The collection, blocking: each method is its async twin on the background loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.collection import collection as async_collection
from cordwood.collection.collection import CollectionState
from cordwood.index.engine import CheckReport
from cordwood.index.query import Query
from cordwood.index.rank import Scoring
from cordwood.index.snapshot import Hit, Matches, Snapshot
from cordwood.pipeline.engine import AUTO, Engine, Progress
from cordwood.pipeline.indexing import IndexReport
from cordwood.store.url import Store
from cordwood.sync.log import Log

T = TypeVar("T")


class Collection:
    """Documents in a store, by id. See `cordwood.Collection`."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a collection; no I/O."""
        self._portal = portal.current()
        self._collection = async_collection.Collection(store, name, clock=clock, entropy=entropy)
        self.store = self._collection.store
        self.name = name
        self.log = Log(self.store, self._collection.log.name)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The collection that a single URL names."""
        named = Log.from_url(url, **options)
        return cls(named.store, named.name)

    def create(
        self,
        tokenizer: str = "words",
        *,
        frequencies: bool = True,
        grace_s: float | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make it, empty."""
        self._run(
            self._collection.create(
                tokenizer, frequencies=frequencies, grace_s=grace_s, exist_ok=exist_ok
            )
        )

    def add(self, user_id: bytes, text: str | bytes) -> int:
        """One more document of this id; its place in the log, once it is durable."""
        return self._run(self._collection.add(user_id, text))

    def update(self, user_id: bytes, text: str | bytes) -> int:
        """A document in place of all of this id; its place in the log, once it is durable."""
        return self._run(self._collection.update(user_id, text))

    def delete(self, user_id: bytes) -> int:
        """No document of this id; the place in the log, once that is durable."""
        return self._run(self._collection.delete(user_id))

    def add_arrow(self, ids: Any, texts: Any) -> int:
        """Many more documents, all at once or none; the first one's place in the log."""
        return self._run(self._collection.add_arrow(ids, texts))

    def update_arrow(self, ids: Any, texts: Any) -> int:
        """Many documents, each in place of all of its id; the first one's place in the log."""
        return self._run(self._collection.update_arrow(ids, texts))

    def delete_arrow(self, ids: Any) -> int:
        """No documents of these ids, all at once; the first one's place in the log."""
        return self._run(self._collection.delete_arrow(ids))

    def search(self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25") -> list[Hit]:
        """The k ids that answer a query best; every change acknowledged before counts."""
        return self._run(self._collection.search(query, k, scoring=scoring))

    def match(self, query: str | Query) -> Matches:
        """All ids that a query finds; every change acknowledged before counts."""
        return self._run(self._collection.match(query))

    def snapshot(self) -> Snapshot:
        """The collection as it is now, for as many questions as you like."""
        return self._run(self._collection.snapshot())

    def state(self) -> CollectionState:
        """What there is, and what waits for a compaction."""
        return self._run(self._collection.state())

    def compact(
        self, engine: str | Engine = AUTO, *, progress: Progress | None = None
    ) -> IndexReport:
        """Bring the index up to the log, and merge what is worth it."""
        return self._run(self._collection.compact(engine, progress=progress))

    def check(self, progress: Progress | None = None) -> CheckReport:
        """Read the index and prove the log; what is wrong."""
        return self._run(self._collection.check(progress))

    def close(self) -> None:
        """Wait until every change is durable or has failed; then let go of everything."""
        self._run(self._collection.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"sync.{self._collection!r}"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            portal.check_same(self._portal, f"collection {self.name!r}")
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)
