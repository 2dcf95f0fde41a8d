"""A source tree with an index of its trigrams: which files a pattern may match in.

Each document of the index is a file, or a block of a large one, and its id is the file's name with
its stamp (walk.py). So the index holds, in the same transaction as a file's trigrams, what the file
looked like when they were taken, and

* a file whose name the index has is as it was: its trigrams say whether it is a candidate;
* any other is new or has changed: it is a candidate whatever the pattern;
* a name that no file has any more is nobody's, and is never looked at.

Bringing the index up to date is one transaction: names without files are deleted, files without
names added. It says which state it began from, so of two that do the same at once the second is
refused, and has lost nothing: the first has done it. A crash, or a full disk, leaves the index as
it was. What is not in the index, whyever, is searched all the same: it costs time, never answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError
from cordwood.index import census
from cordwood.index.glance import Glance
from cordwood.index.lines import Finder, Line, read_blocks
from cordwood.index.regex import ANYTHING
from cordwood.index.walk import (
    INDEX_NAME,
    Tell,
    Tree,
    is_gone,
    is_in_repository,
    is_settled,
    name_of,
    path_of,
    size_of,
    walk,
)

if TYPE_CHECKING:
    from cordwood.index.engine import Engine, Writing
    from cordwood.index.snapshot import Snapshot

# What builds and opens an index as a whole is loaded when it is needed: a search that gets along
# with a glance does not wait for it.

MARK = "grep"
"""Which state of the tree the index is of; there from the first whole build on."""

BATCH_BYTES = 8 << 20
"""So much text is handed to the index at a time."""

BUILD_BYTES = 32 << 20
"""A tree of less text is scanned as quickly as an index is opened."""

UPDATE_BYTES, UPDATE_FILES, UPDATE_BYTES_MAX = 1 << 20, 256, 64 << 20
"""What has changed is worth an update from so much text or so many files on; up to the last it is
quick enough to be done without being asked for."""

SEGMENTS_MAX = 32
"""With more segments than this, an update merges some."""


class Updated(NamedTuple):
    """What an update did."""

    added: int
    """Files that are new to the index, or were changed."""
    dropped: int
    """Names of files that are gone, or were changed."""
    overtaken: bool = False
    """Somebody else did it at the same time, and nothing was left to do."""


class Looked(NamedTuple):
    """A tree and its index, side by side."""

    names: list[bytes]
    """All files, as they are now."""
    known: frozenset[bytes] | None
    """What the index has; None if there is none yet."""
    changed: list[bytes]
    """Files that the index does not have as they are."""
    gone: int
    """How many names of the index are nobody's."""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(map(size_of, self.names))

    @property
    def is_worth_building(self) -> bool:
        """Whether there is no index, and it is time for one."""
        return self.known is None and self.size_bytes >= BUILD_BYTES

    @property
    def is_worth_updating(self) -> bool:
        """Whether bringing the index up to date is cheap, and pays."""
        return self.known is not None and is_much(self.changed, self.gone)


def is_much(changed: Sequence[bytes], gone: int) -> bool:
    """Whether so many files have changed since that an update pays, and is quick all the same."""
    size_bytes = sum(map(size_of, changed))
    pays = size_bytes >= UPDATE_BYTES or len(changed) + gone >= UPDATE_FILES
    return pays and size_bytes <= UPDATE_BYTES_MAX


class Sources:
    """A tree of files, and perhaps an index of them."""

    def __init__(
        self,
        root: str | bytes,
        place: str = "",
        *,
        ignore: bool = True,
        tell: Tell = lambda _, __: None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a tree; no I/O.

        Args:
            root: the folder, or a single file.
            place: where its index is; by default `.cordwood-grep` within the folder.
            ignore: honour `.gitignore` in a Git repository.
            tell: called with what cannot be read, and why.
            clock: says what time it is.
            entropy: names what is made.
        """
        self.root = os.fsencode(root)
        self._given = self.root
        self.place = os.path.abspath(place or os.path.join(os.fsdecode(root), INDEX_NAME))
        self._ignore = ignore
        self._tell = tell
        self._clock = clock
        self._entropy = entropy
        self._tree = Tree([], [], [])
        self._began_us = 0

    @cached_property
    def _engine(self) -> Engine:
        from cordwood.index.engine import Engine  # noqa: PLC0415
        from cordwood.index.folder import Folder  # noqa: PLC0415

        return Engine(Folder(self.place, clock=self._clock, entropy=self._entropy))

    def close(self) -> None:
        """Let go of the index."""
        if "_engine" in self.__dict__:
            self._engine.close()

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a single file, which has no index."""
        return not os.path.isdir(self._given)

    def names(self) -> list[bytes]:
        """All files, as they are now.

        Raises:
            NotFoundError: there is no such folder or file.
            OSError: it cannot be read.
        """
        try:
            os.stat(self._given)
        except FileNotFoundError as error:
            raise NotFoundError(f"{os.fsdecode(self.root)} is not there") from error
        if self.is_file:
            self.root, path = os.path.split(os.path.realpath(self._given))
            name = name_of(self.root, path)
            return [] if name is None else [name]
        self._began_us = self._clock.now_us()
        self._tree = walk(self.root, self._tell, ignore=self._ignores, without=self._without)
        return self._tree.names

    @property
    def _ignores(self) -> bool:
        return self._ignore and is_in_repository(self.root)

    @property
    def _without(self) -> bytes:
        return os.path.realpath(os.fsencode(self.place))

    def glance(self, finder: Finder, *, helped: bool = False) -> Glance | None:
        """Compare the files with the index by the last census; None if there is none that holds.

        It finds what `names`, `look` and `candidates` find, in a fraction of the time. With
        `helped` a second process takes a part in it, which is for who has no other thread.

        Raises:
            CorruptionError: the index is damaged.
            OSError: it, or the tree, cannot be read.
        """
        if self.is_file or finder.plan.query == ANYTHING:
            return None
        ignore = self._ignores
        counted = census.opened(self.place, self.root, ignore=ignore)
        if counted is None:
            return None
        glance = Glance(counted, self.place, self.root, self._tell)
        holds = glance.look(finder, ignore=ignore, without=self._without, helped=helped)
        return glance if holds else None

    def count(self) -> None:
        """Take a census of the files that `names` found last and the index, if there is none.

        What it is good for is speed: where it cannot be written, nothing is.
        """
        snapshot = None if self.is_file else self._snapshot()
        if snapshot is None or MARK not in snapshot.marks:
            return
        ignore = self._ignores
        if census.opened(self.place, self.root, ignore=ignore) is not None:
            return
        from cordwood.index.take import taken  # noqa: PLC0415

        with suppress(OSError):
            root = os.fsdecode(os.path.realpath(self.root))
            about = census.About(root, ignore, census.ledger_of(self.place))
            # The ledger may have been another when the snapshot was opened: not after this.
            views = self._engine.newest().views
            if census.ledger_of(self.place) == about.ledger:
                data = taken(about, self._tree, views, self._began_us)
                census.put(self.place, data, self._entropy.token())

    def look(self, names: list[bytes]) -> Looked:
        """Compare the files with the index.

        Raises:
            CorruptionError: the index is damaged.
        """
        snapshot = None if self.is_file else self._snapshot()
        if snapshot is None or MARK not in snapshot.marks:
            return Looked(names, None, names, 0)
        known = frozenset(snapshot.match(ANYTHING).to_arrow().to_pylist())
        changed = [name for name in names if name not in known]
        return Looked(names, known, changed, len(known) - (len(names) - len(changed)))

    def candidates(self, finder: Finder, looked: Looked) -> Sequence[bytes]:
        """The files that a pattern may match in, in order."""
        if looked.known is None or finder.plan.query == ANYTHING:
            return looked.names
        snapshot = self._snapshot()
        if snapshot is None:
            return looked.names
        hits = set(snapshot.match(finder.plan.query).to_arrow().to_pylist())
        if not looked.changed and len(hits) < len(looked.names) // 8:
            return sorted(hits.intersection(looked.names) if looked.gone else hits)
        known = looked.known
        return [name for name in looked.names if name in hits or name not in known]

    def shown(self, name: bytes) -> bytes:
        """The path of a file, from where the tree was named from."""
        if self.is_file:
            return self._given
        return path_of(name) if self.root == b"." else os.path.join(self.root, path_of(name))

    def lines(self, finder: Finder, name: bytes) -> Iterator[Line]:
        """The lines of a file that match."""
        before, counted = 0, b""
        path = os.path.join(self.root, path_of(name))
        try:
            for block in read_blocks(path, size_of(name)):
                before += counted.count(b"\n")  # Only now: most files are one block.
                counted = block
                for line in finder.lines(block):
                    yield line._replace(number=line.number + before) if before else line
        except OSError as error:
            if not is_gone(error):
                self._tell(path, error)

    def update(
        self, names: list[bytes], progress: Callable[[int, int], None] = lambda _, __: None
    ) -> Updated:
        """Bring the index up to date with these files, or build it, in one transaction.

        Args:
            names: all files, as they are now.
            progress: called with the bytes that are done, and how many there are.
        """
        if self.is_file:
            raise InvalidInputError(f"{os.fsdecode(self._given)} is a file: folders have an index")
        from cordwood.index.engine import Writing  # noqa: PLC0415

        is_new = self._create()
        looked = self.look(names)
        if looked.known is not None and not looked.changed and not looked.gone:
            self.count()
            return Updated(0, 0)
        before = None if (snapshot := self._snapshot()) is None else snapshot.marks.get(MARK)
        marks = {MARK: self._entropy.token().encode()}
        writing = Writing(self._engine, marks, {MARK: before})
        try:
            dropped = (looked.known or frozenset()).difference(names)
            if dropped:
                writing.delete(sorted(dropped))
            added = self._add(writing, looked.changed, progress)
            writing.commit()
        except ConflictError:
            return Updated(0, 0, overtaken=True)
        finally:
            writing.roll_back()
        self._tidy()
        if is_new:
            self.names()  # The index itself has changed its folder since.
        self.count()
        return Updated(added, len(dropped))

    def remove_index(self) -> None:
        """Delete the index, to build another; it is out of the way before anything is deleted.

        Raises:
            InvalidInputError: what is there is no index.
        """
        import shutil  # noqa: PLC0415

        from cordwood.index.folder import LEDGER  # noqa: PLC0415

        self.close()
        parent, base = os.path.split(self.place)
        if os.path.isdir(self.place):
            there = set(os.listdir(self.place))
            if there and not there & {"config", LEDGER, "handles"}:
                raise InvalidInputError(f"{self.place} is no index", hint="name another folder")
            os.rename(self.place, os.path.join(parent, f"{base}.{self._entropy.token()[:16]}.gone"))
        with suppress(FileNotFoundError):
            for name in os.listdir(parent):
                if name.startswith(f"{base}.") and name.endswith(".gone"):
                    shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
        self.__dict__.pop("_engine", None)

    def _create(self) -> bool:
        """Make an index, if there is none; whether it was made."""
        try:
            self._engine.create("trigrams", frequencies=False, exist_ok=False)
        except AlreadyExistsError:
            return False
        from cordwood.journal.failures import told  # noqa: PLC0415

        # So that Git does not see it.
        with (
            told("create", self.place),
            open(os.path.join(self.place, ".gitignore"), "w", encoding="ascii") as file,
        ):
            file.write("*\n")
        return True

    def _snapshot(self) -> Snapshot | None:
        try:
            return self._engine.newest()
        except NotFoundError:
            return None

    def _add(
        self, writing: Writing, names: Sequence[bytes], progress: Callable[[int, int], None]
    ) -> int:
        """Add files, as far as they are what their names say."""
        import pyarrow as pa  # noqa: PLC0415

        total = sum(map(size_of, names))
        done = added = size = 0
        ids: list[bytes] = []
        texts: list[bytes] = []
        for name in names:
            blocks = self._blocks(name)
            if blocks is not None:
                added += 1
                ids += [name] * len(blocks)
                texts += blocks
                size += sum(map(len, blocks))
            done += size_of(name)
            if size >= BATCH_BYTES:
                writing.add(ids, pa.array(texts, pa.large_binary()))
                ids, texts, size = [], [], 0
                progress(done, total)
        if ids:
            writing.add(ids, pa.array(texts, pa.large_binary()))
        progress(total, total)
        return added

    def _blocks(self, name: bytes) -> list[bytes] | None:
        """A file's text; a file that is none has one block, empty.

        None if it cannot be vouched for: it cannot be read, it changes just now, or it could be
        changed without its stamp showing it.
        """
        if not is_settled(name, self._clock.now_us()):
            return None
        path = path_of(name)
        try:
            blocks = list(read_blocks(os.path.join(self.root, path), size_of(name)))
        except OSError:
            return None  # Searching will tell.
        return (blocks or [b""]) if name_of(self.root, path) == name else None

    def _tidy(self) -> None:
        """Keep the index small, and its segments few."""
        if len(self._engine.newest().views) > SEGMENTS_MAX:
            self._engine.merge(tiered=True)
        self._engine.compact()
