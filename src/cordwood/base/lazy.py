"""What needs an extra, loaded when it is first used, with an error that says what to install."""

from __future__ import annotations

import importlib
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
        if "volume" in module.split("."):
            extra = "sqlite"  # It brings all that a volume needs.
        raise StateError(
            f"{name} needs {error.name}", hint=f"pip install 'cordwood[{extra}]'"
        ) from error
