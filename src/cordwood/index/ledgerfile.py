"""The ledger as a file, `transaction.log`.

::

    0   magic                    32  u64 how much of the file was synced, u64 XXH3 of salt and it
    8   u64 salt                 48  zeros
    16  u64 last                 64  frames (journal/frames.py), each a transaction in MessagePack
    24  u64 XXH3 of the above

`last` is the highest id of a transaction before those in the file. A compaction writes a new file
with a new salt and puts it in the place of the old one, so whoever read a part of the file sees by
the salt whether it is still the same. How much was synced is noted after each commit, without
waiting: it reaches the disk with the next one. It tells damage from a commit cut short.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import xxhash

from cordwood.base.clock import Entropy
from cordwood.base.errors import (
    ConflictError,
    CorruptionError,
    UncertainError,
    UnsupportedError,
)
from cordwood.index.ledger import State, Transaction
from cordwood.journal import frames
from cordwood.store.disk import Disk

MAGIC = b"CWLEDG\x01\n"
_HEAD = struct.Struct("<8sQQQ")
_SYNCED = struct.Struct("<QQ")
_SYNCED_AT = _HEAD.size
FRAMES_AT = 64

_decoder = msgspec.msgpack.Decoder(Transaction)


@dataclass(slots=True)
class Position:
    """How far somebody has read the file."""

    salt: int = 0
    end: int = 0
    count: int = 0
    """Frames before `end`."""
    is_torn: bool = False
    """Whether something lies behind `end` that a crash left."""


@dataclass(slots=True)
class Read:
    """What was read."""

    position: Position
    transactions: list[Transaction]
    last: int
    """No transaction has had a higher id, but for those in the file."""
    is_other: bool
    """Whether the file is another than before, and was read from its beginning."""


@dataclass(slots=True)
class Reader:
    """A state that follows a ledger file."""

    state: State = field(default_factory=State)
    position: Position = field(default_factory=Position)

    def catch_up(self, file: LedgerFile) -> bool:
        """Go on to the newest state; whether there was anything new."""
        read = file.read(self.position)
        self.position = read.position
        before = self.state.id
        for transaction in read.transactions:
            if transaction.id > self.state.id:
                file.apply(self.state, transaction)
        self.state.id = max(self.state.id, read.last)
        return self.state.id > before

    def copy(self) -> Reader:
        """Another that goes on by itself."""
        at = self.position
        return Reader(self.state.copy(), Position(at.salt, at.end, at.count, at.is_torn))


class LedgerFile:
    """The file; who reads or writes it holds its lock."""

    def __init__(self, path: str, disk: Disk, entropy: Entropy, *, durable: bool = True) -> None:
        """No I/O. Without `durable`, a commit does not wait for the disk."""
        self.path = path
        self._durable = durable
        self._disk = disk
        self._entropy = entropy

    def fresh(self, transactions: list[Transaction], last: int) -> bytes:
        """A new file with these."""
        salt = int(self._entropy.token()[:16], 16)
        parts = [b""]
        end = FRAMES_AT
        for number, transaction in enumerate(transactions):
            payload = msgspec.msgpack.encode(transaction)
            parts.append(frames.frame(payload, salt=salt, offset=end, number=number))
            end += len(parts[-1])
        head = struct.pack("<8sQQ", MAGIC, salt, last)
        head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
        parts[0] = (head + _synced(salt, end)).ljust(FRAMES_AT, b"\0")
        return b"".join(parts)

    def read(self, since: Position) -> Read:
        """What came after a position, or all if the file is another.

        Raises:
            CorruptionError: it is damaged.
        """
        head = bytes(self._disk.read(self.path, 0, FRAMES_AT)[1])
        magic, salt, last, digest = _HEAD.unpack_from(head.ljust(FRAMES_AT, b"\0"))
        if len(head) < FRAMES_AT or xxhash.xxh3_64_intdigest(head[:24]) != digest:
            self._refuse("its head does not match its checksum")
        if magic != MAGIC:
            raise UnsupportedError(f"{self.path} is of another version", hint="update cordwood")
        is_other = salt != since.salt
        start = FRAMES_AT if is_other else since.end
        number = 0 if is_other else since.count
        status, data = self._disk.read(self.path, start)
        if status.size_bytes < start:
            self._refuse(f"it ends at {status.size_bytes}, and had been read as far as {start}")
        synced = self._synced_bytes(head, salt)
        found = frames.scan(
            data,
            base=start,
            number=number,
            salt=salt,
            synced=synced,
            name=self.path,
            strict=self._durable,
        )
        try:
            transactions = [_decoder.decode(payload) for payload in found.payloads]
        except msgspec.MsgspecError as error:
            raise UnsupportedError(
                f"{self.path} has a transaction that this version cannot read: {error}",
                hint="it was written by something newer: update cordwood",
            ) from error
        position = Position(salt, found.end, number + len(transactions), found.is_torn)
        return Read(position, transactions, last, is_other)

    def apply(self, state: State, transaction: Transaction) -> None:
        """Let a state take a transaction that was read: whoever wrote it had checked that it fits.

        Raises:
            CorruptionError: it does not fit.
        """
        try:
            state.apply(transaction)
        except ConflictError as error:
            self._refuse(f"transaction {transaction.id} does not fit: {error.message}")

    def append(self, at: Position, transaction: Transaction) -> Position:
        """Write a transaction behind all others; durable when this returns.

        Raises:
            UncertainError: it failed, and what it left could not be taken back.
            OSError: it failed, and nothing is left of it.
        """
        if at.is_torn:
            self._disk.truncate(self.path, at.end)
        payload = msgspec.msgpack.encode(transaction)
        data = frames.frame(payload, salt=at.salt, offset=at.end, number=at.count)
        try:
            self._disk.overwrite(self.path, data, at.end, sync=self._durable)
        except OSError as error:
            try:
                self._disk.truncate(self.path, at.end)
            except OSError:
                raise UncertainError(
                    f"{self.path} could not be written ({error}), nor set back",
                    write_id=transaction.token,
                    hint="look whether the transaction is there before it is done again",
                ) from error
            raise
        end = at.end + len(data)
        if not self._durable:
            return Position(at.salt, end, at.count + 1)
        with suppress(OSError):  # It is a hint: the commit stands without it.
            self._disk.overwrite(self.path, _synced(at.salt, end), _SYNCED_AT, sync=False)
        return Position(at.salt, end, at.count + 1)

    def _synced_bytes(self, head: bytes, salt: int) -> int:
        size, digest = _SYNCED.unpack_from(head, _SYNCED_AT)
        return size if _synced(salt, size) == _SYNCED.pack(size, digest) else 0

    def _refuse(self, why: str) -> None:
        raise CorruptionError(
            f"{self.path} is damaged: {why}",
            where=self.path,
            hint="bring it back from a copy",
        )


def _synced(salt: int, size: int) -> bytes:
    return _SYNCED.pack(size, xxhash.xxh3_64_intdigest(struct.pack("<QQ", salt, size)))
