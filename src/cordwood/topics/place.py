"""From what a user names to the home of topics."""

from __future__ import annotations

import os

from cordwood.base.clock import Clock, Entropy
from cordwood.store.location import parse_location
from cordwood.store.url import Store
from cordwood.topics.folder import Folder
from cordwood.topics.home import Home
from cordwood.topics.shelf import Shelf


def home_of(place: str | os.PathLike[str] | Store, *, clock: Clock, entropy: Entropy) -> Home:
    """A directory's own files for a path or its URL, logs for a store, as `Store(path)` is."""
    if not isinstance(place, Store):
        location = parse_location(place)
        if location.scheme == "file":
            return Folder(location.name, clock=clock, entropy=entropy)
        place = Store(location.url)
    return Shelf(place, clock=clock, entropy=entropy)
