"""Which documents a query finds in a view: sets, and nothing is ranked."""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap

from cordwood.index.query import And, Not, Or, Prefix, Query, Term
from cordwood.index.segment import Postings, View, members

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
        return BitMap() if postings is None else members(postings)
    if isinstance(query, Prefix):
        return BitMap().union(*map(members, view.segment.find_prefix(query.prefix)))
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
