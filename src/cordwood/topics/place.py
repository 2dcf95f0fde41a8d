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
    """A directory's own files for a path, logs for a store or its URL, also that of a directory."""
    if not isinstance(place, Store):
        text = os.fspath(place)
        location = parse_location(text)
        if location.scheme == "file" and not text.startswith("file:"):
            return Folder(location.name, clock=clock, entropy=entropy)
        place = Store(text)
    return Shelf(place, clock=clock, entropy=entropy)
