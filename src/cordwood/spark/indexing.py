"""An index built by Spark: every task makes segments of its rows, the driver commits them at once.

Texts never pass through the driver. A task that is done again, or twice at the same time, makes
other segments; what counts is what the driver was handed. A build that has a name and a version
counts once: the index keeps the version as a mark, which must be the one that was seen at the
beginning when the segments join.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UncertainError,
)
from cordwood.index.engine import Engine as IndexEngine
from cordwood.index.index import Place
from cordwood.index.operations import Op
from cordwood.index.parts import Part, Stage, commit_parts, staging
from cordwood.index.place import home_of
from cordwood.index.shelf import Shelf
from cordwood.log.log import Log
from cordwood.pipeline.indexing import CURSOR, IndexReport, index_log
from cordwood.spark.engine import SparkEngine, check_can_travel
from cordwood.spark.session import check_session
from cordwood.store.url import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTS = (
    "segment BIGINT NOT NULL, documents BIGINT NOT NULL, "
    "size_bytes BIGINT NOT NULL, path STRING NOT NULL"
)


class BuildReport(Struct, frozen=True, kw_only=True):
    """What a build did."""

    documents: int = 0
    segments: int = 0
    transaction: int | None = None
    is_repeated: bool = False
    """This version, or a later one, had been built before: nothing was done."""


def build_index(
    spark: SparkSession,
    source: DataFrame | str,
    index: Place,
    name: str = "",
    *,
    id_column: str = "id",
    text_column: str = "text",
    build: str = "",
    version: int = 0,
    op: Op = "update",
    cursor: str = CURSOR,
    create: bool = True,
) -> BuildReport | IndexReport:
    """Add documents to an index, in parallel and in one transaction.

    Args:
        spark: the session.
        source: a DataFrame with an id (binary or string) and a text (string or binary), or the URL
            of a log in the same store as the index, whose keys are ids and whose bodies are texts:
            then what is new since the last time is taken in.
        index: where the index is, a directory that all workers see, or a store.
        name: where in the store.
        id_column: of the DataFrame.
        text_column: of the DataFrame.
        build: a name for builds that follow each other; with it, a version counts once.
        version: higher than that of the build before it.
        op: what a record of a log does that does not say so itself.
        cursor: the log's cursor that follows.
        create: make the index if there is none, of words and with frequencies.

    Raises:
        NotFoundError: there is no index, and none is to be made.
        InvalidInputError: the index cannot be reached by tasks, or columns are missing.
    """
    check_session(spark)
    if not isinstance(source, str) and not hasattr(source, "mapInArrow"):
        raise InvalidInputError(
            f"source is a DataFrame, or the URL of a log, not {source!r}",
        )
    home = home_of(index, name, durable=True, clock=SYSTEM_CLOCK, entropy=SYSTEM_ENTROPY)
    engine = IndexEngine(home)
    try:
        if isinstance(home, Shelf):
            check_can_travel(_store_of(index))
        if create:
            _make_if_missing(engine)
        if isinstance(source, str):
            return _from_log(spark, source, engine, op, cursor)
        return _from_frame(source.select(id_column, text_column), engine, build, version)
    finally:
        engine.close()


def _make_if_missing(engine: IndexEngine) -> None:
    try:
        _ = engine.config
    except NotFoundError:
        with suppress(AlreadyExistsError):  # Somebody else was faster: theirs is as good.
            engine.create("words", frequencies=True, exist_ok=True)


def _store_of(index: Place) -> Store:
    return index if isinstance(index, Store) else Store(index)


def _from_log(
    spark: SparkSession, url: str, engine: IndexEngine, op: Op, cursor: str
) -> IndexReport:
    log = Log.from_url(url)
    home = engine.home
    if not isinstance(home, Shelf) or home.store_url != log.store.url:
        raise InvalidInputError(
            f"the index {home.name} is not in the store of the log {url}",
            hint="give the index as a store and a name, with the log's store",
        )
    work = index_log(
        log,
        home.prefix.rstrip("/"),
        tokenizer=engine.config.tokenizer,
        frequencies=engine.config.frequencies,
        op=op,
        cursor=cursor,
        engine=SparkEngine(spark),
    )
    return portal.current().run(work)


def _from_frame(frame: DataFrame, engine: IndexEngine, build: str, version: int) -> BuildReport:
    mark = f"build:{build}"
    marks: dict[str, bytes] = {}
    expected: dict[str, bytes | None] = {}
    if build:
        before = engine.newest().marks.get(mark)
        if before is not None and int(before) >= version:
            return BuildReport(is_repeated=True)
        marks, expected = {mark: str(version).encode()}, {mark: before}
    began_s = SYSTEM_CLOCK.monotonic_s()
    with staging(engine) as stage:
        rows = frame.mapInArrow(_builder(stage), _PARTS).collect()
        parts = [Part(row.segment, row.documents, row.size_bytes, row.path) for row in rows]
        try:
            number = commit_parts(engine, parts, marks=marks, expected=expected, since_s=began_s)
        except UncertainError:
            raise
        except ConflictError:
            seen = engine.newest().marks.get(mark)
            if not build or seen is None or int(seen) < version:
                raise
            return BuildReport(is_repeated=True)
    return BuildReport(
        documents=sum(part.documents for part in parts), segments=len(parts), transaction=number
    )


def _builder(stage: Stage) -> Any:
    """What a task does with its rows."""

    def build(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pairs = ((batch.column(0), batch.column(1)) for batch in batches)
        for part in stage.build(pairs):
            yield pa.record_batch(
                {
                    "segment": pa.array([part.segment], pa.int64()),
                    "documents": pa.array([part.documents], pa.int64()),
                    "size_bytes": pa.array([part.size_bytes], pa.int64()),
                    "path": pa.array([part.path], pa.string()),
                }
            )

    return build
