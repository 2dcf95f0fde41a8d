"""Pages with versions on an object store: snapshots, branches, tags, push and pull."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`sqlite` is loaded when it is first used: it needs an extra."""
    if name != "sqlite":
        raise AttributeError(f"module 'cordwood.volume' has no attribute {name!r}")
    from cordwood.base.lazy import lazily  # noqa: PLC0415 - a package is not to load what it may do without

    lazily("cordwood.volume.sqlite", "connect")
    return globals()[name]
