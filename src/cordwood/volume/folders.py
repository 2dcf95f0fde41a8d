"""Files that can be fetched again, under their names whole or not at all. Nothing is synced."""

from __future__ import annotations

import os
from contextlib import suppress

from cordwood.base.clock import Entropy
from cordwood.store.disk import Disk


def make_folders(disk: Disk, folder: str) -> None:
    """Make a folder and those it is in, where they are missing."""
    try:
        disk.stat(folder)
    except FileNotFoundError:
        if (parent := os.path.dirname(folder)) != folder:
            make_folders(disk, parent)
        with suppress(FileExistsError):
            disk.mkdir(folder)


def replace_file(disk: Disk, path: str, data: bytes, entropy: Entropy) -> None:
    """Write a file beside its name, then give it the name: a reader sees the old one or this.

    After a power cut it may be there with other bytes: whoever reads it checks them.
    """
    make_folders(disk, os.path.dirname(path))
    draft = f"{path}.{entropy.token()}.tmp"
    try:
        file = disk.open(draft, create=True)
        try:
            file.write([data], 0)
        finally:
            file.close()
        disk.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            disk.unlink(draft)
        raise
