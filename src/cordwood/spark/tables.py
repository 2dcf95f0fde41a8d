"""Tables for Spark: plain Parquet files, those that the table names now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cordwood.base import portal
from cordwood.pipeline.table import Table
from cordwood.spark.session import check_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "log STRING NOT NULL, offset BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL, key BINARY, "
    "headers ARRAY<STRUCT<name: STRING, value: BINARY>>, stream STRING, body BINARY NOT NULL"
)

_SCHEMES = {"s3": "s3a", "gs": "gs", "az": "abfss"}
"""What Hadoop calls the schemes of ours."""

_PATTERN = re.compile(r"[][{}*?\\]")
_ESCAPED = r"\\\g<0>"


def read_table(spark: SparkSession, url: str) -> DataFrame:
    """The rows that a table has now, read by Spark's own Parquet reader.

    The files are fixed when this is called. They stay for the table's grace interval, also if a
    compaction replaces them meanwhile.

    Raises:
        NotFoundError: there is no such table.
    """
    check_session(spark)
    table = Table.from_url(url)
    files = portal.current().run(table.files())
    if not files:
        return spark.createDataFrame([], SCHEMA)
    base = hadoop_path(table.url)
    return spark.read.schema(SCHEMA).parquet(*(f"{base}/{file.path}" for file in files))


def hadoop_path(url: str) -> str:
    """What Hadoop calls the place of a URL of ours.

    A path is no URL there: nothing is percent-encoded. But Spark takes it for a pattern.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        rest = unquote(rest)
    return f"{_SCHEMES.get(scheme, scheme)}:{_PATTERN.sub(_ESCAPED, rest)}"
