"""Waiting for a lock file, with patience and an end to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cordwood.base.clock import Entropy
from cordwood.base.errors import Code, StoreError
from cordwood.store.disk import Disk, File, Held
from cordwood.store.patience import Patience

T = TypeVar("T")

LOCK_WAIT_S = 60.0
"""No process holds one of these locks for long, unless it is stopped."""


class Locks:
    """The lock files of a folder."""

    def __init__(self, disk: Disk, entropy: Entropy, *, wait_s: float = LOCK_WAIT_S) -> None:
        """No lock is held."""
        self._disk = disk
        self._entropy = entropy
        self._wait_s = wait_s

    @contextmanager
    def exclusive(self, path: str) -> Iterator[None]:
        """Hold a lock alone."""
        held = self.wait(path, shared=False)
        try:
            yield
        finally:
            held.release()

    @contextmanager
    def shared(self, path: str) -> Iterator[None]:
        """Hold a lock together with others that share it."""
        held = self.wait(path, shared=True)
        try:
            yield
        finally:
            held.release()

    def try_hold(self, path: str) -> Held | None:
        """Hold a lock alone; None if somebody has it."""
        return self._try(path, shared=False)

    def wait(self, path: str, *, shared: bool = False) -> Held:
        """Hold a lock until it is released.

        Raises:
            StoreError: somebody has had it for too long.
        """
        return self._patiently(lambda: self._try(path, shared=shared), path)

    def wait_for(self, file: File, path: str) -> None:
        """Lock a file that is open.

        Raises:
            StoreError: somebody has had it for too long.
        """
        self._patiently(lambda: file.try_lock() or None, path)

    def _try(self, path: str, *, shared: bool) -> Held | None:
        try:
            return self._disk.hold(path, shared=shared)
        except BlockingIOError:
            return None

    def _patiently(self, attempt: Callable[[], T | None], path: str) -> T:
        patience: Patience | None = None
        while (held := attempt()) is None:
            patience = patience or Patience(self._wait_s, self._entropy)
            if not patience.pause():
                raise StoreError(
                    f"{path} has been held by another process for {patience.waited_s:.0f} s",
                    code=Code.STORE_UNREACHABLE,
                    transient=True,
                    operation="lock",
                    key=path,
                    hint="a process that uses the folder may have been stopped: continue or end it",
                )
        return held
