"""A journal: entries appended to the files of one folder, durable when they are said to be.

::

    {base}.wal    extents (extent.py): entries from this number on
    tail          how far it goes (mark.py); locked by who appends
    next          locked by who is next
    spare         an extent that is not needed any more, to be used again

Any number of threads and processes append, one at a time: a *turn*. Whoever does not get one at
once locks `next`, says in the tail that somebody waits, and waits; whoever finds that said waits
behind `next` too. So nobody who just had a turn has the next one before those who wait. A process
that dies frees what it held.

In a turn entries are written one behind the other, then synced, and then the tail says so: what it
does not say is not there. (Who can do without the sync leaves it to a later turn. Until then the
tail says where the next entry goes, but readers read only what was synced.) Who dies before that
leaves frames behind the tail that nobody was told of, and the next turn writes over them. Only
whoever comes first after a power cut, which may have taken the tail back, has to look for whole
frames behind it; so each process does once.

An extent that is full gets a last frame, and the tail says that it is closed; only then the next
one is made. So whoever finds a closed one knows what is left to do. Where a sync failed, nobody
knows what is on the disk: that extent is closed at what had been synced, the next begins with the
same number, and frames of that number or a higher one are void in the old. Damage is not written
over either: the extent is kept, and the next one begins behind all that can be found in it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import CordwoodError, CorruptionError, NotFoundError
from cordwood.base.forks import starts_over
from cordwood.journal import frames
from cordwood.journal.extent import (
    END,
    END_BYTES,
    UNKNOWN,
    Extent,
    Head,
    base_of,
    make_extent,
    missing_extent,
    open_extent,
    open_whatever,
)
from cordwood.journal.failures import READ_ONLY, error_of, told
from cordwood.journal.lane import PAYLOAD_BYTES_MAX, Lane, entered, lane_of, mark_of
from cordwood.journal.locks import Locks
from cordwood.journal.mark import SLOT_BYTES, Mark, encoded, read_mark, seen_mark, write_mark
from cordwood.journal.turn import Turn
from cordwood.journal.turning import Alone, Turning
from cordwood.store.disk import Disk, File

EXTENT_BYTES = 1 << 30
EXTENT_BYTES_MIN = 4096
SPARE = "spare"
TAIL = "tail"
NEXT = "next"
WAITS_AT = 2 * SLOT_BYTES
"""Where the tail says that somebody waits."""

LOOK_US = 1_000
"""So long after it was last looked whether the folder is there, it is not looked again."""

NOWHERE = Mark(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, is_closed=True)
"""How far a journal goes that has no extent yet: the first is to be made."""


class Journal:
    """The journal in a folder."""

    def __init__(
        self,
        folder: str,
        disk: Disk,
        clock: Clock,
        entropy: Entropy,
        *,
        extent_bytes: int = EXTENT_BYTES,
        missing: Callable[[str], CordwoodError] = NotFoundError,
    ) -> None:
        """No I/O. `missing` makes the error that says that there is no such journal."""
        self.folder = folder
        self._next_path = f"{folder}/{NEXT}"
        self.disk = disk
        self.extent_bytes = extent_bytes
        self._full_bytes = extent_bytes - END_BYTES
        self._missing = missing
        self._clock = clock
        self._entropy = entropy
        self._locks = Locks(disk, entropy)
        self._is_over = False
        self.start_over()
        starts_over(self)
        self.damage: CorruptionError | None = None
        """What was found broken at the end of the newest extent; it was kept."""

    def start_over(self) -> None:
        """Know nothing of the files."""
        self._mutex = threading.RLock()
        self._depth = 0
        self._tail_file: File | None = None
        self._next_file: File | None = None
        self._next_inode = 0
        self._said: tuple[Mark, bytes] | None = None
        """What this process said last in a turn, and both slots of the tail as they were then."""
        self._lane: Lane | None = None
        """Where the next entry of the newest extent goes, unless the tail says otherwise."""
        self._looked_us = 0
        self._seen: bytes | None = None
        """What the tail said when this turn began; None if it may say something else by now."""
        self._extent: Extent | None = None
        self._is_recovered = False

    def bases(self) -> list[int]:
        """The extents that are there, by their first numbers, in order."""
        found = (base_of(name) for name, kind in self.disk.scan(self.folder) if kind == "file")
        return sorted(base for base in found if base is not None)

    def newest(self) -> Mark:
        """How far it goes: all that is durable.

        Raises:
            NotFoundError: there is no journal.
            CorruptionError: it cannot be known where it ends.
        """
        with self.told("read"):
            if self._is_recovered:
                with self._mutex:
                    return self._read_mark() or self._lost()
            try:
                with self.alone():
                    return self._known()
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                return self._looked()

    def turn(self) -> Turning:
        """The right to append, alone among all threads and processes, for a `with` block.

        Raises:
            NotFoundError: the folder is gone.
            CorruptionError: it cannot be known where the journal ends.
            StoreError: the disk failed, or somebody holds the lock and does not move.
        """
        return Turning(self)

    def begin_turn(self) -> Turn:
        """By who is alone."""
        mark = self._current()
        if self._extent is None or self._extent.head.salt != mark.salt:
            self._take(open_extent(self.disk, self.folder, mark.base, write=True))
        assert self._extent is not None
        return Turn(self, self._extent, mark)

    def append_alone(self, payload: bytes, time_us: int, now_us: int) -> int | None:
        """Append one small entry and sync it, if there is nothing else to do; its number, or None.

        What a turn does, in the shortest way: nobody else has appended since this process did,
        nobody waits, and there is room in what was written before. Who deletes the journal lets
        everybody look anew (`unsettle`); that its folder was deleted by other means is looked for
        now and then.

        Raises:
            OSError: the disk failed; the entry is not there.
        """
        with self._mutex:
            lane, tail, extent = self._lane, self._tail_file, self._extent
            if lane is None or tail is None or extent is None or self._depth:
                return None
            if len(payload) > PAYLOAD_BYTES_MAX:
                return None
            try:  # Before it is locked: an interrupt may come when it just was.
                if not tail.try_lock() or tail.pread(WAITS_AT + 1, 0) != lane[-1] + b"\0":
                    return None
                frame, slot, after = entered(lane, payload, time_us)
                begin, end = lane[3], after[3]
                if end > extent.written_bytes or end > self._full_bytes:
                    return None
                if not 0 <= now_us - self._looked_us < LOOK_US:
                    self.check_there()
                    self._looked_us = now_us
                if extent.file.pwrite(frame, begin) != len(frame):
                    return None
                try:
                    extent.file.sync()
                except OSError:
                    Turn(self, extent, mark_of(lane)).void()
                    raise
                try:
                    if tail.pwrite(slot, after[0] % 2 * SLOT_BYTES) != SLOT_BYTES:
                        write_mark(tail, after[0], slot)
                except OSError:
                    Turn(self, extent, mark_of(lane)).take_back()
                    raise
                self._lane = after
                return lane[4]
            finally:
                tail.unlock()

    def alone(self) -> Alone:
        """Keep all others from appending, for a `with` block."""
        return Alone(self)

    @property
    def is_held(self) -> bool:
        """Whether this thread is alone."""
        # As `threading.Condition` asks; there is no other way.
        return bool(self._mutex._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    def free(self) -> None:
        """Let others append, however often this thread has locked it."""
        while self.is_held:
            self._depth, self._seen = 0, None
            if self._tail_file is not None:
                self._tail_file.unlock()
            self._mutex.release()

    def lock(self) -> None:
        """Be alone, until `unlock` was called as often."""
        self._mutex.acquire()
        try:
            if self._depth == 0:
                file = self._tail()
                # Read once, for all that is asked of it in this turn.
                self._seen = bytes(file.read(0, WAITS_AT + 1)) if file.try_lock() else None
                if self._seen is None or self._seen[WAITS_AT:] == b"\1":
                    file.unlock()
                    self._lock_in_turn(file)
                    self._seen = None
            self._depth += 1
        except BaseException:
            if self._depth == 0 and self._tail_file is not None:
                self._tail_file.unlock()  # What failed may have been behind it.
            self._mutex.release()
            raise

    def unlock(self) -> None:
        """Let others append."""
        self._depth -= 1
        if self._depth == 0:
            self._seen = None
            if self._tail_file is not None:
                self._tail_file.unlock()
        self._mutex.release()

    def _lock_in_turn(self, file: File) -> None:
        waiting = self._locks.wait(self._next_path)
        try:
            file.write([b"\1"], WAITS_AT)
            self._locks.wait_for(file, f"{self.folder}/{TAIL}")
            file.write([b"\0"], WAITS_AT)
        finally:
            waiting.release()

    def publish(self, mark: Mark) -> Mark:
        """Say to all processes how far it goes; by who is alone."""
        said = mark.said()
        self._seen = None
        data = encoded(said)
        file = self._tail_file
        if file is None:  # Opened anew, it would not be locked.
            raise OSError(errno.EBADF, "it was closed meanwhile", f"{self.folder}/{TAIL}")
        write_mark(file, said.turn, data)
        slots = bytes(file.read(0, WAITS_AT))
        self._said = said, slots
        is_open = self._extent is not None and self._extent.head.salt == said.salt
        self._lane = lane_of(said, slots) if is_open else None
        return said

    def unsettle(self) -> None:
        """Let everybody look at what is there before the next entry; by who is alone.

        Nothing else is found out: who deletes a journal need not know how far it goes.
        """
        mark = self._read_mark()
        if mark is not None and not mark.is_closed:  # Else nobody has a lane.
            self.publish(mark)

    def give_up(self, mark: Mark) -> Mark:
        """Say that the newest extent ends with what was synced; by who is alone."""
        said = self.publish(mark.moved(mark.synced_tail)._replace(is_closed=True))
        with suppress(OSError):  # Synced for once: else a power cut may bring back what failed.
            self._tail().sync()
        return said

    def begin_extent(self, mark: Mark) -> tuple[Extent, Mark]:
        """The extent behind one that is closed, and how far it goes; by who is alone.

        It may be there already: whoever closed the last one can have died after it was made.
        """
        with suppress(FileNotFoundError):
            there = open_extent(self.disk, self.folder, mark.number, write=True)
            if there.head.salt != mark.salt:
                self.disk.fsync_dir(self.folder)  # Who made it may have died before that.
                return there, self._published(there, mark.turn)
            there.close()
        salt = int(self._entropy.token()[:16], 16) or 1
        head = Head(salt, mark.number, self._clock.now_us())
        made = make_extent(self.disk, self.folder, head, self.extent_bytes, spare=SPARE)
        return made, self._published(made, mark.turn)

    def abandon(self) -> None:
        """Let go of the files for good: the journal is gone, and what has its name is another."""
        self._is_over = True
        self.close()

    def close(self) -> None:
        """Let go of the files; the next use opens them again."""
        with self._mutex:
            self._take(None)
            for file in (self._tail_file, self._next_file):
                if file is not None:
                    file.close()
            self._tail_file = self._next_file = self._said = self._lane = None
            self._is_recovered = False

    def now_s(self) -> float:
        """By its clock, which only goes forward."""
        return self._clock.monotonic_s()

    def error(self, what: str, error: OSError) -> CordwoodError:
        """What the disk says, as an error of ours."""
        return error_of(what, self.folder, error, self._missing)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Say which journal it was, of what the disk says."""
        with told(what, self.folder, self._missing):
            yield

    def _published(self, extent: Extent, turn: int) -> Mark:
        """Say that the journal goes on with an extent that is empty."""
        self._take(extent)
        salt, base, _ = extent.head
        tail = extent.start[1:]
        return self.publish(Mark(turn, salt, base, *tail, *tail, 0))

    def _current(self) -> Mark:
        """Where the next entry goes, by who is alone."""
        mark = self._known()
        return self.begin_extent(mark)[1] if mark.is_closed else mark

    def _known(self) -> Mark:
        """How far it goes, by who is alone; the first time, whatever the tail says."""
        mark = self._read_mark()
        self.check_there()
        if not self._is_recovered:
            before, (mark, surveyed) = mark, self._surveyed(mark)
            if surveyed is not None:
                self._settle(before, surveyed)
            if mark != before:  # Said again it would not be synced, and what failed may come back.
                mark = self.publish(mark)
            if self._tail().stat().size_bytes <= WAITS_AT:
                self._tail().write([b"\0"], WAITS_AT)  # So that it is read whole, at once.
            self._is_recovered = True
        return mark or self._lost()

    def _looked(self) -> Mark:
        """How far it goes, by who may not write: what others have not synced yet counts as well."""
        known = None
        with suppress(OSError):
            known = seen_mark(self.disk, f"{self.folder}/{TAIL}")
        mark, extent = self._surveyed(known, write=False)
        if extent is not None:
            extent.close()
        return mark

    def _settle(self, known: Mark | None, extent: Extent) -> None:
        """Bring what was found in the newest extent, and its name, to stable storage."""
        try:
            self.disk.fsync_dir(self.folder)
            extent.file.sync()
        except OSError:
            # A tail that speaks of another is from before a power cut: this came from the disk.
            if known is not None and known.salt == extent.head.salt:
                self.give_up(known)
            raise
        finally:
            extent.close()

    def _surveyed(self, known: Mark | None, *, write: bool = True) -> tuple[Mark, Extent | None]:
        """How far it goes by its newest extent, whatever the tail says; and that extent."""
        bases = self.bases()
        if known is not None and known.salt and known.base > max(bases, default=-1):
            self.damage = missing_extent(self.folder, known.base)
            return known._replace(is_closed=True).synced(), None
        if not bases:
            return NOWHERE, None
        try:
            extent = open_extent(self.disk, self.folder, bases[-1], write=write)
        except CorruptionError as error:
            self.damage = error
            return self._headless(known, bases[-1]), None
        salt, base, _ = extent.head
        turn = known.turn if known is not None else 0
        tail, newest_us, is_closed = extent.start, 0, False
        if known is not None and (known.salt, known.base) == (salt, base):
            if known.is_closed:
                return known, extent  # What may lie behind it is void: see `Turn.sync`.
            tail, newest_us = known.synced_tail, known.newest_us
        synced = tail.end
        for frame in extent.whole_from(tail):
            tail = frames.behind(salt, frame)
            newest_us = max(newest_us, frame.time_us)
            is_closed = frame.kind == END
        mark = Mark(turn, salt, base, *tail[1:], *tail[1:], newest_us, is_closed)
        if is_closed:
            return mark, extent
        rest = extent.file.read(tail.end, frames.SEARCHED_BYTES)
        try:
            if extent.file.stat().size_bytes < tail.end:
                raise frames.damage(extent.path, tail.end, "it ends before that")
            frames.check_tail(rest, tail, synced=synced, name=extent.path)
        except CorruptionError as error:
            self.damage = error
            behind = [frame.number + frame.span for frame in frames.whole_behind(rest, tail)]
            mark = mark._replace(number=max([mark.number, *behind]), is_closed=True).synced()
        return mark, extent

    def _headless(self, known: Mark | None, base: int) -> Mark:
        """How far it goes if the head of its newest extent is damaged: behind all that it held."""
        extent, _ = open_whatever(self.disk, self.folder, base)
        try:
            turn, newest_us, end = 0, self._clock.now_us(), extent.start
            number = base + extent.file.stat().size_bytes  # An entry takes more than a byte.
            if known is not None:
                turn = known.turn
            if known is not None and known.base == base < known.number:
                end, newest_us = known.synced_tail, known.newest_us
                for frame in Extent(extent.file, extent.path, Head(*known[1:3], 0)).whole_from(end):
                    end = frames.behind(known.salt, frame)
                    newest_us = max(newest_us, frame.time_us)
                number = max(known.number, end.number)
        finally:
            extent.close()
        tail = end.end, number, end.checksum
        return Mark(turn, UNKNOWN, base, *tail, *tail, newest_us, is_closed=True)

    def _read_mark(self) -> Mark | None:
        file = self._tail()
        if self._said is not None:
            mark, slots = self._said
            seen = file.read(0, WAITS_AT) if self._seen is None else self._seen[:WAITS_AT]
            if seen == slots:
                return mark
        return read_mark(file)

    def check_there(self) -> None:
        """Make sure that the folder is the one whose files are open.

        Raises:
            CordwoodError: it was deleted, and perhaps made again.
        """
        is_open = self._next_file is not None
        if is_open and self.disk.inode(self._next_path) != self._next_inode:
            raise self._missing(f"{self.folder} was deleted, and made again")

    def _tail(self) -> File:
        if self._tail_file is None:
            if self._is_over:
                raise self._missing(f"{self.folder} was deleted")
            # What is asked for with every turn is a file that never changes: Linux gives a file
            # whose time somebody has looked at a new one with the next write, at 40 us each.
            self._next_file = self.disk.open(self._next_path, create=True)
            self._next_inode = self._next_file.stat().inode
            self._tail_file = self.disk.open(f"{self.folder}/{TAIL}", create=True)
        return self._tail_file

    def _lost(self) -> Mark:
        raise frames.damage(f"{self.folder}/{TAIL}", 0, "it was written over while in use")

    def _take(self, extent: Extent | None) -> None:
        if self._extent is not None and self._extent is not extent:
            self._extent.close()
        self._extent, self._lane = extent, None
