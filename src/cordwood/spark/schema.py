"""Columns: what a log has, what a user asked for, and how one becomes the other.

===========  ==========================================  ========================================
offset       BIGINT NOT NULL                             the record's number
timestamp    TIMESTAMP NOT NULL                          when it was appended
body         BINARY NOT NULL
key          BINARY                                      these three where the log has them
headers      ARRAY<STRUCT<name STRING, value BINARY>>
stream       STRING
log          STRING NOT NULL                             where several logs are read
fragment     STRING NOT NULL                             the file it lies in; only if asked for
===========  ==========================================  ========================================

A schema that the user gives is a projection: these columns, in this order, and nothing else is
read. A column may be declared nullable that is not; the other way round it is refused.

Spark compares a batch with the schema to the letter, also whether a column may be null. Numbers are
unsigned in a log and signed in Spark; both have the same bytes, so they are viewed, not converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.base.errors import CorruptionError, InvalidInputError
from cordwood.log.format import COLUMNS, Manifest

HEADERS_TYPE = ArrayType(
    StructType(
        [StructField("name", StringType(), False), StructField("value", BinaryType(), False)]
    ),
    containsNull=False,
)

OFFSET = StructField("offset", LongType(), False)
TIMESTAMP = StructField("timestamp", TimestampType(), False)
BODY = StructField("body", BinaryType(), False)
KEY = StructField("key", BinaryType())
HEADERS = StructField("headers", HEADERS_TYPE)
STREAM = StructField("stream", StringType())
LOG = StructField("log", StringType(), False)
FRAGMENT = StructField("fragment", StringType(), False)

PLAIN = (OFFSET, TIMESTAMP, BODY)
FULL = (*PLAIN, KEY, HEADERS, STREAM)
ALL = (*FULL, LOG, FRAGMENT)

FRAGMENTS = StructType(
    [
        StructField("log", StringType(), False),
        StructField("path", StringType(), False),
        StructField("seq_no", LongType(), False),
        StructField("start", LongType(), False),
        StructField("limit", LongType(), False),
        StructField("records", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("setsum", StringType(), False),
    ]
)
"""The view `fragments`: what the manifest says of each file of a log."""

_STORED = {"timestamp": "timestamp_us"}
"""Where a column has another name in a fragment."""


def schema_for(manifests: Iterable[Manifest], *, several: bool) -> StructType:
    """The columns of these logs, where the user did not choose."""
    has_extra = any(COLUMNS in manifest.features for manifest in manifests)
    return StructType([*(FULL if has_extra else PLAIN), *((LOG,) if several else ())])


def check(schema: StructType, known: Iterable[StructField] = ALL) -> None:
    """Raise unless each column of the schema can be read as what it is declared to be.

    Raises:
        InvalidInputError: a column is unknown, repeated, of another type, or declared NOT NULL and
            may be null.
    """
    columns = {field.name: field for field in known}
    seen: set[str] = set()
    for asked in schema.fields:
        field = columns.get(asked.name)
        if field is None:
            raise InvalidInputError(
                f"there is no column {asked.name!r} to read", hint=f"there are {', '.join(columns)}"
            )
        if asked.name in seen:
            raise InvalidInputError(f"column {asked.name!r} is asked for twice")
        seen.add(asked.name)
        # Without regard to what inside an array or a struct may be null.
        kind, asked_kind = field.dataType.simpleString(), asked.dataType.simpleString()
        if asked_kind != kind:
            raise InvalidInputError(
                f"column {asked.name!r} is {kind}, not {asked_kind}",
                hint="read it as what it is, and cast it in the query",
            )
        if field.nullable and not asked.nullable:
            raise InvalidInputError(f"column {asked.name!r} is declared NOT NULL and may be null")
    if not schema.fields:
        raise InvalidInputError("a schema without a column", hint="ask for offset at least")


class Projection:
    """From the columns of a fragment to those of a schema."""

    def __init__(self, schema: StructType) -> None:
        """Of a schema that was checked."""
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self.names: tuple[str, ...] = tuple(schema.fieldNames())

    @property
    def needs_body(self) -> bool:
        """Whether bodies were asked for."""
        return BODY.name in self.names

    def stored(self, more: Iterable[str] = ()) -> list[str]:
        """The columns to read from a fragment, by their names there; offsets need not be read."""
        known = {OFFSET.name, LOG.name, FRAGMENT.name}
        wanted = dict.fromkeys([*self.names, *more])
        return [_STORED.get(name, name) for name in wanted if name not in known]

    def apply(
        self, batch: pa.RecordBatch, offsets: pa.Array, constants: Mapping[str, str]
    ) -> pa.RecordBatch:
        """Rows of a fragment as the schema has them.

        Args:
            batch: what was read.
            offsets: of these rows, as signed numbers.
            constants: the values of `log` and `fragment`.
        """
        columns = []
        for field in self._schema:
            if field.name == OFFSET.name:
                columns.append(offsets)
            elif field.name in constants:
                value = pa.scalar(constants[field.name], field.type)
                columns.append(pa.repeat(value, batch.num_rows))
            else:
                columns.append(_column(batch, field, constants[FRAGMENT.name]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(batch: pa.RecordBatch, field: pa.Field, where: str) -> pa.Array:
    """A column that a fragment may have."""
    name = _STORED.get(field.name, field.name)
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(name)
    if column.null_count and not field.nullable:
        raise CorruptionError(f"fragment {where}: its column {name} has nulls", where=where)
    if column.type == field.type:
        return column
    return column.view(field.type) if column.type == pa.uint64() else column.cast(field.type)
