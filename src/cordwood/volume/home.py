"""Where the local state of volumes is, if nobody says."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from cordwood.base.errors import InvalidInputError
from cordwood.store.url import Store


def default_directory(store: Store | str) -> str:
    """The directory of a store's volumes, below the user's data and not the user's cache.

    Commits that are not published are nowhere else, and a cache is what may be deleted.

    Raises:
        InvalidInputError: the store is this process's memory, and the directory would outlive it.
    """
    store = store if isinstance(store, Store) else Store(store)
    if store.scheme == "memory":
        raise InvalidInputError(
            "volumes in memory need a directory of their own", hint="name one (directory)"
        )
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return os.path.join(data, "cordwood", xxhash.xxh3_64_hexdigest(store.url.encode()))
