"""The best documents of a view for a query, by BM25 or TF-IDF.

A document's score is the sum over the query's wanted terms that it has, each as often as it is
written. How rare a term is, and how long documents are on average, is counted over the documents
that are there, in all segments together and without the deleted ones: so a score depends on the
documents alone, and not on how they lie in segments.

What only *may* have a term (OR) is ranked with pruning: lists are taken from the one that can
contribute most. As soon as k documents are known with scores that the rest of the lists together
cannot reach, documents in none of the lists so far are out, and those lists are asked about the
remaining candidates alone. That is done in single precision, with some slack for what it costs: it
is about candidates only. Their scores are then added in double precision and handed out in single,
so that the order of adding does not show. No document is lost by any of that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from cordwood.index.match import Known, matching
from cordwood.index.postings import Long
from cordwood.index.query import And, Or, Prefix, Query, Term
from cordwood.index.segment import Postings, View, listed

Floats = npt.NDArray[Any]
Docs = npt.NDArray[Any]
Kind = type[np.float32 | np.float64]

Scoring = Literal["bm25", "tfidf"]

K1, B = 1.2, 0.75

_SLACK = 2.5e-7
"""Scores that differ by less, relatively, for each of the lists are not told apart by pruning."""

_DENSE = 10
"""To decode a list costs, for each of its documents, so much less than to look one up in it."""

_WHOLE, _SPARSE = 32_768, 512
"""A list of more documents, and so many times more than are wanted, is not even listed."""

_BLOCK = 64
"""Scores that are looked at together to find a few of the highest."""

_FEW = 128
"""So few scores are sorted as they are."""

_SMALL = 2_048
"""Long lists of so few documents in all are added up as they are: to prune costs more."""

_CANDIDATES = 128
"""So few candidates are not looked at any closer before their scores are worked out."""

_LEAVES = (Term, Prefix)


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

    def norms(self, lengths: npt.NDArray[Any], kind: Kind) -> Floats:
        """What the lengths of documents do to their scores."""
        norms: Floats = lengths.astype(kind)
        norms *= K1 * B / self.average
        norms += K1 * (1 - B)
        return norms

    def gains(self, weight: float, tfs: Docs, norms: Floats) -> Floats:
        """What documents gain by a term that is worth so much; `norms` are used up."""
        gains: Floats = tfs.astype(norms.dtype)
        if self.scoring == "tfidf":
            gains *= weight
            return gains
        norms += gains
        gains *= weight * (K1 + 1)
        gains /= norms
        return gains

    def bound(self, weight: float, pairs: Iterable[tuple[int, ...]]) -> float:
        """The most that a document gains which is like one of these pairs of tf and length."""
        if self.scoring == "tfidf":
            return weight * max(tf for tf, _ in pairs)
        slope, floor = K1 * B / self.average, K1 * (1 - B)
        return weight * (K1 + 1) * max(tf / (length * slope + floor + tf) for tf, length in pairs)


class Several(NamedTuple):
    """Terms that begin alike, as one: documents, and how often each has any of them."""

    docs: Docs
    tfs: Docs


Found = Postings | Several | None
"""What a view has of a leaf."""


class Wanted(NamedTuple):
    """A leaf that documents are wanted for, what the view has of it, and what it is worth."""

    leaf: Term | Prefix
    found: Found
    weight: float


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
    wanted: Sequence[Wanted],
    scorer: Scorer,
    k: int,
    least: float = 0.0,
) -> Best:
    """The best documents for k different ids, all that score at least `least`."""
    driving = _driving(query)
    drivers = [_Leaf(view, scorer, want) for want in wanted[:driving] if want.found is not None]
    boosters = [] if driving is None else wanted[driving:]
    leaves = drivers + [_Leaf(view, scorer, want) for want in boosters if want.found is not None]
    count = k * view.segment.most_per_id
    if driving is not None:
        if not boosters and sum(leaf.size for leaf in leaves) < _SMALL:
            return _topmost(*_added([leaf.scored(np.float64) for leaf in leaves]), count)
        docs = _candidates(view, leaves, len(drivers), scorer, count, least)
    else:
        known = {want.leaf: want.found for want in wanted if isinstance(want.leaf, Term)}
        matched = matching(view, query, cast("Known", known))
        docs = np.frombuffer(matched.to_array(), np.uint32).astype(np.intp)
    if not len(docs):
        return _NONE
    scores = np.zeros(len(docs))
    norms = scorer.norms(view.segment.lengths.take(docs), np.float64)
    for leaf in leaves:
        leaf.add_to(docs, scores, norms)
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
    return all(isinstance(part, _LEAVES) for part in parts)


def _topmost(docs: Docs, scores: Floats, count: int) -> Best:
    """The best `count`; of equal ones those with lower numbers. `docs` are rising."""
    single = scores.astype(np.float32)
    if len(single) > max(count, _FEW):
        kept = np.flatnonzero(single >= _floor(single, count))
        docs, single = docs[kept], single[kept]
    order = (-single).argsort(kind="stable")[:count]
    return Best(docs[order], single[order])


def _floor(scores: npt.NDArray[Any], count: int) -> float:
    """A score that so many reach, nearly the highest such; 0 if there are not so many."""
    if len(scores) < count:
        return 0.0
    rows = len(scores) // _BLOCK
    if rows >= 2 * count:
        # The best of each block: `count` of those are `count` of all, and few are missed.
        scores = scores[: rows * _BLOCK].reshape(_BLOCK, rows).max(axis=0)
    place = len(scores) - count
    return float(np.partition(scores, place)[place])


class _Leaf:
    """A wanted leaf in a view."""

    __slots__ = ("_found", "_listed", "_scorer", "_view", "_weight", "size")

    def __init__(self, view: View, scorer: Scorer, want: Wanted) -> None:
        found = want.found
        assert found is not None
        self._view = view
        self._scorer = scorer
        self._weight = want.weight
        self._found = found
        self._listed: tuple[Docs, Docs] | None = None
        self.size = found.count if isinstance(found, Long) else 0  # As good as no work.

    def bound(self) -> float:
        """No document gains more by it."""
        if isinstance(self._found, Long):
            return self._scorer.bound(self._weight, self._found.bounds())
        gains = self.scored(np.float64)[1]
        return float(gains.max()) if len(gains) else 0.0

    def scored(self, kind: Kind) -> tuple[Docs, Floats]:
        """All its documents, and what each gains by it."""
        docs, tfs = self._open()
        norms = self._scorer.norms(self._view.segment.lengths.take(docs), kind)
        return docs, self._scorer.gains(self._weight, tfs, norms)

    def add_to(self, docs: Docs, scores: Floats, norms: Floats) -> None:
        """Add what these documents gain by it; `docs` are rising, and `norms` are theirs."""
        if _DENSE * len(docs) >= self.size > 0:
            mine, tfs = self._open()
            board = borrow(self._view)
            board[mine] = tfs
            scores += self._scorer.gains(self._weight, board.take(docs), norms.copy())
            give_back(self._view, board, [mine])
            return
        if isinstance(self._found, Long) and self._listed is None:
            places, hits = self._find(self._found, docs)
            tfs = self._found.tfs_at(places)
        else:
            mine, tfs = self._open()
            places, hits = _places(mine, docs)
            tfs = tfs[places]
        scores[hits] += self._scorer.gains(self._weight, tfs, norms[hits])

    def _find(self, postings: Long, docs: Docs) -> tuple[Docs, Docs]:
        """As `_places`, in a long list."""
        if self.size <= max(_WHOLE, _SPARSE * len(docs)):
            return _places(postings.docs(), docs)
        mine = postings.members()
        found = [(mine.rank(doc) - 1, hit) for hit, doc in enumerate(docs.tolist()) if doc in mine]
        places, hits = np.array(found, np.intp).reshape(-1, 2).T
        return places, hits

    def _open(self) -> tuple[Docs, Docs]:
        """Its documents that were not deleted, and how often each has it."""
        if self._listed is None:
            if isinstance(self._found, Several):
                self._listed = self._found
                return self._listed
            docs, tfs = listed(self._found)
            docs = docs.astype(np.intp)
            gone = self._view.is_gone
            if gone is not None:
                kept = np.flatnonzero(~gone[docs])
                docs, tfs = docs[kept], tfs[kept]
            self._listed = docs, tfs
        return self._listed


def _places(mine: Docs, docs: Docs) -> tuple[Docs, Docs]:
    """Where in `mine` those of `docs` are that are in it, and which of them; both are rising."""
    if not len(mine):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    places = mine.searchsorted(docs.astype(mine.dtype))
    hits = (mine.take(places, mode="clip") == docs).nonzero()[0]
    return places[hits], hits


def borrow(view: View) -> Floats:
    """An array of zeros, one for each document."""
    try:
        return view.segment.scratch.pop()
    except IndexError:  # Others have them all.
        return np.zeros(view.segment.documents + 1, np.float32)


def give_back(view: View, board: Floats, used: Iterable[Docs]) -> None:
    """Make it zeros again. One that is never given back is no loss."""
    for docs in used:
        board[docs] = 0.0
    view.segment.scratch.append(board)


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


def _candidates(
    view: View, leaves: list[_Leaf], driving: int, scorer: Scorer, count: int, least: float
) -> Docs:
    """Documents in any of the first `driving` lists that may be among the best `count`, rising."""
    bounds = [leaf.bound() for leaf in leaves]
    order = sorted(range(len(leaves)), key=lambda place: (place >= driving, -bounds[place]))
    leaves = [leaves[place] for place in order]
    sums = itertools.accumulate((bounds[place] for place in reversed(order)), initial=0.0)
    rest = list(sums)[::-1]
    slack = 1 - _SLACK * (8 + len(leaves))
    seen, threshold = _summed(view, leaves[:driving], rest, count, least, slack)
    docs, scores = _joined(seen, threshold - rest[len(seen)])
    for place in range(len(seen), len(leaves)):
        if len(docs) <= _CANDIDATES:
            break
        norms = scorer.norms(view.segment.lengths.take(docs), np.float32)
        leaves[place].add_to(docs, scores, norms)
        threshold = max(threshold, _floor(scores, count) * slack)
        near = np.flatnonzero(scores >= threshold - rest[place + 1])
        docs, scores = docs[near], scores[near]
    return docs


def _summed(
    view: View, leaves: list[_Leaf], rest: list[float], count: int, least: float, slack: float
) -> tuple[list[tuple[Docs, Floats]], float]:
    """The lists whose documents may be among the best, and what one of those has at least.

    `rest` has what the lists from each on can contribute. A document comes with what it gains by
    its list and those before it: all that it gains where it is met last.
    """
    threshold = least * slack
    seen: list[tuple[Docs, Floats]] = []
    totals = borrow(view)
    for place, leaf in enumerate(leaves):
        if rest[place] < threshold:
            break
        docs, gains = leaf.scored(np.float32)
        if place:
            gains += totals.take(docs)
        if place < len(leaves) - 1:
            totals[docs] = gains
        seen.append((docs, gains))
        threshold = max(threshold, _floor(gains, count) * slack)
    give_back(view, totals, (docs for docs, _ in seen[: len(leaves) - 1]))
    return seen, threshold


def _joined(seen: list[tuple[Docs, Floats]], limit: float) -> tuple[Docs, Floats]:
    """Each document that gains so much, rising, with the sum that it was met with last."""
    near = [np.flatnonzero(gains >= limit) for _, gains in seen]
    kept = [(docs[some], gains[some]) for (docs, gains), some in zip(seen, near, strict=True)]
    if len(kept) == 1:
        return kept[0]
    docs = np.concatenate([np.empty(0, np.intp), *(docs for docs, _ in kept)])
    scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in kept)])
    order = docs.argsort(kind="stable")
    docs, scores = docs[order], scores[order]
    is_last = np.ones(len(docs), np.bool_)
    np.not_equal(docs[1:], docs[:-1], out=is_last[:-1])
    return docs[is_last], scores[is_last]


def _added(lists: list[tuple[Docs, Floats]]) -> tuple[Docs, Floats]:
    """The documents of all lists, rising, and what each gains in all."""
    if len(lists) == 1:
        return lists[0]
    if not lists:
        return np.empty(0, np.intp), np.empty(0)
    docs = np.concatenate([docs for docs, _ in lists])
    gains = np.concatenate([gains for _, gains in lists])
    order = docs.argsort(kind="stable")  # Quick, since each list is in order.
    docs, gains = docs[order], gains[order]
    is_new = np.ones(len(docs), np.bool_)
    np.not_equal(docs[1:], docs[:-1], out=is_new[1:])
    firsts = is_new.nonzero()[0]
    return docs[firsts], np.add.reduceat(gains, firsts) if len(firsts) else gains
