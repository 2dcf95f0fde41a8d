"""`df.write.format("cordwood").mode("append").save(url)`: one job, one commit.

The job's token is made here, once, on the driver; every task and the commit have the same. With the
options `txnAppId` and `txnVersion` the user names it instead: then a whole job that is run again
(from `foreachBatch`, or by a scheduler) takes effect once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.log.bulk import Token
from cordwood.spark import writing


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """On the driver. Checks what can be checked before any task runs."""
        writing.refuse_overwrite(overwrite)
        writing.check_schema(schema)
        self._options = writing.parse(options)
        writing.prepare(self._options)
        app_id = self._options.app_id
        if app_id is None:
            self._token = Token(SYSTEM_ENTROPY.token(), once=True)
        else:
            self._token = Token(app_id, self._options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        staged = writing.upload(iterator, self._options, self._token)
        return writing.Uploads(staged, self._token)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done."""
        writing.commit(messages, self._options, self._token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: the commit may have taken effect."""
