"""The cursors of streaming queries: what a query has not finished is not collected.

A query with the option `cursor` makes one in each of its logs, where it starts. It moves only when
a batch is finished, noted as such in Spark's own checkpoint: should the query be restarted, it
never begins before its cursor.

A cursor is one query's. From its first batch on the query's id is in it; another query that was
given the same name is refused, before it moves the cursor past what the first has not read.

Spark tells a source that a batch is finished one batch later, and of the last one never. Whoever
wants the cursor to follow at once adds a listener, in the driver, for all queries of a session::

    cordwood.spark.keep_cursors(spark)

or calls `cordwood.spark.advance(query)` when a query has ended.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from cordwood.base import portal
from cordwood.base.errors import (
    AlreadyExistsError,
    ConflictError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
)
from cordwood.log.log import Log
from cordwood.spark.positions import Positions
from cordwood.store.url import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


async def hold(log: Log, cursor: str, offset: int, query: str = "") -> None:
    """Make sure that the cursor is there, and not behind `offset`. Two GETs and a PUT, or one GET.

    Whoever's it is, it stays theirs: to stand further back harms nobody. A new one is `query`'s.

    Raises:
        CollectedError: what it would hold is gone, or about to be.
    """
    while True:
        try:
            witness = await log.cursors.load(cursor)
            if witness.offset > offset:
                await log.cursors.save(cursor, offset, witness, owner=witness.owner)
        except NotFoundError:
            with suppress(AlreadyExistsError):
                await log.cursors.init(cursor, offset, owner=query)
                return
        except ConflictError:
            continue
        else:
            return


async def claim(log: Log, cursor: str, query: str, *, take: bool) -> None:
    """Put the query's id into its cursor, which is there. One GET, and the first time a PUT.

    Raises:
        StateError: it is another query's, and is not to be taken from that.
    """
    while True:
        witness = await log.cursors.load(cursor)
        if witness.owner == query:
            return
        if witness.owner and not take:
            raise _taken(log, cursor, query, witness.owner)
        with suppress(ConflictError):
            await log.cursors.save(cursor, witness.offset, witness, owner=query)
            return


def _taken(log: Log, cursor: str, query: str, owner: str) -> StateError:
    return StateError(
        f"the cursor {cursor!r} of log {log.name!r} belongs to the query {owner}, and this is "
        f"{query}",
        hint="give each query a cursor of its own. If the other one is gone, start the new one "
        "with option takeCursor=true; it begins where the cursor stands",
    )


async def move(log: Log, cursor: str, offset: int, query: str) -> None:
    """Move the cursor up to `offset`, if it stands before it. One GET, one PUT.

    One that somebody deleted is made again, to hold back what the query has not read yet.

    Raises:
        StateError: it is another query's.
    """
    try:
        witness = await log.cursors.load(cursor)
    except NotFoundError:
        await hold(log, cursor, offset, query)
        return
    if witness.owner not in {"", query}:
        raise _taken(log, cursor, query, witness.owner)
    if witness.offset < offset:
        # Another process of the same query was faster: it knows at least as much.
        with suppress(ConflictError):
            await log.cursors.save(cursor, offset, witness, owner=query)


async def move_all(positions: Positions, store: Store) -> None:
    """Move the cursor in every log of a query up to what was finished; those destroyed are gone."""
    if positions.cursor:
        for name, position in positions.logs.items():
            log = Log(store, name)
            with suppress(NotFoundError):
                is_other = {position.incarnation, (await log.manifest()).incarnation} - {""}
                if len(is_other) < 2:
                    with _told(log, positions.cursor, position.offset):
                        await move(log, positions.cursor, position.offset, positions.query)


@contextmanager
def _told(log: Log, cursor: str, offset: int) -> Iterator[None]:
    """Say of a failure which cursor was not moved, and what that means."""
    try:
        yield
    except NotFoundError:
        raise
    except CordwoodError as error:
        error.message = (
            f"the cursor {cursor!r} of log {log.name!r} was not moved to {offset}: {error.message}"
        )
        error.hint = (
            f"{error.hint or 'start the query again'}. No batch is lost: the checkpoint knows what "
            "was finished, and until the cursor moves collection waits for it"
        )
        raise


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
                warnings.warn(str(error), stacklevel=1)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing: what was finished has been told."""


def keep_cursors(spark: SparkSession) -> CursorKeeper:
    """Let the cursors of this session's queries follow at once; `spark.streams` may remove it."""
    keeper = CursorKeeper()
    spark.streams.addListener(keeper)
    return keeper
