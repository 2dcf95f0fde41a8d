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

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from cordwood.index.match import Known, matching
from cordwood.index.postings import Long, Short
from cordwood.index.query import Or, Prefix, Query, Term
from cordwood.index.segment import Postings, Single, View, listed

Floats = npt.NDArray[np.float64]
Docs = npt.NDArray[Any]

Scoring = Literal["bm25", "tfidf"]

K1, B = 1.2, 0.75

_SLACK = 1e-6
"""Scores that differ by less, relatively, are not told apart while pruning."""

_DENSE = 3
"""To decode a list costs, for each of its documents, so much less than to look one up in it."""

_SPARSE = 256
"""A list so many times longer is not even opened as an array."""

_BLOCK = 64
"""Scores that are looked at together to find a few of the highest."""


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
        below = lengths * (K1 * B / self.average)
        below += K1 * (1 - B)
        below += tfs
        return tfs * (K1 + 1) / below


class Several(NamedTuple):
    """Terms that begin alike, as one: documents, and how often each has any of them."""

    docs: Docs
    tfs: Docs


Found = Postings | Several | None
"""What a view has of a leaf."""


def find(view: View, leaf: Term | Prefix) -> Found:
    """Look a leaf up."""
    return view.segment.find(leaf.term) if isinstance(leaf, Term) else together(view, leaf)


def count(view: View, found: Found) -> int:
    """How many documents of the view have it."""
    if found is None:
        return 0
    return len(found.docs) if isinstance(found, Several) else view.count(found)


class Best(NamedTuple):
    """Documents of a view and their scores, the best first; equal ones in the order of ids."""

    docs: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]


_NONE = Best(np.empty(0, np.int64), np.empty(0, np.float32))


def best(
    view: View,
    query: Query,
    found: Mapping[Term | Prefix, Found],
    weights: Sequence[float],
    scorer: Scorer,
    k: int,
    least: float = 0.0,
) -> Best:
    """The best documents for k different ids, all that score at least `least`.

    `found` has the wanted leaves, as `find` found them, and `weights` what each is worth.
    """
    leaves = [
        _Leaf(view, scorer, one, weight)
        for one, weight in zip(found.values(), weights, strict=True)
        if one is not None
    ]
    count = k * view.segment.most_per_id
    if isinstance(query, Term | Prefix) or (
        isinstance(query, Or) and all(isinstance(part, Term | Prefix) for part in query.parts)
    ):
        if not leaves:
            return _NONE
        docs, scores = _any_of(view, leaves, count, least)
    else:
        known = {leaf: one for leaf, one in found.items() if isinstance(leaf, Term)}
        matched = matching(view, query, cast("Known", known))
        if not matched:
            return _NONE
        docs = np.frombuffer(matched.to_array(), np.uint32).astype(np.intp)
        scores = np.zeros(len(docs))
        for leaf in leaves:
            leaf.add_to(docs, scores)
    return _topmost(docs, scores, count)


def _topmost(docs: Docs, scores: Floats, count: int) -> Best:
    """The best `count`; of equal ones those with lower numbers. `docs` are rising."""
    single = scores.astype(np.float32)
    if len(single) > count:
        kept = np.flatnonzero(single >= _floor(single, count))
        docs, single = docs[kept], single[kept]
    order = np.argsort(-single, kind="stable")[:count]
    return Best(docs[order], single[order])


def _floor(scores: npt.NDArray[Any], count: int) -> float:
    """A score that so many reach, nearly the highest such; 0 if there are not so many."""
    if len(scores) < count:
        return 0.0
    rows = len(scores) // _BLOCK
    if rows >= 2 * count:
        # The best of each block: `count` of those are `count` of all, and few are missed.
        scores = scores[: rows * _BLOCK].reshape(_BLOCK, rows).max(axis=0)
    return float(np.partition(scores, len(scores) - count)[len(scores) - count])


class _Leaf:
    """A wanted leaf in a view, what it is worth with it."""

    __slots__ = ("_found", "_scored", "_scorer", "_view", "_weight", "size")

    def __init__(self, view: View, scorer: Scorer, found: Found, weight: float) -> None:
        self._view = view
        self._scorer = scorer
        self._weight = weight
        self._found = found
        self._scored: tuple[Docs, Floats] | None = None
        self.size = found.count if isinstance(found, Long) else 0

    def bound(self) -> float:
        """No document gains more by it."""
        if isinstance(self._found, Long):
            parts = self._scorer.parts
            return self._weight * max(parts(tf, length) for tf, length in self._found.bounds())
        gains = self.scored()[1]
        return float(gains.max()) if len(gains) else 0.0

    def scored(self) -> tuple[Docs, Floats]:
        """All its documents, and what each gains by it."""
        if self._scored is None:
            docs, tfs = self._listed()
            self._scored = docs, self._gains(docs, tfs)
        return self._scored

    def add_to(self, docs: Docs, scores: Floats) -> None:
        """Add what these documents gain by it; `docs` are rising."""
        if isinstance(self._found, Long) and self._scored is None:
            if _DENSE * len(docs) < self.size:
                self._look_up(self._found, docs, scores)
                return
            mine, gains = self.scored()
            with zeros(self._view) as board:
                board[mine] = gains
                scores += board.take(docs)
                board[mine] = 0.0
            return
        mine, gains = self.scored()
        if len(mine):
            places, hits = _places(mine, docs)
            scores[hits] += gains[places]

    def _look_up(self, postings: Long, docs: Docs, scores: Floats) -> None:
        """Look up documents in a long list, without decoding it as a whole."""
        if _SPARSE * len(docs) < self.size:
            mine = postings.members()
            some = [place for place, doc in enumerate(docs.tolist()) if doc in mine]
            hits = np.array(some, np.intp)
            ranks = [mine.rank(doc) - 1 for doc in docs[hits].tolist()]
            places = np.array(ranks, np.intp)
        else:
            places, hits = _places(postings.docs(), docs)
        if len(hits):
            scores[hits] += self._gains(docs[hits], postings.tfs_at(places))

    def _gains(self, docs: Docs, tfs: Docs) -> Floats:
        gains: Floats = self._scorer.parts(tfs, self._view.segment.lengths.take(docs))
        gains *= self._weight
        return gains

    def _listed(self) -> tuple[Docs, Docs]:
        found = self._found
        assert found is not None
        if isinstance(found, Several):
            return found
        docs, tfs = listed(found)
        docs = docs.astype(np.intp)
        gone = self._view.is_gone
        if gone is None:
            return docs, tfs
        kept = np.flatnonzero(~gone[docs])
        return docs[kept], tfs[kept]


def _places(mine: Docs, docs: Docs) -> tuple[Docs, Docs]:
    """Where in `mine` those of `docs` are that are in it, and which of them; both are rising."""
    places = mine.searchsorted(docs.astype(mine.dtype))
    hits = np.flatnonzero(mine.take(places, mode="clip") == docs)
    return places[hits], hits


@contextmanager
def zeros(view: View) -> Iterator[Floats]:
    """An array of zeros, one for each document, that has to be left as zeros."""
    scratch = view.segment.scratch
    board = scratch.pop() if scratch else np.zeros(view.segment.documents + 1)
    yield board
    scratch.append(board)  # Not if something went wrong: then it may be anything.


def together(view: View, leaf: Prefix) -> Several:
    """The terms of the view that begin so."""
    found = [listed(postings) for postings in view.segment.find_prefix(leaf.prefix)]
    if not found:
        return Several(np.empty(0, np.intp), np.empty(0, np.intp))
    docs, places = np.unique(np.concatenate([docs for docs, _ in found]), return_inverse=True)
    tfs = np.bincount(places, weights=np.concatenate([tfs for _, tfs in found])).astype(np.int64)
    gone = view.is_gone
    if gone is not None:
        kept = ~gone[docs]
        docs, tfs = docs[kept], tfs[kept]
    return Several(docs.astype(np.intp), tfs)


def _any_of(view: View, leaves: list[_Leaf], count: int, least: float) -> tuple[Docs, Floats]:
    """Documents in any of the lists that may be among the best `count`, with their scores."""
    if len(leaves) == 1:
        return leaves[0].scored()
    bounds = [leaf.bound() for leaf in leaves]
    order = sorted(range(len(leaves)), key=lambda place: -bounds[place])
    leaves = [leaves[place] for place in order]
    sums = itertools.accumulate((bounds[place] for place in reversed(order)), initial=0.0)
    rest = list(sums)[::-1]
    threshold = least
    number = 0
    seen: list[Docs] = []
    with zeros(view) as totals:
        while number < len(leaves) and rest[number] >= threshold * (1 - _SLACK):
            docs, gains = leaves[number].scored()
            if number:
                gains = totals.take(docs) + gains
            totals[docs] = gains
            seen.append(docs)
            number += 1
            threshold = max(threshold, _floor(gains, count))
        limit = threshold * (1 - _SLACK) - rest[number]
        kept = [docs[totals.take(docs) >= limit] for docs in seen]
        docs = _different(np.concatenate(kept)) if kept else np.empty(0, np.intp)
        scores = totals.take(docs)
        for some in seen:
            totals[some] = 0.0
    for place in range(number, len(leaves)):
        leaves[place].add_to(docs, scores)
        threshold = max(threshold, _floor(scores, count))
        reach = scores >= threshold * (1 - _SLACK) - rest[place + 1]
        if not reach.all():
            docs, scores = docs[reach], scores[reach]
    return docs, scores


def _different(docs: Docs) -> Docs:
    """Each once, rising."""
    docs.sort()
    is_new = np.ones(len(docs), np.bool_)
    np.not_equal(docs[1:], docs[:-1], out=is_new[1:])
    return docs[is_new]
