"""A model of a disk that loses power: what was synced survives, and of the rest perhaps some.

`CrashDisk` takes the place of `store/disk.py` in a directory store. It keeps everything twice: as
programs see it, and as it is on stable storage. The two models differ in when a name gets there::

    posix   a file's bytes and time: by fsync of the file
            a name, or its absence: by fsync of its folder; each name on its own
    ext4    a file's bytes and time: by fsync of the file
            names: in the order of the changes, all of them with the next fsync of anything

`posix` is what the standard promises and no more, so a protocol that survives it needs no luck.
`ext4` is what most machines do; it is here because it can also be harsher: a name may become
durable before its file's bytes are, by somebody else's fsync.

`power_cut` gives the disk as it would be found afterwards. For all that was not synced it chooses,
by the `Entropy` given: a name's change kept or lost; a file's bytes kept, lost, cut short, or
partly zeros. Of a file that programs share as memory anything may be left: zeros, all, or blocks of
it. The old disk is dead: whatever still runs on it gets `PowerCut`.

Steps: every change to the disk is one step, numbered from 1 (a write is four: make the name, write
the bytes, set the time, sync). A test runs a workload once to count them, then once for every
number `n`, with `cut_after(n)` or `fail(n, errno.ENOSPC)`. `revive` after a cut makes it the
death of one process instead, for another to find what it left.

Nothing here waits: one thread, one event loop, and a test that lets one store go ahead in the
middle of another's call does so where no lock is held. Inode numbers are
not used again. A failed fsync leaves its bytes in memory and off the disk, as Linux does.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from cordwood.base.clock import Entropy
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk, File, FileKind, FileStat

Model = Literal["posix", "ext4"]


class PowerCut(BaseException):
    """The power is gone. Not an Exception: no handler of the program under test may go on."""


@dataclass(slots=True)
class _File:
    data: bytes = b""
    mtime_ns: int = 0
    synced: tuple[bytes, int] | None = None
    """Bytes and time on stable storage; None before the first sync."""
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    """Bytes put at places of a file that had been synced, in their order."""
    uncertain: list[tuple[int, bytes, bool]] = field(default_factory=list)
    """The same since a sync failed, and whether it is there for certain: what the sync failed for
    the system forgets, and the next one, which succeeds, does not write it."""
    memory: mmap.mmap | None = None
    """What programs share of it, from the first `share` on."""


@dataclass(slots=True)
class _Folder:
    names: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    """The names on stable storage."""


class _Change(NamedTuple):
    """A name that got another file, or lost it, and is not yet on stable storage."""

    folder: int
    name: str
    inode: int | None


class _Hold:
    """A lock on a model's file."""

    def __init__(self, among: list[_Hold], *, shared: bool) -> None:
        self._among = among
        self.shared = shared

    @property
    def is_held(self) -> bool:
        """See `Held`."""
        return self in self._among

    def release(self) -> None:
        """See `Held`."""
        if self in self._among:
            self._among.remove(self)


class CrashDisk(Disk):
    """A file system in memory, with a power switch."""

    inline: ClassVar[bool] = True

    def __init__(self, model: Model = "posix") -> None:
        """An empty disk."""
        self._model: Model = model
        self._nodes: dict[int, _File | _Folder] = {_ROOT: _Folder()}
        self._next_inode = _ROOT + 1
        self._pending: list[_Change] = []
        """Changes of names not yet on stable storage, in their order."""
        self._locked: dict[str, list[_Hold]] = {}
        self.locked_by: dict[int, dict[_Open, bool]] = {}
        """Who has locked which file by its number, of those who have it open; whether shared."""
        self._cut_after: int | None = None
        self._failures: dict[int, int] = {}
        self._dead = False
        self.steps = 0
        """Changes so far, successful or not."""

    @property
    def has_power(self) -> bool:
        """Whether the power cut has not come yet."""
        return not self._dead

    def cut_after(self, steps: int) -> None:
        """Let this many more steps happen; the next one meets the power cut."""
        self._cut_after = self.steps + steps

    def fail(self, step: int, number: int) -> None:
        """Let the `step`-th step from now on (1 is the next) fail with this errno."""
        self._failures[self.steps + step] = number

    def revive(self, *, keep_locks: bool = False) -> None:
        """It was the process that died, not the power: go on with the disk as programs see it.

        With `keep_locks`, another process lives; whoever knows which locks were the dead one's
        frees them.
        """
        self._dead = False
        self._cut_after = None
        self._failures.clear()
        if not keep_locks:
            self._locked.clear()
            self.locked_by.clear()

    def power_cut(self, entropy: Entropy) -> CrashDisk:
        """Switch off; the disk as it is found when the power is back."""
        self._dead = True
        found = CrashDisk(self._model)
        found._next_inode = self._next_inode
        for inode, node in self._nodes.items():
            if isinstance(node, _File):
                if node.memory is not None:
                    node.data = _remembered(node, entropy)
                data, mtime_ns = _survivor(node, entropy)
                found._nodes[inode] = _File(data, mtime_ns, (data, mtime_ns))
            else:
                found._nodes[inode] = _Folder(dict(node.synced))
        for change in _kept(self._pending, self._model, entropy):
            found._apply(change)
        for node in found._nodes.values():
            if isinstance(node, _Folder):
                node.synced = dict(node.names)
        return found

    def stat(self, path: str) -> FileStat:
        """See `Disk.stat`."""
        self._check_power()
        return self.stat_of(self._find(path))

    def inode(self, path: str) -> int:
        """See `Disk.inode`."""
        return self.stat(path).inode

    def read(self, path: str, start: int = 0, length: int | None = None) -> tuple[FileStat, Buffer]:
        """See `Disk.read`."""
        self._check_power()
        inode = self._find(path)
        file = self._nodes[inode]
        if isinstance(file, _Folder):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        limit = len(file.data) if length is None else start + length
        return self.stat_of(inode), file.data[start:limit]

    def write(self, path: str, data: Buffer, mtime_ns: int) -> FileStat:
        """See `Disk.write`. Four steps; one that fails leaves what the steps before it made."""
        folder, name = self._parent(path)
        if name in self._folder(folder).names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._step(path)
        file = _File()
        inode = self._add(file)
        self._change(folder, name, inode)
        file.data = bytes(data[: len(data) // 2])  # what a failed write leaves
        self._step(path)
        file.data = bytes(data)
        self._step(path)
        file.mtime_ns = mtime_ns
        self.sync_file(inode, path)
        return self.stat_of(inode)

    def data_of(self, inode: int) -> bytes:
        """A file's bytes, whatever its name is by now."""
        self._check_power()
        file = self._nodes[inode]
        assert isinstance(file, _File)
        return file.data

    def map(self, path: str) -> Buffer:
        """See `Disk.map`: as it is now, whatever happens to the file."""
        return self.read(path)[1]

    def bring(self, source: str, target: str) -> None:
        """See `Disk.bring`: `source` is a file of the real disk. As a write, four steps."""
        with open(source, "rb") as file:
            self.write(target, file.read(), 0)
        os.unlink(source)

    def overwrite(self, path: str, data: bytes, offset: int, *, sync: bool = True) -> None:
        """See `Disk.overwrite`. One step, and one for the sync."""
        self._check_power()
        inode = self._find(path)
        self.write_at(inode, path, data, offset)
        if sync:
            self.sync_file(inode, path)

    def write_at(self, inode: int, path: str, data: bytes, offset: int) -> None:
        """Put bytes at a place of a file, whatever its name is by now. One step."""
        self._check_power()
        file = self._nodes[inode]
        assert isinstance(file, _File)
        half = len(data) // 2
        file.unsynced.append((offset, data[:half]))  # what a failed write leaves
        file.data = _over(file.data, data[:half], offset)
        self._step(path)
        file.unsynced[-1] = (offset, data)
        file.data = _over(file.data, data, offset)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> _Open:
        """See `Disk.open`. One step if the file has to be made."""
        self._check_power()
        folder, name = self._parent(path)
        if create and name not in self._folder(folder).names:
            self._step(path)
            self._change(folder, name, self._add(_File()))
        return _Open(self, self._find(path), path)

    def share(self, path: str, size_bytes: int) -> _Memory:
        """See `Disk.share`. One step to make the file, and one to make it longer."""
        self.open(path, create=True)
        inode = self._find(path)
        file = self._nodes[inode]
        assert isinstance(file, _File)
        if file.memory is None:
            file.memory = mmap.mmap(-1, _MEMORY_BYTES)
            file.memory[: len(file.data)] = file.data
        if len(file.data) < size_bytes:
            self._step(path)
            file.data = file.data.ljust(size_bytes, b"\0")
        return _Memory(self, path, memoryview(file.memory)[: len(file.data)])

    def reserve(self, path: str) -> None:
        """Make room for what is shared of a file. One step."""
        self._step(path)

    def truncate(self, path: str, size_bytes: int) -> None:
        """See `Disk.truncate`. One step: it is done, or not at all."""
        self._check_power()
        inode = self._find(path)
        file = self._nodes[inode]
        assert isinstance(file, _File)
        self._step(path)
        file.data = file.data[:size_bytes].ljust(size_bytes, b"\0")
        file.synced = (file.data, file.mtime_ns)
        file.unsynced.clear()
        file.uncertain.clear()

    def touch(self, path: str, mtime_ns: int) -> FileStat:
        """See `Disk.touch`. Two steps."""
        self._check_power()
        inode = self._find(path)
        file = self._nodes[inode]
        assert isinstance(file, _File)
        self._step(path)
        file.mtime_ns = mtime_ns
        self.sync_file(inode, path)
        return self.stat_of(inode)

    def link(self, source: str, target: str) -> None:
        """See `Disk.link`. One step."""
        self._check_power()
        inode = self._find(source)
        folder, name = self._parent(target)
        if name in self._folder(folder).names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._step(target)
        self._change(folder, name, inode)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`. One step; after a power cut both names may show its effect or not."""
        self._check_power()
        inode = self._find(source)
        source_folder, source_name = self._parent(source)
        folder, name = self._parent(target)
        self._step(target)
        self._change(folder, name, inode)
        self._change(source_folder, source_name, None)

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`. One step."""
        self._check_power()
        self._find(path)
        folder, name = self._parent(path)
        self._step(path)
        self._change(folder, name, None)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`. One step."""
        self._check_power()
        folder, name = self._parent(path)
        if name in self._folder(folder).names:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._step(path)
        self._change(folder, name, self._add(_Folder()))

    def rmdir(self, path: str) -> None:
        """See `Disk.rmdir`. One step."""
        self._check_power()
        if self._folder(self._find(path)).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        folder, name = self._parent(path)
        self._step(path)
        self._change(folder, name, None)

    def fsync_dir(self, path: str) -> None:
        """See `Disk.fsync_dir`. One step."""
        self._check_power()
        inode = self._find(path)
        self._folder(inode)
        self._step(path)
        self._commit(inode)

    def scan(self, path: str) -> list[tuple[str, FileKind]]:
        """See `Disk.scan`."""
        self._check_power()
        names = self._folder(self._find(path)).names
        return [(name, self.stat_of(inode).kind) for name, inode in names.items()]

    def hold(self, path: str, *, shared: bool = False) -> _Hold:
        """See `Disk.hold`. One step if the lock file has to be made."""
        self._check_power()
        folder, name = self._parent(path)
        if name not in self._folder(folder).names:
            self._step(path)
            self._change(folder, name, self._add(_File()))
        holds = self._locked.setdefault(path, [])
        if holds and not (shared and all(hold.shared for hold in holds)):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        held = _Hold(holds, shared=shared)
        holds.append(held)
        return held

    def _check_power(self) -> None:
        if self._dead:
            raise PowerCut

    def _step(self, path: str) -> None:
        """Count a change about to be made; meet the power cut or the failure planned for it."""
        self._check_power()
        if self._cut_after is not None and self.steps >= self._cut_after:
            self._dead = True
            raise PowerCut
        self.steps += 1
        number = self._failures.pop(self.steps, None)
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def _find(self, path: str) -> int:
        inode = _ROOT
        for name in _segments(path):
            names = self._folder(inode).names
            if name not in names:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = names[name]
        return inode

    def _parent(self, path: str) -> tuple[int, str]:
        self._check_power()
        folder, _, name = path.rstrip("/").rpartition("/")
        inode = self._find(folder)
        self._folder(inode)
        return inode, name

    def _folder(self, inode: int) -> _Folder:
        node = self._nodes[inode]
        if isinstance(node, _File):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return node

    def stat_of(self, inode: int) -> FileStat:
        """What is known of a file, whatever its name is by now."""
        self._check_power()
        node = self._nodes[inode]
        if isinstance(node, _File):
            return FileStat(inode, node.mtime_ns, len(node.data), "file")
        return FileStat(inode, 0, 0, "folder")

    def _add(self, node: _File | _Folder) -> int:
        inode = self._next_inode
        self._next_inode += 1
        self._nodes[inode] = node
        return inode

    def _change(self, folder: int, name: str, inode: int | None) -> None:
        change = _Change(folder, name, inode)
        self._apply(change)
        self._pending.append(change)

    def _apply(self, change: _Change) -> None:
        names = self._folder(change.folder).names
        if change.inode is None:
            names.pop(change.name, None)
        else:
            names[change.name] = change.inode

    def sync_file(self, inode: int, path: str) -> None:
        """Bring a file to stable storage. One step; what it failed for is not tried again."""
        file = self._nodes[inode]
        assert isinstance(file, _File)
        try:
            self._step(path)
        except OSError:
            _settle(file, is_sure=False)
            raise
        _settle(file, is_sure=True)
        if self._model == "ext4":
            self._commit(inode)

    def _commit(self, inode: int) -> None:
        """Bring changes of names to stable storage: those of one folder, or on ext4 all of them."""
        left = []
        for change in self._pending:
            if self._model == "posix" and change.folder != inode:
                left.append(change)
                continue
            synced = self._folder(change.folder).synced
            if change.inode is None:
                synced.pop(change.name, None)
            else:
                synced[change.name] = change.inode
        self._pending = left


class _Open(File):
    """A file of a `CrashDisk` that is open."""

    def __init__(self, disk: CrashDisk, inode: int, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path

    def stat(self) -> FileStat:
        return self._disk.stat_of(self._inode)

    def read(self, start: int, length: int) -> Buffer:
        return self._disk.data_of(self._inode)[start : start + length]

    def write(self, parts: Sequence[Buffer], offset: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        self._disk.write_at(self._inode, self._path, data, offset)

    def written_from(self, start: int) -> int | None:
        return start if start < self.stat().size_bytes else None

    def allocate(self, size_bytes: int) -> bool:
        """Zeros behind the end, as one write of them."""
        size = self.stat().size_bytes
        if size < size_bytes:
            self._disk.write_at(self._inode, self._path, bytes(size_bytes - size), size)
        return True

    def sync(self) -> None:
        self._disk.sync_file(self._inode, self._path)

    def try_lock(self, *, shared: bool = False) -> bool:
        holders = self._disk.locked_by.setdefault(self._inode, {})
        others = [is_shared for holder, is_shared in holders.items() if holder is not self]
        if others and not (shared and all(others)):
            return False
        holders[self] = shared
        return True

    def unlock(self) -> None:
        self._disk.locked_by.get(self._inode, {}).pop(self, None)

    def close(self) -> None:
        pass


class _Memory:
    """A file of a `CrashDisk` that programs share as memory."""

    def __init__(self, disk: CrashDisk, path: str, view: memoryview) -> None:
        self._disk = disk
        self._path = path
        self.view = view

    def reserve(self, start: int, length: int) -> None:
        self._disk.reserve(self._path)

    def close(self) -> None:
        pass


_MEMORY_BYTES = 1 << 26
"""So much of a file can be shared; memory is taken as it is written."""


_ROOT = 1


def _segments(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _kept(pending: list[_Change], model: Model, entropy: Entropy) -> list[_Change]:
    """The unsynced changes of names that survive: a prefix, or on posix one per name."""
    if model == "ext4":
        return pending[: int(entropy.uniform() * (len(pending) + 1))]
    changes: dict[tuple[int, str], list[_Change]] = {}
    for change in pending:
        changes.setdefault((change.folder, change.name), []).append(change)
    kept = []
    for history in changes.values():
        at = int(entropy.uniform() * (len(history) + 1))
        if at > 0:
            kept.append(history[at - 1])
    return kept


def _settle(file: _File, *, is_sure: bool) -> None:
    """A file was synced, or that failed."""
    if is_sure and not file.uncertain:
        file.synced = (file.data, file.mtime_ns)
    elif file.synced is not None:
        file.uncertain += [(offset, put, is_sure) for offset, put in file.unsynced]
    if file.synced is not None:  # Else all of it is as it was: nothing is known to be there.
        file.unsynced.clear()


def _survivor(file: _File, entropy: Entropy) -> tuple[bytes, int]:
    """A file's bytes and time after the cut."""
    before = file.synced or (b"", 0)
    if file.synced is not None and (file.unsynced or file.uncertain):
        writes = [*file.uncertain, *((offset, put, False) for offset, put in file.unsynced)]
        return _patched(before[0], writes, entropy), before[1]
    if file.synced is not None and file.data == before[0]:
        return file.data, file.mtime_ns if entropy.uniform() < 0.5 else before[1]
    fate = int(entropy.uniform() * 4)
    if fate == 0:
        return before
    if fate == 1:
        return file.data, file.mtime_ns
    cut = int(entropy.uniform() * (len(file.data) + 1))
    if fate == 2:
        return file.data[:cut], file.mtime_ns
    return file.data[:cut] + bytes(len(file.data) - cut), file.mtime_ns


def _remembered(file: _File, entropy: Entropy) -> bytes:
    """What a file that was shared as memory may have become: each block of it written, or not."""
    assert file.memory is not None
    fate = int(entropy.uniform() * 3)
    whole = file.memory[: len(file.data)]
    if fate < 2:
        return whole if fate else bytes(len(whole))
    blocks = range(0, len(whole), 512)
    return b"".join(
        whole[at : at + 512] if entropy.uniform() < 0.5 else bytes(len(whole[at : at + 512]))
        for at in blocks
    )


def _patched(data: bytes, writes: list[tuple[int, bytes, bool]], entropy: Entropy) -> bytes:
    """A file with some of what was put into it since it was synced: each lost, torn, or kept."""
    for offset, put, is_sure in writes:
        fate = 1 if is_sure else int(entropy.uniform() * 4)
        cut = int(entropy.uniform() * (len(put) + 1))
        if fate == 1:
            data = _over(data, put, offset)
        elif fate == 2:
            data = _over(data, put[:cut], offset)
        elif fate == 3:
            data = _over(data, put[:cut] + bytes(len(put) - cut), offset)
    return data


def _over(data: bytes, put: bytes, offset: int) -> bytes:
    return data[:offset].ljust(offset, b"\0") + put + data[offset + len(put) :]
