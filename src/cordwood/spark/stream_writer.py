"""`df.writeStream.format("cordwood")…start(url)`: every batch of a query once, for ever.

The token is the query's id, which lives in its checkpoint and survives restarts, and the number of
the batch. Tasks learn both from Spark, and tell the driver, whose own process knows only the batch.

The log is made by the query's first batch and by no other, so it is the tasks that make it: the
driver is not told which batch it is. All later ones belong to the same log. Should that be
destroyed, the query fails; it does not go on in a new one, which would lack what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cordwood.base.errors import InvalidInputError, NotFoundError, StateError
from cordwood.log.bulk import Token
from cordwood.spark import writing

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends a stream, batch by batch."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """On the driver, for every batch and again for its commit."""
        writing.refuse_overwrite(overwrite)
        writing.check_schema(schema)
        self._options = writing.parse(options)
        if self._options.app_id is not None:
            raise InvalidInputError(
                "option txnAppId is for batch jobs: a streaming query has an id of its own",
                hint="leave it out; the id is in the query's checkpoint",
            )
        if not self._options.create:
            writing.prepare(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        token = token_of_task()
        if token.batch == 0:
            writing.prepare(self._options)
        try:
            return writing.Uploads(writing.upload(iterator, self._options, token), token)
        except NotFoundError as error:
            raise StateError(
                f"the log that the batches before batch {token.batch} went to is gone: "
                f"{error.message}",
                hint="if it was destroyed on purpose, start the query with a checkpoint of its own",
            ) from error

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when every task of the batch is done."""
        writing.check_messages(messages)
        tokens = {message.token for message in messages if isinstance(message, writing.Uploads)}
        if not tokens:
            return
        if len(tokens) > 1 or next(iter(tokens)).batch != batchId:
            raise StateError(
                f"batch {batchId} brings uploads of {sorted(f'{t.id} {t.batch}' for t in tokens)}",
                hint="nothing was written; restart the query",
            )
        writing.commit(messages, self._options, tokens.pop())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the commit may have taken effect."""


def token_of_task() -> Token:
    """The query and the batch that the running task is of."""
    task = TaskContext.get()
    query = task.getLocalProperty(QUERY_ID) if task else None
    batch = task.getLocalProperty(BATCH_ID) if task else None
    if task is None or not query or batch is None:
        raise StateError("a streaming write runs outside of a streaming query")
    return Token(query, int(batch), task.getLocalProperty(RUN_ID) or "", chained=True)
