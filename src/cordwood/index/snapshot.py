"""An index at one moment: searching it gives the same answers for as long as it is open."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from cordwood.base.errors import InvalidInputError, StateError
from cordwood.index import rank
from cordwood.index.match import matching
from cordwood.index.query import Query, parse, positive
from cordwood.index.rank import Scorer, Scoring, Wanted
from cordwood.index.segment import View
from cordwood.index.tokens import Tokenizer


class Hit(NamedTuple):
    """An id that was found, with the score of its best document."""

    id: bytes
    score: float


class Snapshot:
    """Views of all live segments, taken together."""

    def __init__(
        self, views: Sequence[View], cutter: Tokenizer, number: int, marks: dict[str, bytes]
    ) -> None:
        """Of one state of the index."""
        # The largest first: it is most likely to have what the others cannot reach.
        self._views = sorted(views, key=lambda view: -view.documents)
        self._cutter = cutter
        self.number = number
        """The last transaction that it sees."""
        self.marks = marks
        """What writers left with their transactions."""
        self.documents = sum(view.documents for view in views)

    @property
    def views(self) -> Sequence[View]:
        """Its segments."""
        return self._views

    @cached_property
    def _average(self) -> float:
        tokens = sum(view.tokens for view in self._views)
        return tokens / self.documents if tokens else 1.0

    def search(self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25") -> list[Hit]:
        """The k ids that answer a query best, the best first; equal ones in the order of ids.

        Raises:
            InvalidInputError: the query cannot be read, or k is not positive.
            StateError: the index keeps no frequencies, so nothing can be ranked.
        """
        if k < 1:
            raise InvalidInputError(f"k is {k!r}", hint="ask for one hit or more")
        if scoring not in {"bm25", "tfidf"}:
            raise InvalidInputError(f"scoring is {scoring!r}", hint="use bm25 or tfidf")
        if any(not view.segment.frequencies for view in self._views):
            raise StateError(
                "the index keeps no frequencies, so nothing can be ranked",
                hint="use match, or create it with frequencies=True",
            )
        tree = self._parsed(query)
        leaves = Counter(positive(tree))
        scorer = Scorer(scoring, self._average)
        found = [[rank.find(view, leaf) for leaf in leaves] for view in self._views]
        weights = []
        for place, times in enumerate(leaves.values()):
            having = sum(
                rank.count(view, mine[place]) for view, mine in zip(self._views, found, strict=True)
            )
            weights.append(times * scorer.rarity(having, self.documents) if having else 0.0)
        scores: dict[bytes, float] = {}
        least = 0.0
        for view, mine in zip(self._views, found, strict=True):
            wanted = [Wanted(one, weight) for one, weight in zip(mine, weights, strict=True)]
            best = rank.best(view, tree, wanted, scorer, k, least)
            _gather(scores, view, best)
            if len(self._views) > 1 and len(scores) >= k:
                least = heapq.nlargest(k, scores.values())[-1]
        top = heapq.nsmallest(k, scores.items(), key=lambda item: (-item[1], item[0]))
        return [Hit(*item) for item in top]

    def match(self, query: str | Query) -> Matches:
        """All ids that a query finds, in no order and without ranking.

        Raises:
            InvalidInputError: the query cannot be read.
        """
        tree = self._parsed(query)
        return Matches([(view, matching(view, tree)) for view in self._views])

    def documents_of(self, ids: pa.Array) -> dict[int, BitMap]:
        """The documents of ids, by segment."""
        found = {}
        for view in self._views:
            table = view.segment.ids
            docs = BitMap()
            for ordinal in table.find_all(ids).tolist():
                docs.add_range(*table.documents(ordinal))
            docs -= view.deleted
            if docs:
                found[view.segment.number] = docs
        return found

    def _parsed(self, query: str | Query) -> Query:
        return parse(query, self._cutter) if isinstance(query, str) else query


def _gather(scores: dict[bytes, float], view: View, best: rank.Best) -> None:
    """Note the best score of each id."""
    if not len(best.docs):
        return
    ordinals = view.segment.ids.ordinals(best.docs)
    ids = view.segment.ids.take(ordinals).to_pylist()
    for user_id, score in zip(ids, best.scores.tolist(), strict=True):
        if score > scores.get(user_id, -1.0):
            scores[user_id] = score


class Matches(AbstractSet[bytes]):
    """The ids that a query found: a set that is not made before it is looked at."""

    def __init__(self, parts: list[tuple[View, BitMap]]) -> None:
        """Documents by view."""
        self._parts = [(view, docs) for view, docs in parts if docs]

    @classmethod
    def _from_iterable(cls, ids: Iterable[Any]) -> Any:
        return frozenset(ids)

    def __len__(self) -> int:
        if len(self._parts) == 1 and not self._parts[0][0].segment.ids.has_duplicates:
            return len(self._parts[0][1])
        return len(self.to_arrow())

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_arrow().to_pylist())

    def __contains__(self, user_id: object) -> bool:
        if not isinstance(user_id, bytes):
            return False
        for view, docs in self._parts:
            ordinal = view.segment.ids.find(user_id)
            if ordinal is not None:
                start, limit = view.segment.ids.documents(ordinal)
                if docs.range_cardinality(start, limit):
                    return True
        return False

    def __repr__(self) -> str:
        return f"<{len(self)} ids>"

    @property
    def documents(self) -> int:
        """How many documents; as many as ids, unless an id has several."""
        return sum(len(docs) for _, docs in self._parts)

    def to_arrow(self) -> pa.LargeBinaryArray:
        """The ids, each once."""
        return self._ids

    @cached_property
    def _ids(self) -> pa.LargeBinaryArray:
        parts = []
        for view, docs in self._parts:
            ids = view.segment.ids
            ordinals = ids.ordinals(np.frombuffer(docs.to_array(), np.uint32))
            if ids.has_duplicates:
                ordinals = ordinals[np.diff(ordinals, prepend=-1) > 0]  # They rise.
            parts.append(ids.take(ordinals).cast(pa.large_binary()))
        if not parts:
            return pa.nulls(0, pa.large_binary())  # pa.array would load pandas first.
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts).unique()
