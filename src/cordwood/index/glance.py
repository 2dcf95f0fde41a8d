"""A glance: which files a pattern may match in, by a census of the tree and its index (census.py).

Every row of the census is compared with what is there. What is as it was needs nothing more: the
trigrams of a file say whether it is a candidate, and a folder has the names that it had. A file
that is not is a candidate whatever the pattern. A folder that is not is listed, and what is new in
it is a candidate, with all that is below. So the answer is that of a walk through the whole tree.

Where that does not hold there is no answer: rules of what to leave out have changed, or so many
folders have that a new census pays. The census is dropped then, and whoever walks takes another.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from functools import partial
from typing import NamedTuple

from pyroaring import BitMap

from cordwood.index.census import A_FOLDER, A_RULE, NO_ROW, Census, drop, ledger_of
from cordwood.index.lines import Finder
from cordwood.index.match import matching
from cordwood.index.sets import Sets
from cordwood.index.shared import Shared
from cordwood.index.walk import Tell, Walker, name_of, path_of

FOLDERS_MAX = 256
"""With more folders to list, another census is better."""


class _View(NamedTuple):
    """A segment, whose deleted documents have no row."""

    segment: Sets

    @property
    def deleted(self) -> BitMap:
        return BitMap()

    @property
    def everything(self) -> BitMap:
        return BitMap(range(1, self.segment.documents + 1))


class Glance:
    """A tree as it is now, as far as it is not as it was, and where in it a pattern may match."""

    def __init__(self, census: Census, place: str, root: bytes, tell: Tell) -> None:
        """No I/O."""
        self._census = census
        self._place = place
        self._root = root
        self._tell = tell
        self._cut: tuple[bytes, ...] = ()
        """What is below these is not in the tree any more: they are no folders."""
        self.changed: list[bytes] = []
        """Files that the index does not have as they are."""
        self.gone = 0
        """How many files of the index are not there any more as they were."""
        self.candidates: list[bytes] = []
        """The files that the pattern may match in, in order."""

    def look(self, finder: Finder, *, ignore: bool, without: bytes, helped: bool) -> bool:
        """Look at everything; whether this says all there is to say.

        Args:
            finder: the pattern.
            ignore: honour `.gitignore`, as the census did.
            without: a folder to leave out, as its real path.
            helped: let a second process help; for a process that has one thread.

        Raises:
            CorruptionError: the index is damaged.
            OSError: it cannot be read; it may be another by now.
        """
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            find = partial(self._census.unlike, root)
            with Shared(self._census.part_count, find, helped=helped) as work:
                hits = self._hits(finder)
                unlike = work.finish()
        finally:
            os.close(root)
        walker = Walker(self._root, self._tell, ignore=ignore, without=without)
        folders = self._sort_out(unlike)
        if folders is None or not all(self._list(path, walker) for path in folders):
            drop(self._place)
            return False
        found = [self._census.name(row) for row in hits.difference(unlike)]
        found = [name for name in found if not name.startswith(self._cut)]
        self.candidates = sorted(found + self.changed)
        return True

    def _hits(self, finder: Finder) -> set[int]:
        """The rows of files whose trigrams let the pattern match."""
        hits: set[int] = set()
        for number, at in self._census.segments:
            with open(os.path.join(self._place, f"segment.{number}.idx"), "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            view = _View(Sets(data, f"segment.{number}.idx"))
            rows = self._census.rows_of(at, view.segment.documents)
            hits.update(map(rows.__getitem__, matching(view, finder.plan.query)))
        if ledger_of(self._place) != self._census.about.ledger:
            # By now another index may have segments of these numbers.
            raise OSError(errno.ESTALE, "the index was changed meanwhile", self._place)
        hits.discard(NO_ROW)
        return hits

    def _sort_out(self, unlike: list[int]) -> list[bytes] | None:
        """Files that are not as they were, and the folders to list; None if that will not do."""
        folders: list[bytes] = []
        # By path, a folder stands before what is in it.
        for path, row in sorted((self._census.path(row), row) for row in unlike):
            kind = self._census.kind(row)
            if kind == A_RULE:
                return None
            if kind == A_FOLDER:
                if path.startswith(self._cut):
                    continue
                if not path or name_of(self._root, path, kind=stat.S_IFDIR) is not None:
                    folders.append(path)
                else:
                    self._cut += (path + b"/",)
                continue
            self.gone += row < self._census.vouched
            name = name_of(self._root, path, kind=stat.S_IFREG)
            if name is not None and not path.startswith(self._cut):
                self.changed.append(name)
        return folders if len(folders) <= FOLDERS_MAX else None

    def _list(self, path: bytes, walker: Walker) -> bool:
        """Find what is new in a folder; False if that is a file of rules."""
        files, folders, rules = self._census.below(path)
        walker.tree.names.clear()
        walker.tree.rules.clear()
        folder = walker.at(path)
        walker.tree.rules.clear()  # Of folders above, whose rows say whether they have changed.
        left = [one for one in walker.list(folder) if one.within[:-1] not in folders]
        if any(path_of(name) not in rules for name in walker.tree.rules):
            return False
        for one in left:
            walker.walk(one)
        self.changed += (name for name in walker.tree.names if path_of(name) not in files)
        return True
