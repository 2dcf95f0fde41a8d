"""Which documents a query finds in a view: sets, and nothing is ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pyroaring import BitMap

from cordwood.index.query import And, Not, Or, Prefix, Query, Term


class Postings(Protocol):
    """What the set of a term's documents is had from."""

    def members(self) -> BitMap:
        """The set of documents."""
        ...


class Terms(Protocol):
    """What has terms: an open segment."""

    def find(self, term: bytes) -> Postings | None:
        """The documents of a term."""
        ...

    def find_prefix(self, prefix: bytes) -> Iterable[Postings]:
        """The documents of each term that begins so."""
        ...


class View(Protocol):
    """A segment without the documents deleted by some moment."""

    @property
    def segment(self) -> Terms:
        """All of it."""
        ...

    @property
    def deleted(self) -> BitMap:
        """What is not to be found."""
        ...

    @property
    def everything(self) -> BitMap:
        """All its documents."""
        ...


Known = Mapping[Term, Postings | None]


def matching(view: View, query: Query, known: Known | None = None) -> BitMap:
    """The documents of the view that the query finds; a set of its own or one not to be changed.

    `known` has what was looked up already.
    """
    found = _found(view, query, {} if known is None else known)
    return found - view.deleted if view.deleted else found


def _found(view: View, query: Query, known: Known) -> BitMap:
    """The same, perhaps with documents that were deleted."""
    if isinstance(query, Term):
        postings = known[query] if query in known else view.segment.find(query.term)
        return BitMap() if postings is None else postings.members()
    if isinstance(query, Prefix):
        return BitMap().union(*(one.members() for one in view.segment.find_prefix(query.prefix)))
    if isinstance(query, Or):
        return BitMap().union(*(_found(view, part, known) for part in query.parts))
    if isinstance(query, Not):
        return view.everything - _found(view, query.part, known)
    return _in_all(view, query, known)


def _in_all(view: View, query: And, known: Known) -> BitMap:
    sets = []
    for part in query.parts:
        if isinstance(part, Not):
            continue
        found = _found(view, part, known)
        if not found:
            return found
        sets.append(found)
    sets.sort(key=len)
    result = BitMap.intersection(*sets) if sets else view.everything
    for part in query.parts:
        if isinstance(part, Not) and result:
            result = result - _found(view, part.part, known)
    return result
