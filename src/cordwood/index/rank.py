"""The best documents of a view for a query, by BM25 or TF-IDF.

A document's score is the sum over the query's wanted terms that it has, each as often as it is
written. How rare a term is, and how long documents are on average, is counted over the documents
that are there, in all segments together and without the deleted ones: so a score depends on the
documents alone, and not on how they lie in segments.

What only *may* have a term (OR) is ranked with pruning: lists are taken from the one that can
contribute most. As soon as k documents are known with scores that the rest of the lists together
cannot reach, documents in none of the lists so far are out, and those lists are asked about the
remaining candidates alone. No document is lost by that. Scores are added in double precision and
handed out in single, so that the order of adding does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cordwood.index.match import matching
from cordwood.index.postings import Long, Short
from cordwood.index.query import And, Or, Prefix, Query, Term
from cordwood.index.segment import Postings, Single, View, listed

Floats = npt.NDArray[np.float64]
Docs = npt.NDArray[Any]

Scoring = Literal["bm25", "tfidf"]

K1, B = 1.2, 0.75

_SLACK = 1e-6
"""Scores that differ by less, relatively, are not told apart while pruning."""

_FEW = 64
"""Up to so many documents are looked up one by one in a long list."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """Turns frequencies and lengths into scores."""

    scoring: Scoring
    average: float
    """Length of a document, on average."""

    def rarity(self, found: int, documents: int) -> float:
        """What one occurrence of a term is worth that so many of the documents have."""
        if self.scoring == "tfidf":
            return math.log(1 + documents / found)
        return math.log1p((documents - found + 0.5) / (found + 0.5))

    def parts(self, tfs: Any, lengths: Any) -> Any:
        """The part of a score that depends on the document: for numbers or arrays."""
        if self.scoring == "tfidf":
            return tfs * 1.0
        return tfs * (K1 + 1) / (tfs + K1 * (1 - B + B * lengths / self.average))


class Wanted(NamedTuple):
    """A leaf of the query in a view, with what it is worth."""

    found: Found
    weight: float


Found = Postings | tuple[Docs, Docs] | None
"""What a view has of a leaf: the list of a term, or documents and frequencies of a prefix."""


def find(view: View, leaf: Term | Prefix) -> Found:
    """Look a leaf up."""
    return view.segment.find(leaf.term) if isinstance(leaf, Term) else together(view, leaf)


def count(view: View, found: Found) -> int:
    """How many documents of the view have it."""
    if found is None:
        return 0
    if isinstance(found, Single | Short | Long):
        return view.count(found)
    return len(found[0])


class Best(NamedTuple):
    """Documents of a view and their scores, the best first; equal ones in the order of ids."""

    docs: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


_NONE = Best(np.empty(0, np.int64), np.empty(0, np.float32))


def best(
    view: View, query: Query, wanted: Sequence[Wanted], scorer: Scorer, k: int, least: float = 0.0
) -> Best:
    """The best documents for k different ids, all that score at least `least`."""
    leaves = [_Leaf(view, scorer, want) for want in wanted]
    count = k * view.segment.most_per_id
    if (driving := _driving(query)) is not None:
        drivers = [leaf for leaf in leaves[:driving] if leaf.size]
        if not drivers:
            return _NONE
        boosters = [leaf for leaf in leaves[driving:] if leaf.size]
        docs, scores = _any_of(view, drivers, boosters, count, least)
    else:
        leaves = [leaf for leaf in leaves if leaf.size]
        found = matching(view, query)
        if not found:
            return _NONE
        docs = np.frombuffer(found.to_array(), np.uint32).astype(np.int64)
        scores = np.zeros(len(docs))
        for leaf in leaves:
            leaf.add_to(docs, scores)
    return _topmost(docs, scores, count)


def _driving(query: Query) -> int | None:
    """How many different leaves, the first, make a document a candidate; None if it is not so easy.

    That is all of an OR; and of `(a OR b) AND (everything OR c OR d)` those before the AND, while
    the others only add to the score.
    """
    match query:
        case Term() | Prefix():
            return 1
        case Or(parts) if _are_leaves(parts):
            return len(set(parts))
        case And((Or(parts), Or((And(()), *boosters)))):
            if _are_leaves((*parts, *boosters)) and not set(parts) & set(boosters):
                return len(set(parts))
    return None


def _are_leaves(parts: Sequence[Query]) -> bool:
    return all(isinstance(part, Term | Prefix) for part in parts)


def _topmost(docs: Docs, scores: Floats, count: int) -> Best:
    """The best `count`, and all that are as good as the last of them."""
    single = scores.astype(np.float32)
    if len(single) > count:
        least = np.partition(single, len(single) - count)[len(single) - count]
        kept = np.flatnonzero(single >= least)
        docs, single = docs[kept], single[kept]
    order = np.lexsort((docs, -single))[:count]
    return Best(docs[order].astype(np.int64), single[order])


class _Leaf:
    """A wanted leaf in a view."""

    __slots__ = ("_docs", "_postings", "_scorer", "_view", "_weight", "bound", "size")

    def __init__(self, view: View, scorer: Scorer, want: Wanted) -> None:
        self._view = view
        self._scorer = scorer
        self._weight = want.weight
        self._docs: tuple[Docs, Floats] | None = None
        self._postings: Long | None = None
        self.bound = 0.0
        found = want.found
        if isinstance(found, Long):
            self._postings = found
            self.size = found.count
            tfs, lengths = found.bounds[:, 0], found.bounds[:, 1]
            self.bound = want.weight * float(scorer.parts(tfs, lengths).max())
            return
        if found is None:
            self.size = 0
            return
        if isinstance(found, Single | Short):
            self._docs = self._few(found)
        else:
            self._docs = self._scored(*found)
        self.size = len(self._docs[0])
        self.bound = float(self._docs[1].max()) if self.size else 0.0

    def scored(self) -> tuple[Docs, Floats]:
        """All its documents, and what each gains by it."""
        if self._docs is None:
            assert self._postings is not None
            docs, tfs = listed(self._postings)
            gone = self._view.is_gone
            if gone is not None:
                kept = ~gone[docs]
                docs, tfs = docs[kept], tfs[kept]
            self._docs = self._scored(docs, tfs)
        return self._docs

    def add_to(self, docs: Docs, scores: Floats) -> None:
        """Add what these documents gain by it; `docs` are rising."""
        if self._docs is None and len(docs) <= _FEW:
            self._add_to_few(docs, scores)
            return
        mine, gains = self.scored()
        # The document's own place in an array of all is found sooner than by halving.
        scratch = self._view.segment.scratch
        dense = scratch.pop() if scratch else np.zeros(self._view.segment.documents + 1)
        dense[mine] = gains
        scores += dense[docs]
        dense[mine] = 0.0
        scratch.append(dense)

    def _add_to_few(self, docs: Docs, scores: Floats) -> None:
        """Look up a few documents in a long list, without decoding it as a whole."""
        assert self._postings is not None
        mine = self._postings.members()
        hits = [place for place, doc in enumerate(docs.tolist()) if doc in mine]
        if hits:
            found = docs[hits]
            ranks = np.array([mine.rank(doc) - 1 for doc in found.tolist()])
            scores[hits] += self._scored(found, self._postings.tfs_at(ranks))[1]

    def _scored(self, docs: Docs, tfs: Docs) -> tuple[Docs, Floats]:
        lengths = self._view.segment.lengths[docs]
        return docs, self._weight * self._scorer.parts(tfs, lengths)

    def _few(self, postings: Single | Short) -> tuple[Docs, Floats]:
        docs = [postings.doc] if isinstance(postings, Single) else postings.docs
        tfs = [postings.tf] if isinstance(postings, Single) else postings.tfs
        if self._view.deleted:
            kept = [place for place, doc in enumerate(docs) if doc not in self._view.deleted]
            docs, tfs = [docs[place] for place in kept], [tfs[place] for place in kept]
        return self._scored(np.array(docs, np.int64), np.array(tfs, np.int64))


def together(view: View, leaf: Prefix) -> tuple[Docs, Docs]:
    """The terms that begin so, as one: documents, and how often each has any of them."""
    found = [listed(postings) for postings in view.segment.find_prefix(leaf.prefix)]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    docs, places = np.unique(np.concatenate([docs for docs, _ in found]), return_inverse=True)
    tfs = np.bincount(places, weights=np.concatenate([tfs for _, tfs in found])).astype(np.int64)
    gone = view.is_gone
    if gone is not None:
        kept = ~gone[docs]
        docs, tfs = docs[kept], tfs[kept]
    return docs.astype(np.int64), tfs


def _any_of(
    view: View, drivers: list[_Leaf], boosters: list[_Leaf], count: int, least: float
) -> tuple[Docs, Floats]:
    """Documents in any driver's list that may be among the best `count`, with their scores."""
    if len(drivers) == 1 and not boosters:
        return drivers[0].scored()
    drivers = sorted(drivers, key=lambda leaf: -leaf.bound)
    leaves = [*drivers, *sorted(boosters, key=lambda leaf: -leaf.bound)]
    rest = [*np.cumsum([leaf.bound for leaf in reversed(leaves)])[::-1].tolist(), 0.0]
    scratch = view.segment.scratch
    totals = scratch.pop() if scratch else np.zeros(view.segment.documents + 1)
    seen: list[Docs] = []
    threshold = least
    number = 0
    try:
        while number < len(drivers) and rest[number] >= threshold * (1 - _SLACK):
            docs, gains = drivers[number].scored()
            totals[docs] += gains
            seen.append(docs)
            number += 1
            threshold = max(threshold, _kth(totals[docs] if number > 1 else gains, count))
        if not seen:
            return np.empty(0, np.int64), np.empty(0)  # Other segments have better ones.
        return _finished(totals, seen, leaves[number:], rest[number:], threshold, count)
    finally:
        for docs in seen:
            totals[docs] = 0.0
        scratch.append(totals)


def _finished(
    totals: Floats,
    seen: list[Docs],
    leaves: list[_Leaf],
    rest: list[float],
    threshold: float,
    count: int,
) -> tuple[Docs, Floats]:
    """Candidates with whole scores: those seen so far, asked of the remaining lists."""
    kept = []
    for docs in seen:
        reach = totals[docs] + rest[0] >= threshold * (1 - _SLACK)
        kept.append(docs if reach.all() else docs[reach])
    docs = _different(np.concatenate(kept)) if len(kept) > 1 else kept[0]
    scores = totals[docs]
    for number, leaf in enumerate(leaves):
        leaf.add_to(docs, scores)
        threshold = max(threshold, _kth(scores, count))
        reach = scores + rest[number + 1] >= threshold * (1 - _SLACK)
        if not reach.all():
            docs, scores = docs[reach], scores[reach]
    return docs, scores


def _different(docs: Docs) -> Docs:
    """Each document once, rising: for numbers, sorting is quicker than the hashes of np.unique."""
    docs = np.sort(docs)
    is_new = np.ones(len(docs), np.bool_)
    np.not_equal(docs[1:], docs[:-1], out=is_new[1:])
    return docs[is_new]


def _kth(scores: Floats, count: int) -> float:
    """The score that so many reach; 0 if there are not so many."""
    if len(scores) < count:
        return 0.0
    return float(np.partition(scores, len(scores) - count)[len(scores) - count])
