"""`read_log`: a log as a DataFrame, as it is at the moment of the call.

What `spark.read.format("cordwood").load(url)` gives is fixed when Spark first plans a query on it,
which may be much later. This is fixed at once. It also checks what it was asked for before Spark
sees it, so that errors are our own, and keeps the files it names from collection for as long as
this process lives, or until `release`.

That a DataFrame is forgotten ends nothing. What was made of it (another frame, a view, an RDD, a
cached plan) does not know the Python object, lives in the JVM, and may still run; nothing says when
the last of these is gone, least of all through Spark Connect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from pyspark.sql.types import StructType

from cordwood.base import portal
from cordwood.base.errors import InvalidInputError
from cordwood.base.given import given_all
from cordwood.log.log import Log
from cordwood.spark.batch_reader import schema_of
from cordwood.spark.options import Frozen, ReadOptions, parse
from cordwood.spark.pins import KeptPin, release_all
from cordwood.spark.plan import find, freeze, in_turns
from cordwood.spark.schema import ALL, FRAGMENTS
from cordwood.spark.session import check_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REPLACED = ("startoffset", "starttime", "endoffset", "endtime", "cursor", "pin")
"""Options that say where to read, which is then known."""

_pins: WeakKeyDictionary[DataFrame, list[KeptPin]] = WeakKeyDictionary()
"""What `release` releases."""


def read_log(
    spark: SparkSession,
    url: str | Sequence[str],
    columns: Sequence[str] | None = None,
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    **options: Any,
) -> DataFrame:
    """The records of a log, or of several, as they are now.

    Args:
        spark: the session.
        url: of a log; a pattern such as `file:///data/wood/orders-*`; or a list of them.
        columns: which to read; bodies that are not asked for are not read from the store.
        start: the first offset, or the time of the first record, that is wanted. A time without a
            zone is UTC.
        end: the first offset, or the time of the first record, that is not wanted.
        options: as those of `format("cordwood")`; `split_bytes` is the same as `splitBytes`.

    Raises:
        InvalidInputError: there is no such column or option.
        NotFoundError: there is no such log.
        CollectedError: `start` has been collected.
    """
    check_session(spark)
    given = _given(url, start, end, options)
    asked = parse(given)
    schema = _projection(columns, asked) if columns is not None else schema_of(given)
    kept: list[KeptPin] = []
    try:
        parts = portal.current().run(_freeze(asked, kept))
        for name in _REPLACED:
            given.pop(name, None)
        given["frozen"] = msgspec.json.encode(parts).decode()
        frame = spark.read.format("cordwood").schema(schema).options(**given).load()
    except BaseException:
        for pin in kept:
            pin.release()
        raise
    _pins[frame] = kept
    return frame


def release(frame: DataFrame | None = None) -> None:
    """Let go of what `read_log` keeps for this DataFrame: it, and what was made of it, is done.

    Without a frame, of what it keeps for all of them, also those that were forgotten. Whoever
    queries one nevertheless may find files gone, and is told so.
    """
    if frame is None:
        release_all()
    else:
        for pin in _pins.pop(frame, []):
            pin.release()


async def _freeze(asked: ReadOptions, kept: list[KeptPin]) -> list[Frozen]:
    """What the read will see of each log. The pins that keep it are added to `kept`."""

    async def freeze_one(log: Log) -> Frozen:
        found, pin = await freeze(log, asked)
        if pin is not None:
            kept.append(KeptPin(log, pin))
        return Frozen(log.name, found.begin, found.end, asked.pin if pin is None else pin.name)

    return await in_turns(freeze_one(log) for log in await find(asked.place))


def _given(
    url: str | Sequence[str],
    start: int | datetime | None,
    end: int | datetime | None,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """Everything as options, as text."""
    given = {name.replace("_", "").lower(): _text(value) for name, value in options.items()}
    for word, value in (("start", start), ("end", end)):
        if value is not None:
            given[f"{word}{'time' if isinstance(value, datetime) else 'offset'}"] = _text(value)
    if isinstance(url, str):
        return {**given, "path": url}
    urls = given_all(url, str, "a log's URL")
    return {**given, "paths": msgspec.json.encode(urls).decode()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        # Without a zone it is UTC, as in the text of an option, wherever this machine stands.
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return str(value)


def _projection(columns: Sequence[str], asked: ReadOptions) -> StructType:
    known = {f.name: f for f in (FRAGMENTS.fields if asked.view == "fragments" else ALL)}
    if type(columns) not in {list, tuple} or not columns or not set(columns) <= set(known):
        raise InvalidInputError(
            f"columns {columns!r} cannot be read", hint=f"give a list of {', '.join(known)}"
        )
    return StructType([known[name] for name in dict.fromkeys(columns)])
