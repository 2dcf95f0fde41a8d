"""Numbers that are handed out once, through any crash.

A file holds where the next block of numbers begins, four times, as u64::

    canonical  canonical again  recovery  recovery again

A block is taken under the file's lock: the next beginning is written over the first pair and
synced, then over the second and synced, and only then is the block handed out. A pair whose halves
differ was being written when the machine stopped, or has rotted, and does not count. Of the pairs
that do, the higher one is right: numbers may be passed over, but none is handed out twice.
"""

from __future__ import annotations

import struct
import threading

from cordwood.base.errors import CorruptionError
from cordwood.index.locks import Locks
from cordwood.store.disk import Disk

BLOCK = 64
"""How many numbers are taken from the file at once."""

_PAIR = struct.Struct("<QQ")
FIRST = 1


class IdGenerator:
    """Numbers from one file, from 1 on; any number of processes and threads share it."""

    def __init__(self, path: str, disk: Disk, locks: Locks, *, block: int = BLOCK) -> None:
        """The file is made when the first number is asked for."""
        self._path = path
        self._disk = disk
        self._locks = locks
        self._block = block
        self._mutex = threading.Lock()
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

    def _take(self) -> int:
        """The beginning of a block that is ours."""
        with self._locks.exclusive(f"{self._path}.lock"):
            begin = self._read()
            pair = _PAIR.pack(begin + self._block, begin + self._block)
            self._disk.overwrite(self._path, pair, 0)
            self._disk.overwrite(self._path, pair, _PAIR.size)
            return begin

    def _read(self) -> int:
        try:
            data = bytes(self._disk.read(self._path)[1])
        except FileNotFoundError:
            self._disk.write(self._path, b"", 0)
            self._disk.fsync_dir(self._path.rpartition("/")[0])
            return FIRST
        pairs = [data[at : at + _PAIR.size] for at in (0, _PAIR.size)]
        whole = [_PAIR.unpack(pair) for pair in pairs if len(pair) == _PAIR.size]
        found = [first for first, second in whole if first == second and first >= FIRST]
        if found:
            return int(max(found))
        if len(data) <= _PAIR.size:
            return FIRST  # Not even the first pair was written: nothing was handed out.
        raise CorruptionError(
            f"{self._path} is damaged: neither of its numbers is whole",
            where=self._path,
            hint="bring it back from a copy: numbers must not be handed out twice",
        )
