"""Groups of consumers in a local directory: who is there, who reads what, and how far they are.

::

    groups/{group}/members/{id}      held by a member as long as it lives
    groups/{group}/{partition}.own   held by the member that reads the partition
    groups/{group}/{partition}.at    where the group goes on in it

Which partitions a member should have follows from who is there: all members agree without talking.
But a partition is a member's only while it holds its lock, so two never read one at once, whatever
they believe; one who should give up a partition does so when it next asks. Locks of a process that
dies are free at once.

A position is kept in two slots of 32 bytes, written in turn and synced, so that one is whole::

    0   u64 how often it was written     8   u64 the offset     24  u64 XXH3 of the above
                                         16  u64 zero
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress

import xxhash

from cordwood.base.clock import Entropy
from cordwood.base.errors import ConflictError, CorruptionError, StateError
from cordwood.journal.failures import told
from cordwood.journal.locks import Locks
from cordwood.store.disk import Disk, Held

_SLOT = struct.Struct("<QQQ")
_SUM = struct.Struct("<Q")
SLOT_BYTES = _SLOT.size + _SUM.size


def shares(members: list[str], partitions: int) -> dict[str, list[int]]:
    """Which partitions each member should have: as even as can be, whoever computes it."""
    ranked = sorted(members)
    return {
        member: list(range(rank, partitions, len(ranked))) for rank, member in enumerate(ranked)
    }


class LocalMember:
    """A member of a group."""

    def __init__(self, folder: str, partitions: int, disk: Disk, entropy: Entropy) -> None:
        """Join: from now on others see it."""
        self._folder = folder
        self._partitions = partitions
        self._disk = disk
        self._locks = Locks(disk, entropy)
        self._owned: dict[int, Held] = {}
        self._positions: dict[int, tuple[int, int]] = {}
        self._files: dict[int, int] = {}
        """The number of the file that is locked for each partition: its name may get another."""
        self._settled: set[int] = set()
        """Partitions whose positions have a name that is durable."""
        self.id = entropy.token()[:16]
        with told("join", folder):
            with suppress(FileExistsError):
                disk.mkdir(f"{folder}/members")
            self._presence: Held | None = self._locks.wait(f"{folder}/members/{self.id}")

    def owned(self) -> frozenset[int]:
        """See `Membership`."""
        if self._presence is None or not self._presence.is_held:
            raise StateError(
                "the consumer has left its group, or its process was forked", hint="open another"
            )
        with told("read", self._folder):
            mine = set(shares(self._members(), self._partitions).get(self.id, ()))
            same = {partition for partition in self._owned if self._is_same(partition)}
            for partition in sorted(set(self._owned) - (mine & same)):
                self._owned.pop(partition).release()
                self._positions.pop(partition, None)
            for partition in sorted(mine - set(self._owned)):
                held = self._locks.try_hold(f"{self._folder}/{partition}.own")
                if held is not None:
                    self._owned[partition] = held
                    self._files[partition] = self._inode(partition)
        return frozenset(self._owned)

    def positions(self) -> dict[int, int]:
        """See `Membership`."""
        with told("read", self._folder):
            for partition in self._owned:
                found = _read(f"{self._folder}/{partition}.at", self._disk)
                if found is not None:
                    self._positions[partition] = found
        return {partition: offset for partition, (_, offset) in self._positions.items()}

    def commit(self, positions: Mapping[int, int]) -> None:
        """See `Membership`."""
        for partition in positions:
            self._check_own(partition)
        for partition, offset in positions.items():
            with told("commit", self._folder):
                path = f"{self._folder}/{partition}.at"
                if partition not in self._positions:
                    self._positions[partition] = _read(path, self._disk) or (0, 0)
                turn = self._positions[partition][0] + 1
                _write(path, turn, offset, self._disk)
                self._positions[partition] = turn, offset
                if partition not in self._settled:
                    self._settle()
                    self._settled.add(partition)

    def leave(self) -> None:
        """See `Membership`."""
        for held in self._owned.values():
            held.release()
        self._owned.clear()
        presence, self._presence = self._presence, None
        if presence is not None and presence.is_held:
            with suppress(OSError):
                self._disk.unlink(f"{self._folder}/members/{self.id}")
            presence.release()

    def _check_own(self, partition: int) -> None:
        """Make sure that a partition is this member's, and of the topic that it joined.

        Raises:
            ConflictError: it is not.
        """
        held = self._owned.get(partition)
        with told("commit", self._folder):
            if held is not None and held.is_held and self._is_same(partition):
                return
        raise ConflictError(
            f"partition {partition} is another member's by now: nothing was committed",
            hint="whoever has it goes on from the last commit",
        )

    def _is_same(self, partition: int) -> bool:
        """Whether what is locked for a partition is what others would lock."""
        return self._files.get(partition) == self._inode(partition) != 0

    def _inode(self, partition: int) -> int:
        try:
            return self._disk.inode(f"{self._folder}/{partition}.own")
        except FileNotFoundError:
            return 0

    def _settle(self) -> None:
        """Make names durable, of positions and of what leads to them: their maker may be dead."""
        folder = self._folder
        for _ in range(3):  # The group, the groups, the topic.
            self._disk.fsync_dir(folder)
            folder = folder.rpartition("/")[0]

    def _members(self) -> list[str]:
        """Who is there. What the dead left is removed."""
        names = [name for name, _ in self._disk.scan(f"{self._folder}/members")]
        if self.id not in names and self._presence is not None:
            # Between making its file and locking it, it was taken for one of the dead.
            self._presence.release()
            self._presence = self._locks.wait(f"{self._folder}/members/{self.id}")
        found = [self.id]
        for name in names:
            if name == self.id:
                continue
            held = self._locks.try_hold(f"{self._folder}/members/{name}")
            if held is None:
                found.append(name)
                continue
            with suppress(OSError):
                self._disk.unlink(f"{self._folder}/members/{name}")
            held.release()
        return found


def group_positions(folder: str, disk: Disk) -> dict[int, int]:
    """Where a group goes on, by partition."""
    found = {}
    for name, _ in disk.scan(folder):
        number, _, suffix = name.partition(".")
        if suffix == "at" and number.isdecimal():
            read = _read(f"{folder}/{name}", disk)
            if read is not None:
                found[int(number)] = read[1]
    return found


def delete_group(folder: str, disk: Disk) -> None:
    """Forget a group that has no members.

    Raises:
        StateError: it has some.
    """
    members = f"{folder}/members"
    names = []
    with suppress(FileNotFoundError):
        names = [name for name, _ in disk.scan(members)]
    for name in names:
        try:
            disk.hold(f"{members}/{name}").release()
        except BlockingIOError:
            raise StateError(
                f"{folder} has members that are consuming", hint="close its consumers first"
            ) from None
        disk.unlink(f"{members}/{name}")
    for name, kind in disk.scan(folder):
        if kind == "file":
            disk.unlink(f"{folder}/{name}")
    with suppress(FileNotFoundError):
        disk.rmdir(members)
    disk.rmdir(folder)


def _read(path: str, disk: Disk) -> tuple[int, int] | None:
    """How often a position was written, and the position; None if it never was.

    Raises:
        CorruptionError: neither slot is whole.
    """
    try:
        data = bytes(disk.read(path)[1])
    except FileNotFoundError:
        return None
    found = []
    for begin in (0, SLOT_BYTES):
        slot = data[begin : begin + SLOT_BYTES]
        if len(slot) < SLOT_BYTES:
            continue
        turn, offset, _ = _SLOT.unpack_from(slot)
        if _SUM.unpack_from(slot, _SLOT.size)[0] == _digest(slot):
            found.append((turn, offset))
    if not found and data.strip(b"\0"):
        raise CorruptionError(
            f"{path} is damaged: neither of its slots is whole",
            where=path,
            hint="reset the group's position, or bring the file back from a copy",
        )
    return max(found, default=None)


def _write(path: str, turn: int, offset: int, disk: Disk) -> None:
    slot = _SLOT.pack(turn, offset, 0)
    data = slot + _SUM.pack(_digest(slot))
    try:
        disk.overwrite(path, data, turn % 2 * SLOT_BYTES)
    except FileNotFoundError:
        aside = f"{path}.new"
        with suppress(FileNotFoundError):
            disk.unlink(aside)
        empty = bytes(SLOT_BYTES)
        disk.write(aside, data + empty if turn % 2 == 0 else empty + data, 0)
        disk.rename(aside, path)
        disk.fsync_dir(path.rpartition("/")[0])


def _digest(slot: bytes) -> int:
    return xxhash.xxh3_64_intdigest(slot[: _SLOT.size])
