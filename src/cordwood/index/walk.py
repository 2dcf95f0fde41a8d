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

import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cordwood.index.ignore import Rules

STAMP = struct.Struct("<qqqQ")

UNKNOWN = bytes(STAMP.size)
"""The stamp of what could not be read."""

TICK_NS = 100_000_000
COARSE_TICK_NS = 2_000_000_000
"""How long a file system's clock may stand still; the latter where it counts whole seconds."""

INDEX_NAME = ".cordwood-grep"
RULES = b".gitignore"

_LEFT_OUT = {b".git", b".hg", b".svn"}

Tell = Callable[[bytes, OSError], None]
"""Is told what cannot be read, and why."""


class Folder(NamedTuple):
    """Where to look, and by which rules."""

    at: bytes
    """Its path for the operating system."""
    within: bytes
    """Its path from the root, with a slash at its end; empty for the root itself."""
    rules: Rules | None
    """Of the folders above it."""


class Tree(NamedTuple):
    """What was found."""

    names: list[bytes]
    """All files."""
    folders: list[bytes]
    """All folders, named as files are, as they were before their files were listed."""
    rules: list[bytes]
    """Files of rules, left out themselves or not.

    What could not be read, or not all of it, has a stamp of zeros, which nothing ever has: so it is
    looked at again each time.
    """


class Walker:
    """Goes through the folders of a tree."""

    def __init__(self, root: bytes, tell: Tell, *, ignore: bool, without: bytes = b"") -> None:
        """See `walk`."""
        self._root = root
        self._tell = tell
        self._ignore = ignore
        self._without = without
        self.tree = Tree([], [], [])
        """What was found so far, in no order."""

    def walk(self, folder: Folder) -> None:
        """Find all that is below a folder."""
        left = [folder]
        while left:
            left += self.list(left.pop())

    def list(self, folder: Folder) -> list[Folder]:
        """Find the files of a folder; the folders in it."""
        try:
            stamp = stamp_of(os.stat(folder.at))
            with os.scandir(folder.at) as listing:
                entries = list(listing)
        except OSError as error:
            if folder.within and is_gone(error):
                return []  # It has just been deleted.
            self._tell(folder.at, error)
            stamp, entries = UNKNOWN, []
        rules, below = folder.rules, []
        if self._ignore and any(entry.name == RULES for entry in entries):
            rules = self._rules(folder)
        for entry in entries:
            path = folder.within + entry.name
            try:
                if entry.is_file(follow_symlinks=False):
                    if rules is None or not rules.ignore(path, entry.name, is_folder=False):
                        its = stamp_of(entry.stat(follow_symlinks=False))
                        self.tree.names.append(path + b"\0" + its)
                elif (
                    entry.is_dir(follow_symlinks=False)
                    and not _is_left_out(entry, self._without)
                    and (rules is None or not rules.ignore(path, entry.name, is_folder=True))
                ):
                    below.append(Folder(entry.path, path + b"/", rules))
            except FileNotFoundError:
                continue  # It has just been deleted.
            except OSError as error:
                self._tell(entry.path, error)
                stamp = UNKNOWN
        self.tree.folders.append(folder.within.rstrip(b"/") + b"\0" + stamp)
        return below

    def at(self, path: bytes) -> Folder:
        """A folder of the tree, by its path from the root, with the rules that are above it."""
        folder = Folder(self._root, b"", None)
        for name in path.split(b"/") if path else []:
            rules = self._rules(folder) if self._ignore else None
            folder = Folder(os.path.join(folder.at, name), folder.within + name + b"/", rules)
        return folder

    def _rules(self, folder: Folder) -> Rules | None:
        """The rules in a folder, on top of those above it."""
        # A tree without rules does not wait for what reads them.
        from cordwood.index.ignore import Rules  # noqa: PLC0415

        path = os.path.join(folder.at, RULES)
        try:
            with open(path, "rb") as file:
                stamp = stamp_of(os.stat(file.fileno()))
                self.tree.rules.append(folder.within + RULES + b"\0" + stamp)
                return Rules(file.read(), len(folder.within), folder.rules)
        except (FileNotFoundError, IsADirectoryError):
            return folder.rules
        except OSError as error:
            self.tree.rules.append(folder.within + RULES + b"\0" + UNKNOWN)
            self._tell(path, error)
            return folder.rules


def walk(root: bytes, tell: Tell, *, ignore: bool, without: bytes = b"") -> Tree:
    """All files below a root, each list in the order of paths.

    Args:
        root: where to begin.
        tell: called for a folder or file that cannot be read.
        ignore: honour `.gitignore`.
        without: a folder to leave out, as its real path.
    """
    walker = Walker(root, tell, ignore=ignore, without=without)
    walker.walk(Folder(root, b"", None))
    for found in walker.tree:
        found.sort()
    return walker.tree


def _is_left_out(entry: os.DirEntry[bytes], without: bytes) -> bool:
    name = entry.name
    if name in _LEFT_OUT or _is_index(name):
        return True
    return (
        bool(without)
        and os.path.basename(without) == name
        and os.path.realpath(entry.path) == without
    )


def _is_index(name: bytes) -> bool:
    """Whether a folder is an index, or one that is just being made or deleted."""
    index = INDEX_NAME.encode()
    return (
        name == index
        or name.startswith(b"." + index + b".")
        or (name.startswith(index + b".") and name.endswith(b".gone"))
    )


def is_gone(error: OSError) -> bool:
    """Whether a file or folder is not there any more, or is another thing now: nothing to tell."""
    return error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def is_in_repository(root: bytes) -> bool:
    """Whether a folder is Git's, or lies in one that is."""
    folder = os.path.realpath(root)
    while not os.path.exists(os.path.join(folder, b".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return True


def name_of(root: bytes, path: bytes, *, kind: int | None = None) -> bytes | None:
    """The name of one file as it is now; None if it is gone, or of another kind."""
    try:
        it = os.lstat(os.path.join(root, path))
    except OSError:
        return None
    if kind is not None and stat.S_IFMT(it.st_mode) != kind:
        return None
    return path + b"\0" + stamp_of(it)


def stamp_of(it: os.stat_result) -> bytes:
    """What changes when a file does."""
    return STAMP.pack(it.st_size, it.st_mtime_ns, it.st_ctime_ns, it.st_ino)


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
