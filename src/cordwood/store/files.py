"""How a file becomes an object: atomic, conditional, durable. The blocking half of `directory.py`.

A file is never changed in place: a put writes a new one beside it and moves that onto the name, so
a reader sees the bytes of one put or of another.

Etag: inode, modification time in nanoseconds, size; in hex. A put that replaces an object gets a
time greater than that object's whatever the clock says, so along the life of a name no etag
returns. (A file system whose times are too coarse for that is refused when it matters.)

The protocol. Whatever may be slow, a file's bytes and every fsync, happens outside the lock; inside
are a few calls that change names in memory::

    create      1 the name is free          else sync the folder, AlreadyExistsError
                2 write temp, fsync it
                3 link temp to the name     name taken: sync the folder, AlreadyExistsError
                4 unlink temp, sync the folder
    Match       1 the etag is the expected  else ContendedError
                2 write temp with time max(now, expected + 1), fsync it
                3 lock the folder
                4 look at the etag again    else ContendedError
                5 rename temp to the name, unlock
                6 sync the folder
    overwrite   as Match, without comparing; where the present one's time is not below temp's, it
                unlocks, gives temp a later one and locks again; where there is no present one it
                links, so that it cannot hide a create
    delete      lock the folder, unlink, unlock, sync the folder
    copy        link the file to the second name, sync that name's folder; etag and time are those
                of the first, and stay unique along the life of the second for as long as nobody
                replaces it (only objects that are never replaced are copied)

Invariants:

1. A name that is not `.cordwood-*` only ever names a file whose bytes are on stable storage.
2. When a put returns, the name is on stable storage too, and so is the name of every folder on the
   way: it synced the folder after its own change. A folder that someone else made counts only
   after we synced its parent: its maker may have died before it did. This costs one sync per folder
   in a process's life.
3. Whoever is told that an object exists by AlreadyExistsError may rely on it: the folder was synced
   first. Whoever merely saw it (get, head, list, ContendedError) calls `sync`.
4. Only a holder of the lock replaces or removes a name; `create` needs no lock, link is atomic.
   The lock is in the object's own folder and not at the root: two stores with different roots may
   name the same folder, and must still exclude each other.

Between a put's unlock and the end of its sync, others see its object and may replace it in turn.
That is safe, because a name and its replacements are in one folder:

* The sync that acknowledges the later put comes after both renames, and a folder's sync covers all
  changes made to it before. So the later put does not rest on what can still be lost: the name
  holds its object, which took the earlier one's place for good.
* The earlier put returns after its own sync, as if it had been replaced a moment later.
* A power cut before either sync leaves the name with any one of the objects that it had since the
  last sync, each of them whole (invariant 1), and none of the puts in question had returned.
* After a delete, a create by somebody else is durable with the sync of that create, and the delete
  with either sync: the object deleted cannot come back once one of them returned.

Waiting for the lock. Its holder needs it for as long as a rename takes, unless it is stopped or its
disk is stuck, and nobody can tell these from slowness. So the wait has an end (`Patience`), and
whoever gave up has written nothing; a cancelled call stops waiting at once. A stopped holder that
wakes goes on where it was, still alone: nobody takes the lock from it. A killed one frees it.

What fails where: before link or rename nothing has happened (`applied` is false). A sync of the
folder that fails after it leaves a write that can be seen and may not survive (`applied` is true);
it is not tried again, because a second fsync may report success for what the first one lost.

Symbolic links: the root may be one or lie behind one. Below the root none is followed: to get, head
and list it is not there; a put or delete through one is refused. So nothing is written outside the
root, and a list cannot run in circles.

Lists rely on the file system to give every name that stays throughout a scan. ext4 and XFS keep a
name in its place while a rename replaces its file; others do within one read of about 30 kB.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from cordwood.base.clock import Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StoreError,
    UnsupportedError,
)
from cordwood.store.api import RESERVED_SEGMENT_PREFIX, Buffer, Match, Meta, PutMode
from cordwood.store.disk import Disk, FileStat
from cordwood.store.keys import is_key
from cordwood.store.patience import Patience

T = TypeVar("T")

LOCK_NAME = f"{RESERVED_SEGMENT_PREFIX}lock"
TEMP_PREFIX = f"{RESERVED_SEGMENT_PREFIX}tmp-"
TEMP_AGE_MAX_S = 3_600
"""A put takes seconds: a temporary file this old belongs to a process that is gone."""
LOCK_WAIT_S = 30.0
"""How long a call waits for a lock: far longer than a busy disk makes a holder keep it."""


class Files:
    """Objects as files below one root. Every call blocks; all state is on the disk."""

    def __init__(self, root: str, disk: Disk, clock: Clock, entropy: Entropy) -> None:
        """Objects below the absolute path `root`."""
        self._root = root
        self._disk = disk
        self._clock = clock
        self._entropy = entropy
        self._settled: set[str] = set()
        """Folders whose own name, and all above it, we know to be on stable storage."""

    def read(
        self, operation: str, key: str, start: int = 0, length: int | None = None
    ) -> tuple[FileStat, Buffer]:
        """An object's stat, and its bytes from `start` on, at most `length` of them."""
        with _failures(operation, key):
            if not self._is_reachable(key):
                raise NotFoundError(f"{operation} {key!r}: no such object")
            return self._disk.read(self._path(key), start, length)

    def head(self, key: str) -> Meta:
        """What is known of one object."""
        with _failures("head", key):
            status = self._present(key) if self._is_reachable(key) else None
        if status is None:
            raise NotFoundError(f"head {key!r}: no such object")
        return _meta(key, status)

    def heads(self, keys: Sequence[str]) -> list[Meta]:
        """What is known of objects that a scan found, without those that have vanished since."""
        metas = []
        for key in keys:
            with _failures("list", key):
                status = self._present(key)
            if status is not None:
                metas.append(_meta(key, status))
        return metas

    def scan(self, folder: str) -> list[str]:
        """The names in a folder (`""` or text that ends in a slash), in no order.

        A name that is itself a folder ends in a slash. Names that no key can have are left out.
        """
        try:
            if not self._is_reachable(folder):
                return []
            found = self._disk.scan(self._path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _failure("list", folder, error) from error
        return [
            f"{name}/" if kind == "folder" else name
            for name, kind in found
            if kind != "other" and is_key(name)
        ]

    def create(self, key: str, data: Buffer) -> str:
        """Write an object that is not there yet: the steps of `create` in the module's header."""
        path, folder = self._path(key), self._folder(key)
        with _failures("put", key):
            self._refuse_clash(key)
            if self._present(key) is not None:
                self._settle(folder)
                raise AlreadyExistsError(f"put {key!r}: the object exists")
            with self._temporary(key, data, floor_ns=-1) as (temp, status):
                try:
                    self._disk.link(temp, path)
                except FileExistsError as error:
                    self._settle(folder)
                    raise AlreadyExistsError(f"put {key!r}: the object exists") from error
        self._settle_write("put", key)
        return status.etag

    def replace(self, key: str, data: Buffer, mode: PutMode, patience: Patience) -> str:
        """Write an object whatever is there, or over one: `overwrite` and `Match` in the header."""
        with _failures("put", key):
            self._refuse_clash(key)
            present = self._present(key)
            _compare(key, mode, present)
            floor_ns = -1 if present is None else present.mtime_ns
            with self._temporary(key, data, floor_ns) as (temp, written):
                status = written
                while True:
                    with self._locked("put", key, patience):
                        floor_ns = self._move(key, mode, temp, status)
                    if floor_ns < status.mtime_ns:
                        break
                    # Someone else's put came first. A time is synced, so not inside the lock.
                    status = self._disk.touch(temp, self._time_ns(floor_ns))
                    _check_time(key, status, floor_ns)
        self._settle_write("put", key)
        return status.etag

    def copy(self, source: str, target: str) -> None:
        """Give an object that is never replaced a second key: `copy` in the module's header."""
        path, folder = self._path(target), self._folder(target)
        with _failures("copy", target):
            self._refuse_clash(target)
            if not self._is_reachable(source) or self._present(source) is None:
                raise NotFoundError(f"copy {source!r}: no such object")
            try:
                self._within(folder, lambda: self._disk.link(self._path(source), path))
            except FileExistsError as error:
                self._settle(folder)
                raise AlreadyExistsError(f"copy to {target!r}: the object exists") from error
            except OSError as error:
                if error.errno in _NO_LINK:
                    raise UnsupportedError(
                        f"copy {source!r} to {target!r}: no link can be made there: "
                        f"{error.strerror or error}"
                    ) from error
                raise
        self._settle_write("copy", target)

    def delete(self, keys: Sequence[str], patience: Patience) -> None:
        """Remove objects of one folder; a folder that is not there holds none of them."""
        removed = ""
        try:
            for key in keys:
                self._refuse_link(key)
            if any(self._present(key) for key in keys):
                with self._locked("delete", keys[0], patience):
                    for key in keys:
                        if self._present(key):
                            self._disk.unlink(self._path(key))
                            removed = key
            # Also where there was nothing: somebody else's unlink may not be durable yet.
            self._disk.fsync_dir(self._folder(keys[0]))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _failure("delete", removed or keys[0], error, applied=bool(removed)) from error

    def sync(self, folders: Sequence[str]) -> None:
        """Bring the names in these folders, and the names that lead there, to stable storage."""
        for folder in folders:
            path = self._path(folder).rstrip("/")
            with _failures("sync", folder), suppress(FileNotFoundError, NotADirectoryError):
                self._settle(path)

    def _move(self, key: str, mode: PutMode, temp: str, status: FileStat) -> int:
        """Put the temporary file in the name's place, if it is later. We hold the lock.

        Returns:
            The time of what was there, -1 for nothing. If it is not below that of the temporary
            file, nothing was done.
        """
        path = self._path(key)
        while True:
            present = self._present(key)
            _compare(key, mode, present)
            if present is None:
                try:
                    self._disk.link(temp, path)
                except FileExistsError:
                    continue  # a create came in between; it stays while we hold the lock
                return -1
            if present.mtime_ns < status.mtime_ns:
                self._disk.rename(temp, path)
            return present.mtime_ns

    @contextmanager
    def _locked(self, operation: str, key: str, patience: Patience) -> Iterator[None]:
        """Hold the lock of the object's folder. For work that does not wait for the disk.

        Raises:
            StoreError: somebody else held it for as long as we had patience.
        """
        path = f"{self._folder(key)}/{LOCK_NAME}"
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(self._disk.lock(path))
                    break
                except BlockingIOError as error:
                    if not patience.pause():
                        raise _lock_is_held(operation, key, path, patience) from error
            yield

    # Folders and what is temporary in them.

    @contextmanager
    def _temporary(self, key: str, data: Buffer, floor_ns: int) -> Iterator[tuple[str, FileStat]]:
        """A temporary file on stable storage, later than `floor_ns`, gone when the block ends."""
        folder = self._folder(key)
        temp = f"{folder}/{TEMP_PREFIX}{self._entropy.token()}"
        mtime_ns = self._time_ns(floor_ns)
        try:
            status = self._within(folder, lambda: self._disk.write(temp, data, mtime_ns))
            _check_time(key, status, floor_ns)
            yield temp, status
        finally:
            # After a rename it is gone already; what cannot be removed now is swept later.
            with suppress(OSError):
                self._disk.unlink(temp)

    def _time_ns(self, floor_ns: int) -> int:
        """The time for a file that is to be later than `floor_ns`."""
        return max(self._clock.now_us() * 1_000, floor_ns + 1)

    def _within(self, folder: str, work: Callable[[], T]) -> T:
        """Do something that needs the folder, which is made if it is not there."""
        try:
            self._make(folder)
            return work()
        except FileNotFoundError:  # someone removed a folder that we knew
            self._settled.clear()
            self._make(folder)
            return work()

    def _make(self, folder: str) -> None:
        """See to it that the folder exists, and that its name and those above it are durable."""
        if folder in self._settled:
            return
        for level in self._levels(folder):
            if level not in self._settled:
                if not self._exists(level):
                    with suppress(FileExistsError):
                        self._disk.mkdir(level)
                self._settle_name(level)
        self._sweep(folder)

    def _settle(self, folder: str) -> None:
        """Bring the folder's names to stable storage, and the names that lead to it."""
        self._disk.fsync_dir(folder)
        for level in self._levels(folder):
            if level not in self._settled:
                self._settle_name(level)

    def _settle_name(self, level: str) -> None:
        """Bring one folder's own name to stable storage.

        Above the root that may be denied us, or mean nothing there; such a folder is not ours, and
        nobody makes it while a store is being opened.
        """
        try:
            self._disk.fsync_dir(os.path.dirname(level))
        except OSError as error:
            if error.errno not in _NOT_OURS or level.startswith(f"{self._root}/"):
                raise
        self._settled.add(level)

    def _settle_write(self, operation: str, key: str) -> None:
        """Sync the folder a write just changed. A failure here comes after the effect."""
        try:
            self._disk.fsync_dir(self._folder(key))
        except OSError as error:
            raise _failure(operation, key, error, applied=True) from error

    def _sweep(self, folder: str) -> None:
        """Remove what killed puts left here. Done when this process first writes into a folder."""
        horizon_ns = (self._clock.now_us() - TEMP_AGE_MAX_S * 1_000_000) * 1_000
        for name, kind in self._disk.scan(folder):
            if kind == "file" and name.startswith(TEMP_PREFIX):
                with suppress(FileNotFoundError, PermissionError):
                    if self._disk.stat(f"{folder}/{name}").mtime_ns < horizon_ns:
                        self._disk.unlink(f"{folder}/{name}")

    def _levels(self, folder: str) -> list[str]:
        """The folder and all above it, from the top: another process may just have made them."""
        levels = [folder]
        while (above := os.path.dirname(levels[-1])) != "/":
            levels.append(above)
        return levels[::-1]

    # Names.

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _folder(self, key: str) -> str:
        return os.path.dirname(self._path(key))

    def _exists(self, path: str) -> bool:
        try:
            self._disk.stat(path)
        except FileNotFoundError:
            return False
        return True

    def _present(self, key: str) -> FileStat | None:
        """The object's stat; None where there is no regular file."""
        try:
            status = self._disk.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status if status.kind == "file" else None

    def _is_reachable(self, key: str) -> bool:
        """Whether everything on the way to the object is a folder, and no link to one."""
        return all(
            self._disk.stat(self._path(key[:end])).kind == "folder"
            for end, letter in enumerate(key)
            if letter == "/"
        )

    def _refuse_link(self, key: str) -> bool:
        """Refuse a write through a link. True if a folder or an object is where it cannot be.

        Raises:
            StoreError: something on the way, or the name itself, is a link or a special file.
        """
        for end in [at for at, letter in enumerate(key) if letter == "/"] + [len(key)]:
            try:
                kind = self._disk.stat(self._path(key[:end])).kind
            except FileNotFoundError:
                return False
            if kind == "other":
                raise StoreError(
                    f"write {key!r}: {self._path(key[:end])} is a symbolic link or a special file",
                    code=Code.STORE_DENIED,
                    key=key,
                    hint="nothing below a store's root is written through a link; use a directory",
                )
            if kind != ("file" if end == len(key) else "folder"):
                return True
        return False

    def _refuse_clash(self, key: str) -> None:
        """Refuse a put through a link, and one whose key would be another key's folder."""
        if self._refuse_link(key):
            raise InvalidInputError(
                f"put {key!r}: in a directory, no key can be the folder of another",
                hint="choose a key that neither is a folder nor lies below an object",
            )


def _meta(key: str, status: FileStat) -> Meta:
    return Meta(key, status.size_bytes, status.etag, status.mtime_ns // 1_000)


def _compare(key: str, mode: PutMode, present: FileStat | None) -> None:
    """Refuse a Match put unless the object is the one it names."""
    if isinstance(mode, Match) and (present is None or present.etag != mode.etag):
        found = "nothing" if present is None else f"etag {present.etag}"
        raise ContendedError(f"put {key!r}: expected etag {mode.etag}, found {found}")


def _check_time(key: str, status: FileStat, floor_ns: int) -> None:
    """Refuse a file system whose times are too coarse to tell two puts apart."""
    if status.mtime_ns <= floor_ns:
        raise StoreError(
            f"put {key!r}: the file system keeps times too coarsely to tell two writes apart",
            code=Code.STORE_UNSAFE,
            operation="put",
            key=key,
            hint="use a file system with sub-second times, such as ext4 or XFS",
        )


def _lock_is_held(operation: str, key: str, path: str, patience: Patience) -> StoreError:
    """The error of a call that waited for a lock in vain; it has changed nothing."""
    return StoreError(
        f"{operation} {key!r}: somebody else has held the lock of {os.path.dirname(path)} for "
        f"{patience.waited_s:.1f} s",
        operation=operation,
        key=key,
        transient=True,
        hint=f"a process seems to be stopped or stuck: find it (`fuser {path}`), let it go on or "
        "end it, and try again",
    )


@contextmanager
def _failures(operation: str, key: str) -> Iterator[None]:
    """Turn what the system says into an error of ours; here no write has taken effect yet."""
    try:
        yield
    except OSError as error:
        raise _failure(operation, key, error) from error


def _failure(operation: str, key: str, error: OSError, *, applied: bool = False) -> CordwoodError:
    """The error of ours for one of the system's."""
    number = error.errno or 0
    if operation in {"get", "get_range", "head", "copy"} and number in _ABSENT:
        return NotFoundError(f"{operation} {key!r}: no such object")
    code, hint = _CODES.get(number, (Code.STORE_FAILED, ""))
    if applied:
        hint = "the change can be seen but may not survive a power cut; check the disk"
    return StoreError(
        f"{operation} {key!r}: {error.strerror or error}",
        code=code,
        operation=operation,
        key=key,
        applied=applied,
        transient=number in _TRANSIENT and not applied,
        hint=hint,
    )


_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
"""How a folder above the root may refuse to be synced."""

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
_TRANSIENT = {errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE}
_NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOSYS, errno.ENOTSUP}
"""Another file system, too many names already, or no second names at all."""

_FULL = (Code.STORE_FULL, "free space on that file system or raise the quota, then try again")
_DENIED = (Code.STORE_DENIED, "give this user the right to read and write below the store's root")
_CODES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
}
