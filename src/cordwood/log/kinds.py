"""What a name in a store stands for: a log, a table or a Delta table, never two of them.

Whoever creates one looks for the others first. That is against mistakes, not against a race: a log
and a table that are created at the same moment may both come to be. No harm is done, for no object
of the one has the key of an object of the other.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Literal

from cordwood.base.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from cordwood.log import paths
from cordwood.store.api import ObjectStore
from cordwood.store.streams import as_generator

Kind = Literal["log", "table", "Delta table"]

TABLE = "TABLE"
"""The document of a table (pipeline/tabledoc.py)."""

DELTA_PREFIX = "_delta_log/"
"""Where Delta keeps what a table is."""

_HOLDING = ("cursor", "pin", "fork", "producer")
"""Folders of a log whose objects are taken for what their names say: nothing else lies there."""


async def refuse_others(store: ObjectStore, name: str, kind: Kind) -> None:
    """Raise if something of another kind has the name. Two requests: HEADs, a LIST for Delta.

    A HEAD more for a name that would lie among the cursors, pins or forks of a log.

    Raises:
        AlreadyExistsError: something has.
        InvalidInputError: it would lie there.
    """
    await _refuse_inside(store, name, kind)
    for other, path in (("log", paths.MANIFEST), ("table", TABLE), ("Delta table", DELTA_PREFIX)):
        if other != kind and await _has(store, f"{name}/{path}"):
            raise AlreadyExistsError(
                f"{name!r} is the name of a {other}", hint=f"choose another name for the {kind}"
            )


async def _refuse_inside(store: ObjectStore, name: str, kind: Kind) -> None:
    segments = name.split("/")
    for place, segment in enumerate(segments):
        around = "/".join(segments[:place])
        if place and segment in _HOLDING and await _has(store, f"{around}/{paths.MANIFEST}"):
            raise InvalidInputError(
                f"{name!r} cannot name a {kind}: the log {around!r} keeps its {segment}s there",
                hint=f"choose another name: {around}-{segment}, for example",
            )


async def _has(store: ObjectStore, key: str) -> bool:
    """Whether there is an object of this key; or any below it, if it ends in a slash."""
    if key.endswith("/"):
        async with aclosing(as_generator(store.list(key))) as found:
            return await anext(found, None) is not None
    try:
        await store.head(key)
    except NotFoundError:
        return False
    return True
