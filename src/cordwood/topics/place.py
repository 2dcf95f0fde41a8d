"""From what a user names to the home of topics."""

from __future__ import annotations

import os

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import UnsupportedError
from cordwood.store.location import parse_location
from cordwood.store.url import Store
from cordwood.topics.folder import Folder
from cordwood.topics.home import Home


def home_of(place: str | os.PathLike[str] | Store, *, clock: Clock, entropy: Entropy) -> Home:
    """A directory's own files for a path, logs for a store."""
    if not isinstance(place, Store):
        location = parse_location(os.fspath(place))
        if location.scheme == "file":
            return Folder(location.name, clock=clock, entropy=entropy)
    raise UnsupportedError("topics live in a directory", hint="name one")
