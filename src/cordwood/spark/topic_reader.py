"""A topic, read once or followed: partition by partition, in order of offsets.

A plan is a range of offsets for each partition, which a task reads as any consumer does. A stream's
position, in its checkpoint, is the next offset of each partition, and when the topic was made: a
topic that was made anew under the name is not taken for the old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cordwood.base.errors import CollectedError, StateError
from cordwood.spark.schema import check
from cordwood.spark.task import BATCH_ROWS_MAX, settle
from cordwood.spark.topic_place import SCHEMA, TopicOptions, parse


@dataclass(frozen=True, slots=True)
class Range(InputPartition):
    """Records of one partition."""

    partition: int
    begin: int
    end: int


class TopicReader(DataSourceReader):
    """Reads what a topic holds."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        """No I/O: it is pickled, and sent to every task."""
        check(schema, SCHEMA.fields)
        self._schema = schema
        self._options = parse(options, "read")

    def partitions(self) -> Sequence[InputPartition]:
        """What there is now."""
        bounds = [partition.bounds() for partition in self._options.partitions()]
        ranges = [(number, one.oldest, one.next) for number, one in enumerate(bounds)]
        return cut(ranges, self._options.split_records)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range, in a task."""
        return read_range(partition, self._schema, self._options)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a topic."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        """No I/O: it is pickled, and sent to every task."""
        check(schema, SCHEMA.fields)
        self._schema = schema
        self._options = parse(options, "stream")
        self._ceiling: list[int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query begins that has no checkpoint yet."""
        found = [partition.bounds() for partition in self._options.partitions()]
        is_oldest = self._options.starting_at == "oldest"
        return self._position([one.oldest if is_oldest else one.next for one in found])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a batch may hold."""
        most = self._options.max_records
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where the topic ends now."""
        self._ceiling = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; partitions share what it may hold."""
        begins, ends = self._checked(start), self._ceiling or self._ends()
        if isinstance(limit, ReadAllAvailable) or self._options.max_records is None:
            return self._position([max(pair) for pair in zip(begins, ends, strict=True)])
        left, shared = self._options.max_records, dict.fromkeys(range(len(begins)), 0)
        waiting = {n: max(0, end - begins[n]) for n, end in enumerate(ends)}
        for place, number in enumerate(sorted(waiting, key=waiting.__getitem__)):
            # Who has least comes first, and leaves to the others what it does not need.
            shared[number] = min(waiting[number], -(-left // (len(waiting) - place)))
            left -= shared[number]
        return self._position([begin + shared[n] for n, begin in enumerate(begins)])

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the topic ends, for the query's progress."""
        return self._position(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of a batch."""
        begins, ends = self._checked(start), self._checked(end)
        if self._options.on_collected == "oldest":
            oldest = [partition.bounds().oldest for partition in self._options.partitions()]
            begins = [max(pair) for pair in zip(begins, oldest, strict=True)]
        ranges = list(zip(range(len(begins)), begins, ends, strict=True))
        return cut(ranges, self._options.split_records)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the position is in the checkpoint, and retention is the topic's own."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range, in a task."""
        return read_range(partition, self._schema, self._options)

    def stop(self) -> None:
        """Nothing is open."""

    def _ends(self) -> list[int]:
        return [partition.bounds().next for partition in self._options.partitions()]

    def _position(self, offsets: list[int]) -> dict[str, Any]:
        made = self._options.partitions()[0].config.created_us
        return {"created_us": made, "offsets": offsets}

    def _checked(self, position: dict[str, Any]) -> list[int]:
        """The offsets of a position, if it is one of this topic."""
        made = self._options.partitions()[0].config.created_us
        if position.get("created_us") != made:
            raise StateError(
                f"the checkpoint is of another topic than {self._options.namespace}/"
                f"{self._options.topic} is now",
                hint="it was deleted and made again: start the query with a checkpoint of its own",
            )
        return [int(offset) for offset in position["offsets"]]


def cut(ranges: list[tuple[int, int, int]], records: int) -> list[InputPartition]:
    """Ranges of at most so many records; those without any are left out."""
    return [
        Range(number, at, min(at + records, end))
        for number, begin, end in ranges
        for at in range(begin, end, records)
    ]


def read_range(
    chosen: InputPartition, schema: StructType, options: TopicOptions
) -> Iterator[pa.RecordBatch]:
    """The records of a range, as the schema has them."""
    settle()
    if not isinstance(chosen, Range):
        return  # Spark's own, in place of none: there is nothing to read.
    wanted = to_arrow_schema(schema, timezone="UTC")
    scan = options.partitions()[chosen.partition].scan(chosen.begin)
    try:
        while scan.offset < chosen.end:
            batches = scan.take()
            if not batches:
                raise CollectedError(
                    f"partition {chosen.partition} ends at {scan.offset}, before {chosen.end}",
                    hint="the topic was deleted, or lost records, while it was read",
                )
            for whole in batches:
                first = whole.column("offset")[0].as_py()
                batch = whole.slice(0, max(0, chosen.end - first))
                for at in range(0, batch.num_rows, BATCH_ROWS_MAX):
                    yield _projected(batch.slice(at, BATCH_ROWS_MAX), wanted, chosen.partition)
    finally:
        scan.close()


def _projected(batch: pa.RecordBatch, wanted: pa.Schema, partition: int) -> pa.RecordBatch:
    columns = []
    for field in wanted:
        if field.name == "partition":
            columns.append(pa.repeat(pa.scalar(partition, field.type), batch.num_rows))
        else:
            name = "timestamp_us" if field.name == "timestamp" else field.name
            columns.append(batch.column(name).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
