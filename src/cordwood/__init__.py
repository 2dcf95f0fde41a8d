"""Cordwood: ordered, verifiable logs in plain files on an object store.

The async core is here; `cordwood.sync` has blocking twins with the same names.
"""

from typing import Any

from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CollectedError,
    ConflictError,
    ContendedError,
    CordwoodError,
    CordwoodWarning,
    CorruptionError,
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
from cordwood.base.lazy import lazily
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
from cordwood.log.scrub import ScrubReport
from cordwood.log.writer import Writer
from cordwood.pipeline.collect import Collected, collect_logs
from cordwood.pipeline.compact import CompactReport, compact
from cordwood.pipeline.delta import Delta
from cordwood.pipeline.reports import RunReport
from cordwood.pipeline.rollup import FleetRolledUp, roll_up_fleet
from cordwood.pipeline.run import Pipeline
from cordwood.pipeline.scrub import scrub_log, scrub_logs
from cordwood.pipeline.table import Table
from cordwood.store.url import Store

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs `cordwood[search]` is loaded when it is used."""
    if name == "Collection":
        return lazily("cordwood.collection.collection", name)
    if name == "Index":
        return lazily("cordwood.index.index", name)
    raise AttributeError(f"module 'cordwood' has no attribute {name!r}")


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
    "Survey",
    "Table",
    "Token",
    "UncertainError",
    "UnsupportedError",
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
]
