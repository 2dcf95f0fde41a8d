"""Tellers of one bank in one directory, real processes, killed with SIGKILL again and again.

Each transfers money, pushes and pulls, and prints what it was told: `committed` with the transfer,
`published` with the version. Two work at a time; a kill takes one of them at a random moment, and
the next takes its place. One directory never diverges from itself, whatever was cut off. In the end

* every transfer that was committed is in the directory, and after a push in the store;
* every version adds up (testing/volumebank.py), and they are one line;
* every version that a push named is there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY, Entropy
from cordwood.base.errors import ContendedError
from cordwood.testing.volumebank import PAGE_BYTES, Account, audited
from cordwood.volume.volume import Volume

ACCOUNTS = 24
LIFE_MIN_S, LIFE_MAX_S = 0.05, 0.5
TELLERS = 2


@dataclass(slots=True)
class BankReport:
    """What was printed, and what was found."""

    kills: int = 0
    committed: set[int] = field(default_factory=set)
    published: set[int] = field(default_factory=set)
    found: frozenset[int] = frozenset()
    """Transfers in the newest version, as a stranger reads it."""
    versions: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def lost(self) -> set[int]:
        """Committed, and not there."""
        return self.committed - self.found

    @property
    def is_right(self) -> bool:
        """Whether everything is as it was said to be."""
        is_line = all(lsn <= self.versions for lsn in self.published)
        return not self.lost and not self.errors and is_line


def kill_tellers(folder: Path, kills: int, entropy: Entropy) -> BankReport:
    """Run and kill so many tellers, then look."""
    asyncio.run(_found(folder))
    report = BankReport()
    tellers = [_start(folder, n) for n in range(TELLERS)]
    for life in range(TELLERS, kills + TELLERS):
        _end(tellers.pop(0), entropy, report)
        tellers.append(_start(folder, life))
    for teller in tellers:
        _end(teller, entropy, report)
    report.found, report.versions = asyncio.run(_audit(folder))
    return report


def _start(folder: Path, life: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cordwood.testing.bankkilling", str(folder), str(life)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603


def _end(teller: subprocess.Popen[str], entropy: Entropy, report: BankReport) -> None:
    """Let it work for a while, kill it, and note what it said."""
    assert teller.stdout is not None
    with teller:
        said = [teller.stdout.readline()]
        life_s = LIFE_MIN_S + (LIFE_MAX_S - LIFE_MIN_S) * entropy.uniform()
        try:
            teller.wait(timeout=life_s)
            report.errors.append("a teller ended by itself")
        except subprocess.TimeoutExpired:
            teller.send_signal(signal.SIGKILL)
            report.kills += 1
        said += teller.stdout.read().splitlines(keepends=True)
    for line in said:
        # A line cut in the middle was not said.
        kind, _, number = line.partition(" ")
        if line.endswith("\n") and kind in ("committed", "published"):
            (report.committed if kind == "committed" else report.published).add(int(number))


async def _found(folder: Path) -> None:
    volume = _bank(folder)
    await volume.create(PAGE_BYTES)
    async with volume:
        async with volume.begin() as transaction:
            for number in range(1, ACCOUNTS + 1):
                transaction.write(number, Account(number).page())
        await volume.push()


def _bank(folder: Path, place: str = "desk") -> Volume:
    return Volume(f"file://{folder / 'store'}", "bank", directory=folder / place)


async def _audit(folder: Path) -> tuple[frozenset[int], int]:
    async with _bank(folder) as volume:
        await volume.push()
        here = await _seen(volume, None)
    async with _bank(folder, "stranger") as volume:
        history = await volume.log()
        before: frozenset[int] = frozenset()
        for version in reversed(history):
            seen = await _seen(volume, version.lsn)
            assert before <= seen, f"LSN {version.lsn} lacks {min(before - seen)}"
            before = seen
        assert here == before
        return before, len(history)


async def _seen(volume: Volume, at: int | None) -> frozenset[int]:
    async with await volume.snapshot(at) as snapshot:
        return audited([await snapshot.read(n) for n in range(1, ACCOUNTS + 1)])


async def _work(folder: Path, life: int) -> None:
    """Be a teller."""
    count = 0
    async with _bank(folder) as volume:
        while True:
            chance = SYSTEM_ENTROPY.uniform()
            if chance < 0.7:
                count += 1
                identity = life * 10_000 + count
                if await _transfer(volume, identity):
                    _say("committed", identity)
            elif chance < 0.9:
                lsn = await volume.push()
                if lsn is not None:
                    _say("published", lsn)
            else:
                await volume.pull()


async def _transfer(volume: Volume, identity: int) -> bool:
    one = 1 + int(SYSTEM_ENTROPY.uniform() * ACCOUNTS)
    two = 1 + (one + int(SYSTEM_ENTROPY.uniform() * (ACCOUNTS - 1))) % ACCOUNTS
    try:
        async with volume.begin() as transaction:
            sender = Account.of(one, await transaction.read(one))
            receiver = Account.of(two, await transaction.read(two))
            if one == two or sender.is_full or receiver.is_full:
                return False
            sender.lines.append((identity, -1))
            receiver.lines.append((identity, 1))
            transaction.write(one, sender.page())
            transaction.write(two, receiver.page())
    except ContendedError:
        return False
    return True


def _say(kind: str, number: int) -> None:
    sys.stdout.write(f"{kind} {number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _say("open", os.getpid())
    asyncio.run(_work(Path(sys.argv[1]), int(sys.argv[2])))
