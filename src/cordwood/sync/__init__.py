"""Blocking twins of the async classes, with the same names: for scripts, notebooks, Spark tasks.

Store, Options, Limits, Setsum, Token, Witness and the errors are the same objects as in `cordwood`.
"""

from typing import Any

from cordwood.base.lazy import named
from cordwood.base.setsum import Setsum
from cordwood.log.bulk import Committed, Staged, Token
from cordwood.log.cursors import Witness
from cordwood.log.options import Options
from cordwood.log.reader import Limits
from cordwood.log.records import Record
from cordwood.log.roll import Stream
from cordwood.store.url import Store
from cordwood.sync.fleet import Fleet, members, survey
from cordwood.sync.log import Cursors, Log, Pin, Reader, Streams, Writer
from cordwood.sync.pipeline import (
    Delta,
    Pipeline,
    Table,
    collect_logs,
    compact,
    roll_up_fleet,
    scrub_log,
    scrub_logs,
)

__all__ = [
    "Collection",
    "Committed",
    "Cursors",
    "Delta",
    "Fleet",
    "Index",
    "Limits",
    "Log",
    "Options",
    "Pin",
    "Pipeline",
    "Reader",
    "Record",
    "Setsum",
    "Staged",
    "Store",
    "Stream",
    "Streams",
    "Table",
    "Token",
    "TopicRecord",
    "Topics",
    "Volume",
    "Witness",
    "Writer",
    "collect_logs",
    "compact",
    "members",
    "roll_up_fleet",
    "scrub_log",
    "scrub_logs",
    "survey",
    "tend_volumes",
]


def __getattr__(name: str) -> Any:
    """What is not always needed, or needs an extra, is loaded when it is used."""
    if name == "Collection":
        return named("cordwood.sync.collection", name)
    if name == "Index":
        return named("cordwood.sync.index", name)
    if name == "Topics":
        return named("cordwood.sync.topics", name)
    if name in {"Volume", "tend_volumes"}:
        return named("cordwood.sync.volume", name)
    if name == "TopicRecord":
        return named("cordwood.topics.batch", name)
    raise AttributeError(f"module 'cordwood.sync' has no attribute {name!r}")
