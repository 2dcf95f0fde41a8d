"""Which topic is meant, and what can be asked of it: `option("topic", "shop/clicks").load(place)`.

A place is a directory or a store. A directory may hold topics in its own files, or be a store: what
there is of the topic tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY
from cordwood.base.errors import InvalidInputError, NotFoundError
from cordwood.spark.options import choice, name_of, number, refuse_unknown, size
from cordwood.spark.schema import HEADERS_TYPE
from cordwood.store.location import parse_location
from cordwood.store.url import Store
from cordwood.topics.engine import Engine
from cordwood.topics.home import Home
from cordwood.topics.place import home_of
from cordwood.topics.shelf import Shelf

SPLIT_RECORDS = 1_000_000
FRAGMENT_BYTES = 64 * 2**20

SCHEMA = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS_TYPE),
    ]
)

_READ = frozenset({"path", "topic", "splitRecords"})
_STREAM = _READ | {"startingAt", "onCollected", "maxRecordsPerTrigger"}
_WRITE = frozenset({"path", "topic", "fragmentBytes", "txnAppId", "txnVersion"})
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

_homes: dict[str, Home] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options of a read or a write, checked."""

    path: str
    namespace: str
    topic: str
    split_records: int = SPLIT_RECORDS
    starting_at: str = "oldest"
    on_collected: str = "fail"
    max_records: int | None = None
    fragment_bytes: int = FRAGMENT_BYTES
    app_id: str | None = None
    version: int = 0

    def home(self) -> Home:
        """Where the topic lives, as this process has it."""
        if self.path not in _homes:
            _homes[self.path] = self._home()
        return _homes[self.path]

    def _home(self) -> Home:
        how: dict[str, Any] = {"clock": SYSTEM_CLOCK, "entropy": SYSTEM_ENTROPY}
        home = home_of(self.path, **how)
        if isinstance(home, Shelf):
            return home
        shelf = Shelf(Store(self.path), **how)
        try:
            shelf.partition(self.namespace, self.topic, 0)
        except NotFoundError:
            return home
        return shelf

    def partitions(self) -> list[Any]:
        """The partitions of the topic."""
        engine = Engine(self.home(), SYSTEM_CLOCK, SYSTEM_ENTROPY)
        return engine.partitions(*engine.names(self.namespace, self.topic))


def parse(options: Mapping[str, str], what: str) -> TopicOptions:
    """The options that Spark hands over, for a `read`, a `stream` or a `write`.

    Raises:
        InvalidInputError: one is unknown, or is not what it should be.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {"read": _READ, "stream": _STREAM, "write": _WRITE, "any": _READ | _STREAM}[what]
    ours = {name: text for name, text in given.items() if name not in _SPARKS_OWN}
    refuse_unknown(ours, known, f"a {what} of a topic, instead")
    namespace, slash, topic = (name_of(given, "topic") or "").partition("/")
    if not slash or "path" not in given:
        raise InvalidInputError(
            f"option topic is {given['topic']!r}: it is a namespace, a slash and a name, of a "
            "topic in the place that load() or save() names",
            hint='write option("topic", "shop/clicks").load("/data/topics")',
        )
    if parse_location(given["path"]).scheme == "memory":
        raise InvalidInputError(
            f"{given['path']}: Spark's workers are other processes and do not see this one's "
            "memory",
            hint="use a directory or a remote store",
        )
    values: dict[str, Any] = {
        "split_records": number(given, "splitRecords", least=1),
        "starting_at": choice(given, "startingAt", "oldest", "latest"),
        "on_collected": choice(given, "onCollected", "fail", "oldest"),
        "max_records": number(given, "maxRecordsPerTrigger", least=1),
        "fragment_bytes": size(given, "fragmentBytes"),
        "app_id": name_of(given, "txnAppId"),
        "version": number(given, "txnVersion", least=0),
    }
    there = {name: value for name, value in values.items() if value is not None}
    return TopicOptions(path=given["path"], namespace=namespace, topic=topic, **there)
