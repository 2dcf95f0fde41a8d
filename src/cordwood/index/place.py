"""From what a user names to the home of an index."""

from __future__ import annotations

import os
import re

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import InvalidInputError
from cordwood.index.folder import Folder
from cordwood.index.home import Home
from cordwood.index.shelf import Shelf
from cordwood.store.location import parse_location
from cordwood.store.url import Store

_PART = r"(?!\.{1,2}(?:/|$))[^/\0]+"
_PLAIN = re.compile(rf"{_PART}(?:/{_PART})*")
"""What may be a path within a directory: no step leads up, or away."""


def home_of(
    place: str | os.PathLike[str] | Store,
    name: str,
    *,
    durable: bool,
    clock: Clock,
    entropy: Entropy,
) -> Home:
    """A directory's own files for a path, objects for a store."""
    if not isinstance(place, Store):
        location = parse_location(place)
        if location.scheme == "file":
            if name and not _PLAIN.fullmatch(name):
                raise InvalidInputError(
                    f"{name!r} cannot name an index",
                    hint="use a name such as docs or team/docs, without .. and . on their own",
                )
            root = os.path.join(location.name, name) if name else location.name
            return Folder(root, clock=clock, entropy=entropy, durable=durable)
        place = Store(location.url)
    return Shelf(place, name, clock=clock, entropy=entropy)
