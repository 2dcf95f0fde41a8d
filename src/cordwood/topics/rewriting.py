"""Writing an extent anew, with some of its records left out.

Offsets stay as they are: a batch with gaps says which it has. Small batches become one. A batch of
a producer that may be asked for again (sequences.py) stays by itself, even if nothing is left of
it but whose it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from cordwood.journal import frames
from cordwood.journal.extent import END, Extent, head_bytes
from cordwood.journal.frames import Frame
from cordwood.store.api import Buffer
from cordwood.topics.alive import Bits
from cordwood.topics.batch import Columns, Producer, decoded, encoded, producer_of

MERGED_BYTES = 256 << 10
"""Small batches become one, up to this size."""
ALONE_BYTES = 64 << 10
"""One of this size stays by itself."""
WRITE_BYTES = 1 << 20
SPAN_MAX = 1 << 31
NOT_YET = 1 << 63


class Rewriting:
    """A new extent, being written."""

    def __init__(
        self, extent: Extent, bits: Bits, spend: Callable[[int], None], *, producers_from: int
    ) -> None:
        """Its file is empty. Producers are asked for from an offset on; `spend` may wait."""
        self._extent = extent
        self._bits = bits
        self._spend = spend
        self._producers_from = producers_from
        self._tail = extent.start
        self._parts: list[Buffer] = [head_bytes(extent.head)]
        self._at = self._size = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._first = NOT_YET
        self._newest_us = 0
        self.keyed = 0
        """How many records with keys it has."""
        self.frames = 0
        """How many frames it has, without the last."""

    def copy(self, old: Iterable[Frame]) -> None:
        """Take over the records whose bits are set, and those without a key."""
        for frame in old:
            size = frame.end - frame.begin
            self._spend(size)
            batch = decoded(frame.payload, frame.number, frame.time_us)
            producer = producer_of(frame.payload)
            if frame.number + frame.span <= self._producers_from:
                producer = None
            if producer is not None or size >= ALONE_BYTES:
                self._merge()
                self._take(frame, batch, producer)
                continue
            if frame.number + frame.span - self._first > SPAN_MAX:
                self._merge()
            self._first = min(self._first, frame.number)
            self._pending.append(batch)
            self._pending_bytes += size
            if self._pending_bytes >= MERGED_BYTES:
                self._merge()
        self._merge()

    def end(self, number: int, newest_us: int) -> None:
        """Say that nothing follows, and sync; the time is for one without records."""
        self._write([], number, 0, self._newest_us or newest_us, END)
        self._flush()
        self._extent.file.sync()

    def _take(self, frame: Frame, batch: pa.RecordBatch, producer: Producer | None) -> None:
        """Write what is left of a batch that stays by itself."""
        kept = self._kept(batch)
        if kept.num_rows == batch.num_rows:
            self._write([frame.payload], frame.number, frame.span, frame.time_us)
        elif kept.num_rows or producer is not None:
            self._write_batch(kept, frame.number, frame.span, producer)

    def _merge(self) -> None:
        """Write what is left of the batches that wait, as one."""
        if self._pending:
            found = pa.Table.from_batches(self._pending).combine_chunks().to_batches()
            self._pending, self._pending_bytes, self._first = [], 0, NOT_YET
            kept = self._kept(found[0]) if found else None
            if kept is not None and kept.num_rows:
                offsets = kept.column("offset")
                first, last = offsets[0].as_py(), offsets[-1].as_py()
                self._write_batch(kept, first, last + 1 - first, None)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        is_kept = self._bits.of(batch.column("offset").to_numpy())
        self.keyed += int(np.count_nonzero(is_kept))
        keys = batch.column("key")
        if keys.null_count:
            is_kept |= keys.is_null().to_numpy(zero_copy_only=False)
        return batch if is_kept.all() else batch.filter(pa.array(is_kept))

    def _write_batch(
        self, batch: pa.RecordBatch, number: int, span: int, producer: Producer | None
    ) -> None:
        deltas = (batch.column("offset").to_numpy() - number).astype(np.uint32)
        times = batch.column("timestamp_us").to_numpy()
        newest_us = int(times.max(initial=0))
        columns = Columns(
            batch.column("value"),
            batch.column("key"),
            batch.column("headers"),
            None if (times == newest_us).all() else times,
        )
        is_dense = len(deltas) == span
        payload = encoded(columns, producer=producer, deltas=None if is_dense else deltas)
        self._write(payload, number, span, newest_us)

    def _write(
        self, payload: list[Buffer], number: int, span: int, time_us: int, kind: int = 0
    ) -> None:
        parts, tail = frames.framed(
            self._tail, payload, number=number, span=span, kind=kind, time_us=time_us
        )
        self._parts += parts
        self._size += tail.end - self._tail.end
        self._tail = tail
        self.frames += kind != END
        self._newest_us = max(self._newest_us, time_us if kind != END else 0)
        if self._size >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._extent.file.write(self._parts, self._at)
        self._spend(self._size)
        self._at = self._tail.end
        self._parts, self._size = [], 0
