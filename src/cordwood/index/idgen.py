"""Numbers that are handed out once, through any crash.

A file holds where the next block of numbers begins, four times, as u64::

    canonical  canonical again  recovery  recovery again

A block is taken under the file's lock: the next beginning is written over the first pair and
synced, then over the second and synced, and only then is the block handed out. A pair whose halves
differ was being written when the machine stopped, or has rotted, and does not count. Of the pairs
that do, the higher one is right: numbers may be passed over, but none is handed out twice.

The file is made aside, whole, and then gets its name: so one that is shorter is damaged, and does
not begin anew.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from cordwood.base.errors import CorruptionError
from cordwood.journal.failures import told
from cordwood.journal.locks import Locks
from cordwood.store.disk import Disk

BLOCK = 64
"""How many numbers are taken from the file at once."""

_PAIR = struct.Struct("<QQ")
FIRST = 1


class Numbers:
    """Blocks of numbers, handed out one by one, to any number of threads.

    A forked child has a copy of its parent's block, and must not hand it out as well: it takes one
    of its own.
    """

    def __init__(self, take: Callable[[], int], block: int) -> None:
        """`take` gives the beginning of a block that is ours."""
        self._take = take
        self._block = block
        self.forget()
        _all_numbers.add(self)

    def forget(self) -> None:
        """Pass over what is left of the block; nobody is in the middle of anything."""
        self._mutex = threading.Lock()
        self._next = self._limit = 0

    def pass_over(self) -> None:
        """What is left of the block belongs to nobody."""
        with self._mutex:
            self._next = self._limit = 0

    def next(self) -> int:
        """A number that nobody has had."""
        with self._mutex:
            if self._next == self._limit:
                self._next = self._take()
                self._limit = self._next + self._block
            number = self._next
            self._next += 1
            return number


class IdGenerator:
    """Numbers from one file, from 1 on; any number of processes and threads share it."""

    def __init__(
        self,
        path: str,
        disk: Disk,
        locks: Locks,
        *,
        block: int = BLOCK,
        is_made: bool = False,
    ) -> None:
        """The file is made when the first number is asked for, unless it has to be there."""
        self._path = path
        self._disk = disk
        self._locks = locks
        self._block = block
        self._is_made = is_made
        self._numbers = Numbers(self._take, block)

    def next(self) -> int:
        """A number that nobody has had.

        Raises:
            CorruptionError: the file is damaged, or missing where it has to be there.
            StoreError: the disk failed; numbers may have been passed over.
        """
        with told("number", self._path):
            return self._numbers.next()

    def pass_over(self) -> None:
        """The file may be another: take no more of the block that came from the old one."""
        self._numbers.pass_over()

    def check(self) -> None:
        """Read the file; the same errors."""
        self._read()

    def _take(self) -> int:
        """The beginning of a block that is ours."""
        with self._locks.exclusive(f"{self._path}.lock"):
            begin = self._read()
            if begin is None:
                begin = FIRST
                self._make()
            pair = _PAIR.pack(begin + self._block, begin + self._block)
            self._disk.overwrite(self._path, pair, 0)
            self._disk.overwrite(self._path, pair, _PAIR.size)
            return begin

    def _make(self) -> None:
        aside = f"{self._path}.new"
        with suppress(FileNotFoundError):
            self._disk.unlink(aside)
        self._disk.write(aside, fresh(), 0)
        self._disk.rename(aside, self._path)
        self._disk.fsync_dir(self._path.rpartition("/")[0])

    def _read(self) -> int | None:
        """Where the next block begins; None if there is no file."""
        try:
            data = bytes(self._disk.read(self._path)[1])
        except FileNotFoundError:
            if self._is_made:
                raise self._damaged("it is missing") from None
            return None
        if len(data) != 2 * _PAIR.size:
            raise self._damaged(f"it has {len(data)} bytes")
        pairs = (_PAIR.unpack_from(data, place) for place in (0, _PAIR.size))
        found = [first for first, second in pairs if first == second and first >= FIRST]
        if not found:
            raise self._damaged("neither of its numbers is whole")
        return int(max(found))

    def _damaged(self, why: str) -> CorruptionError:
        return CorruptionError(
            f"{self._path} is damaged: {why}",
            where=self._path,
            hint="bring it back from a copy: numbers must not be handed out twice",
        )


def fresh() -> bytes:
    """A file from which nothing was taken."""
    return 2 * _PAIR.pack(FIRST, FIRST)


_all_numbers: WeakSet[Numbers] = WeakSet()


def _forget_all() -> None:
    for numbers in _all_numbers:
        numbers.forget()


os.register_at_fork(after_in_child=_forget_all)
