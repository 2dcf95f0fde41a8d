"""Which documents a query finds in a view: sets, and nothing is ranked."""

from __future__ import annotations

from pyroaring import BitMap

from cordwood.index.query import And, Not, Or, Prefix, Query, Term
from cordwood.index.segment import View, members


def matching(view: View, query: Query) -> BitMap:
    """The documents of the view that the query finds."""
    return _found(view, query) - view.deleted if view.deleted else _found(view, query)


def _found(view: View, query: Query) -> BitMap:
    """The same, perhaps with documents that were deleted."""
    if isinstance(query, Term):
        postings = view.segment.find(query.term)
        return BitMap() if postings is None else members(postings)
    if isinstance(query, Prefix):
        return BitMap().union(*map(members, view.segment.find_prefix(query.prefix)))
    if isinstance(query, Or):
        return BitMap().union(*(_found(view, part) for part in query.parts))
    if isinstance(query, Not):
        return view.everything - _found(view, query.part)
    return _in_all(view, query)


def _in_all(view: View, query: And) -> BitMap:
    sets = []
    for part in query.parts:
        if isinstance(part, Not):
            continue
        found = _found(view, part)
        if not found:
            return found
        sets.append(found)
    sets.sort(key=len)
    result = BitMap.intersection(*sets) if sets else view.everything
    for part in query.parts:
        if isinstance(part, Not) and result:
            result = result - _found(view, part.part)
    return result
