"""The ledger as a log on a store: records, and a state that follows them.

A record is a transaction, whose id is its offset, or the ledger in short, as a compaction leaves
it. Whether it counts is decided by who reads, and for all alike: a transaction if it fits the state
before it, the ledger in short if no transaction counted since the state it was made from. So
records that do not count, of whatever kind, do not get into anybody's way.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import msgspec

from cordwood.base.errors import ConflictError
from cordwood.index.ledger import State, Transaction, folded
from cordwood.store.api import Buffer


class Shortened(msgspec.Struct, frozen=True):
    """The ledger in short."""

    last: int
    """The last transaction that counts in it; there must be none after it."""
    kept: tuple[Transaction, ...]
    tombs: tuple[int, ...]
    """Segments that have tombstones."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record of the ledger's log holds: one of these, or nothing, which never counts."""

    transaction: Transaction | None = None
    shortened: Shortened | None = None


_decoder = msgspec.msgpack.Decoder(Record)


def decoded_record(data: Buffer) -> Record:
    """A record from its bytes."""
    return _decoder.decode(data)


@dataclass(slots=True)
class LogReader:
    """A state that follows the ledger."""

    state: State = field(default_factory=State)
    next: int = 0
    """The offset to read next; 0 before the first time."""
    transactions: list[Transaction] = field(default_factory=list)
    """All that count, for who compacts."""
    tombs: set[int] = field(default_factory=set)
    """Segments that have tombstones."""

    def copy(self) -> LogReader:
        """Another that goes on by itself."""
        return LogReader(self.state.copy(), self.next, list(self.transactions), set(self.tombs))

    def restart(self) -> None:
        """Forget everything."""
        self.state, self.next = State(), 0
        self.transactions, self.tombs = [], set()

    def take(self, offset: int, record: Record) -> bool:
        """The next record; whether it counts."""
        is_first = not self.next
        self.next = offset + 1
        if record.transaction is not None:
            transaction = msgspec.structs.replace(record.transaction, id=offset)
            try:
                self.state.apply(transaction)
            except ConflictError:
                return False
            self.transactions.append(transaction)
            return True
        short = record.shortened
        if short is None or (short.last != self.state.id and not is_first):
            return False
        if is_first:
            self.state = folded(short.kept)
            self.state.id = short.last
        self.transactions, self.tombs = list(short.kept), set(short.tombs)
        return True

    def dead_merges(self, live: Container[str]) -> tuple[int, ...]:
        """Merges that were begun with a handle that is not among these."""
        by = {transaction.id: transaction.by for transaction in self.transactions}
        return tuple(started for started in self.state.merges if by.get(started, "") not in live)
