"""A bank in a volume: an account is a page, and a page tells its whole history.

::

    i64 balance ‖ u32 transfers ‖ u32 account ‖ for each transfer: u32 id, i32 amount (− if sent)

A transfer writes two pages in one transaction. So of any version, at any moment:

B1  every page is an account's, whole, and its balance is what it began with plus its amounts;
B2  the balances add up to what they were in the beginning;
B3  a transfer is in two accounts or in none, once each, with opposite amounts.

A page that came from another version than its neighbours breaks one of them.
"""

from __future__ import annotations

import struct
from collections import Counter

from cordwood.testing.verdict import ModelBrokenError

PAGE_BYTES = 2048
INITIAL = 1_000
_HEAD = struct.Struct("<qII")
_LINE = struct.Struct("<Ii")
LINES_MAX = (PAGE_BYTES - _HEAD.size) // _LINE.size


class Account:
    """One page."""

    def __init__(self, number: int, lines: list[tuple[int, int]] | None = None) -> None:
        """With what was sent and received."""
        self.number = number
        self.lines = lines or []

    @property
    def balance(self) -> int:
        """What it began with, plus all amounts."""
        return INITIAL + sum(amount for _, amount in self.lines)

    @property
    def is_full(self) -> bool:
        """Whether no transfer fits any more."""
        return len(self.lines) >= LINES_MAX

    def page(self) -> bytes:
        """As bytes."""
        head = _HEAD.pack(self.balance, len(self.lines), self.number)
        return (head + b"".join(_LINE.pack(*line) for line in self.lines)).ljust(PAGE_BYTES, b"\0")

    @staticmethod
    def of(number: int, page: bytes) -> Account:
        """From bytes.

        Raises:
            ModelBrokenError: they are no account's.
        """
        balance, count, stated = _HEAD.unpack_from(page)
        if stated != number or count > LINES_MAX:
            raise ModelBrokenError(f"B1: page {number} is no account: {page[:24]!r}")
        lines = [_LINE.unpack_from(page, _HEAD.size + i * _LINE.size) for i in range(count)]
        account = Account(number, lines)
        if account.balance != balance or account.page() != page:
            raise ModelBrokenError(f"B1: account {number} has {balance}, not {account.balance}")
        return account


def audited(pages: list[bytes]) -> frozenset[int]:
    """The transfers of a version, all of whose accounts these are.

    Raises:
        ModelBrokenError: something does not add up.
    """
    accounts = [Account.of(number, page) for number, page in enumerate(pages, 1)]
    total = sum(account.balance for account in accounts)
    if total != INITIAL * len(accounts):
        raise ModelBrokenError(f"B2: {total} in {len(accounts)} accounts")
    lines = [line for account in accounts for line in account.lines]
    sums: Counter[int] = Counter()
    times = Counter(identity for identity, _ in lines)
    for identity, amount in lines:
        sums[identity] += amount
    broken = [identity for identity, count in times.items() if count != 2 or sums[identity]]
    if broken:
        raise ModelBrokenError(f"B3: transfer {broken[0]} is in {times[broken[0]]} accounts")
    return frozenset(times)
