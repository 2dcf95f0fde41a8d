"""What an index should answer, worked out document by document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cordwood.index.query import And, Or, Prefix, Query, Term, positive

Documents = Sequence[tuple[bytes, Iterable[bytes]]]
"""Ids and terms; an id may have several documents."""


def has(query: Query, terms: Mapping[bytes, int]) -> bool:
    """Whether a document with these terms is found."""
    if isinstance(query, Term):
        return query.term in terms
    if isinstance(query, Prefix):
        return any(term.startswith(query.prefix) for term in terms)
    if isinstance(query, And):
        return all(has(part, terms) for part in query.parts)
    if isinstance(query, Or):
        return any(has(part, terms) for part in query.parts)
    return not has(query.part, terms)


def often(leaf: Term | Prefix, terms: Mapping[bytes, int]) -> int:
    """How often a document has a leaf."""
    if isinstance(leaf, Term):
        return terms.get(leaf.term, 0)
    return sum(count for term, count in terms.items() if term.startswith(leaf.prefix))


def match(documents: Documents, query: Query) -> set[bytes]:
    """The ids that are found."""
    return {user_id for user_id, terms in documents if has(query, Counter(terms))}


def search(
    documents: Documents, query: Query, k: int, scoring: str = "bm25"
) -> list[tuple[bytes, float]]:
    """The best ids with their scores."""
    counted = [(user_id, Counter(terms)) for user_id, terms in documents]
    total = len(counted)
    average = sum(sum(terms.values()) for _, terms in counted) / total if total else 1.0
    average = average or 1.0
    weights = {}
    for leaf, times in Counter(positive(query)).items():
        found = sum(often(leaf, terms) > 0 for _, terms in counted)
        rarity = math.log1p((total - found + 0.5) / (found + 0.5))
        if scoring == "tfidf":
            rarity = math.log(1 + total / found) if found else 0.0
        weights[leaf] = times * rarity
    scores: dict[bytes, float] = {}
    for user_id, terms in counted:
        if not has(query, terms):
            continue
        length = sum(terms.values())
        score = 0.0
        for leaf, weight in weights.items():
            tf = often(leaf, terms)
            length_norm = 1.2 * (0.25 + 0.75 * length / average)
            score += weight * tf * (1.0 if scoring == "tfidf" else 2.2 / (tf + length_norm))
        scores[user_id] = max(scores.get(user_id, -1.0), float(np.float32(score)))
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return ranked[:k]
