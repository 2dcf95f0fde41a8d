"""How does Spark read and write logs, and do the heavy work? The data source and an engine.

Importing this loads neither pyspark nor a JVM: what needs them is fetched when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cordwood.base.lazy import lazily, named
from cordwood.spark.session import missing, session

if TYPE_CHECKING:
    from cordwood.spark.indexing import build_index
    from cordwood.spark.keeper import advance, keep_cursors
    from cordwood.spark.read import read_log, release
    from cordwood.spark.tables import read_table

_HOMES = {
    "advance": "cordwood.spark.keeper",
    "build_index": "cordwood.spark.indexing",
    "keep_cursors": "cordwood.spark.keeper",
    "read_log": "cordwood.spark.read",
    "read_table": "cordwood.spark.tables",
    "release": "cordwood.spark.read",
}
"""Where the names are defined that need pyspark."""

__all__ = [
    "advance",
    "build_index",
    "keep_cursors",
    "missing",
    "read_log",
    "read_table",
    "release",
    "session",
]


def __getattr__(name: str) -> Any:
    """A name, from its home; and `jobs`, for `cordwood.spark.jobs.build_index`."""
    if name == "jobs":
        lazily("cordwood.spark.jobs", "JobSource")
        return globals()[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return named(_HOMES[name], name)
