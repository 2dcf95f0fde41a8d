"""What needs an extra, loaded when it is first used, with an error that says what to install.

The names of a package are there whatever is installed, as in any other: `hasattr`, `import *` and
`isinstance` never fail. What is missing is a stand-in, which says so when it is called, or asked
for anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from cordwood.base.errors import StateError

_EXTRAS = {
    "pyroaring": "search",
    "ducer": "search",
    "scipy": "search",
    "google_crc32c": "search",
    "zstandard": "sqlite",
    "apsw": "sqlite",
    "pyspark": "spark",
}


def lazily(module: str, name: str) -> Any:
    """An attribute of a module that may need more than the base install.

    Raises:
        StateError: something is not installed.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        if any(part.startswith("volume") for part in module.split(".")):
            extra = "sqlite"  # It brings all that a volume needs.
        raise StateError(
            f"{name} needs {error.name}", hint=f"pip install 'cordwood[{extra}]'"
        ) from error


def named(module: str, name: str) -> Any:
    """As `lazily`; if something is not installed, a stand-in that raises when it is used."""
    try:
        return lazily(module, name)
    except StateError as error:
        return _Absent(name, (), {"__doc__": str(error), "__module__": module, "_why": error})


def attribute(module: dict[str, Any], homes: Mapping[str, str], name: str) -> Any:
    """What a module's `__getattr__` finds of the names whose homes these are, within `cordwood`.

    Args:
        module: its `globals()`, which remember what was found.
        homes: the module of each name.
        name: what is asked for.
    """
    if name not in homes:
        raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
    found = named(f"cordwood.{homes[name]}", name)
    if not isinstance(found, _Absent):  # That may be installed before the next one asks.
        module[name] = found
    return found


class _AbsentError(StateError, AttributeError):
    """Also what `hasattr` expects of what has no such attribute."""


class _Absent(type):
    """The class of stand-ins: they are classes, so that they can be asked for by `isinstance`."""

    _why: StateError

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise StateError(cls._why.message, hint=cls._why.hint)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _AbsentError(cls._why.message, hint=cls._why.hint)
