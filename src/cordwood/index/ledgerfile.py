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
from dataclasses import dataclass, field, replace

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
from cordwood.journal.frames import Tail
from cordwood.store.api import Buffer
from cordwood.store.disk import Disk

MAGIC = b"CWLEDG\x02\n"
_HEAD = struct.Struct("<8sQQQ")
_SYNCED = struct.Struct("<QQ")
_SYNCED_AT = _HEAD.size
FRAMES_AT = 64
NOWHERE = Tail(0, 0, 0, 0)
"""Of who has read nothing: no file has this salt."""

_decoder = msgspec.msgpack.Decoder(Transaction)


@dataclass(slots=True)
class Position:
    """How far somebody has read the file."""

    tail: Tail = NOWHERE
    is_torn: bool = False
    """Whether something lies behind the tail that a crash left."""
    synced: int = 0
    """How much of the file is known to be on the disk."""


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
        return Reader(self.state.copy(), replace(self.position))


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
        head = struct.pack("<8sQQ", MAGIC, salt, last)
        head += struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
        parts: list[Buffer] = []
        tail = frames.first(salt, FRAMES_AT)
        for transaction in transactions:
            written, tail = _framed(tail, transaction)
            parts += written
        return (head + _synced(salt, tail.end)).ljust(FRAMES_AT, b"\0") + b"".join(parts)

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
        is_other = salt != since.tail.salt
        tail = frames.first(salt, FRAMES_AT) if is_other else since.tail
        status, data = self._disk.read(self.path, tail.end)
        if status.size_bytes < tail.end:
            self._refuse(f"it ends at {status.size_bytes}, and had been read as far as {tail.end}")
        found = frames.scan(data, tail)
        rest = memoryview(data)[found.tail.end - tail.end :]
        synced = self._synced_bytes(head, salt)
        frames.check_tail(rest, found.tail, synced=synced, name=self.path)
        try:
            transactions = [_decoder.decode(frame.payload) for frame in found.frames]
        except msgspec.MsgspecError as error:
            raise UnsupportedError(
                f"{self.path} has a transaction that this version cannot read: {error}",
                hint="it was written by something newer: update cordwood",
            ) from error
        return Read(Position(found.tail, bool(rest), synced), transactions, last, is_other)

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
        tail = at.tail
        if at.is_torn:
            self._disk.truncate(self.path, tail.end)
        parts, after = _framed(tail, transaction, synced=at.synced)
        try:
            self._disk.overwrite(self.path, b"".join(parts), tail.end, sync=self._durable)
        except OSError as error:
            try:
                self._disk.truncate(self.path, tail.end)
            except OSError:
                raise UncertainError(
                    f"{self.path} could not be written ({error}), nor set back",
                    write_id=transaction.token,
                    hint="look whether the transaction is there before it is done again",
                ) from error
            raise
        if not self._durable:
            return Position(after, synced=at.synced)
        with suppress(OSError):  # It is a hint: the commit stands without it.
            noted = _synced(tail.salt, after.end)
            self._disk.overwrite(self.path, noted, _SYNCED_AT, sync=False)
        return Position(after, synced=after.end)

    def _synced_bytes(self, head: bytes, salt: int) -> int:
        size, digest = _SYNCED.unpack_from(head, _SYNCED_AT)
        return size if _synced(salt, size) == _SYNCED.pack(size, digest) else 0

    def _refuse(self, why: str) -> None:
        raise CorruptionError(
            f"{self.path} is damaged: {why}",
            where=self.path,
            hint="bring it back from a copy",
        )


def _framed(tail: Tail, transaction: Transaction, *, synced: int = 0) -> tuple[list[Buffer], Tail]:
    payload = msgspec.msgpack.encode(transaction)
    return frames.framed(tail, [payload], number=tail.number, synced=synced)


def _synced(salt: int, size: int) -> bytes:
    return _SYNCED.pack(size, xxhash.xxh3_64_intdigest(struct.pack("<QQ", salt, size)))
