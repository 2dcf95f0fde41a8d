"""An index in a local directory, shared by any number of processes and threads.

::

    config                      what the index is; written last: it says that the index is there
    transaction.log             the ledger
    transaction.log.lock        held by who writes the ledger, shared by who reads it
    segment.{id}.idx            documents; never changed
    segment.{id}.tomb           a byte for each: 0xFF if it was deleted before all open handles
    segment.{id}.idmap          where documents of merged segments went
    merges/{tx}.active          held as long as the merge goes on
    handles/{tx}_{id}.active    held as long as the handle is open
    ids/segments, ids/{name}    numbers handed out once
    spool/{token}/              what somebody is making

A lock belongs to an open file: a process that dies frees it at once, whatever killed it, so nobody
waits for the dead. Locks are flock, as in the directory store, which threads respect as processes
do.

Who writes what: segments and idmaps get their names within a commit, tombstones and removals happen
within a compaction, and both hold the ledger's lock alone. So a file in the folder that the ledger
does not speak of, seen under that lock, was left by a crash.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyroaring import BitMap

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    CordwoodError,
    CorruptionError,
    NotFoundError,
    StateError,
)
from cordwood.index import config as config_file
from cordwood.index import idgen, tombs
from cordwood.index.draft import Draft, entries, idmaps_for
from cordwood.index.home import CompactReport, Config, Files
from cordwood.index.idgen import IdGenerator
from cordwood.index.ledger import Live, State, Transaction, compacted
from cordwood.index.ledgerfile import LedgerFile, Position, Reader
from cordwood.index.merge import IdMap
from cordwood.journal.failures import READ_ONLY, told
from cordwood.journal.locks import LOCK_WAIT_S, Locks
from cordwood.store.disk import Disk, Held, sync_path

LEDGER = "transaction.log"

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class FolderVisit:
    """An open handle."""

    reader: Reader
    stamp: tuple[int, int, int]
    """What the ledger's file looked like when it was read."""
    tombstones: dict[int, BitMap]
    path: str = ""
    held: Held | None = None
    kept: dict[int, Any] = field(default_factory=dict)
    """See `Visit`."""
    is_open: bool = True

    @property
    def state(self) -> State:
        """See `Visit`."""
        return self.reader.state

    def check(self) -> None:
        """See `Visit`."""
        if not self.is_open:
            raise StateError("the handle is closed", code=Code.CLOSED)
        if self.held is not None and not self.held.is_held:
            raise StateError(
                "the handle was opened before this process was forked",
                code=Code.FORKED,
                hint="open another one in the child",
            )


@dataclass(slots=True)
class _Merges:
    """Merges of this process."""

    held: dict[int, tuple[str, Held]] = field(default_factory=dict)

    def goes_on(self, started: int) -> bool:
        """Whether a merge is ours; that of the process we were forked from is not."""
        return started in self.held and self.held[started][1].is_held


class Folder:
    """The files of an index, and the locks that keep them right."""

    def __init__(
        self,
        root: str,
        *,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        lock_wait_s: float = LOCK_WAIT_S,
        durable: bool = True,
    ) -> None:
        """Name the directory; no I/O. Without `durable`, a power cut may cost the last commits."""
        self._root = os.path.abspath(root)
        self._disk = Disk() if disk is None else disk
        self._clock = clock
        self._entropy = entropy
        self._durable = durable
        self._locks = Locks(self._disk, entropy, wait_s=lock_wait_s)
        self._ledger = LedgerFile(self._path(LEDGER), self._disk, entropy, durable=durable)
        self._lock = self._path(f"{LEDGER}.lock")
        self._segment_ids = IdGenerator(
            self._path("ids/segments"), self._disk, self._locks, is_made=True
        )
        self._merges = _Merges()

    @property
    def name(self) -> str:
        """The directory."""
        return self._root

    def create(self, config: Config) -> None:
        """See `Home`. The folder is made aside and gets its name at the end: one wins."""
        parent, base = os.path.split(self._root)
        aside = os.path.join(parent, f".{base}.{self._entropy.token()[:16]}")
        with self._told("create"):
            if self._has(self._root) and self._disk.scan(self._root):
                raise self._there()
            self._make_folder(parent)
            try:
                self._furnish(aside, config)
                self._disk.rename(aside, self._root)
            except OSError as error:
                with suppress(OSError):
                    self._remove_tree(aside)
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise self._there() from error
                raise
            self._disk.fsync_dir(parent)

    def _furnish(self, aside: str, config: Config) -> None:
        """Make a folder with all that an empty index has."""
        self._disk.mkdir(aside)
        for folder in ("merges", "handles", "ids", "spool"):
            self._disk.mkdir(f"{aside}/{folder}")
        data = {
            LEDGER: self._ledger.fresh([], 0),
            f"{LEDGER}.lock": b"",  # There from the start: who may only read cannot make it.
            "ids/segments": idgen.fresh(),
            "config": config_file.encoded(config),
        }
        for name, content in data.items():
            self._disk.write(f"{aside}/{name}", content, 0)
        self._disk.fsync_dir(f"{aside}/ids")
        self._disk.fsync_dir(aside)

    def _make_folder(self, path: str) -> None:
        """Make a folder, and those above it, if they are not there; their names are durable."""
        if self._has(path):
            return
        above = os.path.dirname(path)
        self._make_folder(above)
        with suppress(FileExistsError):
            self._disk.mkdir(path)
        self._disk.fsync_dir(above)

    def config(self) -> Config:
        """See `Home`."""
        with self._told("open"):
            data = bytes(self._disk.read(self._path("config"))[1])
        return config_file.decoded(data, self._path("config"))

    def enter(self) -> FolderVisit:
        """See `Home`."""
        with self._told("open"), self._locks.shared(self._lock_of_index()):
            reader = Reader()
            reader.catch_up(self._ledger)
            return self._entered(reader)

    def advance(self, visit: Any) -> bool:
        """See `Home`. Without a lock, if the ledger's file has not changed."""
        visit.check()
        with self._told("read"):
            if self._stamp() == visit.stamp:
                return False
            with self._locks.shared(self._lock):
                reader = self._following(visit)
                if reader.state.id == visit.state.id:
                    visit.reader, visit.stamp = reader, self._stamp()
                    return False
                fresh = self._entered(reader, visit.tombstones if visit.held else None)
                old = (visit.path, visit.held)
                visit.reader, visit.tombstones = reader, fresh.tombstones
                visit.path, visit.held, visit.stamp = fresh.path, fresh.held, fresh.stamp
                visit.kept = fresh.kept
        self._drop(*old)
        return True

    def _following(self, visit: FolderVisit) -> Reader:
        """The newest state, for a handle, which stays where it is.

        Nothing is kept for who could not lock a handle: that one reads the ledger from its
        beginning, for what comes after its state may have been told more briefly since.
        """
        reader = Reader() if visit.held is None else visit.reader.copy()
        reader.catch_up(self._ledger)
        return reader

    def leave(self, visit: Any) -> None:
        """See `Home`."""
        if visit.is_open:
            visit.is_open = False
            self._drop(visit.path, visit.held)

    def new_segment(self) -> int:
        """See `Home`."""
        return self._segment_ids.next()

    def new_ids(self, name: str) -> IdGenerator:
        """See `Home`."""
        return IdGenerator(self._path(f"ids/{name}"), self._disk, self._locks)

    def open_segment(self, number: int) -> Any:
        """See `Home`: mapped."""
        with self._told("open"):
            return self._disk.map(self._path(f"segment.{number}.idx"))

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """See `Home`: within the index's folder, where files can be given their names."""
        if self._disk.inline:  # A model of a disk has no place for files that others write.
            with tempfile.TemporaryDirectory(prefix="cordwood-index-") as anywhere:
                yield Path(anywhere)
            return
        folder = self._path(f"spool/{self._entropy.token()[:16]}")
        with self._told("spool"):
            self._lock_of_index()
            self._restore_folders()
        # Shared with no compaction, which would take a folder that nobody holds yet for a dead one.
        with self._told("spool"), self._locks.shared(self._lock):
            os.mkdir(folder)
            held = Disk().hold(f"{folder}/active")
        try:
            yield Path(folder)
        finally:
            if held.is_held:  # Else this is a forked child, and the folder its parent's.
                held.release()
                shutil.rmtree(folder, ignore_errors=True)

    def commit(self, visit: Any, draft: Draft, files: Files) -> int:
        """See `Home`."""
        visit.check()
        with self._told("commit"):
            if not self._disk.inline:
                for path in (*files.segments.values(), *files.idmaps.values()):
                    sync_path(path)  # Before the lock: a large file takes its time.
        with self._told("commit"), self._locks.exclusive(self._lock):
            head = self._following(visit)
            idmaps = {
                number: self._idmap(number, files) for number in idmaps_for(draft, head.state)
            }
            transaction = Transaction(
                head.state.id + 1,
                self._clock.now_us(),
                tuple(entries(draft, head.state, idmaps)),
                dict(draft.marks),
                dict(draft.expected),
                self._entropy.token(),
            )
            head.state.apply(transaction)  # Nobody else's: it was copied.
            if draft.start:
                self._hold_merge(transaction.id)
            try:
                self._bring(files)
                self._ledger.append(head.position, transaction)
            except BaseException:
                self.release_merge(transaction.id)
                raise
            return transaction.id

    def release_merge(self, started: int) -> None:
        """See `Home`."""
        path, held = self._merges.held.pop(started, ("", None))
        if held is not None:
            self._drop(path, held)

    def cancel_dead_merges(self) -> int:
        """See `Home`."""
        with self._told("merge"), self._locks.exclusive(self._lock_of_index()):
            reader = Reader()
            reader.catch_up(self._ledger)
            return self._cancel_dead(reader)

    def compact(self) -> CompactReport:
        """See `Home`. Tombstones first, then the ledger, then what it does not speak of."""
        with self._told("compact"), self._locks.exclusive(self._lock_of_index()):
            reader = Reader()
            reader.catch_up(self._ledger)
            cancelled = self._cancel_dead(reader)
            read = self._ledger.read(Position())
            plan = compacted(read.transactions, read.last, self._oldest(reader.state.id))
            for segment, docs in plan.tombstones.items():
                self._bury(segment, docs, reader.state.live[segment])
            if plan.tombstones:
                self._disk.fsync_dir(self._root)
            if plan.kept != read.transactions or plan.tombstones:
                self._replace(LEDGER, self._ledger.fresh(plan.kept, plan.last))
                self._disk.fsync_dir(self._root)
            known = reader.state.live.keys() | reader.state.dead.keys() - set(plan.segments)
            removed, orphans = self._sweep(known, set(plan.segments), set(plan.idmaps))
            self._sweep_spools()
            return CompactReport(
                removed,
                sum(map(len, plan.tombstones.values())),
                len(read.transactions),
                len(plan.kept),
                cancelled,
                orphans,
            )

    def check(self) -> list[str]:
        """See `Home`."""
        wrong = []
        try:
            self.config()
            visit = self.enter()
        except CorruptionError as error:
            return [error.message]
        reads: list[Callable[[], Any]] = [
            partial(self._check_idmap, number)
            for number in sorted({dead.into for dead in visit.state.dead.values()})
        ]
        with self._told("check"):
            reads += [
                self.new_ids(name).check
                for name, _ in sorted(self._disk.scan(self._path("ids")))
                if not name.endswith((".lock", ".new"))
            ]
        try:
            for read in (*reads, self._segment_ids.check):
                try:
                    with self._told("check"):
                        read()
                except CorruptionError as error:
                    wrong.append(error.message)
        finally:
            self.leave(visit)
        return wrong

    def _check_idmap(self, number: int) -> None:
        try:
            self._idmap(number, Files({}, {}))
        except (FileNotFoundError, CorruptionError):
            newest = Reader()
            with self._locks.shared(self._lock):
                newest.catch_up(self._ledger)
            if any(dead.into == number for dead in newest.state.dead.values()):
                raise  # Else a compaction has removed it just now.

    def _entered(self, reader: Reader, known: Mapping[int, BitMap] | None = None) -> FolderVisit:
        """A handle at the reader's state; under the ledger's lock."""
        buried = {
            number: known[number] if known and number in known else self._buried(number, live)
            for number, live in reader.state.live.items()
        }
        path, held = self._handle(reader.state.id)
        kept = {}
        if held is None:
            # Once the lock is free, a compaction may remove them: what is mapped stays.
            kept = {n: self._disk.map(self._path(f"segment.{n}.idx")) for n in reader.state.live}
        return FolderVisit(reader, self._stamp(), buried, path, held, kept)

    def _handle(self, number: int) -> tuple[str, Held | None]:
        path = self._path(f"handles/{number:020d}_{self._entropy.token()[:16]}.active")
        try:
            self._restore_folders()
            return path, self._disk.hold(path)
        except OSError as error:
            if error.errno in READ_ONLY:
                return path, None
            raise

    def _restore_folders(self) -> None:
        """Make the folders that are empty while nobody is there: many a copy leaves such out."""
        for folder in ("handles", "merges", "spool"):
            if not self._has(self._path(folder)):
                with suppress(FileExistsError):
                    self._disk.mkdir(self._path(folder))

    def _oldest(self, newest: int) -> int:
        """The state that the oldest open handle looks at; stale files of handles go."""
        oldest = newest
        for name, _ in sorted(self._disk.scan(self._path("handles"))):
            path = self._path(f"handles/{name}")
            number = name.partition("_")[0]
            if not number.isdecimal():
                continue  # None of ours.
            held = self._locks.try_hold(path)
            if held is None:
                oldest = min(oldest, int(number))
            else:
                self._drop(path, held)
        return oldest

    def _cancel_dead(self, reader: Reader) -> int:
        dead = []
        for started in reader.state.merges:
            if self._merges.goes_on(started):
                continue
            path = self._path(f"merges/{started}.active")
            held = self._locks.try_hold(path)
            if held is not None:
                dead.append(started)
                self._drop(path, held)
        if dead:
            draft = Draft(cancel=tuple(dead))
            transaction = Transaction(
                reader.state.id + 1,
                self._clock.now_us(),
                tuple(entries(draft, reader.state, {})),
                token=self._entropy.token(),
            )
            reader.state.apply(transaction)
            reader.position = self._ledger.append(reader.position, transaction)
        return len(dead)

    def _hold_merge(self, started: int) -> None:
        """Before anybody can see that the merge began, it can be seen that it goes on."""
        path = self._path(f"merges/{started}.active")
        self._merges.held[started] = (path, self._disk.hold(path))

    def _bring(self, files: Files) -> None:
        for number, source in files.segments.items():
            self._disk.bring(str(source), self._path(f"segment.{number}.idx"))
        for number, source in files.idmaps.items():
            self._disk.bring(str(source), self._path(f"segment.{number}.idmap"))
        if files.segments or files.idmaps:
            self._disk.fsync_dir(self._root)

    def _idmap(self, number: int, files: Files) -> IdMap:
        if number in files.idmaps:
            return IdMap(files.idmaps[number].read_bytes(), f"segment.{number}.idmap")
        path = self._path(f"segment.{number}.idmap")
        return IdMap(self._disk.map(path), path)

    def _bury(self, segment: int, docs: BitMap, live: Live) -> None:
        """Mark documents in a segment's file of tombstones, which is written anew."""
        everything = docs | self._buried(segment, live)
        self._replace(f"segment.{segment}.tomb", tombs.encoded(everything, live.documents))

    def _buried(self, segment: int, live: Live) -> BitMap:
        path = self._path(f"segment.{segment}.tomb")
        try:
            data = bytes(self._disk.read(path)[1])
        except FileNotFoundError:
            if live.has_tombs:
                raise
            return BitMap()
        return tombs.decoded(data, live.documents, path)

    def _sweep(self, known: set[int], gone: set[int], idmaps: set[int]) -> tuple[int, int]:
        """Remove files of segments that are gone, and what a crash left; how many of each."""
        removed = orphans = 0
        for name, _ in self._disk.scan(self._root):
            kind, _, rest = name.partition(".")
            number, _, suffix = rest.partition(".")
            if kind == "segment" and number.isdecimal():
                is_idmap = suffix == "idmap" and int(number) in idmaps
                if int(number) in known and not is_idmap and not suffix.endswith(".new"):
                    continue
                removed += suffix == "idx" and int(number) in gone
                orphans += suffix == "idx" and int(number) not in gone
            elif name != f"{LEDGER}.new":
                continue
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path(name))
        return removed, orphans

    def _sweep_spools(self) -> None:
        """Remove what processes were making that are gone."""
        if self._disk.inline:
            return
        for name, _ in self._disk.scan(self._path("spool")):
            held = None
            with suppress(OSError):
                held = self._locks.try_hold(self._path(f"spool/{name}/active"))
            if held is not None:
                held.release()
                shutil.rmtree(self._path(f"spool/{name}"), ignore_errors=True)

    def _replace(self, name: str, data: bytes) -> None:
        """Write a file aside and put it in its place."""
        aside = self._path(f"{name}.new")
        with suppress(FileNotFoundError):
            self._disk.unlink(aside)
        self._disk.write(aside, data, 0)
        self._disk.rename(aside, self._path(name))

    def _drop(self, path: str, held: Held | None) -> None:
        """Remove a file that says that we are there, then let go of it."""
        if held is not None and held.is_held:
            with suppress(OSError):
                self._disk.unlink(path)
            held.release()

    def _lock_of_index(self) -> str:
        """The ledger's lock file, where there is an index: nothing is made where there is none."""
        self._disk.stat(self._path("config"))
        return self._lock

    def _stamp(self) -> tuple[int, int, int]:
        found = self._disk.stat(self._ledger.path)
        return found.inode, found.size_bytes, found.mtime_ns

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _has(self, path: str) -> bool:
        try:
            self._disk.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _remove_tree(self, path: str) -> None:
        for name, kind in self._disk.scan(path):
            if kind == "file":
                self._disk.unlink(f"{path}/{name}")
        if not self._disk.inline:
            shutil.rmtree(path, ignore_errors=True)

    def _there(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"{self._root} exists already", hint="open it, or name another directory"
        )

    def _told(self, what: str) -> AbstractContextManager[None]:
        return told(what, self._root, self._missing)

    def _missing(self, message: str) -> CordwoodError:
        """A file is missing of an index that is there, or there is no index."""
        if self._has(self._path("config")) or self._has(self._ledger.path):
            return CorruptionError(message, hint="bring it back from a copy")
        return NotFoundError(f"there is no index at {self._root}", hint="create the index first")
