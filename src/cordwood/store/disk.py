"""The file operations that durable files are made of, and no others.

A directory store, an index in a directory and a journal reach the operating system only through a
`Disk`. The list is short on purpose: a model of a disk that loses power
(`cordwood.testing.crashdisk`) has to say exactly what each of these operations leaves behind, and a
test can cut the power between any two of them.

What each operation promises, on a local POSIX file system:

=============  ===========================================================================
read           bytes and stat of one file, taken from one open descriptor: never of two files
map            a file's bytes where the system keeps them, not read before they are looked at
write          a new file, its bytes and its time on stable storage; the name is not yet safe
bring          a file that this process made elsewhere gets a name here, if that is free; its bytes
               are on stable storage, the name is not yet safe
overwrite      bytes at a place of a file, or behind its end; on stable storage if that is asked for
truncate       a file ends here; on stable storage
touch          another time for a file, on stable storage
open           a file to read and write at any place, many times; what is written is seen by all at
               once, and is on stable storage when `sync` returns; `allocate` makes room for it;
               `written_from` passes over holes; it can be locked, as by `hold`
share          a file's bytes as memory that all processes write and see at once; never synced, so
               a power cut leaves anything in it; `reserve` makes room before it is written to
link           a second name for a file, only if that name is free; atomic
rename         a name moves onto another and replaces what was there; atomic
unlink, mkdir  as they are; so is rmdir
fsync_dir      every name in the folder, and every name gone from it, is on stable storage
lock, hold     one holder at a time among all threads and processes, or several that share it; a
               killed holder frees it, a stopped one does not; refused at once if it is held, so it
               never waits
=============  ===========================================================================

Locks are flock, each on a descriptor of its own: ownership belongs to the open file, so two
threads exclude each other as two processes do. A child made by fork shares the open file, and with
it the lock. So the parent unlocks in so many words, which frees the lock for all who share it; and
the child closes what it inherited, so that it cannot keep a lock its parent dies with. (exec closes
it too.) flock on NFS is not supported.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol
from weakref import finalize

import pyarrow as pa

from cordwood.store.api import Buffer

FileKind = Literal["file", "folder", "other"]
"""A regular file, a directory, or anything else: a symbolic link is `other`, whatever it names."""


class FileStat(NamedTuple):
    """What is known of a file without reading it."""

    inode: int
    mtime_ns: int
    size_bytes: int
    kind: FileKind

    @property
    def etag(self) -> str:
        """Names the put that wrote the file: inode, time and size in hex."""
        return f"{self.inode:x}-{self.mtime_ns:x}-{self.size_bytes:x}"


class Disk:
    """The operating system's files. Paths are absolute; failures are OSError."""

    inline: ClassVar[bool] = False
    """True for a disk whose operations never wait: they then run on the event loop itself."""

    def stat(self, path: str) -> FileStat:
        """What is under this name; a symbolic link is not followed."""
        return _file_stat(os.stat(path, follow_symlinks=False))

    def inode(self, path: str) -> int:
        """The number of the file under this name; two that are there have two numbers."""
        return os.stat(path, follow_symlinks=False).st_ino

    def read(self, path: str, start: int = 0, length: int | None = None) -> tuple[FileStat, Buffer]:
        """A regular file's stat, and its bytes from `start` on, at most `length` of them.

        Raises:
            IsADirectoryError: the name is not a regular file's.
            OSError: ELOOP for a symbolic link, and whatever the system says.
        """
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags)
        try:
            status = _file_stat(os.fstat(descriptor))
            if status.kind != "file":
                raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
            wanted = status.size_bytes - start if length is None else length
            return status, _read_fully(descriptor, start, wanted)
        finally:
            os.close(descriptor)

    def write(self, path: str, data: Buffer, mtime_ns: int) -> FileStat:
        """A new file with these bytes and this time, both on stable storage. Not atomic.

        Raises:
            FileExistsError: the name is taken.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            _fsync(descriptor)
            return _file_stat(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def map(self, path: str) -> Buffer:
        """A regular file's bytes, mapped into memory."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                return b""
            return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def bring(self, source: str, target: str) -> None:
        """Give a finished file its name, its bytes on stable storage; `source` is gone then.

        Raises:
            FileExistsError: the name is taken.
        """
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(source, target, follow_symlinks=False)
        os.unlink(source)

    def overwrite(self, path: str, data: bytes, offset: int, *, sync: bool = True) -> None:
        """Put bytes at a place of an existing file. Not atomic."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            view = memoryview(data)
            while view:
                done = os.pwrite(descriptor, view, offset)
                view, offset = view[done:], offset + done
            if sync:
                _fsync(descriptor)
        finally:
            os.close(descriptor)

    def truncate(self, path: str, size_bytes: int) -> None:
        """Cut a file off, on stable storage."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, size_bytes)
            _fsync(descriptor)
        finally:
            os.close(descriptor)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        """A regular file, to work with until it is closed.

        Raises:
            FileNotFoundError: there is none, and none is to be made.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        return _File(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))

    def share(self, path: str, size_bytes: int) -> Shared:
        """A file as memory that processes share; it is made, or made longer, up to this size.

        Only one may make it longer at a time: who shares it at size 0 takes it as it is.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            found = os.fstat(descriptor).st_size
            if found < size_bytes:
                _lengthen(descriptor, size_bytes)
            return _Mapped(descriptor, max(found, size_bytes))
        except BaseException:
            os.close(descriptor)
            raise

    def touch(self, path: str, mtime_ns: int) -> FileStat:
        """Give a file another time, on stable storage."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            _fsync(descriptor)
            return _file_stat(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def link(self, source: str, target: str) -> None:
        """Give the file a second name, atomically.

        Raises:
            FileExistsError: the second name is taken.
        """
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """Move the name `source` onto `target`, atomically replacing what was there."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove the name."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make an empty folder."""
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        """Bring the folder's names to stable storage."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)

    def scan(self, path: str) -> list[tuple[str, FileKind]]:
        """The names in a folder, in no order. A name that stays throughout is given once."""
        kinds: dict[str, FileKind] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    kinds[entry.name] = "folder"
                else:
                    kinds[entry.name] = "file" if entry.is_file(follow_symlinks=False) else "other"
        return list(kinds.items())

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold the lock file `path`, which is made if it is not there, until the block ends.

        Raises:
            BlockingIOError: somebody else holds it.
        """
        held = self.hold(path)
        try:
            yield
        finally:
            held.release()

    def hold(self, path: str, *, shared: bool = False) -> Held:
        """Hold the lock file `path`, which is made if it is not there, until it is released.

        Raises:
            BlockingIOError: somebody else holds it.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return _Flock(descriptor)


class File(Protocol):
    """A file that is open. Any thread may use it; two that write write at different places."""

    def stat(self) -> FileStat:
        """What is known of it."""
        ...

    def read(self, start: int, length: int) -> Buffer:
        """Bytes from `start` on, at most `length` of them."""
        ...

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        """Put bytes at a place, or behind the end, one part after the other. Not atomic."""
        ...

    def pread(self, length: int, start: int) -> bytes:
        """Read with one call of the system, which may give less than there is."""
        return bytes(self.read(start, length))

    def pwrite(self, data: Buffer, start: int) -> int:
        """Write with one call of the system, which may take less than it is given: how much."""
        self.write([data], start)
        return len(data)

    def written_from(self, start: int) -> int | None:
        """The first place from `start` on that is no hole; None if there is none.

        A file system that knows of no holes says `start` itself.
        """
        ...

    def allocate(self, size_bytes: int) -> bool:
        """Make room up to this size, of zeros; whether this file system can."""
        ...

    def sync(self) -> None:
        """Bring its bytes, and its size, to stable storage."""
        ...

    def try_lock(self, *, shared: bool = False) -> bool:
        """Lock it, unless somebody has it locked who opened it another time; whether it is.

        `shared` lets others share it. Who has it locked must unlock it before it asks again.
        """
        ...

    def unlock(self) -> None:
        """Let others lock it."""
        ...

    def close(self) -> None:
        """Close it; twice is no error."""
        ...


class _File:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._use(descriptor)
        self.unlock: Callable[[], None] = partial(fcntl.flock, descriptor, fcntl.LOCK_UN)
        self._closing = finalize(self, os.close, descriptor)
        # When the program ends the system closes it, and not while a thread still writes to it.
        self._closing.atexit = False

    def _use(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # The system's own functions: what a durable append calls has no time for ours around them.
        self.pread = partial(os.pread, descriptor)
        self.pwrite = partial(os.pwrite, descriptor)
        self.sync = partial(_fsync if _HAS_FULL_SYNC else os.fdatasync, descriptor)

    def stat(self) -> FileStat:
        return _file_stat(os.fstat(self._descriptor))

    def read(self, start: int, length: int) -> Buffer:
        return _read_fully(self._descriptor, start, length)

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        if len(parts) == 1 and os.pwrite(self._descriptor, parts[0], offset) == len(parts[0]):
            return
        views = [memoryview(part).cast("B") for part in parts]
        first = 0
        while first < len(views):
            batch = views[first : first + _VECTOR_MAX]
            done = os.pwritev(self._descriptor, batch, offset)
            offset += done
            for view in batch:
                if done < len(view):
                    break
                done -= len(view)
                first += 1
            if done:
                views[first] = views[first][done:]

    def written_from(self, start: int) -> int | None:
        try:
            return os.lseek(self._descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno not in _CANNOT_ALLOCATE:
                raise
        return start if start < self.stat().size_bytes else None

    def allocate(self, size_bytes: int) -> bool:
        try:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", errno.EOPNOTSUPP) in _NO_ROOM_TO_KEEP:
                return False
            raise
        return True

    def try_lock(self, *, shared: bool = False) -> bool:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        # Whoever is in the middle of something meets no file: the number is soon another's.
        self._use(-1)
        self.unlock = _nothing
        self._closing()


def _nothing() -> None:
    """What is closed is unlocked."""


_HAS_FULL_SYNC = hasattr(fcntl, "F_FULLFSYNC")
_VECTOR_MAX = 512
"""Parts that one call writes; the system's own limit is 1024."""
_CANNOT_ALLOCATE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_NO_ROOM_TO_KEEP = _CANNOT_ALLOCATE | {errno.ENOSPC}
"""Answers of file systems that cannot set room aside, or have no more of it than is needed now."""


class Shared(Protocol):
    """A file as memory that processes share."""

    @property
    def view(self) -> memoryview:
        """Its bytes, to read and to write."""
        ...

    def reserve(self, start: int, length: int) -> None:
        """Make sure that these bytes can be written: memory without room on the disk kills.

        What is there is written back, so nobody else may be writing it.
        """
        ...

    def close(self) -> None:
        """Close the file; the memory lives as long as somebody looks at it."""
        ...


class _Mapped:
    """A file of the operating system, mapped."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.view = memoryview(mmap.mmap(descriptor, size_bytes))
        self._descriptor = descriptor
        self._closing = finalize(self, os.close, descriptor)

    def reserve(self, start: int, length: int) -> None:
        left = self.view[start : start + length]
        while left:
            done = os.pwrite(self._descriptor, left, start)
            left, start = left[done:], start + done

    def close(self) -> None:
        self._closing()


_ROOM_BYTES = 4 << 20
"""Memory that is shared has room on the disk up to this size; beyond it is made as it is needed."""


def _lengthen(descriptor: int, size_bytes: int) -> None:
    """Make a file longer, of zeros, with room for them unless it is large.

    Without room, some file systems (tmpfs) kill even who only looks, once they are full.
    """
    try:
        os.posix_fallocate(descriptor, 0, min(size_bytes, _ROOM_BYTES))
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", errno.EOPNOTSUPP) not in _CANNOT_ALLOCATE:
            raise
    os.ftruncate(descriptor, size_bytes)


class Held(Protocol):
    """A lock that is held."""

    @property
    def is_held(self) -> bool:
        """Whether this process holds it: not once it is released, nor in a forked child."""
        ...

    def release(self) -> None:
        """Let it go; twice is no error."""
        ...


class _Flock:
    """A lock on an open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _flocks.add(self)

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def forget(self) -> None:
        """In a forked child: close its copy, which leaves the lock to the parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _flocks.discard(self)
        try:
            # Said aloud, and not left to close: a child forked meanwhile shares this open file.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


_POOLED_BYTES_MIN = 256 * 1024
"""Reads from this size go into pooled memory."""


def _read_fully(descriptor: int, start: int, wanted: int) -> Buffer:
    """Up to `wanted` bytes at `start`: one read may give fewer than the file holds.

    Large reads go into memory that Arrow's allocator keeps for the next one: with fresh memory each
    time, the faults of touching it first cost as much as the reading.
    """
    if wanted < _POOLED_BYTES_MIN:
        data = more = os.pread(descriptor, max(0, wanted), start)
        while more and len(data) < wanted:
            more = os.pread(descriptor, wanted - len(data), start + len(data))
            data += more
        return data
    room = memoryview(pa.allocate_buffer(max(0, wanted))).cast("B")
    done = 0
    while done < wanted:
        count = os.preadv(descriptor, [room[done:]], start + done)
        if not count:
            break
        done += count
    return room[:done].toreadonly()


def sync_path(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to stable storage, whoever wrote them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int) -> None:
    """Bring a file to stable storage: on macOS fsync alone stops at the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def _file_stat(status: os.stat_result) -> FileStat:
    kind: FileKind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "folder"
    return FileStat(status.st_ino, status.st_mtime_ns, status.st_size, kind)


_flocks: set[_Flock] = set()
"""Locks of this process, so that a forked child can close its copies.

The locks themselves and not their descriptors: the child's own locks get the same numbers again.
"""


def _close_inherited_locks() -> None:
    for held in _flocks:
        held.forget()
    _flocks.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)
