"""Cordwood: ordered, verifiable logs in plain files on an object store.

The async core is here; `cordwood.sync` has blocking twins with the same names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    ConflictError,
    ContendedError,
    CordwoodError,
    CordwoodWarning,
    CorruptionError,
    DivergedError,
    FormatError,
    InternalError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    Retry,
    StateError,
    StoreError,
    UncertainError,
    UnsupportedError,
)
from cordwood.base.lazy import attribute

if TYPE_CHECKING:
    from cordwood.base.setsum import Setsum
    from cordwood.fleet.fleet import Fleet
    from cordwood.fleet.rollup import RollUpReport
    from cordwood.fleet.select import Dirty, Policy, select
    from cordwood.fleet.share import owners
    from cordwood.fleet.survey import Survey, members, survey
    from cordwood.log.bulk import Committed, Staged, Token
    from cordwood.log.collect import CollectReport
    from cordwood.log.copy import CopyReport
    from cordwood.log.cursors import Cursors, Witness
    from cordwood.log.format import Fragment, Seal
    from cordwood.log.log import Log, LogState
    from cordwood.log.options import Options
    from cordwood.log.pins import Pin
    from cordwood.log.reader import Limits, Reader
    from cordwood.log.records import Record
    from cordwood.log.roll import Stream
    from cordwood.log.scrub import ScrubReport
    from cordwood.log.streams import Streams
    from cordwood.log.writer import Writer
    from cordwood.pipeline.collect import Collected, collect_logs
    from cordwood.pipeline.compact import CompactReport, compact
    from cordwood.pipeline.delta import Delta
    from cordwood.pipeline.reports import RunReport
    from cordwood.pipeline.rollup import FleetRolledUp, roll_up_fleet
    from cordwood.pipeline.run import Pipeline
    from cordwood.pipeline.scrub import scrub_log, scrub_logs
    from cordwood.pipeline.table import Table
    from cordwood.pipeline.volumes import tend_volumes
    from cordwood.store.url import Store
    from cordwood.topics.batch import TopicRecord
    from cordwood.topics.topics import Topics
    from cordwood.volume.operations import VolumeStatus
    from cordwood.volume.volume import Volume, VolumeSnapshot

__version__ = "0.1.0"


_HOMES = {
    "CollectReport": "log.collect",
    "Collected": "pipeline.collect",
    "Collection": "collection.collection",
    "Committed": "log.bulk",
    "CompactReport": "pipeline.compact",
    "CopyReport": "log.copy",
    "Cursors": "log.cursors",
    "Delta": "pipeline.delta",
    "Dirty": "fleet.select",
    "Fleet": "fleet.fleet",
    "FleetRolledUp": "pipeline.rollup",
    "Fragment": "log.format",
    "Index": "index.index",
    "Limits": "log.reader",
    "Log": "log.log",
    "LogState": "log.log",
    "Options": "log.options",
    "Pin": "log.pins",
    "Pipeline": "pipeline.run",
    "Policy": "fleet.select",
    "Reader": "log.reader",
    "Record": "log.records",
    "RollUpReport": "fleet.rollup",
    "RunReport": "pipeline.reports",
    "ScrubReport": "log.scrub",
    "Seal": "log.format",
    "Setsum": "base.setsum",
    "Staged": "log.bulk",
    "Store": "store.url",
    "Stream": "log.roll",
    "Streams": "log.streams",
    "Survey": "fleet.survey",
    "Table": "pipeline.table",
    "Token": "log.bulk",
    "TopicRecord": "topics.batch",
    "Topics": "topics.topics",
    "Volume": "volume.volume",
    "VolumeSnapshot": "volume.volume",
    "VolumeStatus": "volume.operations",
    "Witness": "log.cursors",
    "Writer": "log.writer",
    "collect_logs": "pipeline.collect",
    "compact": "pipeline.compact",
    "members": "fleet.survey",
    "owners": "fleet.share",
    "roll_up_fleet": "pipeline.rollup",
    "scrub_log": "pipeline.scrub",
    "scrub_logs": "pipeline.scrub",
    "select": "fleet.select",
    "survey": "fleet.survey",
    "tend_volumes": "pipeline.volumes",
}
"""Where the other names are: loaded when one is first used, so that a command waits for no more
than it needs, and what needs an extra asks for it then."""


def __getattr__(name: str) -> Any:
    """The names in `_HOMES`, and packages that are used as `cordwood.spark.read_log` is."""
    if name in {"spark", "sync", "volume"}:
        return import_module(f"cordwood.{name}")
    return attribute(globals(), _HOMES, name)


__all__ = [
    "AlreadyExistsError",
    "Code",
    "CollectReport",
    "Collected",
    "CollectedError",
    "Collection",
    "Committed",
    "CompactReport",
    "ConflictError",
    "ContendedError",
    "CopyReport",
    "CordwoodError",
    "CordwoodWarning",
    "CorruptionError",
    "Cursors",
    "Delta",
    "Dirty",
    "DivergedError",
    "Fleet",
    "FleetRolledUp",
    "FormatError",
    "Fragment",
    "Index",
    "InternalError",
    "InvalidInputError",
    "LimitError",
    "Limits",
    "Log",
    "LogState",
    "NotFoundError",
    "Options",
    "Pin",
    "Pipeline",
    "Policy",
    "Reader",
    "Record",
    "Retry",
    "RollUpReport",
    "RunReport",
    "ScrubReport",
    "Seal",
    "Setsum",
    "Staged",
    "StateError",
    "Store",
    "StoreError",
    "Stream",
    "Streams",
    "Survey",
    "Table",
    "Token",
    "TopicRecord",
    "Topics",
    "UncertainError",
    "UnsupportedError",
    "Volume",
    "VolumeSnapshot",
    "VolumeStatus",
    "Witness",
    "Writer",
    "__version__",
    "collect_logs",
    "compact",
    "members",
    "owners",
    "roll_up_fleet",
    "scrub_log",
    "scrub_logs",
    "select",
    "survey",
    "tend_volumes",
]
