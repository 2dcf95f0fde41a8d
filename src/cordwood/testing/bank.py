"""A bank in SQL on several machines: money moves, versions come and go, and none is lost or made.

Some machines share a volume through a store that fails and loses answers. On each, transfers are
committed, rolled back, or cut off with the process; versions are pushed and pulled; where two
machines have both written, one gives way. At every look, on every machine:

1. the balances add up to what there was in the beginning;
2. each balance is what the table of transfers says;
3. the transfers are those of one published version and, over it, those that were acknowledged here;
4. SQLite finds its database whole.

A process that dies is modelled by an error that nobody catches, at any request to the store, or in
the middle of a transaction; its files are closed, and what it held in memory is gone. Real kills
are in sqlitekilling.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import ConflictError, CordwoodError, StoreError
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.sync.volume import Volume
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import OPERATIONS, Hooked
from cordwood.volume import sqlite

ACCOUNTS = 12
BALANCE = 1_000
MACHINES = 3
PAGE_SIZE = 512

Ids = frozenset[int]


class _Killed(BaseException):
    """The process died here."""


class Machine:
    """A directory, the connection that uses it, and what it should see."""

    def __init__(self, number: int, folder: Path) -> None:
        """Nothing is open."""
        self.number = number
        self.directory = folder / f"machine{number}"
        self.connection: Any = None
        self.seen: Ids = frozenset()
        """Transfers that were pulled or acknowledged here."""


class Bank:
    """One seeded run."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Nothing happens yet."""
        self._rng = np.random.default_rng(seed)
        self._entropy = SeededEntropy(seed)
        self._clock = HandClock()
        self._hooked = Hooked(MemoryStore(self._clock))
        self._store = Store.over(self._hooked)
        self._machines = [Machine(number, folder) for number in range(MACHINES)]
        self._attempts: set[Ids] = set()
        """What may have been published without an answer."""
        self._versions: dict[int, Ids] = {}
        """Published versions, by LSN."""
        self._next = 1
        self.happened: Counter[str] = Counter()

    def run(self, steps: int) -> Counter[str]:
        """Live for so many steps; what happened how often.

        Raises:
            AssertionError: something is wrong.
        """
        self._found()
        doings: list[tuple[Callable[[Machine], None], float]] = [
            (self._transfer, 0.5),
            (self._push, 0.2),
            (self._pull, 0.16),
            (self._cut_off, 0.06),
            (self._tidy, 0.05),
            (self._reopen, 0.03),
        ]
        chances = [chance for _, chance in doings]
        for machine in self._machines:
            self._check(machine)
        for _ in range(steps):
            machine = self._machines[int(self._rng.integers(MACHINES))]
            doing = doings[int(self._rng.choice(len(doings), p=chances))][0]
            self._arm()
            try:
                doing(machine)
            except _Killed:
                self.happened["killed"] += 1
                self._die(machine)
            self._disarm()
            self._clock.pass_s(1)
            self._check(machine)
        for machine in self._machines:
            self._check(machine)
            self._die(machine)
        return self.happened

    # What is done.

    def _found(self) -> None:
        """The bank, published by one machine and taken by the others."""
        first = self._machines[0]
        self._open(first)
        first.connection.execute(
            "create table accounts (id integer primary key, balance integer, pad blob);"
            "create table transfers (id integer primary key, source, target, amount)"
        )
        rows = [(number, BALANCE) for number in range(ACCOUNTS)]
        first.connection.executemany("insert into accounts values (?, ?, zeroblob(200))", rows)
        self._versions[int(first.connection.execute("pragma cordwood_push").get)] = frozenset()

    def _transfer(self, machine: Machine) -> None:
        """Move money, in one transaction; sometimes it is rolled back."""
        is_kept, number = self._rng.random() < 0.8, 0
        try:
            number = self._move(machine)
        except sqlite.SqlError:
            # A page had to be fetched and could not be: it is as if it had been rolled back.
            is_kept = False
            self.happened["transfer failed"] += 1
        if not is_kept:
            if not machine.connection.get_autocommit():
                machine.connection.execute("rollback")
            self.happened["rolled back"] += 1
            return
        machine.connection.execute("commit")
        machine.seen |= {number}
        self.happened["committed"] += 1

    def _move(self, machine: Machine) -> int:
        """A transfer that is not committed yet."""
        source, target = (int(n) for n in self._rng.choice(ACCOUNTS, 2, replace=False))
        amount, number = int(self._rng.integers(1, 50)), self._next
        self._next += 1
        run = machine.connection.execute
        run("begin immediate")
        run("update accounts set balance = balance - ? where id = ?", (amount, source))
        run("update accounts set balance = balance + ? where id = ?", (amount, target))
        run("insert into transfers values (?, ?, ?, ?)", (number, source, target, amount))
        return number

    def _cut_off(self, machine: Machine) -> None:
        """The process dies in the middle of a transaction."""
        with suppress(sqlite.SqlError):
            self._move(machine)
        raise _Killed

    def _push(self, machine: Machine) -> None:
        self._attempts.add(machine.seen)
        try:
            said = machine.connection.execute("pragma cordwood_push").get
        except sqlite.SqlError as error:
            if isinstance(error.__cause__, ConflictError) and "diverged" in str(error):
                self._give_way(machine)
            self.happened["push failed"] += 1
            return
        if said != "nothing to push":
            self._versions[int(said)] = machine.seen
            self.happened["pushed"] += 1

    def _pull(self, machine: Machine) -> None:
        try:
            lsn = int(machine.connection.execute("pragma cordwood_pull").get)
        except sqlite.SqlError as error:
            if "diverged" in str(error):
                self._give_way(machine)
            self.happened["pull failed"] += 1
            return
        self._took(machine, lsn)
        self.happened["pulled"] += 1

    def _give_way(self, machine: Machine) -> None:
        """Both have written: theirs instead of ours, or ours on a branch."""
        self.happened["diverged"] += 1
        run = machine.connection.execute
        try:
            if self._rng.random() < 0.5:
                self._branch_off(machine)
            self._took(machine, int(run("pragma cordwood_reset").get))
        except (sqlite.SqlError, CordwoodError):
            self.happened["giving way failed"] += 1

    def _branch_off(self, machine: Machine) -> None:
        """Keep ours on a branch, and look that it is all there."""
        mine, name = machine.seen, f"branch{self._next}"
        self._next += 1
        volume = self._volume(machine, "app")
        try:
            volume.branch(name, unpushed=True)
        finally:
            volume.close()
        self._disarm()
        branch = sqlite.connect(
            self._store, name, directory=machine.directory, create=False, entropy=self._entropy
        )
        assert mine == _ids(branch), "a branch is not what was branched"
        branch.close()
        self.happened["branched"] += 1

    def _tidy(self, machine: Machine) -> None:
        """Upkeep that changes nothing that is seen."""
        words = ["vacuum", "pragma cordwood_checkpoint", "pragma cordwood_hydrate"]
        try:
            machine.connection.execute(words[int(self._rng.integers(3))])
        except sqlite.SqlError:
            self.happened["upkeep failed"] += 1

    def _reopen(self, machine: Machine) -> None:
        self._die(machine)

    # What is looked at.

    def _check(self, machine: Machine) -> None:
        """All that must hold, at one look."""
        self._open(machine)
        run = machine.connection.execute
        assert run("select sum(balance) from accounts").get == ACCOUNTS * BALANCE
        wrong = run(
            "select a.id from accounts a where a.balance != ? "
            "- (select coalesce(sum(amount), 0) from transfers where source = a.id) "
            "+ (select coalesce(sum(amount), 0) from transfers where target = a.id)",
            (BALANCE,),
        ).fetchall()
        assert not wrong, f"accounts {wrong}"
        found = _ids(machine.connection)
        assert found == machine.seen, (machine.number, found ^ machine.seen)
        assert run("pragma integrity_check").get == "ok"

    def _took(self, machine: Machine, lsn: int) -> None:
        """A machine stands on a published version; with local commits over it, or without."""
        self._disarm()
        found = _ids(machine.connection)
        if json.loads(machine.connection.execute("pragma cordwood_status").get)["ahead"]:
            assert found == machine.seen, (lsn, found ^ machine.seen)
            return
        known = self._versions.get(lsn)
        if known is None:
            # Its push was cut off after the commit was there.
            assert found in self._attempts, f"version {lsn} is nobody's"
            known = self._versions[lsn] = found
        assert found == known, (lsn, found ^ known)
        machine.seen = known

    # Life and death.

    def _open(self, machine: Machine) -> None:
        if machine.connection is not None:
            return
        how: dict[str, Any] = {"page_size": PAGE_SIZE, "clock": self._clock}
        how["entropy"] = self._entropy
        machine.connection = sqlite.connect(self._store, "app", directory=machine.directory, **how)
        if not machine.seen and self._versions:
            # A directory that is new begins with the newest version.
            lsn = int(machine.connection.execute("pragma cordwood_lsn").get)
            machine.seen = self._versions.get(lsn) or _ids(machine.connection)

    def _volume(self, machine: Machine, name: str) -> Volume:
        return Volume(
            self._store,
            name,
            directory=machine.directory,
            clock=self._clock,
            entropy=self._entropy,
        )

    def _die(self, machine: Machine) -> None:
        if machine.connection is not None:
            machine.connection.close(True)
            machine.connection = None

    def _arm(self) -> None:
        """Perhaps let a request of the next step fail, lose its answer, or be the last one."""
        countdown = int(self._rng.integers(1, 30))
        way = ("fail", "lose", "kill before", "kill after")[int(self._rng.integers(4))]
        if self._rng.random() < 0.5:
            return

        async def hook(call: Callable[[], Any], *_: Any) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown > 0 or (way in {"fail", "lose"} and countdown < 0):
                return await call()
            if way in {"lose", "kill after"} and countdown == 0:
                await call()
            if way.startswith("kill"):
                raise _Killed
            raise StoreError("the network is gone", transient=True, applied=True)

        self._hooked.hooks = dict.fromkeys(OPERATIONS, hook)

    def _disarm(self) -> None:
        self._hooked.hooks = {}


def _ids(connection: Any) -> Ids:
    """The transfers that a connection sees."""
    return frozenset(row[0] for row in connection.execute("select id from transfers"))
