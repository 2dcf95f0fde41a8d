"""An index at one moment: searching it gives the same answers for as long as it is open."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from cordwood.base.errors import InvalidInputError, StateError
from cordwood.index import rank
from cordwood.index.match import matching
from cordwood.index.query import Prefix, Query, Term, checked, parse, positive
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

    @cached_property
    def _is_ranked(self) -> bool:
        return all(view.segment.frequencies for view in self._views)

    def search(self, query: str | Query, k: int = 10, *, scoring: Scoring = "bm25") -> list[Hit]:
        """The k ids that answer a query best, the best first; equal ones in the order of ids.

        Raises:
            InvalidInputError: the query cannot be read, or k is not positive.
            StateError: the index keeps no frequencies, so nothing can be ranked.
        """
        if not _is_count(k):
            raise InvalidInputError(f"k is {k!r}", hint="ask for one hit or more")
        if scoring not in ("bm25", "tfidf"):
            raise InvalidInputError(f"scoring is {scoring!r}", hint="use bm25 or tfidf")
        if not self._is_ranked:
            raise StateError(
                "the index keeps no frequencies, so nothing can be ranked",
                hint="use match, or create it with frequencies=True",
            )
        tree = self._parsed(query)
        leaves: dict[Term | Prefix, int] = {}
        for leaf in positive(tree):
            leaves[leaf] = leaves.get(leaf, 0) + 1
        scorer = Scorer(scoring, self._average)
        found = [[rank.find(view, leaf) for leaf in leaves] for view in self._views]
        weights = []
        for place, times in enumerate(leaves.values()):
            having = 0
            for view, mine in zip(self._views, found, strict=True):
                having += rank.count(view, mine[place])
            weights.append(times * scorer.rarity(having, self.documents) if having else 0.0)
        bests = []
        least = 0.0
        for view, mine in zip(self._views, found, strict=True):
            wanted = list(map(Wanted, leaves, mine, weights))
            best = rank.best(view, tree, wanted, scorer, k, least)
            bests.append(best)
            least = max(least, _kth(view, best, k))
        return _hits(self._views, bests, k)

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
            mine = table.all_documents(table.find_all(ids)).astype(np.uint32)
            docs = BitMap(array("I", mine.tobytes())) - view.deleted
            if docs:
                found[view.segment.number] = docs
        return found

    def _parsed(self, query: str | Query) -> Query:
        return checked(parse(query, self._cutter) if isinstance(query, str) else query)


def _is_count(k: object) -> bool:
    return isinstance(k, int | np.integer) and bool(k >= 1)


def _kth(view: View, best: rank.Best, k: int) -> float:
    """The score that k ids of the view reach; 0 if there are not so many.

    Views are not taken together here: an id may have documents in several, and to know we would
    have to look it up.
    """
    if len(best.docs) < k:
        return 0.0
    if not view.segment.ids.has_duplicates:
        return float(best.scores[k - 1])
    firsts = np.unique(view.segment.ids.ordinals(best.docs), return_index=True)[1]
    return float(best.scores[np.sort(firsts)[k - 1]]) if len(firsts) >= k else 0.0


def _hits(views: Sequence[View], bests: Sequence[rank.Best], k: int) -> list[Hit]:
    """The best ids of all views. Ids are looked up from the best on, no more than it takes."""
    if len(views) == 1 and not views[0].segment.ids.has_duplicates:
        docs, scores = bests[0]
        return list(map(Hit, views[0].segment.ids.of_documents(docs), scores.tolist()))
    rows = [
        (-score, place, doc)
        for place, best in enumerate(bests)
        for doc, score in zip(best.docs.tolist(), best.scores.tolist(), strict=True)
    ]
    rows.sort()
    found: dict[bytes, float] = {}
    last = 0.0
    for below, place, doc in rows:
        if len(found) >= k and below > last:
            break  # Those that are as good as the last were looked at: ids decide among them.
        last = below
        found.setdefault(views[place].segment.ids.of_document(doc), -below)
    top = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(*item) for item in top[:k]]


def _different(view: View, docs: BitMap) -> int:
    """How many ids documents of a view have."""
    ids = view.segment.ids
    if not ids.has_duplicates:
        return len(docs)
    return len(np.unique(ids.ordinals(np.frombuffer(docs.to_array(), np.uint32))))


def _walk(view: View, docs: BitMap) -> Iterator[pa.LargeBinaryArray]:
    """The ids of documents of a view, each once."""
    return view.segment.ids.walk(np.frombuffer(docs.to_array(), np.uint32))


def _has(parts: Sequence[tuple[View, BitMap]], user_id: bytes) -> bool:
    """Whether some document among these is of an id."""
    for view, docs in parts:
        ordinal = view.segment.ids.find(user_id)
        if ordinal is not None and docs.range_cardinality(*view.segment.ids.documents(ordinal)):
            return True
    return False


class Matches(AbstractSet[bytes]):
    """The ids that a query found: a set that is not made before it is looked at."""

    def __init__(self, parts: list[tuple[View, BitMap]]) -> None:
        """Documents by view."""
        there = [(view, docs) for view, docs in parts if docs]
        self._parts = sorted(there, key=lambda part: -len(part[1]))

    @classmethod
    def _from_iterable(cls, ids: Iterable[Any]) -> Any:
        return frozenset(ids)

    def __len__(self) -> int:
        """How many. Where segments may share ids, those of all but the largest are looked at."""
        return self._count

    @cached_property
    def _count(self) -> int:
        if self._are_apart:
            return sum(_different(view, docs) for view, docs in self._parts)
        return _different(*self._parts[0]) + sum(map(len, self._others()))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[bytes]:
        """Each once, a batch at a time."""
        first = itertools.chain.from_iterable(_walk(*part) for part in self._parts[:1])
        for ids in itertools.chain(first, self._others()):
            yield from ids.to_pylist()

    def _others(self) -> Iterator[pa.LargeBinaryArray]:
        """The ids that the first part has not, the largest: it is asked for each, not listed."""
        for place, part in enumerate(self._parts[1:], 1):
            for ids in _walk(*part):
                if self._are_apart:
                    yield ids
                    continue
                had = [_has(self._parts[:place], user_id) for user_id in ids.to_pylist()]
                yield ids.filter(pc.invert(pa.array(had)))

    def __contains__(self, user_id: object) -> bool:
        return isinstance(user_id, bytes) and _has(self._parts, user_id)

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
                ordinals = np.unique(ordinals)
            parts.append(ids.take(ordinals).cast(pa.large_binary()))
        if not parts:
            return pa.nulls(0, pa.large_binary())  # pa.array would load pandas first.
        found = pa.concat_arrays(parts)
        return found if self._are_apart else found.unique()

    @cached_property
    def _are_apart(self) -> bool:
        """Whether no id can be in two segments: each has its own range of them."""
        spans = sorted(view.segment.ids.span for view, _ in self._parts)
        return all(before[1] < after[0] for before, after in itertools.pairwise(spans))
