"""A log, read once: planned on the driver, read by tasks.

`partitions` runs when Spark plans the query, once for each DataFrame: later queries on the same
DataFrame, and on views of it, see the same records. `spark.read…load()` again sees the log anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cordwood.base import portal
from cordwood.spark.options import ReadOptions, parse
from cordwood.spark.plan import manifests, plan
from cordwood.spark.schema import FRAGMENTS, check, schema_for
from cordwood.spark.splits import Split
from cordwood.spark.task import BATCH_ROWS_MAX, fragments_of, read_split, settle


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns of what the options name. One GET for each log."""
    asked = parse(options, streaming=None)
    if asked.view == "fragments":
        return FRAGMENTS
    found = portal.current().run(manifests(asked.place))
    return schema_for(found.values(), several=not asked.place.is_single)


def reader_of(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Who reads what the options ask for.

    Raises:
        InvalidInputError: an option is wrong, or the schema asks for what is not there.
    """
    asked = parse(options)
    if asked.view == "fragments":
        return FragmentsReader(schema, asked)
    return BatchReader(schema, asked)


class BatchReader(DataSourceReader):
    """Reads records."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        """No I/O: it is pickled, and sent to every task."""
        check(schema)
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The splits of the log as it is now."""
        return portal.current().run(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a split, in a task."""
        return read_split(partition, self._schema, self._options)


class FragmentsReader(DataSourceReader):
    """Reads what the manifest says of each fragment: counts and bounds, and no record."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        """No I/O: it is pickled, and sent to every task."""
        check(schema, FRAGMENTS.fields)
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The splits of the log as it is now."""
        return portal.current().run(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The fragments of a split, in a task that opens the nodes above them."""
        settle()
        if not isinstance(partition, Split):
            return
        stream = self._options.stream
        found = [(work.log, f) for work in partition.works for f in fragments_of(work, stream)]
        columns: dict[str, list[Any]] = {
            "log": [log for log, _ in found],
            "path": [f.path for _, f in found],
            "seq_no": [f.seq_no for _, f in found],
            "start": [f.start for _, f in found],
            "limit": [f.limit for _, f in found],
            "records": [f.num_records for _, f in found],
            "bytes": [f.num_bytes for _, f in found],
            "setsum": [f.setsum_hex for _, f in found],
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        yield from pa.table(arrays, schema=schema).to_batches(max_chunksize=BATCH_ROWS_MAX)
