"""Which records of a producer are in a partition already, so that a retry does not double them.

A producer that gives its records sequence numbers, rising, may send again what it does not know to
be there, also after it was killed. What it sent is found in the batches themselves: they say whose
they are. Only the newest part of a partition is searched for a producer that is new here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from cordwood.base.errors import ConflictError
from cordwood.journal.frames import Frame
from cordwood.topics.batch import Producer, producer_of

REMEMBERED = 1000
"""Batches of each producer whose offsets are known."""
SEARCHED_RECORDS = 1_000_000
"""So far back a producer is looked for."""


class _Sent(NamedTuple):
    sequence: int
    records: int
    offset: int


class Sequences:
    """What is known of the producers of a partition."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.seen: int | None = None
        """All records before this offset are known of, as far back as was searched."""
        self._sent: dict[int, deque[_Sent]] = {}

    def note(self, frame: Frame) -> None:
        """A batch that is in the partition."""
        producer = producer_of(frame.payload)
        if producer is not None:
            self.add(producer, frame.span, frame.number)
        self.seen = frame.number + frame.span

    def add(self, producer: Producer, records: int, offset: int) -> None:
        """A batch of a producer."""
        sent = self._sent.setdefault(producer.id, deque(maxlen=REMEMBERED))
        sent.append(_Sent(producer.sequence, records, offset))

    def next_of(self, producer_id: int) -> int | None:
        """The lowest sequence that a producer has not sent; None if nothing of it is known."""
        sent = self._sent.get(producer_id)
        return sent[-1].sequence + sent[-1].records if sent else None

    def offset_of(self, producer: Producer) -> int | None:
        """Where a record of a producer is; None if it is not there.

        Raises:
            ConflictError: it may have been there, too long ago to say where.
        """
        sent = self._sent.get(producer.id)
        if not sent or producer.sequence >= sent[-1].sequence + sent[-1].records:
            return None
        place = bisect_right(sent, producer.sequence, key=lambda one: one.sequence) - 1
        if place >= 0:
            one = sent[place]
            if producer.sequence < one.sequence + one.records:
                return one.offset + producer.sequence - one.sequence
        raise ConflictError(
            f"sequence {producer.sequence} comes after {sent[-1].sequence + sent[-1].records - 1}",
            hint="a producer's sequences rise; use another name for another stream of records",
        )
