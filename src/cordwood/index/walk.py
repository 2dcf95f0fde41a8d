"""The files of a source tree, each with a stamp that changes when the file does.

A file is named by the bytes of its path from the root, a NUL, and its stamp: size, times of the
last change of content and of the last change at all, inode. So a name stands for a file as it was
at one moment, and two equal names for the same content, unless

* the file was written again within one tick of the file system's clock, which is why a name counts
  only once that tick has surely passed (`is_settled`).

Left out are links, what is no file or folder, `.git`, `.hg` and `.svn`, folders of an index, and
what `.gitignore` says (ignore.py), if the tree lies in a Git repository.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from cordwood.index.ignore import Rules

STAMP = struct.Struct("<qqqQ")

TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000
"""How long a file system's clock may stand still; the latter where it counts whole seconds."""

INDEX_NAME = ".cordwood-grep"

_LEFT_OUT = {b".git", b".hg", b".svn"}

Tell = Callable[[bytes, OSError], None]
"""Is told what cannot be read, and why."""


def walk(root: bytes, tell: Tell, *, ignore: bool, without: bytes = b"") -> list[bytes]:
    """The names of all files below a root, in the order of their paths.

    Args:
        root: where to begin.
        tell: called for a folder or file that cannot be read.
        ignore: honour `.gitignore`.
        without: a folder to leave out, as its real path.
    """
    found: list[bytes] = []
    left: list[tuple[bytes, bytes, Rules | None]] = [(root, b"", None)]
    pack = STAMP.pack
    while left:
        folder, within, rules = left.pop()
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            tell(folder, error)
            continue
        if ignore and any(entry.name == b".gitignore" for entry in entries):
            rules = _rules(folder, within, rules, tell)
        for entry in entries:
            name = entry.name
            path = within + name
            try:
                if entry.is_file(follow_symlinks=False):
                    if rules is None or not rules.ignore(path, name, is_folder=False):
                        it = entry.stat(follow_symlinks=False)
                        stamp = pack(it.st_size, it.st_mtime_ns, it.st_ctime_ns, it.st_ino)
                        found.append(path + b"\0" + stamp)
                elif (
                    entry.is_dir(follow_symlinks=False)
                    and not _is_left_out(entry, without)
                    and (rules is None or not rules.ignore(path, name, is_folder=True))
                ):
                    left.append((entry.path, path + b"/", rules))
            except FileNotFoundError:
                continue  # It has just been deleted.
            except OSError as error:
                tell(entry.path, error)
    found.sort()
    return found


def _is_left_out(entry: os.DirEntry[bytes], without: bytes) -> bool:
    name = entry.name
    if name in _LEFT_OUT or name.lstrip(b".").startswith(INDEX_NAME.lstrip(".").encode()):
        return True
    return (
        bool(without)
        and os.path.basename(without) == name
        and os.path.realpath(entry.path) == without
    )


def _rules(folder: bytes, within: bytes, above: Rules | None, tell: Tell) -> Rules | None:
    path = os.path.join(folder, b".gitignore")
    try:
        with open(path, "rb") as file:
            return Rules(file.read(), len(within), above)
    except (FileNotFoundError, IsADirectoryError):
        return above
    except OSError as error:
        tell(path, error)
        return above


def is_in_repository(root: bytes) -> bool:
    """Whether a folder is Git's, or lies in one that is."""
    folder = os.path.realpath(root)
    while not os.path.exists(os.path.join(folder, b".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return True


def name_of(root: bytes, path: bytes) -> bytes | None:
    """The name of one file as it is now; None if it is gone."""
    try:
        it = os.lstat(os.path.join(root, path))
    except OSError:
        return None
    return path + b"\0" + STAMP.pack(it.st_size, it.st_mtime_ns, it.st_ctime_ns, it.st_ino)


def path_of(name: bytes) -> bytes:
    """The path of a file from its root."""
    return name[: -STAMP.size - 1]


def size_of(name: bytes) -> int:
    """How many bytes a file had."""
    size_bytes: int = STAMP.unpack_from(name, len(name) - STAMP.size)[0]
    return size_bytes


def is_settled(name: bytes, now_us: int) -> bool:
    """Whether a file that is written from now on gets another stamp.

    The time of the last change at all is always the file system's own, and is never set back.
    """
    changed_ns: int = STAMP.unpack_from(name, len(name) - STAMP.size)[2]
    tick_ns = TICK_NS if changed_ns % 1_000_000_000 else COARSE_TICK_NS
    return changed_ns + tick_ns < now_us * 1_000
