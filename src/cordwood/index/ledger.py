"""The ledger: an ordered list of transactions, and the state of the index that follows from it.

A transaction is all or nothing and changes what is live::

    AddSegment        a segment joins
    DeleteDocuments   documents of live segments are gone
    StartMerge        permission to merge these segments, until it is cancelled or ended
    CancelMerge       the merge will not be
    EndMerge          one segment takes the place of several

A `State` is the fold of the transactions so far. `State.apply` either takes a transaction whole or
refuses it and changes nothing; so every process that reads the same ledger has the same state,
and a transaction is checked where it is written and again wherever it is read.

A delete names documents by segment and number, as its writer saw them. If a segment was merged away
since, they have to be named anew by the idmap of the merge, perhaps through several (`successors`);
and a merge has to carry over what was deleted while it ran (`late_deletes`). A transaction that
fails to do either is refused. What may be dropped when nobody old enough is reading any more is
decided by `compacted`.

Everything here is pure: no files, no locks, no clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
from pyroaring import BitMap

from cordwood.base.errors import ConflictError, CorruptionError

K = TypeVar("K")
V = TypeVar("V")


class AddSegment(msgspec.Struct, frozen=True, tag="add"):
    """A segment joins."""

    segment: int
    documents: int
    size_bytes: int
    has_tombs: bool = False
    """Whether deletes of it are kept in its tombstones, and no more in the ledger."""


class DeleteDocuments(msgspec.Struct, frozen=True, tag="delete"):
    """Documents are gone: for each segment a set of numbers, in Roaring's portable format."""

    documents: dict[int, bytes]


class StartMerge(msgspec.Struct, frozen=True, tag="start"):
    """Permission to merge these."""

    segments: tuple[int, ...]


class CancelMerge(msgspec.Struct, frozen=True, tag="cancel"):
    """The merge that began with this transaction will not be."""

    started: int


class EndMerge(msgspec.Struct, frozen=True, tag="end"):
    """The merge that began with this transaction made a segment of its segments."""

    started: int
    segment: int
    documents: int
    size_bytes: int
    merged: tuple[int, ...]
    carried: int = 0
    """Deletes up to this transaction were left out or carried over."""


Entry = AddSegment | DeleteDocuments | StartMerge | CancelMerge | EndMerge


class Transaction(msgspec.Struct, frozen=True):
    """Entries that count together."""

    id: int
    """Higher than that of any transaction before it."""
    time_us: int
    """When it was written: for people, nothing relies on it."""
    entries: tuple[Entry, ...]
    marks: dict[str, bytes] = {}
    """What its writer wants kept with it: the newest value of each name is the index's."""
    expected: dict[str, bytes | None] = {}
    """It counts only if these marks are so; None is for one that is not there."""
    token: str = ""
    """Names the attempt to write it."""
    by: str = ""
    """The handle that it was made with, where a merge lives as long as its handle."""


@dataclass(slots=True)
class Live:
    """A segment that is searched."""

    added: int
    """By this transaction."""
    documents: int
    size_bytes: int
    has_tombs: bool = False


class Dead(NamedTuple):
    """A segment that was merged."""

    into: int
    ended: int
    """By this transaction."""


@dataclass(slots=True)
class State:
    """What the transactions so far amount to."""

    id: int = 0
    """That of the last transaction."""
    live: dict[int, Live] = field(default_factory=dict)
    dead: dict[int, Dead] = field(default_factory=dict)
    """Segments that were merged and that the ledger still speaks of."""
    merges: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Merges under way, by the transaction that began them."""
    deleted: dict[int, BitMap] = field(default_factory=dict)
    """Deleted documents of live segments, as far as the ledger speaks of them."""
    deleted_last: dict[int, int] = field(default_factory=dict)
    """The transaction that last deleted documents of a segment."""
    marks: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> State:
        """One that can be changed without changing this one."""
        return State(
            self.id,
            dict(self.live),
            dict(self.dead),
            dict(self.merges),
            dict(self.deleted),
            dict(self.deleted_last),
            dict(self.marks),
        )

    def apply(self, transaction: Transaction) -> None:
        """Go on to the state after a transaction.

        Raises:
            ConflictError: it does not fit this state, which is unchanged.
        """
        if transaction.id <= self.id:
            raise ConflictError(f"transaction {transaction.id} does not follow {self.id}")
        for name, value in transaction.expected.items():
            if self.marks.get(name) != value:
                raise ConflictError(
                    f"the mark {name!r} of the index is another by now: {self.marks.get(name)!r}",
                    hint="somebody else committed first: look at the index again",
                )
        changes = _Changes()
        try:
            for place, entry in enumerate(transaction.entries):
                self._take(entry, transaction, place, changes)
        except BaseException:
            changes.take_back()
            raise
        self.id = transaction.id
        self.marks.update(transaction.marks)

    def merging(self) -> set[int]:
        """Segments that are being merged."""
        return {segment for segments in self.merges.values() for segment in segments}

    def successors(self, segment: int) -> Iterator[int]:
        """The segments that documents of this one moved to, one after the other, to a live one.

        Raises:
            ConflictError: the ledger does not know the segment any more.
        """
        while segment not in self.live:
            if segment not in self.dead:
                raise ConflictError(
                    f"segment {segment} is neither live nor remembered",
                    hint="the handle is older than the ledger: open a new one",
                )
            segment = self.dead[segment].into
            yield segment

    def late_deletes(self, started: int, seen: Mapping[int, BitMap]) -> dict[int, BitMap]:
        """What was deleted in the segments of a merge since it looked; `seen` is what it saw."""
        late = {}
        for segment in self.merges.get(started, ()):
            gone = self.deleted.get(segment, BitMap()) - seen.get(segment, BitMap())
            if gone:
                late[segment] = gone
        return late

    def _take(self, entry: Entry, transaction: Transaction, place: int, changes: _Changes) -> None:
        if isinstance(entry, AddSegment):
            live = Live(transaction.id, entry.documents, entry.size_bytes, entry.has_tombs)
            self._join(entry.segment, live, changes)
        elif isinstance(entry, DeleteDocuments):
            self._delete(entry, transaction.id, transaction.entries[place + 1 :], changes)
        elif isinstance(entry, StartMerge):
            self._start(entry, transaction.id, changes)
        elif isinstance(entry, CancelMerge):
            if entry.started not in self.merges:
                raise ConflictError(f"no merge that began with transaction {entry.started} runs")
            changes.drop(self.merges, entry.started)
        else:
            self._end(entry, transaction.id, changes)

    def _join(self, segment: int, live: Live, changes: _Changes) -> None:
        if segment in self.live or segment in self.dead:
            raise ConflictError(f"segment {segment} is in the ledger already")
        changes.put(self.live, segment, live)

    def _delete(
        self, entry: DeleteDocuments, number: int, later: Sequence[Entry], changes: _Changes
    ) -> None:
        coming = {one.segment: one for one in later if isinstance(one, EndMerge)}
        for segment, raw in entry.documents.items():
            place = self.live.get(segment) or coming.get(segment)
            if place is None:
                raise ConflictError(
                    f"documents of segment {segment} are deleted, and it is not live"
                )
            gone = documents_of(raw)
            if gone and (gone.min() < 1 or gone.max() > place.documents):
                raise ConflictError(
                    f"document {gone.max()} of segment {segment} is deleted, and it has "
                    f"{place.documents}"
                )
            # A new set: states share those that they have.
            changes.put(self.deleted, segment, self.deleted.get(segment, BitMap()) | gone)
            changes.put(self.deleted_last, segment, number)

    def _start(self, entry: StartMerge, started: int, changes: _Changes) -> None:
        if not entry.segments or len(set(entry.segments)) < len(entry.segments):
            raise ConflictError("a merge is of different segments, at least one")
        busy = self.merging()
        for segment in entry.segments:
            if segment not in self.live:
                raise ConflictError(f"segment {segment} is to be merged, and it is not live")
            if segment in busy:
                raise ConflictError(f"segment {segment} is being merged already")
        changes.put(self.merges, started, entry.segments)

    def _end(self, entry: EndMerge, ended: int, changes: _Changes) -> None:
        if entry.started not in self.merges:
            raise ConflictError(
                f"no merge that began with transaction {entry.started} runs: it was cancelled"
            )
        if self.merges[entry.started] != entry.merged:
            raise ConflictError("a merge ends with other segments than it began with")
        changes.drop(self.merges, entry.started)
        for segment in entry.merged:
            if segment not in self.live:
                raise ConflictError(f"segment {segment} was merged, and it is not live")
            if self.deleted_last.get(segment, 0) > entry.carried:
                raise ConflictError(f"documents of segment {segment} were deleted meanwhile")
        self._join(entry.segment, Live(ended, entry.documents, entry.size_bytes), changes)
        for segment in entry.merged:
            changes.drop(self.live, segment)
            changes.drop(self.deleted, segment)
            changes.drop(self.deleted_last, segment)
            changes.put(self.dead, segment, Dead(entry.segment, ended))


class _Changes:
    """What a transaction did to a state so far, to be taken back if it is refused after all.

    So a transaction costs what it does, however much there is that it does not touch.
    """

    def __init__(self) -> None:
        self._done: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, into: dict[K, V], key: K, value: V) -> None:
        """Change or add one."""
        self._done.append((into, key, into.get(key, _NOTHING)))
        into[key] = value

    def drop(self, out_of: dict[K, V], key: K) -> None:
        """Remove one, if it is there."""
        self._done.append((out_of, key, out_of.pop(key, _NOTHING)))

    def take_back(self) -> None:
        """As it was, but for the order of what is in it."""
        for mapping, key, before in reversed(self._done):
            if before is _NOTHING:
                mapping.pop(key, None)
            else:
                mapping[key] = before


_NOTHING = object()


def documents_of(raw: bytes) -> BitMap:
    """A set as entries hold it."""
    try:
        return BitMap.deserialize(raw)
    except (ValueError, OverflowError, IndexError) as error:
        raise CorruptionError(f"a set of documents cannot be read: {error}") from error


def deletion(documents: Mapping[int, BitMap]) -> DeleteDocuments:
    """The entry for a set of documents."""
    return DeleteDocuments(
        {segment: bytes(docs.serialize()) for segment, docs in sorted(documents.items())}
    )


class Compaction(NamedTuple):
    """What a compaction does, in this order."""

    tombstones: dict[int, BitMap]
    """Documents to be marked in the files of live segments, and made durable."""
    kept: list[Transaction]
    """The ledger from then on."""
    last: int
    """The highest id that a transaction has had; ids go on from here."""
    segments: list[int]
    """Segments whose files may go."""
    idmaps: list[int]
    """Segments whose idmaps may go."""


def compacted(transactions: Sequence[Transaction], last: int, oldest: int) -> Compaction:
    """What may go if no handle looks at a state before that of transaction `oldest`.

    A handle keeps its state in memory and needs of the ledger only what comes after it. So all that
    stands at or before `oldest` may be told more briefly, as long as the state after it stays the
    same: a segment that was merged is not mentioned; one that came of a merge is one that joined;
    deletes are tombstones. What comes later stays as it is.
    """
    state = folded(transactions)
    gone = {segment for segment, dead in state.dead.items() if dead.ended <= oldest}
    over = {
        entry.started
        for transaction in transactions
        if transaction.id <= oldest
        for entry in transaction.entries
        if isinstance(entry, CancelMerge | EndMerge)
    }
    tombstones = _buried(transactions, oldest, state)
    kept: list[Transaction] = []
    for transaction in transactions:
        if transaction.id > oldest:
            kept.append(transaction)
            continue
        entries: list[Entry] = []
        for entry in transaction.entries:
            if isinstance(entry, AddSegment | EndMerge) and entry.segment not in gone:
                entries.append(_joined(entry, tombstones))
            elif isinstance(entry, StartMerge) and transaction.id not in over:
                entries.append(entry)
        kept.append(msgspec.structs.replace(transaction, entries=tuple(entries), expected={}))
    idmaps = {dead.into for segment, dead in state.dead.items() if segment in gone}
    idmaps -= {dead.into for segment, dead in state.dead.items() if segment not in gone}
    last = max(last, state.id)
    kept = _without_old_marks(kept, oldest)
    return Compaction(tombstones, kept, last, sorted(gone), sorted(idmaps))


def _buried(transactions: Sequence[Transaction], oldest: int, state: State) -> dict[int, BitMap]:
    """Deletes up to `oldest` in segments that are live: merges have carried over the others."""
    found: dict[int, BitMap] = {}
    for transaction in transactions:
        if transaction.id > oldest:
            break
        for entry in transaction.entries:
            if isinstance(entry, DeleteDocuments):
                for segment, raw in entry.documents.items():
                    if segment in state.live:
                        found[segment] = found.get(segment, BitMap()) | documents_of(raw)
    return found


def _joined(entry: AddSegment | EndMerge, tombstones: Mapping[int, BitMap]) -> AddSegment:
    """A segment that is there, however it came, and whether it has tombstones by now."""
    had = isinstance(entry, AddSegment) and entry.has_tombs
    return AddSegment(
        entry.segment, entry.documents, entry.size_bytes, had or entry.segment in tombstones
    )


def _without_old_marks(transactions: list[Transaction], oldest: int) -> list[Transaction]:
    """Of each mark set at or before `oldest`, only the newest: later ones are left alone."""
    newest = {name: tx.id for tx in transactions if tx.id <= oldest for name in tx.marks}
    thinned = []
    for transaction in transactions:
        if transaction.id > oldest:
            thinned.append(transaction)
            continue
        marks = {n: v for n, v in transaction.marks.items() if newest[n] == transaction.id}
        if transaction.entries or marks:
            thinned.append(msgspec.structs.replace(transaction, marks=marks))
    return thinned


def folded(transactions: Iterable[Transaction]) -> State:
    """The state after all these, from nothing."""
    state = State()
    for transaction in transactions:
        state.apply(transaction)
    return state
