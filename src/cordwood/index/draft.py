"""A transaction that is wanted, and what it becomes at the moment it is written.

Between the snapshot that a transaction was made from and its commit, others commit. What it deletes
may have moved into other segments by then; what a merge left in may have been deleted. So what is
handed to the ledger is a draft, and `entries` turns it into entries that fit the state then. That
needs the idmaps of the merges since; `idmaps_for` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap

from cordwood.base.errors import InvalidInputError
from cordwood.index.ledger import (
    AddSegment,
    CancelMerge,
    EndMerge,
    Entry,
    StartMerge,
    State,
    deletion,
)
from cordwood.index.merge import IdMap


@dataclass(frozen=True, slots=True)
class Ended:
    """A merge that was done."""

    entry: EndMerge
    seen: Mapping[int, BitMap]
    """The documents of its segments that it left out, because they were deleted."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a transaction is to do."""

    added: tuple[AddSegment, ...] = ()
    deleted: Mapping[int, BitMap] = field(default_factory=dict)
    """Documents by segment, as the snapshot of the transaction knew them."""
    start: tuple[int, ...] = ()
    """Segments to begin merging."""
    cancel: tuple[int, ...] = ()
    """Merges to cancel, by the transactions that began them."""
    ended: Ended | None = None
    marks: Mapping[str, bytes] = field(default_factory=dict)
    expected: Mapping[str, bytes | None] = field(default_factory=dict)
    """Marks that must be as the writer knows them; None is for one that is not there."""


def checked_marks(marks: Mapping[Any, Any] | None, *, or_none: bool = False) -> dict[str, Any]:
    """Marks as a user gave them, or what is expected of them: then None is for one not there.

    Raises:
        InvalidInputError: nobody could read them back.
    """
    found = dict(marks or {})
    for name, value in found.items():
        if not isinstance(name, str) or not name.isprintable():
            raise InvalidInputError(f"{name!r} cannot name a mark", hint="give letters as a str")
        if not isinstance(value, bytes) and not (or_none and value is None):
            raise InvalidInputError(
                f"the mark {name!r} is a {type(value).__name__}", hint="give bytes, as in b'42'"
            )
    return found


def idmaps_for(draft: Draft, head: State) -> set[int]:
    """The segments whose idmaps are needed to write this draft now."""
    own = {one.segment for one in draft.added}
    needed = {
        segment
        for deleted in draft.deleted
        if deleted not in own
        for segment in head.successors(deleted)
    }
    if draft.ended is not None and head.late_deletes(draft.ended.entry.started, draft.ended.seen):
        needed.add(draft.ended.entry.segment)
    return needed


def entries(draft: Draft, head: State, idmaps: Mapping[int, IdMap]) -> list[Entry]:
    """The entries that do now what the draft meant.

    Raises:
        ConflictError: what is deleted is not remembered any more.
    """
    own = {one.segment for one in draft.added}
    gone = {segment: docs for segment, docs in draft.deleted.items() if segment in own}
    others = {segment: docs for segment, docs in draft.deleted.items() if segment not in own}
    gone.update(_moved(others, head, idmaps))
    if draft.ended is not None:
        entry = draft.ended.entry
        late = head.late_deletes(entry.started, draft.ended.seen)
        for segment, docs in late.items():
            _add(gone, entry.segment, _renumbered(idmaps[entry.segment], segment, docs))
    found: list[Entry] = [*draft.added]
    if gone:
        found.append(deletion(gone))
    if draft.ended is not None:
        found.append(msgspec.structs.replace(draft.ended.entry, carried=head.id))
    if draft.start:
        found.append(StartMerge(draft.start))
    found.extend(CancelMerge(started) for started in draft.cancel)
    return found


def _moved(
    deleted: Mapping[int, BitMap], head: State, idmaps: Mapping[int, IdMap]
) -> dict[int, BitMap]:
    """Deleted documents under the names they have now; those that are gone already are left out."""
    gone: dict[int, BitMap] = {}
    for segment, docs in deleted.items():
        place, moved = segment, docs
        for successor in head.successors(segment):
            moved = _renumbered(idmaps[successor], place, moved)
            place = successor
        moved = moved - head.deleted.get(place, BitMap())
        if moved:
            _add(gone, place, moved)
    return gone


def _renumbered(idmap: IdMap, segment: int, docs: BitMap) -> BitMap:
    return BitMap(idmap.moved(segment, np.frombuffer(docs.to_array(), np.uint32)))


def _add(gone: dict[int, BitMap], segment: int, docs: BitMap) -> None:
    if docs:
        gone[segment] = gone.get(segment, BitMap()) | docs
