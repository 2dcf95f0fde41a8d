"""Writing a DataFrame to a log: what batch and stream have in common.

::

    task     record batches ─▶ uploads of `fragmentBytes` each ─▶ a message that lists them
    driver   all messages, in the order of the splits ─▶ one bulk commit (log/bulk.py)

A task that is tried again, or run twice at once, stages uploads of its own; only those of the
attempt that Spark counts are in a message. The commit has a token: the streaming query and its
batch, or an id made once for a batch job. So a commit made again, by a driver that does not know
of the first, changes nothing.

`abort` does nothing: Spark calls it also after a commit that took effect and was not heard of. What
is never committed is swept by its age (log/uploads.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
)

from cordwood.base import portal
from cordwood.base.errors import InvalidInputError, LimitError, NotFoundError, StateError
from cordwood.fleet.dirty import dirty_name
from cordwood.fleet.fleet import Fleet
from cordwood.log.bulk import UPLOADS_MAX, Committed, Staged, Token
from cordwood.log.fragment import Compression
from cordwood.log.log import Log
from cordwood.spark.options import choice, name_of, number, refuse_unknown, single, size
from cordwood.spark.task import open_store, settle

FRAGMENT_BYTES = 64 * 2**20
FRAGMENT_BYTES_MOST = 256 * 2**20
"""Half of what one atomic batch may hold."""

FRAGMENT_RECORDS_MAX = 2**22
"""An upload of tiny records ends here."""

AT_ONCE = 2
"""Uploads of one task under way: one is built while another travels."""

_KNOWN = frozenset(
    {"path", "fragmentBytes", "compression", "create", "txnAppId", "txnVersion", "fleet"}
)
_SPARKS_OWN = frozenset({"checkpointLocation", "queryName"})
"""Spark hands a sink the options of the query as well."""

_TEXT = (BinaryType, StringType)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, checked."""

    store: str
    name: str
    fragment_bytes: int = FRAGMENT_BYTES
    compression: Compression = "snappy"
    create: bool = True
    app_id: str | None = None
    version: int = 0
    fleet: str | None = None
    """The member in whose dirty log the log is marked."""


@dataclass(frozen=True, slots=True)
class Uploads(WriterCommitMessage):
    """What a task tells the driver."""

    staged: tuple[Staged, ...]
    token: Token


def parse(options: Mapping[str, str]) -> WriteOptions:
    """The options that Spark hands over.

    Raises:
        InvalidInputError: one is unknown, or is not what it should be.
    """
    given = {name.lower(): value for name, value in options.items()}
    ours = {name: text for name, text in given.items() if name not in map(str.lower, _SPARKS_OWN)}
    refuse_unknown(ours, _KNOWN, "a write")
    store, name = single(given)
    values: dict[str, Any] = {
        "fragment_bytes": size(given, "fragmentBytes"),
        "compression": choice(given, "compression", "none", "snappy", "lz4", "zstd"),
        "app_id": name_of(given, "txnAppId"),
        "version": number(given, "txnVersion", least=0),
        "fleet": name_of(given, "fleet"),
    }
    create = choice(given, "create", "true", "false")
    if (values["fragment_bytes"] or 0) > FRAGMENT_BYTES_MOST:
        raise InvalidInputError(f"option fragmentBytes is at most {FRAGMENT_BYTES_MOST // 2**20}m")
    if values["fleet"] is not None:
        dirty_name(values["fleet"])  # It would be a pity to find out after the job.
    if values["version"] is not None and values["app_id"] is None:
        raise InvalidInputError(
            "option txnVersion is the number of a batch of txnAppId, which is not given"
        )
    there = {option: value for option, value in values.items() if value is not None}
    return WriteOptions(store=store, name=name, create=create != "false", **there)


def check_schema(schema: StructType) -> None:
    """Raise unless these columns can be appended.

    Raises:
        InvalidInputError: one is missing, unknown, there twice, or of another type.
    """
    names = schema.fieldNames()
    wanted = {"body": is_text, "key": is_text, "headers": is_headers, "stream": _is_string}
    if "body" not in names:
        raise InvalidInputError(
            f"the columns {', '.join(names) or '(none)'} have no body",
            hint="make one of type BINARY or STRING: df.selectExpr('to_json(struct(*)) AS body')",
        )
    for field in schema.fields:
        if field.name not in wanted or names.count(field.name) > 1:
            raise InvalidInputError(
                f"a log has no column {field.name!r} to be written, or has it once only",
                hint="select body, and key, headers, stream if there are any: offset and "
                "timestamp are assigned by the log",
            )
        if not wanted[field.name](field.dataType):
            raise InvalidInputError(
                f"column {field.name} is {field.dataType.simpleString()}, expected "
                f"{_EXPECTED[field.name]}"
            )


_EXPECTED = {
    "body": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<name:string,value:binary>>",
    "stream": "string",
}


def is_text(kind: DataType) -> bool:
    """Whether it can be the bytes of something."""
    return isinstance(kind, _TEXT)


def _is_string(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def is_headers(kind: DataType) -> bool:
    """Whether it can be a column of headers."""
    entry = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(entry, StructType) or entry.fieldNames() != ["name", "value"]:
        return False
    return _is_string(entry["name"].dataType) and is_text(entry["value"].dataType)


def refuse_overwrite(overwrite: bool) -> None:
    """Raise if a log would be replaced.

    Raises:
        InvalidInputError: `mode("overwrite")` was asked for.
    """
    if overwrite:
        raise InvalidInputError(
            "a log only grows: it cannot be overwritten",
            hint='write with mode("append"), to a new log if need be',
        )


def prepare(options: WriteOptions) -> None:
    """Make sure that there is a log to write to. One HEAD.

    Raises:
        NotFoundError: there is none, and none is to be made.
    """
    log = _log(options)
    if not portal.current().run(log.objects.exists()):
        if not options.create:
            raise NotFoundError(
                f"there is no log at {log.url}", hint="create it, or drop the option create=false"
            )
        portal.current().run(log.create(exist_ok=True))


def upload(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, token: Token
) -> tuple[Staged, ...]:
    """Stage everything that a task brings, in its order."""
    settle()
    log = _log(options)
    home = portal.current()
    waiting: deque[Future[Staged]] = deque()
    staged: list[Staged] = []
    try:
        for table in _tables(batches, options.fragment_bytes):
            work = log.stage(table, token, compression=options.compression)
            waiting.append(home.start(work))
            _check_count(len(staged) + len(waiting))
            if len(waiting) >= AT_ONCE:
                staged.append(waiting.popleft().result())
        staged += [one.result() for one in waiting]
    finally:
        for one in waiting:
            one.cancel()
    return tuple(staged)


def _tables(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    """The same records in tables of about this size."""
    waiting: list[pa.RecordBatch] = []
    num_bytes = num_records = 0
    for whole in batches:
        for batch in _cut(whole, most_bytes):
            waiting.append(batch)
            num_bytes += batch.nbytes
            num_records += batch.num_rows
            if num_bytes >= most_bytes or num_records >= FRAGMENT_RECORDS_MAX:
                yield pa.Table.from_batches(waiting)
                waiting, num_bytes, num_records = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _cut(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same records, in parts of this size at most, or of one record.

    By halves: records differ in size, and the large ones may lie together.
    """
    if batch.nbytes <= most_bytes or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    middle = batch.num_rows // 2
    yield from _cut(batch.slice(0, middle), most_bytes)
    yield from _cut(batch.slice(middle), most_bytes)


def commit(
    messages: list[WriterCommitMessage | None], options: WriteOptions, token: Token
) -> Committed | None:
    """Make everything visible, split by split; None if there is nothing.

    Raises:
        StateError: a message is missing, so somebody's records would be.
    """
    check_messages(messages)
    staged = [one for message in cast("list[Uploads]", messages) for one in message.staged]
    if not staged and not (token.chained and token.batch == 0):
        return None
    _check_count(len(staged))
    return portal.current().run(_commit(_log(options), staged, token, options.fleet))


def _check_count(uploads: int) -> None:
    """Raise if one commit does not take so many; a task that makes them alone ends early."""
    if uploads > UPLOADS_MAX:
        raise LimitError(
            f"the job made {uploads} uploads, and one commit takes {UPLOADS_MAX}",
            hint="nothing was written; raise the option fragmentBytes, or write from fewer splits: "
            "df.coalesce(n)",
        )


def check_messages(messages: list[WriterCommitMessage | None]) -> None:
    """Raise unless every task has said what it uploaded.

    Raises:
        StateError: one has not, so its records would be missing.
    """
    if any(not isinstance(message, Uploads) for message in messages):
        raise StateError("a task ended without a message", hint="nothing was written; try again")


async def _commit(log: Log, staged: list[Staged], token: Token, member: str | None) -> Committed:
    if member is None:
        return await log.commit(staged, token)
    async with Fleet(log.store, member) as fleet:
        return await fleet.commit(log.name, staged, token)


def _log(options: WriteOptions) -> Log:
    return Log(open_store(options.store), options.name)
