"""From what a user names to the home of an index."""

from __future__ import annotations

import os

from cordwood.base.clock import Clock, Entropy
from cordwood.index.folder import Folder
from cordwood.index.home import Home
from cordwood.index.shelf import Shelf
from cordwood.store.location import parse_location
from cordwood.store.url import Store


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
        location = parse_location(os.fspath(place))
        if location.scheme == "file":
            root = os.path.join(location.name, name) if name else location.name
            return Folder(root, clock=clock, entropy=entropy, durable=durable)
        place = Store(location.url)
    return Shelf(place, name, clock=clock, entropy=entropy)
