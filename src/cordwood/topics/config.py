"""What a topic is from its creation on: kept with each partition, in its file `metadata`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from cordwood.base.errors import InvalidInputError
from cordwood.journal import document
from cordwood.journal.journal import EXTENT_BYTES, EXTENT_BYTES_MIN
from cordwood.topics.names import PARTITIONS_MAX, check_name

Ack = Literal["journal", "flush", "store"]

RETENTION_S = 168 * 3600.0
FLUSH_PERIOD_S = 10.0
FLUSH_PERIOD_S_MIN = 0.002
EXTENT_BYTES_MAX = 1 << 40
TOMBSTONE_S = 24 * 3600.0
PROPERTIES_MAX = 1000


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topic, and one partition of it."""

    namespace: str
    topic: str
    partitions: int = 1
    compaction: bool = False
    """Whether only the last record of each key is kept."""
    properties: dict[str, str] = {}
    """What its maker attached to the topic."""
    partition_properties: dict[str, str] = {}
    """What its maker attached to this partition."""
    retention_s: float | None = RETENTION_S
    """How long records are kept after their time; None: for ever."""
    retention_bytes: int | None = None
    """How much of each partition is kept; None: all of it."""
    ack: Ack = "journal"
    flush_period_s: float = FLUSH_PERIOD_S
    extent_bytes: int = EXTENT_BYTES
    tombstone_s: float = TOMBSTONE_S
    """How long a deleted key is still told, in a compaction topic."""
    tier: str | None = None
    """The store that records are uploaded to, for a topic in a directory."""
    tier_id: str = ""
    """Tells its topic on that store from another of the same name."""
    local_retention_s: float | None = None
    """How long what was uploaded stays in the directory; None: as long as on the store."""
    created_us: int = 0
    format: int = document.FORMAT


def checked(config: TopicConfig) -> TopicConfig:
    """The config, if there can be such a topic.

    Raises:
        InvalidInputError: there cannot.
    """
    check_name("namespace", config.namespace)
    check_name("topic", config.topic)
    if not _is_whole(config.partitions, 1, PARTITIONS_MAX):
        raise InvalidInputError(
            f"partitions is {config.partitions!r}, and has to be 1 to {PARTITIONS_MAX}"
        )
    if config.ack not in {"journal", "flush", "store"}:
        raise InvalidInputError(f"ack is 'journal', 'flush' or 'store', not {config.ack!r}")
    if config.retention_bytes is not None and not _is_whole(config.retention_bytes, 0, 1 << 62):
        raise InvalidInputError(
            f"retention_bytes is {config.retention_bytes!r}, and has to be a number from 0 on"
        )
    for name in ("retention_s", "local_retention_s"):
        if getattr(config, name) is not None:
            _check_number(name, getattr(config, name), 0)
    _check_number("flush_period_s", config.flush_period_s, FLUSH_PERIOD_S_MIN)
    _check_number("tombstone_s", config.tombstone_s, 0)
    if not _is_whole(config.extent_bytes, EXTENT_BYTES_MIN, EXTENT_BYTES_MAX):
        raise InvalidInputError(
            f"extent_bytes is {config.extent_bytes!r}, and has to be {EXTENT_BYTES_MIN} to "
            f"{EXTENT_BYTES_MAX}"
        )
    _check_tier(config)
    _check_properties(config.properties)
    _check_properties(config.partition_properties)
    return config


def encoded(config: TopicConfig) -> bytes:
    """The bytes of `metadata`."""
    return document.encoded("topic", config)


def decoded(data: bytes, where: str) -> TopicConfig:
    """What `metadata` says.

    Raises:
        CorruptionError: it is damaged.
        UnsupportedError: something newer wrote it.
    """
    return document.decoded("topic", TopicConfig, data, where)


def _check_tier(config: TopicConfig) -> None:
    if config.tier is None:
        if config.local_retention_s is not None:
            raise InvalidInputError("local_retention_s is for a topic with a tier")
        return
    if config.compaction:
        raise InvalidInputError(
            "a compaction topic has no tier: a log keeps all its records",
            hint="make it without one of the two",
        )


def _is_whole(value: object, low: int, high: int) -> bool:
    """Whether it is a whole number within limits."""
    # Not by a range: that is searched, number by number, for what is none.
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check_number(name: str, value: object, low: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value < float("inf"):  # type: ignore[operator]
        raise InvalidInputError(f"{name} is {value!r}, and has to be a number from {low:g} on")


def _check_properties(properties: object) -> None:
    if not isinstance(properties, Mapping) or len(properties) > PROPERTIES_MAX:
        raise InvalidInputError(f"properties map at most {PROPERTIES_MAX} texts to texts")
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInputError(f"property {name!r}: its name and its value are texts")
