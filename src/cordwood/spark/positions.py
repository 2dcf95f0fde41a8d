"""Where a streaming query stands in its logs: what Spark keeps for it in the checkpoint.

::

    {"store": "file:///data/wood", "cursor": "copy", "query": "5e0d…",
     "logs": {"orders": {"offset": 4711, "incarnation": "9b1c…"}}}

An offset is the first one that was not read. The incarnation tells a log from another that had or
will have its name, so that a checkpoint is never used with a log it does not belong to. The query
has an id of ours, made with its first batch, since Spark tells a source none: its cursors carry it.
Store and cursor are there for whoever sees only this (spark/keeper.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from cordwood.base.errors import InvalidInputError


class Position(Struct, frozen=True, omit_defaults=True):
    """Where it stands in one log."""

    offset: int
    incarnation: str = ""
    """Empty if the log has none: another program wrote it last."""
    begin: int = -1
    """At the end of the first batch: where that begins. Spark keeps the end of a batch and takes
    the end of the one before as its beginning; for the first it asks anew, and the log may have
    been collected or written meanwhile."""


class Positions(Struct, frozen=True, omit_defaults=True):
    """Where it stands in all of them."""

    logs: dict[str, Position]
    store: str = ""
    cursor: str = ""
    query: str = ""
    """Whose cursor it is."""
    is_first: bool = False
    """Whether it is where a query begins that has no checkpoint yet."""

    def beginning(self) -> Positions:
        """Where the first batch began that ends here."""
        logs = {
            name: Position(position.begin, position.incarnation)
            for name, position in self.logs.items()
            if position.begin >= 0
        }
        return Positions(logs, self.store, self.cursor, self.query)

    def to_dict(self) -> dict[str, Any]:
        """As Spark wants it."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Positions:
        """What Spark has kept.

        Raises:
            InvalidInputError: another source has written it.
        """
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as error:
            raise InvalidInputError(
                f"the checkpoint is not of a query that reads logs: {error}",
                hint="start the query with a checkpoint of its own",
            ) from error


def shares(lags: Mapping[str, int], most: int, turn: int = 0) -> dict[str, int]:
    """How much each log may give of `most` together: nobody waits for one that has more.

    What cannot be divided goes to one log after the other, from turn to turn: where there are more
    logs than `most`, each has something when it is its turn.

    >>> shares({"a": 10, "b": 1_000, "c": 1_000}, 100)
    {'a': 10, 'b': 45, 'c': 45}
    """
    given: dict[str, int] = {}
    left = most
    waiting = sorted(lags, key=lambda name: lags[name])
    while waiting and lags[waiting[0]] <= left // len(waiting):
        name = waiting.pop(0)
        given[name] = lags[name]
        left -= lags[name]
    waiting.sort()
    for place, name in enumerate(waiting):
        is_next = (place - turn) % len(waiting) < left % len(waiting)
        given[name] = left // len(waiting) + is_next
    return given
