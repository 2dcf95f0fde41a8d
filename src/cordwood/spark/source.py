"""The data source as Spark sees it: a name, a schema, and who reads and writes.

Spark looks up every source there is when a format is first asked for, so nothing heavy is imported
here: each method loads what it needs.

There is no `pushFilters` anywhere, on purpose: in Spark 4.3 a filter that was pushed once is also
applied to other queries on the same DataFrame, which then lack rows. Ranges are options instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def is_topic(options: Mapping[str, str]) -> bool:
    """Whether a topic is meant, and not a log."""
    return any(name.lower() == "topic" for name in options)


def is_volume(options: Mapping[str, str]) -> bool:
    """Whether a volume is meant."""
    return any(name.lower() == "volume" for name in options)


class CordwoodSource(DataSource):
    """`spark.read.format("cordwood")` and its three siblings."""

    _is_inferred = False
    """Whether Spark asked for the columns, because the user did not choose. It is pickled along."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "cordwood"

    def schema(self) -> StructType:
        """The columns that the log has, where the user did not choose."""
        from cordwood.spark.batch_reader import schema_of  # noqa: PLC0415 - see above

        if is_topic(self.options):
            from cordwood.spark.topic_place import SCHEMA  # noqa: PLC0415

            return SCHEMA
        if is_volume(self.options):
            from cordwood.spark.volume_reader import parse  # noqa: PLC0415

            return parse(self.options).schema
        self._is_inferred = True
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Who reads a log once, as it is now."""
        from cordwood.spark.batch_reader import reader_of  # noqa: PLC0415

        if is_topic(self.options):
            from cordwood.spark.topic_reader import TopicReader  # noqa: PLC0415

            return TopicReader(schema, self.options)
        if is_volume(self.options):
            from cordwood.spark.volume_reader import VolumeReader  # noqa: PLC0415

            return VolumeReader(schema, self.options)
        return reader_of(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Who follows a log, batch by batch."""
        from cordwood.spark.stream_reader import StreamReader  # noqa: PLC0415

        if is_topic(self.options):
            from cordwood.spark.topic_reader import TopicStreamReader  # noqa: PLC0415

            return TopicStreamReader(schema, self.options)
        return StreamReader(schema, self.options, is_inferred=self._is_inferred)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Who appends a DataFrame."""
        from cordwood.spark.batch_writer import BatchWriter  # noqa: PLC0415

        if is_topic(self.options):
            from cordwood.spark.topic_writer import TopicBatchWriter  # noqa: PLC0415

            return TopicBatchWriter(schema, self.options, overwrite)
        return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Who appends a stream, batch by batch."""
        from cordwood.spark.stream_writer import StreamWriter  # noqa: PLC0415

        if is_topic(self.options):
            from cordwood.spark.topic_writer import TopicStreamWriter  # noqa: PLC0415

            return TopicStreamWriter(schema, self.options, overwrite)
        return StreamWriter(schema, self.options, overwrite)
