"""The cursors of streaming queries: what a query has not finished is not collected.

A query with the option `cursor` makes one in each of its logs, where it starts. It moves only when
a batch is finished, noted as such in Spark's own checkpoint: should the query be restarted, it
never begins before its cursor.

Spark tells a source that a batch is finished one batch later, and of the last one never. Whoever
wants the cursor to follow at once adds a listener, in the driver, for all queries of a session::

    cordwood.spark.keep_cursors(spark)

or calls `cordwood.spark.advance(query)` when a query has ended.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from cordwood.base import portal
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.log.log import Log
from cordwood.spark.positions import Positions
from cordwood.store.url import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


async def hold(log: Log, cursor: str, offset: int) -> None:
    """Make sure that the cursor is there, and not behind `offset`. Two GETs and a PUT, or one GET.

    Raises:
        CollectedError: what it would hold is gone, or about to be.
    """
    while True:
        try:
            witness = await log.cursors.load(cursor)
            if witness.offset > offset:
                await log.cursors.save(cursor, offset, witness)
        except NotFoundError:
            with suppress(AlreadyExistsError):
                await log.cursors.init(cursor, offset)
                return
        except ConflictError:
            continue
        else:
            return


async def move(log: Log, cursor: str, offset: int) -> None:
    """Move the cursor up to `offset`, if it stands before it. One GET, one PUT.

    One that somebody deleted is made again, to hold back what the query has not read yet.
    """
    try:
        witness = await log.cursors.load(cursor)
    except NotFoundError:
        await hold(log, cursor, offset)
        return
    if witness.offset < offset:
        # Another process of the same query was faster: it knows at least as much.
        with suppress(ConflictError):
            await log.cursors.save(cursor, offset, witness)


async def move_all(positions: Positions, store: Store) -> None:
    """Move the cursor in every log of a query up to what was finished; those destroyed are gone."""
    if positions.cursor:
        for name, position in positions.logs.items():
            log = Log(store, name)
            with suppress(NotFoundError):
                is_other = {position.incarnation, (await log.manifest()).incarnation} - {""}
                if len(is_other) < 2:
                    await move(log, positions.cursor, position.offset)


def advance(query: StreamingQuery) -> None:
    """Move a query's cursors up to what it has finished, by its last progress.

    For the end of a query, whose last batch Spark tells its source nothing of: call it after
    `awaitTermination`. It may be called at any time, and again.
    """
    progress = query.lastProgress
    for source in [] if progress is None else progress["sources"]:
        positions = _positions(source["endOffset"])
        if positions is not None and positions.cursor:
            portal.current().run(move_all(positions, Store(positions.store)))


def _positions(text: Any) -> Positions | None:
    """Where a query stands by its progress; None if its source is of another kind."""
    try:
        return Positions.of(json.loads(text))
    except (InvalidInputError, TypeError, json.JSONDecodeError):
        return None


class CursorKeeper(StreamingQueryListener):
    """Moves the cursors of all queries of a session when a batch is finished."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: the query itself makes its cursors."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is in the checkpoint: what it has read is needed no more."""
        for source in event.progress.sources:
            positions = _positions(source.endOffset)
            if positions is None or not positions.cursor:
                continue
            try:
                portal.current().run(move_all(positions, Store(positions.store)))
            except CordwoodError as error:
                # Only collection waits for it; the next batch moves it as well.
                warnings.warn(f"a cursor was not moved: {error}", stacklevel=1)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing: what was finished has been told."""


def keep_cursors(spark: SparkSession) -> CursorKeeper:
    """Let the cursors of this session's queries follow at once; `spark.streams` may remove it."""
    keeper = CursorKeeper()
    spark.streams.addListener(keeper)
    return keeper
