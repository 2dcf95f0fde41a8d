"""A ledger that chance writes to, through handles of any age, and the truth about its documents.

Documents have names of their own here, which no merge changes: so what should be there is a set of
names, and what a state says is there can be compared with it. Every hand that writes knows only the
state of its handle, as a real writer does: what it deletes may have been merged since, and what it
merges may have been deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import xxhash
from pyroaring import BitMap

from cordwood.index.draft import Draft, Ended, entries, idmaps_for
from cordwood.index.ledger import AddSegment, EndMerge, State, Transaction, compacted
from cordwood.index.merge import IdMap

T = TypeVar("T")


@dataclass
class Handle:
    """A writer's view: the state it looks at, and the tombstones it found."""

    state: State
    tombs: dict[int, BitMap]

    def gone(self, segment: int) -> BitMap:
        """Documents that it knows to be deleted."""
        return self.tombs.get(segment, BitMap()) | self.state.deleted.get(segment, BitMap())


@dataclass
class Merge:
    """A merge under way."""

    handle: Handle
    started: int
    segments: tuple[int, ...]


@dataclass
class LedgerPlay:
    """The ledger so far."""

    chance: np.random.Generator
    transactions: list[Transaction] = field(default_factory=list)
    state: State = field(default_factory=State)
    tombs: dict[int, BitMap] = field(default_factory=dict)
    contents: dict[int, list[int]] = field(default_factory=dict)
    """Of each segment that ever was, the names of its documents."""
    idmaps: dict[int, IdMap] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    """The truth."""
    handles: list[Handle] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    names: int = 0

    def visible(self, handle: Handle) -> set[int]:
        """The documents that a handle finds."""
        return {
            name
            for segment in handle.state.live
            for number, name in enumerate(self.contents[segment], 1)
            if number not in handle.gone(segment)
        }

    def newest(self) -> Handle:
        """A handle that is opened now, by a reader of the ledger as it is written."""
        fresh = State()
        for transaction in self.transactions:
            fresh.apply(transaction)
        fresh.id = max(fresh.id, self.state.id)
        return Handle(fresh, {segment: BitMap(docs) for segment, docs in self.tombs.items()})

    def commit(self, draft: Draft) -> int:
        """Write a transaction, from whatever its writer knew."""
        idmaps = {number: self.idmaps[number] for number in idmaps_for(draft, self.state)}
        done = tuple(entries(draft, self.state, idmaps))
        number = self.state.id + 1
        transaction = Transaction(number, 0, done, dict(draft.marks), dict(draft.expected))
        self.state.apply(transaction)
        self.transactions.append(transaction)
        return number

    def add(self, documents: int) -> int:
        """A segment of new documents."""
        segment = len(self.contents) + 1
        self.contents[segment] = list(range(self.names, self.names + documents))
        self.names += documents
        self.commit(Draft((AddSegment(segment, documents, 1),), marks={"newest": b"%d" % segment}))
        self.alive |= set(self.contents[segment])
        return segment

    def delete(self, handle: Handle, wanted: Mapping[int, BitMap]) -> None:
        """Delete documents as a handle knows them."""
        found = {segment: docs - handle.gone(segment) for segment, docs in wanted.items()}
        self.commit(Draft(deleted={segment: docs for segment, docs in found.items() if docs}))
        for segment, docs in found.items():
            self.alive -= {self.contents[segment][number - 1] for number in docs}

    def start(self, handle: Handle, segments: tuple[int, ...]) -> Merge:
        """Begin to merge segments that a handle knows."""
        merge = Merge(handle, self.commit(Draft(start=segments)), segments)
        self.merges.append(merge)
        return merge

    def end(self, merge: Merge) -> int:
        """Finish a merge, of what its handle sees."""
        new = len(self.contents) + 1
        blocks, names = [], []
        for segment in merge.segments:
            block = [0]
            for number, name in enumerate(self.contents[segment], 1):
                is_gone = number in merge.handle.gone(segment)
                names += [] if is_gone else [name]
                block.append(0 if is_gone else len(names))
            blocks.append(block)
        self.contents[new] = names
        self.idmaps[new] = idmap_of(merge.segments, blocks)
        entry = EndMerge(merge.started, new, len(names), 1, merge.segments)
        seen = {segment: merge.handle.gone(segment) for segment in merge.segments}
        self.commit(Draft(ended=Ended(entry, seen)))
        self.merges.remove(merge)
        return new

    def cancel(self, merge: Merge) -> None:
        """Give a merge up."""
        self.commit(Draft(cancel=(merge.started,)))
        self.merges.remove(merge)

    def compact(self) -> None:
        """Drop what no handle needs, those of merges included."""
        held = [*self.handles, *(merge.handle for merge in self.merges)]
        oldest = min([self.state.id, *(handle.state.id for handle in held)])
        plan = compacted(self.transactions, self.state.id, oldest)
        for segment, docs in plan.tombstones.items():
            self.tombs[segment] = self.tombs.get(segment, BitMap()) | docs
        self.transactions = plan.kept
        for segment in plan.idmaps:
            del self.idmaps[segment]

    def step(self) -> None:
        """Something, by chance."""
        turn = int(self.chance.integers(10))
        if turn <= 2 or not self.state.live:
            self.add(int(self.chance.integers(1, 6)))
        elif turn <= 4:
            handle = self._one([*self.handles, self.newest()])
            self.delete(handle, {number: self._some(number) for number in handle.state.live})
        elif turn == 5:
            self.handles = [*self.handles, self.newest()][-4:]
        elif turn == 6:
            self._start_one()
        elif turn <= 8 and self.merges:
            merge = self._one(self.merges)
            if self.chance.random() < 0.8:
                self.end(merge)
            else:
                self.cancel(merge)
        else:
            self.compact()

    def _start_one(self) -> None:
        handle = self.newest()
        free = sorted(set(handle.state.live) - self.state.merging())
        if free:
            count = int(self.chance.integers(1, min(4, len(free)) + 1))
            chosen = self.chance.choice(free, count, replace=False)
            self.start(handle, tuple(int(number) for number in chosen))

    def _some(self, segment: int) -> BitMap:
        numbers = range(1, len(self.contents[segment]) + 1)
        return BitMap([number for number in numbers if self.chance.random() < 0.3])

    def _one(self, among: list[T]) -> T:
        return among[int(self.chance.integers(len(among)))]


def idmap_of(segments: tuple[int, ...], blocks: list[list[int]]) -> IdMap:
    """An idmap with these new numbers, those of document 0 included."""
    place = 8 + 16 * len(segments)
    head, body = struct.pack("<Q", len(segments)), b""
    for segment, block in zip(segments, blocks, strict=True):
        head += struct.pack("<QQ", segment, place + len(body))
        body += struct.pack(f"<{len(block)}I", *block)
    data = head + body
    return IdMap(data + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little"), "idmap")
