"""The local half of a volume: a directory that any number of processes share.

::

    {folder}/control                  the state, in memory that all share     (control.py)
            /head                     which published version lies below      (recovery.py)
            /locks/…                  who does what                           (locks.py)
            /wal/wal0.wal, wal1.wal   commits that are not published          (journal/pair.py)
            /wal/wal0.table, …        where their pages are; cuts             (tables.py)
            /wal/base, base.map       pages of WAL files that were drained    (base.py)
            /wal/drained              how far they are

Everything here is plain and blocking, and takes microseconds: SQLite reads its pages through it.
What is committed here is *locally committed*: durable on this machine. It is *published* when
somebody pushed it, and says so by `publish`.

Readers never wait for writers nor writers for readers. A snapshot holds the lock of what it needs:
PART of the active file keeps that from being drained, once it is idle; FULL of the idle one keeps
it from being used again. If a reader keeps a file from that, the writer goes on in the same one.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import numpy as np
import xxhash

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import Code, ContendedError, InvalidInputError, Retry, StateError
from cordwood.journal import pair
from cordwood.journal.failures import told
from cordwood.journal.frames import damage
from cordwood.journal.pair import Pair
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk
from cordwood.volume import recovery, writing
from cordwood.volume.base import Base, Drained, load, save
from cordwood.volume.control import Control, State
from cordwood.volume.locks import CHECKPOINT, READERS, RECOVERY, WAIT_S, WRITE, Locks, need
from cordwood.volume.overlay import View
from cordwood.volume.recovery import CONTROL, DRAINED, HEAD, LOCKS, WAL, Head
from cordwood.volume.tables import Cuts, Numbers, Table, needed
from cordwood.volume.writing import Transaction

PAGE_BYTES_MIN, PAGE_BYTES_MAX = 512, 65536
SWITCH_PAGES = 1000
_ROUND_CUTS = 4096
_TRIES = 16
"""So often a snapshot starts over at once before it pauses."""


class Local:
    """A handle on the directory. Any thread may use it; a forked child opens its own."""

    def __init__(
        self, folder: str, page_bytes: int, disk: Disk, clock: Clock, locks: Locks
    ) -> None:
        """Made by `open`, which holds RECOVERY."""
        self.folder = folder
        self.page_bytes = page_bytes
        self.zeros = bytes(page_bytes)
        self.clock = clock
        self.locks = locks
        self.switch_bytes = SWITCH_PAGES * page_bytes
        self.busy = threading.RLock()
        """Held by who changes anything, so that nobody closes the handle meanwhile."""
        self._disk = disk
        wal = f"{folder}/{WAL}"
        self.control = Control(disk, f"{folder}/{CONTROL}")
        self.pair = Pair(disk, wal, page_bytes)
        self.tables = [Table(disk, wal, index) for index in (0, 1)]
        self.cuts = Cuts(disk, wal)
        self.base = Base(disk, wal, page_bytes)
        self._cuts_seen: tuple[tuple[int, ...], Numbers, tuple[list[int], list[int]]] | None = None

    @classmethod
    def open(
        cls,
        folder: str,
        page_bytes: int,
        *,
        disk: Disk | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
        switch_pages: int = SWITCH_PAGES,
        lock_wait_s: float = WAIT_S,
    ) -> Local:
        """Open a volume's directory, which is made if it is not there.

        Who is alone recovers it first. The active WAL file is left for the other one once it is
        longer than `switch_pages` pages.

        Raises:
            CorruptionError: a file is damaged; nothing was changed.
            InvalidInputError: the page size is not right, or not that of the volume.
            StoreError: the disk failed, is full, or may not be written.
        """
        is_size = PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX
        if not is_size or page_bytes & (page_bytes - 1):
            raise InvalidInputError(
                f"pages cannot have {page_bytes} bytes: "
                f"a power of two from {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX}"
            )
        disk = Disk() if disk is None else disk
        with told("open", folder):
            recovery.make_folders(disk, folder)
            locks = Locks(disk, f"{folder}/{LOCKS}", entropy, wait_s=lock_wait_s)
            try:
                _join(disk, folder, page_bytes, locks, entropy)
                made = cls(folder, page_bytes, disk, clock, locks)
                made.switch_bytes = switch_pages * page_bytes
                made._check_pages()
            except BaseException:
                locks.close()
                raise
        return made

    def check(self) -> None:
        """Make sure that the handle can be used.

        Raises:
            StateError: it is closed, or this is a forked child.
        """
        if self.locks.is_open:
            return
        if self.locks.is_forked:
            raise StateError(
                f"{self.folder} was opened before this process was forked",
                code=Code.FORKED,
                hint="open it once more in the child",
            )
        raise StateError(f"{self.folder} is closed", code=Code.CLOSED)

    def snapshot(self) -> View:
        """What is there now; it stays that way until it is closed.

        Raises:
            StateError: the handle is closed, or this is a forked child.
        """
        control, locks = self.control, self.locks
        tries = 0
        pausing: Any = None
        while True:
            self.check()
            state = control.read()
            has_idle = control.drained < state.sequence
            lock = need_of(state.sequence & 1, has_idle)
            if locks.try_share(lock):
                try:
                    view = self._seen(state, lock, has_idle)
                except BaseException:
                    locks.let_go(lock)
                    raise
                if view is not None:
                    return view
                locks.let_go(lock)
            tries += 1
            if tries > _TRIES:
                pausing = pausing or locks.pausing(lock)
                next(pausing)

    def _seen(self, state: State, lock: str, has_idle: bool) -> View | None:
        """A snapshot, with the lock held; None if the state has moved on to another file."""
        again = self.control.read()
        # Drained since: then a switch may have begun, and its maker died within it.
        if again.sequence != state.sequence or has_idle != (self.control.drained < again.sequence):
            return None
        cuts = self._cuts_of(again)
        if cuts is None:
            return None
        base = self.base.map(self.control.base)
        return View(self, again, lock, has_idle=has_idle, base=base, cuts=cuts[1])

    def begin(self, view: View) -> Transaction:
        """Begin to write, on top of a snapshot that is the newest.

        Raises:
            ContendedError: another one writes, or has written since: nothing was done.
            StateError: a sync failed, so nobody may write; the handle or the snapshot is closed.
        """
        self.check()
        if not view.is_open:
            raise StateError("the snapshot is closed", code=Code.CLOSED)
        if not self.locks.try_alone(WRITE):
            raise ContendedError(
                f"{self.folder}: another transaction writes",
                retry=Retry.NOW,
                hint="try again when it is done",
            )
        try:
            state = writing.writable(self)
        except BaseException:
            self.locks.let_go(WRITE)
            raise
        if (state.entry, state.epoch) != (view.entry, view.epoch):
            self.locks.let_go(WRITE)
            raise ContendedError(
                f"{self.folder} has changed since the snapshot",
                hint="take another snapshot and begin again",
            )
        return Transaction(self, state)

    def publish(
        self,
        lsn: int,
        commit_hash: bytes,
        watermark: int,
        page_count: int,
        *,
        own: bool = False,
        local_page_count: int | None = None,
        only_at: int | None = None,
    ) -> None:
        """Let another published version lie below, which holds the entries up to `watermark`.

        `page_count` is that version's. The volume itself has as many when nothing is left over it;
        else as many as before, or `local_page_count`. `own` says that it is what was here before,
        pushed: no page changes by it. `only_at` is the entry that must still be the last: what was
        committed since was not made upon that version. Durable when it returns; waits for who
        writes.

        Raises:
            ContendedError: somebody committed since `only_at`; nothing has changed.
            InvalidInputError: the watermark goes back, or is behind the last entry.
            StateError: a sync failed, so nobody may write; the handle is closed.
            StoreError: the disk failed or is full: nothing has changed.
        """
        pausing = self.locks.pausing(WRITE)
        while not self.try_publish(
            lsn,
            commit_hash,
            watermark,
            page_count,
            own=own,
            local_page_count=local_page_count,
            only_at=only_at,
        ):
            next(pausing)

    def try_publish(
        self,
        lsn: int,
        commit_hash: bytes,
        watermark: int | None,
        page_count: int,
        *,
        own: bool = False,
        local_page_count: int | None = None,
        only_at: int | None = None,
    ) -> bool:
        """As `publish`, for who cannot wait here; False if somebody writes.

        A watermark of None is the last entry: local commits are gone.
        """
        self.check()
        with self.locks.alone(WRITE) as is_free, self.busy:
            if not is_free:
                return False
            self.check()
            state = writing.writable(self)
            if only_at is not None and state.entry != only_at:
                raise ContendedError(f"{self.folder}: somebody committed meanwhile")
            watermark = state.entry if watermark is None else watermark
            self._move(state, lsn, commit_hash, watermark, page_count, own, local_page_count)
            return True

    def discard(self, lsn: int, commit_hash: bytes, page_count: int) -> None:
        """Take a published version instead of what is here: local commits are gone.

        Raises:
            StateError: a sync failed, so nobody may write; the handle is closed.
            StoreError: the disk failed or is full: nothing has changed.
        """
        pausing = self.locks.pausing(WRITE)
        while not self.try_publish(lsn, commit_hash, None, page_count):
            next(pausing)

    def drain(self) -> bool:
        """Bring the idle WAL file into the base; False if a reader, or who drains, is in the way.

        Raises:
            CorruptionError: a page of it is damaged.
            StoreError: the disk failed or is full; nothing is lost.
        """
        with self.busy, told("drain", self.folder), self._alone(CHECKPOINT) as is_free:
            if not is_free:
                return False
            state = self.control.read()
            if self.control.drained >= state.sequence:
                return True
            idle = ~state.sequence & 1
            # No reader comes to need a part of it any more: the state says that it is idle.
            with self.locks.alone(need(idle, full=False), need(idle, full=True)) as is_unread:
                if not is_unread:
                    return False
            while (cuts := self._cuts_of(state)) is None:
                state = self.control.read()
            self._drain(state, cuts[0])
            return True

    def reclaim(self) -> int:
        """Give back the room of the base, if all in it is published; how many bytes.

        It is not done while anybody reads.

        Raises:
            StoreError: the disk failed.
        """
        with self.busy, told("reclaim", self.folder), self._alone(CHECKPOINT, *READERS) as is_free:
            if not is_free:
                return 0
            drained = load(self._disk, f"{self.folder}/{WAL}/{DRAINED}", DRAINED, Drained)
            if drained is None or drained.entry > self.control.read().watermark:
                return 0
            # First: who looks at a map that is cut off meanwhile, because this one died, is killed.
            self.control.base += 1
            return self.base.reclaim()

    def wal_bytes(self) -> int:
        """How much of the WAL files is in use."""
        self.check()
        state = self.control.read()
        return state.end + (state.idle_end if self.control.drained < state.sequence else 0)

    def close(self) -> None:
        """Close the handle, and with it its snapshots; twice is no error."""
        with nullcontext() if self.locks.is_forked else self.busy:
            self.locks.close()
        self.control.close()
        self.pair.close()
        self.cuts.close()
        self.base.close()
        for table in self.tables:
            table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alone(self, *names: str) -> AbstractContextManager[bool]:
        self.check()
        return self.locks.alone(*names)

    def _move(
        self,
        state: State,
        lsn: int,
        commit_hash: bytes,
        watermark: int,
        page_count: int,
        own: bool,
        local_page_count: int | None,
    ) -> None:
        """Move the head: first on the disk, then for all to see."""
        if not state.watermark <= watermark <= state.entry:
            raise InvalidInputError(
                f"{self.folder}: the watermark cannot be {watermark}: "
                f"it is {state.watermark}, and the last entry is {state.entry}"
            )
        if local_page_count is None:
            local_page_count = page_count if watermark == state.entry else state.page_count
        new = state._replace(
            lsn=lsn,
            hash=commit_hash,
            watermark=watermark,
            published_count=page_count,
            page_count=local_page_count,
            epoch=state.epoch + (not own),
        )
        with told("publish in", self.folder):
            for table in self.tables:
                table.cover_pages(local_page_count)
            self.control.begin_writing(state)
            try:
                self.save_head(writing.head_of(self, new))
            except OSError:
                writing.withdraw(self, state)
                self.control.end_writing()
                raise
        rows = self.cuts.read(state.cuts_start, state.cuts_limit)
        if not len(needed(rows, watermark, state.entry)):
            new = new._replace(cuts_start=state.cuts_limit)
            if state.cuts_limit >= _ROUND_CUTS:
                # Who still reads the place of old ones sees by the round that it has to look again.
                new = new._replace(cuts_start=0, cuts_limit=0, cuts_round=state.cuts_round + 1)
        self.control.publish(new)
        self.control.end_writing()

    def save_head(self, head: Head) -> None:
        """Replace the document, on stable storage."""
        save(self._disk, f"{self.folder}/{HEAD}", HEAD, head)

    def load_head(self) -> Head:
        """The document."""
        return load(self._disk, f"{self.folder}/{HEAD}", HEAD, Head) or Head()

    def _drain(self, state: State, cuts: Numbers) -> None:
        """Write what is in the idle file, and not published, to the base; then say so."""
        idle = ~state.sequence & 1
        table = self.tables[idle]
        last = state.idle_entry - state.idle_first + 1
        pages, numbers = table.newest(last)
        entries = numbers + np.uint64(state.idle_first - 1)
        # What is published is read from there, and nobody goes back behind the watermark.
        wanted = entries > state.watermark
        pages, numbers, entries = pages[wanted], numbers[wanted], entries[wanted]
        lines = table.entries[numbers]
        places = lines["place"].tolist()

        def page_of(index: int) -> Buffer:
            data = self.pair.files[idle].read(places[index], self.page_bytes)
            if xxhash.xxh3_64_intdigest(data) != int(lines["sum"][index]):
                path, why = self.pair.paths[idle], f"page {pages[index]} is not what was written"
                raise damage(path, places[index], why)
            return data

        if len(pages):
            self.base.put(pages, entries, lines["sum"], page_of)
        kept = needed(cuts, state.watermark, state.idle_entry)
        save(
            self._disk,
            f"{self.folder}/{WAL}/{DRAINED}",
            DRAINED,
            Drained(
                uses=state.sequence,
                entry=state.idle_entry,
                page_count=state.idle_count,
                cuts=tuple((int(entry), int(count)) for entry, count in kept),
            ),
        )
        self.control.base += 1
        self.control.drained = state.sequence

    def _cuts_of(self, state: State) -> tuple[Numbers, tuple[list[int], list[int]]] | None:
        """The cuts of a state: all, and those that matter to readers; None if it is too old."""
        if state.cuts_start == state.cuts_limit:
            return _NO_CUTS
        key = (state.cuts_round, state.cuts_start, state.cuts_limit, state.watermark)
        seen = self._cuts_seen
        if seen is None or seen[0] != key:
            rows = self.cuts.read(state.cuts_start, state.cuts_limit)
            if self.control.read().cuts_round != state.cuts_round:
                return None
            kept = needed(rows, state.watermark, state.entry)
            seen = self._cuts_seen = (key, rows, (kept[:, 0].tolist(), kept[:, 1].tolist()))
        return seen[1], seen[2]

    def _check_pages(self) -> None:
        """Make sure that the pages have the size that the volume's have."""
        index = self.control.read().sequence & 1
        path = self.pair.paths[index]
        head = pair.head_of(self.pair.files[index].read(0, pair.FRAMES_AT), path)
        if head is not None and head.page_bytes != self.page_bytes:
            raise InvalidInputError(
                f"{self.folder} keeps pages of {head.page_bytes} bytes, not of {self.page_bytes}"
            )


_NO_CUTS: tuple[Numbers, tuple[list[int], list[int]]] = (np.empty((0, 2), np.uint64), ([], []))
_NEEDS = {(active, full): need(active, full=full) for active in (0, 1) for full in (False, True)}


def need_of(active: int, has_idle: bool) -> str:
    """The lock of a snapshot."""
    return _NEEDS[active, has_idle]


def _join(disk: Disk, folder: str, page_bytes: int, locks: Locks, entropy: Entropy) -> None:
    """Share RECOVERY with all who have the directory open; who is alone recovers it first."""
    pausing = locks.pausing(RECOVERY)
    while True:
        with locks.alone(RECOVERY) as is_alone:
            if is_alone:
                recovery.rebuild(disk, folder, page_bytes, entropy)
        if locks.try_share(RECOVERY):
            # Who was to recover it may have died.
            control = Control(disk, f"{folder}/{CONTROL}")
            if control.is_ready:
                control.close()
                return
            control.close()
            locks.let_go(RECOVERY)
        next(pausing)
