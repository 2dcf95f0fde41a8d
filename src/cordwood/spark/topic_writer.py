"""A DataFrame or a stream, appended to a topic: columns value, and key, headers, partition.

On a store it takes effect once: tasks upload what goes to each partition, and the driver commits
partition by partition with the token of the job or of the batch (log/bulk.py), which a commit made
again finds there. In a directory tasks send as any producer does: a task that is tried again sends
its records again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, LongType, StructType

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import InvalidInputError, StateError
from cordwood.log.bulk import Staged, Token
from cordwood.spark.stream_writer import token_of_task
from cordwood.spark.task import settle
from cordwood.spark.topic_place import TopicOptions, parse
from cordwood.spark.writing import is_headers, is_text, refuse_overwrite
from cordwood.topics.engine import WORKERS, Engine, Sending
from cordwood.topics.logged import LoggedPartition
from cordwood.topics.reserved import stored
from cordwood.topics.routing import Router
from cordwood.topics.rows import columns_of_arrow
from cordwood.topics.shelf import Shelf


@dataclass(frozen=True, slots=True)
class TopicUploads(WriterCommitMessage):
    """What a task tells the driver."""

    token: Token
    staged: dict[int, tuple[Staged, ...]] = field(default_factory=dict)
    """By partition; none for a topic in a directory."""


class TopicBatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """On the driver. Checks what can be checked before any task runs."""
        refuse_overwrite(overwrite)
        check_schema(schema)
        self._options = parse(options, "write")
        first = self._options.partitions()[0]
        if isinstance(first, LoggedPartition):
            first.check_own()
        app_id = self._options.app_id
        if app_id is None:
            self._token = Token(SYSTEM_ENTROPY.token(), once=True)
        else:
            self._token = Token(app_id, self._options.version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return send(iterator, self._options, self._token)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done."""
        commit(messages, self._options, self._token)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: the commit may have taken effect."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Appends a stream, batch by batch."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """On the driver, for every batch and again for its commit."""
        refuse_overwrite(overwrite)
        check_schema(schema)
        self._options = parse(options, "write")
        if self._options.app_id is not None:
            raise InvalidInputError(
                "option txnAppId is for batch jobs: a streaming query has an id of its own",
                hint="leave it out; the id is in the query's checkpoint",
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return send(iterator, self._options, token_of_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when every task of the batch is done."""
        tokens = {one.token for one in messages if isinstance(one, TopicUploads)}
        if not tokens:
            return
        if len(tokens) > 1 or next(iter(tokens)).batch != batchId:
            raise StateError(
                f"batch {batchId} brings records of {sorted(f'{t.id} {t.batch}' for t in tokens)}",
                hint="nothing was written; restart the query",
            )
        commit(messages, self._options, tokens.pop())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the commit may have taken effect."""


def check_schema(schema: StructType) -> None:
    """Raise unless these columns can be sent.

    Raises:
        InvalidInputError: one is missing, unknown, there twice, or of another type.
    """
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidInputError(
            f"the columns {', '.join(names) or '(none)'} have no value",
            hint="make one of type BINARY or STRING: df.selectExpr('to_json(struct(*)) AS value')",
        )
    for one in schema.fields:
        kinds = {
            "value": is_text(one.dataType),
            "key": is_text(one.dataType),
            "headers": is_headers(one.dataType),
            "partition": isinstance(one.dataType, IntegerType | LongType),
        }
        if not kinds.get(one.name) or names.count(one.name) > 1:
            raise InvalidInputError(
                f"a topic has no column {one.name!r} of {one.dataType.simpleString()} to be "
                "written, or has it once only",
                hint="select value, and key (binary or string), headers "
                "(array<struct<name:string,value:binary>>), partition (int) if there are any",
            )


def send(batches: Iterator[pa.RecordBatch], options: TopicOptions, token: Token) -> TopicUploads:
    """Send or upload everything that a task brings, in its order."""
    settle()
    if not isinstance(options.home(), Shelf):
        engine = Engine(options.home(), SYSTEM_CLOCK, SYSTEM_ENTROPY)
        sending = Sending(engine, options.namespace, options.topic, None)
        try:
            for batch in batches:
                if batch.num_rows:
                    sending.send_all(*columns_of_arrow(batch))
        finally:
            sending.close()
        return TopicUploads(token)
    uploading = _Uploading(options, token)
    for batch in batches:
        if batch.num_rows:
            uploading.add(batch)
    return TopicUploads(token, uploading.finish())


class _Uploading:
    """The records of a task, on their way to the partitions of a topic on a store."""

    def __init__(self, options: TopicOptions, token: Token) -> None:
        self._partitions = options.partitions()
        self._partitions[0].check_own()
        self._router = Router(self._partitions[0].config, WORKERS)
        self._most = options.fragment_bytes
        self._token = token
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._staged: dict[int, list[Staged]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        columns, chosen = columns_of_arrow(batch)
        for number, rows in self._router.split(columns, chosen):
            waiting = self._waiting.setdefault(number, [])
            waiting.append(stored(columns.take(rows)))
            if sum(one.nbytes for one in waiting) >= self._most:
                self._stage(number)

    def finish(self) -> dict[int, tuple[Staged, ...]]:
        for number in list(self._waiting):
            self._stage(number)
        return {number: tuple(staged) for number, staged in self._staged.items()}

    def _stage(self, number: int) -> None:
        blocks = self._waiting.pop(number)
        table = pa.concat_tables(
            [pa.Table.from_batches([block]) for block in blocks], promote_options="default"
        )
        work = self._partitions[number].log.stage(table, self._token)
        self._staged.setdefault(number, []).append(portal.current().run(work))


def commit(messages: list[WriterCommitMessage | None], options: TopicOptions, token: Token) -> None:
    """Make everything visible, partition by partition.

    Raises:
        StateError: a message is missing, so somebody's records would be.
    """
    found: list[Any] = list(messages)
    if any(not isinstance(message, TopicUploads) for message in found):
        raise StateError("a task ended without a message", hint="try again")
    if not isinstance(options.home(), Shelf):
        return
    is_first = token.chained and token.batch == 0
    for number, partition in enumerate(options.partitions()):
        staged = [one for message in found for one in message.staged.get(number, ())]
        if staged or is_first:
            portal.current().run(partition.told(partition.log.commit(staged, token)))
