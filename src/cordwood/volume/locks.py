"""The named locks of a volume's directory, as one handle holds them.

========================  ======================================================================
WRITE                     one who commits, publishes or switches
CHECKPOINT                one who drains or reclaims
RECOVERY                  shared by every open handle; who has it alone may rebuild what is shared
NEED_WAL0_PART            readers of a part of wal0, the active file
NEED_WAL0_PART_WAL1_FULL  the same, who also need all of wal1
NEED_WAL1_PART            as above, with the files exchanged
NEED_WAL1_PART_WAL0_FULL
REMOTE                    one who pushes or pulls
========================  ======================================================================

Each is a `flock` on a file of its own, opened once for a handle: a process that dies frees what it
held. The system would let one open file change its lock from shared to exclusive without asking its
other users, so a handle counts its own: any number of sharers, or one who is alone. A forked child
closes its copies, so that it cannot keep a lock that its parent dies with.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from cordwood.base.clock import Entropy
from cordwood.base.errors import Code, StoreError
from cordwood.store.disk import Disk, File
from cordwood.store.patience import Patience

WRITE, CHECKPOINT, RECOVERY, REMOTE = "WRITE", "CHECKPOINT", "RECOVERY", "REMOTE"

WAIT_S = 60.0
"""No process holds a lock that is waited for so long, unless it is stopped."""


def need(active: int, *, full: bool) -> str:
    """The lock of readers of a part of the active file, and perhaps of all of the other."""
    return f"NEED_WAL{active}_PART" + (f"_WAL{1 - active}_FULL" if full else "")


READERS = tuple(need(active, full=full) for active in (0, 1) for full in (False, True))
NAMES = (WRITE, CHECKPOINT, RECOVERY, REMOTE, *READERS)

_ALONE = -1


class Locks:
    """The locks of one handle. Any thread may use it."""

    def __init__(self, disk: Disk, folder: str, entropy: Entropy, *, wait_s: float) -> None:
        """Open the files, which are made if they are not there; nothing is locked."""
        self._folder = folder
        self._entropy = entropy
        self._wait_s = wait_s
        # Its holder may take it again: a snapshot that is thrown away meanwhile lets go.
        self._mutex = threading.RLock()
        self._held = dict.fromkeys(NAMES, 0)
        """How many of this handle share each; -1 for one who is alone."""
        self._files: dict[str, File] = {}
        for name in NAMES:
            self._files[name] = disk.open(f"{folder}/{name}", create=True)
        self.is_open = True
        self.is_forked = False
        """Whether this is a child, and the handle its parent's."""
        _all.add(self)

    def try_share(self, name: str) -> bool:
        """Hold a lock together with others; False if somebody is alone with it."""
        with self._mutex:
            held = self._held[name]
            if held == _ALONE or not self.is_open:
                return False
            if held == 0 and not self._files[name].try_lock(shared=True):
                return False
            self._held[name] = held + 1
            return True

    def try_alone(self, name: str) -> bool:
        """Hold a lock alone; False if anybody has it, in this handle or elsewhere."""
        with self._mutex:
            if self._held[name] or not self.is_open or not self._files[name].try_lock():
                return False
            self._held[name] = _ALONE
            return True

    def let_go(self, name: str) -> None:
        """Give back what `try_share` or `try_alone` gave."""
        with self._mutex:
            held = self._held[name]
            if not self.is_open or not held:
                return
            self._held[name] = held - 1 if held > 0 else 0
            if held in (1, _ALONE):
                self._files[name].unlock()

    @contextmanager
    def alone(self, *names: str) -> Iterator[bool]:
        """Hold locks alone while the block runs, if nobody has any of them; whether that is so."""
        taken: list[str] = []
        try:
            for name in names:
                if not self.try_alone(name):
                    break
                taken.append(name)
            yield len(taken) == len(names)
        finally:
            for name in taken:
                self.let_go(name)

    @contextmanager
    def waited(self, name: str) -> Iterator[None]:
        """Hold a lock alone while the block runs, when its holder has let it go.

        Raises:
            StoreError: somebody has had it for too long.
        """
        pausing = self.pausing(name)
        while not self.try_alone(name):
            next(pausing)
        try:
            yield
        finally:
            self.let_go(name)

    def pausing(self, name: str) -> Iterator[None]:
        """Wait a little with each step.

        Raises:
            StoreError: it has been too long.
        """
        patience = Patience(self._wait_s, self._entropy)
        while patience.pause():
            yield
        raise StoreError(
            f"{self._folder}/{name} has been held by another for {patience.waited_s:.0f} s",
            code=Code.STORE_UNREACHABLE,
            transient=True,
            operation="lock",
            key=f"{self._folder}/{name}",
            hint="a process that uses the directory may have been stopped: continue or end it",
        )

    def close(self) -> None:
        """Let everything go, and close the files."""
        with self._mutex:
            self.is_open = False
            for name, file in self._files.items():
                if self._held[name] and not self.is_forked:
                    file.unlock()
                self._held[name] = 0
                file.close()

    def forget(self) -> None:
        """In a forked child: close the copies, which leaves the locks to the parent."""
        self.is_forked, self.is_open = True, False
        self._mutex = threading.RLock()
        for file in self._files.values():
            file.close()


_all: WeakSet[Locks] = WeakSet()


def _forget_all() -> None:
    for locks in _all:
        locks.forget()


os.register_at_fork(after_in_child=_forget_all)
