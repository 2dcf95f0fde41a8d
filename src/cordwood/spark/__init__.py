"""How does Spark read and write logs, and do the heavy work? The data source and an engine.

Importing this loads neither pyspark nor a JVM; that happens when something is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cordwood.spark.session import missing, session
from cordwood.spark.tables import read_table

if TYPE_CHECKING:
    from cordwood.spark.keeper import keep_cursors

__all__ = ["keep_cursors", "missing", "read_table", "session"]

_HOMES = {"keep_cursors": "cordwood.spark.keeper"}
"""Where what needs pyspark lives; loaded when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only for these

    return getattr(import_module(_HOMES[name]), name)
