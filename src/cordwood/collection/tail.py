"""What a log has beyond its index: the newest operations, searchable in memory.

A tail is a list of parts, each some operations in a row as a segment in memory. Together with the
segments of the index, of which the tail's operations replaced some documents, they are one
snapshot, ranked as one. Parts become one when there are many; those that the index has taken in are
dropped.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from pyroaring import BitMap

from cordwood.index import operations
from cordwood.index.build import Builder
from cordwood.index.operations import Operations, Settled
from cordwood.index.segment import Segment, View
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import Tokenizer, as_texts

PARTS_MAX = 8


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    limit: int
    operations: Operations
    settled: Settled
    segment: Segment | None
    """None if no document is left of them."""


class Tail:
    """Operations from an offset on."""

    def __init__(self, cutter: Tokenizer, *, frequencies: bool) -> None:
        """Nothing yet."""
        self._cutter = cutter
        self._frequencies = frequencies
        self._parts: list[_Part] = []
        self.start = self.limit = 0
        self._joined: tuple[Snapshot, Snapshot] | None = None

    def begin(self, start: int) -> None:
        """The index has all operations before `start`: drop them."""
        kept = [part for part in self._parts if part.start >= start]
        if (kept and kept[0].start > start) or any(
            part.start < start < part.limit for part in self._parts
        ):
            kept = []  # The index took in half of a part: read that again.
        self._parts = kept
        self.start = start
        self.limit = kept[-1].limit if kept else start
        self._joined = None

    def add(self, found: Operations, limit: int) -> None:
        """The operations that come next, up to `limit`."""
        if limit == self.limit:
            return
        self._parts.append(self._part(self.limit, limit, found))
        self.limit = limit
        if len(self._parts) > PARTS_MAX:
            self._shorten()
        self._joined = None

    def _shorten(self) -> None:
        """Make one part of the last ones: not of a large one each time a few came behind it."""
        place = len(self._parts) - 1
        count = len(self._parts[place].operations.ids)
        while place and (
            place == len(self._parts) - 1 or len(self._parts[place - 1].operations.ids) <= count
        ):
            place -= 1
            count += len(self._parts[place].operations.ids)
        last = self._parts[place:]
        everything = operations.joined([part.operations for part in last])
        self._parts[place:] = [self._part(last[0].start, last[-1].limit, everything)]

    def over(self, base: Snapshot) -> Snapshot:
        """The index's snapshot, and the tail, as one."""
        if not self._parts:
            return base
        if self._joined is None or self._joined[0] is not base:
            self._joined = (base, self._join(base))
        return self._joined[1]

    def _join(self, base: Snapshot) -> Snapshot:
        gone = {view.segment.number: view.deleted for view in base.views}
        views = [view.segment for view in base.views]
        for part in self._parts:
            earlier = Snapshot([View(s, gone[s.number]) for s in views], self._cutter, 0, {})
            for number, docs in earlier.documents_of(part.settled.replaced).items():
                gone[number] = gone[number] | docs
            if part.segment is not None:
                views.append(part.segment)
                gone[part.segment.number] = BitMap()
        # Views that lost nothing stay as they are, with what they have worked out.
        there = {view.segment.number: view for view in base.views}
        joined = [
            there[s.number]
            if s.number in there and there[s.number].deleted is gone[s.number]
            else View(s, gone[s.number])
            for s in views
        ]
        return Snapshot(joined, self._cutter, base.number, base.marks)

    def _part(self, start: int, limit: int, found: Operations) -> _Part:
        settled = operations.settle(found)
        segment = None
        if len(settled.ids):
            builder = Builder(self._cutter, frequencies=self._frequencies)
            takes_bytes = self._cutter.takes_bytes
            builder.add(settled.ids, as_texts(settled.texts, takes_bytes=takes_bytes))
            sink = io.BytesIO()
            builder.write(sink)
            # Numbers below zero: no segment of the index has one.
            segment = Segment(-limit, sink.getvalue(), f"the log up to {limit}")
        return _Part(start, limit, found, settled, segment)
