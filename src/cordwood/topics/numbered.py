"""Records with sequence numbers on their way to a log: each is there once, in order.

What a producer sends while its last records are being written waits, and then goes out as one
block, which is in the log whole or not at all. If nobody can know whether it is, or somebody else
sent it meanwhile, the log is read: what is there is not sent again. What fails takes with it all
that waits behind it, so that nothing later is there before it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cordwood.base.clock import Clock
from cordwood.base.errors import ConflictError, CordwoodError, UncertainError
from cordwood.topics.batch import Columns, Producer, Row, joined
from cordwood.topics.reserved import origins, stored
from cordwood.topics.sequences import Sequences

BLOCK_BYTES = 8_000_000
"""A block is about so large at most."""
TRIES_MAX = 10
"""How often a block is tried that nobody knows of, or that others came before."""


class OvertakenError(CordwoodError):
    """A record that was about to be written is there already."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """Records of one append."""

    rows: Columns | Row
    records: int
    size_bytes: int
    producer: Producer
    future: asyncio.Future[int]


class Numbered:
    """The producers of a partition, as one process has them; used on one loop."""

    def __init__(
        self,
        send: Callable[[pa.RecordBatch], Awaitable[int]],
        learn: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """`send` appends, and says where; `learn` notes all that is in the log."""
        self.sequences = Sequences()
        self._send = send
        self._learn = learn
        self._clock = clock
        self._lines: dict[int, list[_Waiting]] = {}
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._flying: dict[int, Producer] = {}
        """The first record of each block that is being written."""

    @property
    def are_flying(self) -> bool:
        """Whether blocks are being written."""
        return bool(self._flying)

    def check(self) -> None:
        """Go on only if nothing that is being written is there already.

        Raises:
            OvertakenError: something is.
        """
        for producer in self._flying.values():
            if (self.sequences.next_of(producer.id) or 0) > producer.sequence:
                raise OvertakenError(f"record {producer.sequence} of a producer is there already")

    async def append(
        self, rows: Columns | Row, records: int, size_bytes: int, producer: Producer
    ) -> int:
        """Send records; the offset of the first."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(producer.id, [])
        line.append(_Waiting(rows, records, size_bytes, producer, future))
        if producer.id not in self._busy:
            self._busy[producer.id] = asyncio.ensure_future(self._drive(producer.id, line))
        return await asyncio.shield(future)

    def note_all(self, batch: pa.RecordBatch) -> None:
        """Records of the log: those that follow each other in both numbers are noted as one."""
        found = origins(batch)
        if found is None:
            return
        is_next = (
            (np.diff(found.offsets) == 1)
            & (found.producers[1:] == found.producers[:-1])
            & (found.sequences[1:] - found.sequences[:-1] == 1)
        )
        begins = np.flatnonzero(np.concatenate(([True], ~is_next)))
        counts = np.diff(np.append(begins, len(found.offsets)))
        for begin, count in zip(begins.tolist(), counts.tolist(), strict=True):
            who = Producer(int(found.producers[begin]), int(found.sequences[begin]))
            self._note(who, count, int(found.offsets[begin]))

    def _note(self, producer: Producer, records: int, offset: int) -> None:
        """Records of a producer, of which some may be known."""
        known = (self.sequences.next_of(producer.id) or 0) - producer.sequence
        if known < records:
            skipped = max(0, known)
            later = Producer(producer.id, producer.sequence + skipped)
            self.sequences.add(later, records - skipped, offset + skipped)

    async def _drive(self, who: int, line: list[_Waiting]) -> None:
        """Write block after block, as long as something waits."""
        while line:
            count, size = 1, line[0].size_bytes
            while count < len(line) and size + line[count].size_bytes <= BLOCK_BYTES:
                size += line[count].size_bytes
                count += 1
            block = line[:count]
            del line[:count]
            try:
                await self._write(who, block)
            except Exception as error:  # noqa: BLE001 - whatever it was, who waits must hear of it
                for one in [*block, *line]:
                    if not one.future.done():
                        one.future.set_exception(error)
                line.clear()
        del self._lines[who], self._busy[who]

    async def _write(self, who: int, block: list[_Waiting]) -> None:
        failure: CordwoodError | None = None
        for _ in range(TRIES_MAX):
            if self.sequences.seen is None or failure is not None:
                await self._learn()
            fresh = self._fresh(block)
            if not fresh:
                return
            self._flying[who] = fresh[0].producer
            try:
                offset = await self._send(self._content(fresh))
            except (UncertainError, OvertakenError) as error:
                failure = error
                continue
            finally:
                self._flying.pop(who, None)
            for one in fresh:
                self._note(one.producer, one.records, offset)
                _tell(one, offset)
                offset += one.records
            self._fresh(block)  # What was handed in twice.
            return
        assert failure is not None
        raise failure

    def _fresh(self, block: list[_Waiting]) -> list[_Waiting]:
        """Those that are not in the log; where the others are they are told."""
        fresh: list[_Waiting] = []
        following = 0
        for one in block:
            try:
                found = self.sequences.offset_of(one.producer)
            except ConflictError as error:
                if not one.future.done():
                    one.future.set_exception(error)
                continue
            if found is not None:
                _tell(one, found)
            elif one.producer.sequence >= following:
                fresh.append(one)
                following = one.producer.sequence + one.records
        return fresh

    def _content(self, block: list[_Waiting]) -> pa.RecordBatch:
        """A block as the log takes it."""
        columns = joined([one.rows for one in block], self._clock.now_us())
        counts = np.array([one.records for one in block])
        firsts = np.array([one.producer.sequence for one in block], np.uint64)
        within = np.arange(len(columns)) - np.repeat(np.cumsum(counts) - counts, counts)
        sequences = np.repeat(firsts, counts) + within.astype(np.uint64)
        return stored(columns, block[0].producer.id, sequences)


def _tell(one: _Waiting, offset: int) -> None:
    if not one.future.done():
        one.future.set_result(offset)
