"""Queries of eleven classes over a corpus, for every engine the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cordwood.cli.bench.corpus import Document
from cordwood.index.query import And, Or, Query, Term
from cordwood.index.snapshot import Snapshot


class Question(NamedTuple):
    """Words, all of which are wanted, or any."""

    words: tuple[str, ...]
    is_all: bool

    @property
    def text(self) -> str:
        """As all engines here write it."""
        return (" AND " if self.is_all else " OR ").join(self.words)


Classes = dict[str, list[Question]]


def questions(snapshot: Snapshot, texts: Sequence[Document], count: int) -> Classes:
    """Queries of eleven classes, by how many documents have their words.

    hi: at least 2 % of the documents; mid: 0.05 % to 1 %; lo: 2 to 50 documents. natural: words
    that follow each other in a document, whatever they are.
    """
    chance = np.random.default_rng(1)
    words, counts = _vocabulary(snapshot)
    share = counts / snapshot.documents
    groups = {
        "hi": words[share >= 0.02],
        "mid": words[(share >= 0.0005) & (share < 0.01)],
        "lo": words[(counts >= 2) & (counts <= 50)],
    }

    def drawn(*names: str, is_all: bool) -> list[Question]:
        """Different words of these groups."""
        if any(len(groups[name]) < len(names) for name in names):
            return []
        found: list[Question] = []
        while len(found) < count:
            chosen = tuple(str(chance.choice(groups[name])) for name in names)
            if len(set(chosen)) == len(chosen):
                found.append(Question(chosen, is_all))
        return found

    return {
        "single hi": drawn("hi", is_all=True),
        "single mid": drawn("mid", is_all=True),
        "single lo": drawn("lo", is_all=True),
        "and hi hi": drawn("hi", "hi", is_all=True),
        "and hi mid": drawn("hi", "mid", is_all=True),
        "and hi lo": drawn("hi", "lo", is_all=True),
        "and 3 natural": _natural(texts, chance, count, 3, is_all=True),
        "or hi hi": drawn("hi", "hi", is_all=False),
        "or hi mid": drawn("hi", "mid", is_all=False),
        "or mid mid": drawn("mid", "mid", is_all=False),
        "or 5 natural": _natural(texts, chance, count, 5, is_all=False),
    }


def _vocabulary(snapshot: Snapshot) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]:
    """Words of plain letters, and how many documents of the first segment have each."""
    segment = snapshot.views[0].segment
    terms = list(segment.terms.keys())
    counts = np.diff(segment.open_all(np.array(list(segment.terms.values()), np.uint64)).starts)
    plain = np.array([term.isalpha() and term.isascii() and 2 < len(term) < 20 for term in terms])
    words = np.array([term.decode() for term, kept in zip(terms, plain, strict=True) if kept])
    return words, counts[plain]


def _natural(
    texts: Sequence[Document],
    chance: np.random.Generator,
    count: int,
    length: int,
    *,
    is_all: bool,
) -> list[Question]:
    found: list[Question] = []
    for number in chance.permutation(len(texts)).tolist():
        words = [word for word in texts[number].text.lower().split() if _is_plain(word)]
        if len(words) < length:
            continue
        start = int(chance.integers(len(words) - length + 1))
        chosen = tuple(words[start : start + length])
        if len(set(chosen)) == length:
            found.append(Question(chosen, is_all))
        if len(found) == count:
            break
    return found


def _is_plain(word: str) -> bool:
    return word.isalpha() and word.isascii() and 1 < len(word) < 20


def tree_of(question: Question) -> Query:
    """The question as our tree."""
    terms = tuple(Term(word.encode()) for word in question.words)
    if len(terms) == 1:
        return terms[0]
    return And(terms) if question.is_all else Or(terms)
