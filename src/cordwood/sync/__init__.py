"""Blocking twins of the async classes, with the same names: for scripts, notebooks, Spark tasks.

Store, Options, Limits, Setsum, Token, Witness and the errors are the same objects as in `cordwood`.
"""

from typing import TYPE_CHECKING, Any

from cordwood.base.lazy import attribute

if TYPE_CHECKING:
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
    from cordwood.sync.topics import Topics
    from cordwood.sync.volume import Volume, tend_volumes
    from cordwood.topics.batch import TopicRecord

_HOMES = {
    "Collection": "sync.collection",
    "Committed": "log.bulk",
    "Cursors": "sync.log",
    "Delta": "sync.pipeline",
    "Fleet": "sync.fleet",
    "Index": "sync.index",
    "Limits": "log.reader",
    "Log": "sync.log",
    "Options": "log.options",
    "Pin": "sync.log",
    "Pipeline": "sync.pipeline",
    "Reader": "sync.log",
    "Record": "log.records",
    "Setsum": "base.setsum",
    "Staged": "log.bulk",
    "Store": "store.url",
    "Stream": "log.roll",
    "Streams": "sync.log",
    "Table": "sync.pipeline",
    "Token": "log.bulk",
    "TopicRecord": "topics.batch",
    "Topics": "sync.topics",
    "Volume": "sync.volume",
    "Witness": "log.cursors",
    "Writer": "sync.log",
    "collect_logs": "sync.pipeline",
    "compact": "sync.pipeline",
    "members": "sync.fleet",
    "roll_up_fleet": "sync.pipeline",
    "scrub_log": "sync.pipeline",
    "scrub_logs": "sync.pipeline",
    "survey": "sync.fleet",
    "tend_volumes": "sync.volume",
}
"""Where the names are: loaded when one is first used, as those of `cordwood` are."""


def __getattr__(name: str) -> Any:
    """The names in `_HOMES`."""
    return attribute(globals(), _HOMES, name)


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
