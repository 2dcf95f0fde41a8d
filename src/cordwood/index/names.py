"""Names that are like a name, with its typing errors: an index of every three characters in a row.

Each name is a document of its own, and its id is what it names, a NUL, and the name itself: so
several names of one id are weighed one by one, each by its own length, and what is found can be
shown. Of the names of an id the best counts.

A name that has many grams with the query in common, and rare ones above all, is like it. Grams that
one name in a hundred has or more (`the`, `ing`) say little and are in a great many names: they do
not make a name a candidate, and only add to the score of those that others found. If the query has
no others, they have to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import InvalidInputError
from cordwood.index import rank
from cordwood.index.query import And, Or, Prefix, Query, Term
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import terms_of, tokenizer

TOKENIZER = "ngrams:3"

MARK = "names"
"""That an index of names is there, whole."""

FREQUENT = 0.01
"""A gram that so many of all names have is frequent."""

QUERY_MAX = 1_000
"""Characters of a query: nobody is called more."""


class Named(NamedTuple):
    """An id that was found."""

    id: str
    name: str
    """The one of its names that is most like the query."""
    score: float
    """1 for the best of all, and less for the others."""


def documents(ids: Any, names: Any) -> tuple[pa.Array, pa.Array]:
    """Ids and texts for an index, of ids and their names; names that are empty are left out.

    Raises:
        InvalidInputError: they are no texts, or an id is missing or has a NUL.
    """
    try:
        keys, texts = pc.cast(ids, pa.large_string()), pc.cast(names, pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"ids and names must be texts: {error}") from error
    texts = pc.utf8_trim_whitespace(texts)
    kept = pc.fill_null(pc.greater(pc.binary_length(texts), 0), fill_value=False)
    keys, texts = keys.filter(kept), texts.filter(kept)
    if keys.null_count or pc.any(pc.equal(keys, "")).as_py():
        raise InvalidInputError("a name has no id", hint="give every row an id")
    if pc.any(pc.match_substring(keys, "\0")).as_py():
        raise InvalidInputError("an id has a NUL in it", hint="use another id")
    nul = pa.scalar("\0", pa.large_string())
    return pc.binary_join_element_wise(keys, texts, nul).cast(pa.large_binary()), texts


def search(snapshot: Snapshot, text: str, k: int = 10) -> list[Named]:
    """The k ids whose names are most like a text, the best first.

    Raises:
        InvalidInputError: the text is empty or far too long, or k is not positive.
    """
    query = like(snapshot, text)
    best: dict[str, Named] = {}
    wanted = 2 * k
    while True:
        hits = snapshot.search(query, wanted)
        for hit in hits:
            key, _, name = hit.id.decode(errors="replace").partition("\0")
            best.setdefault(key, Named(key, name, hit.score / hits[0].score))
        # Several of the best names may be of one id, and then there are not enough.
        if len(best) >= k or len(hits) < wanted:
            return list(best.values())[:k]
        wanted *= 4


def like(snapshot: Snapshot, text: str) -> Query:
    """The query for names like a text."""
    text = text.strip()
    if not text or len(text) > QUERY_MAX:
        raise InvalidInputError(
            f"a name of {len(text)} characters", hint=f"give 1 to {QUERY_MAX} characters"
        )
    grams = terms_of(tokenizer(TOKENIZER), text)
    if len(grams) == 1 and len(grams[0].decode()) < 3:
        return Prefix(grams[0])  # Too short for a gram: what begins so, anywhere in a name.
    common = FREQUENT * snapshot.documents
    rare: list[Query] = []
    frequent: list[Query] = []
    for gram, times in Counter(grams).items():
        term = Term(gram)
        found = sum(rank.count(view, rank.find(view, term)) for view in snapshot.views)
        (rare if found < common else frequent).extend([term] * times)
    found_by_rare = any(_has(snapshot, rare))
    if not found_by_rare:
        return Or(tuple(frequent or rare))
    if not frequent:
        return Or(tuple(rare))
    return And((Or(tuple(rare)), Or((And(()), *frequent))))


def _has(snapshot: Snapshot, terms: Iterable[Query]) -> Iterable[bool]:
    for term in terms:
        assert isinstance(term, Term)
        yield any(rank.find(view, term) is not None for view in snapshot.views)
