"""The newest state of a compaction topic: the last record of each key, deleted ones left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from cordwood.journal.extent import END, RecycledError
from cordwood.journal.frames import Frame, behind, damage
from cordwood.journal.journal import Journal
from cordwood.topics.alive import MEMORY_BYTES, Bits, alive, groups
from cordwood.topics.batch import TopicRecord, decoded, iter_topic_records
from cordwood.topics.keys import Keys, Source
from cordwood.topics.names import key_hashes


def latest(journal: Journal, keys: Keys, partition: int, key: bytes) -> TopicRecord | None:
    """The last record of a key; None if there is none, or it says that the key is deleted.

    Raises:
        CorruptionError: it may be in a part of the partition that is damaged.
    """
    hashed = int(key_hashes([key])[0])
    while True:
        try:
            with journal.told("read"), keys.view() as view:
                for source in reversed(view.sources):
                    check_whole(source)
                    found = source.find(hashed, key)
                    if len(found):
                        place, offset = int(found.places[0]), int(found.offsets[0])
                        return (
                            None
                            if found.deleted_s[0]
                            else _record(source, place, offset, partition)
                        )
                return None
        except RecycledError:
            continue  # Retention deleted what was being read: look at what is there now.


def latest_batches(
    journal: Journal, keys: Keys, *, memory_bytes: int = MEMORY_BYTES
) -> Iterator[pa.RecordBatch]:
    """The last record of each key, as they were when this began, in the order of their offsets.

    Raises:
        CorruptionError: a part of the partition is damaged.
    """
    with journal.told("read"), keys.view() as view:
        for source in view.sources:
            check_whole(source)
        for group in groups(view.sources, memory_bytes):
            found = alive(
                view, group, lambda last, _: last.deleted_s == 0, memory_bytes=memory_bytes
            )
            for source, bits in zip(group, found, strict=True):
                with suppress(RecycledError):  # Retention deleted what is not yet read of it.
                    for frame in frames_of(source):
                        batch = _filtered(frame, bits)
                        if batch.num_rows:
                            yield batch


def frames_of(source: Source) -> Iterator[Frame]:
    """The frames of an extent.

    Raises:
        CorruptionError: one is not whole, whatever the index of the extent says.
        RecycledError: the file has been put to another use.
    """
    tail = source.extent.start
    for frame in source.extent.whole_from(tail):
        if frame.kind == END or frame.number >= source.limit:
            return
        yield frame
        tail = behind(tail.salt, frame)
    if tail.number < source.limit:
        source.extent.check_same()
        raise damage(source.extent.path, tail.end, "a frame is not whole")


def check_whole(source: Source) -> None:
    """Make sure that all records of an extent could be read.

    Raises:
        CorruptionError: some are damaged.
    """
    if not source.is_whole:
        raise damage(source.extent.path, 0, "the last records of some keys may be in it")


def _filtered(frame: Frame, bits: Bits) -> pa.RecordBatch:
    batch = decoded(frame.payload, frame.number, frame.time_us)
    is_alive = bits.of(batch.column("offset").to_numpy())
    return batch if is_alive.all() else batch.filter(pa.array(is_alive))


def _record(source: Source, place: int, offset: int, partition: int) -> TopicRecord:
    frame = source.extent.frame_at(place)
    batch = decoded(frame.payload, frame.number, frame.time_us)
    row = int(np.searchsorted(batch.column("offset").to_numpy(), offset))
    return next(iter_topic_records(partition, batch.slice(row, 1)))
