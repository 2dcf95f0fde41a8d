"""A bank in a volume, in simulated time: clients in several directories, and all that goes wrong.

Each directory is a disk that may lose power, with one or two processes that transfer money, push,
pull, branch, make checkpoints and collect. They are killed, they sleep, their clocks are wrong, and
the store loses answers, is slow, and lets puts land late. When a volume has diverged, one of the
ways out is taken. Besides what testing/volumebank.py demands of every version that anybody sees:

V1  what was committed in a directory is seen there, through kills and power cuts, until somebody
    gave it up;
V2  what a push said was published is in that version, and in all after it;
V3  the versions of a log are one line: nothing that was in one is missing in the next;
V4  what was taken to a branch is there;
V5  nothing that is needed was collected: in the end every version that is kept is read in full;
V6  a directory does not diverge from itself: where it is the only one, its own commits are known
    again, whenever they land;
V7  in the end a collection leaves no pack that nothing names, and no note.

Everything is drawn from the seed. `met` counts the ways that were gone: a test asks for each.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded: the world is drawn from it
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from unittest import mock

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    CordwoodError,
    DivergedError,
    LimitError,
    StateError,
    StoreError,
)
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.verdict import ModelBrokenError, judged
from cordwood.testing.volumebank import PAGE_BYTES, Account, audited
from cordwood.volume import checkpoints, notes, paths, push, reader
from cordwood.volume.base import load
from cordwood.volume.desk import Desk, open_desk
from cordwood.volume.format import Commit, open_commit
from cordwood.volume.volume import Volume

BANK = "bank"
SWITCH_PAGES = 12
EXPECTED = (StoreError, ConflictError, CollectedError, LimitError)
"""What a client may meet in such a world. (A name that is taken, or a handle that was killed, is
looked at where it happens.)"""


@dataclass(frozen=True, slots=True)
class Climate:
    """What one seed's world is like."""

    directories: int
    processes: int
    accounts: int
    seconds: float
    latency: Latency
    fault_rate: float
    grace_s: float
    deadline_s: float
    life_s: float
    pace_s: float
    clocks_off_s: float
    note_pages: int
    note_graces: float
    zombie_s: float

    @classmethod
    def draw(cls, chance: random.Random) -> Climate:
        """A world by chance."""
        return cls(
            directories=chance.choice([1, 2, 2, 3]),
            processes=chance.choice([1, 1, 2]),
            accounts=chance.choice([4, 8, 14]),
            seconds=chance.uniform(30, 70),
            latency=Latency(
                chance.choice([0.005, 0.05, 0.2]), chance.choice([None, 0.8]), 0.03, 4.0
            ),
            fault_rate=chance.choice([0.0, 0.03, 0.12]),
            grace_s=chance.choice([2.0, 6.0, 20.0]),
            deadline_s=chance.choice([1.0, 8.0, 30.0]),
            life_s=chance.choice([3.0, 12.0, 1000.0]),
            pace_s=chance.choice([0.1, 0.3]),
            clocks_off_s=chance.choice([0.0, 5.0, 86_400.0]),
            note_pages=chance.choice([0, 3, 6, 4096]),
            note_graces=chance.choice([10.0, 10_000.0]),
            zombie_s=chance.choice([0.05, 2.0, 15.0]),
        )


@dataclass(slots=True)
class Ledger:
    """What was promised."""

    acknowledged: dict[int, frozenset[int]] = field(default_factory=dict)
    """Of an LSN of the bank: transfers that a push said are in it."""
    branched: dict[str, frozenset[int]] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")


@dataclass(slots=True)
class Place:
    """A directory, and what must be seen in it."""

    name: str
    disk: CrashDisk
    mine: set[int] = field(default_factory=set)
    """Committed here, and not given up."""
    resets: int = 0
    """Resets under way: what is committed meanwhile may be gone."""
    processes: list[Process] = field(default_factory=list)


class Process:
    """One of a directory's processes: its way to the store, and the volume it holds."""

    def __init__(self, place: Place, name: str, door: Door, store: Store, off_us: int) -> None:
        """Alive."""
        self.place = place
        self.name = name
        self.door = door
        self.store = store
        self.clock = LoopClock(1_700_000_000_000_000 + off_us)
        self.entropy = SeededEntropy(name)
        self.desks: list[Desk] = []
        self.is_dead = False
        self.given_up: set[int] | None = None
        """What a reset under way gives up."""
        self.is_keeping = False
        """Whether it is making a branch of what is here, and gives it up then."""
        place.processes.append(self)

    async def open(self, name: str = BANK) -> Volume:
        """A volume, on this directory's disk."""
        volume = Volume(self.store, name, directory="/wood", clock=self.clock, entropy=self.entropy)
        desk = await open_desk(
            self.store,
            name,
            "/wood",
            clock=self.clock,
            entropy=self.entropy,
            disk=self.place.disk,
            switch_pages=SWITCH_PAGES,
        )
        self.desks.append(desk)
        volume._desk = desk  # noqa: SLF001 - a volume has no say in what disk it is on
        return volume

    def die(self) -> None:
        """It reaches nothing any more, and the system frees its locks."""
        if self.is_dead:
            return
        self.is_dead = True
        self.door.shut()
        self.place.processes.remove(self)
        for desk in self.desks:
            desk.local.locks.close()
        self.end_reset(done=False)

    def begin_reset(self) -> None:
        """From now on what is here may be gone at any moment."""
        self.given_up, self.place.mine = self.place.mine, set()
        self.place.resets += 1

    def end_reset(self, *, done: bool) -> None:
        """It is gone, or nothing happened: the last thing that a reset does is to take it away."""
        if self.given_up is not None:
            self.place.resets -= 1
            if not done:
                self.place.mine |= self.given_up
            self.given_up = None


class VolumeSimulation:
    """One seed's run."""

    def __init__(self, seed: int, climate: Climate | None = None) -> None:
        """Prepare; `run` does it."""
        self.seed = seed
        self.chance = random.Random(f"volume-{seed}")
        self.climate = climate or Climate.draw(self.chance)
        self.ledger = Ledger()
        self._count = 0
        self._lives = 0
        self._over = False

    def run(self) -> Ledger:
        """Run in simulated time.

        Raises:
            ModelBrokenError: something was lost, doubled or mixed up.
        """
        climate = self.climate
        note_s = climate.note_graces * climate.grace_s
        with ExitStack() as stack:
            for where, name, value in (
                (push, "NOTE_PAGES", climate.note_pages),
                (checkpoints, "NOTE_PAGES", climate.note_pages),
                (push, "ORPHAN_S", note_s),
                (notes, "NOTE_S", note_s),
                (notes, "_SKEW_US", 0),
                (push, "put_note", self._counted("note", notes.put_note)),
                (push, "_drop", self._counted("dropped", push._drop)),  # noqa: SLF001
                (reader.PageReader, "_renew", self._counted("renewed", reader.PageReader._renew)),  # noqa: SLF001
            ):
                stack.enter_context(mock.patch.object(where, name, value))
            return judged(self.seed, self._main, CordwoodError, AssertionError)

    def _counted(self, name: str, call: Callable[..., Awaitable[object]]) -> Callable[..., object]:
        async def counted(*args: object) -> object:
            self.ledger.met[name] += 1
            return await call(*args)

        return counted

    async def _main(self) -> Ledger:
        climate = self.climate
        rate = climate.fault_rate
        self.memory = MemoryStore(LoopClock())
        self.faulty = FaultyStore(
            self.memory,
            SeededEntropy(f"faults-{self.seed}"),
            LoopClock(),
            latency=climate.latency,
            write_faults=dict.fromkeys(
                (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.ZOMBIE, Fault.HANG_AFTER), rate / 4
            ),
            read_faults={Fault.ERROR_BEFORE: rate / 2},
            zombie_delay=Latency(climate.zombie_s, climate.zombie_s * 4),
        )
        await self._found()
        self.places = [
            Place(f"d{n}", CrashDisk(self.chance.choice(["posix", "ext4"])))
            for n in range(climate.directories)
        ]
        async with asyncio.TaskGroup() as group:
            for place in self.places:
                for n in range(climate.processes):
                    group.create_task(self._lives_in(place, n))
            await asyncio.sleep(climate.seconds)
            self._over = True
        self.faulty.heal()
        await self.faulty.drain()
        await self._audit()
        return self.ledger

    async def _found(self) -> None:
        """The first version: nothing goes wrong yet."""
        founder = self._process(Place("founder", CrashDisk()), 0, calm=True)
        volume = Volume(founder.store, BANK, directory="/wood", clock=founder.clock,
                        entropy=founder.entropy)  # fmt: skip
        await volume.create(PAGE_BYTES, grace_s=self.climate.grace_s)
        volume = await founder.open()
        async with volume.begin() as transaction:
            for number in range(1, self.climate.accounts + 1):
                transaction.write(number, Account(number).page())
        await volume.push("founded")

    # Processes.

    def _process(self, place: Place, number: int, *, calm: bool = False) -> Process:
        self._lives += 1
        name = f"{self.seed}-{place.name}.{number}.{self._lives}"
        door = Door(self.memory if calm else self.faulty)
        entropy = SeededEntropy(f"retries-{name}")
        off_us = int(self.chance.uniform(-1, 1) * self.climate.clocks_off_s * 1e6)
        store = RetryingStore(
            door, LoopClock(), entropy, deadline_s=self.climate.deadline_s, attempt_s=3.0
        )
        return Process(place, name, door, Store.over(store, "simulated:"), off_us)

    async def _lives_in(self, place: Place, number: int) -> None:
        """One process after the other, each until it dies."""
        while not self._over:
            process = self._process(place, number)
            self.ledger.note(f"{process.name} starts")
            task = asyncio.get_running_loop().create_task(self._live(process))
            life_s = self.chance.expovariate(1 / self.climate.life_s)
            await asyncio.wait([task], timeout=min(life_s, self.climate.seconds))
            if task.done():
                task.result()
            elif self.chance.random() < 0.3:
                process.door.shut()
                self.ledger.met["slept"] += 1
                await asyncio.sleep(self.chance.uniform(0, 2.5) * self.climate.grace_s)
                process.door.reopen()
                await asyncio.wait([task], timeout=self.climate.seconds)
            if not task.done():
                self.ledger.met["killed"] += 1
            process.die()
            await asyncio.sleep(self.chance.uniform(0.1, 2.0))

    async def _live(self, process: Process) -> None:
        """Do this and that."""
        place = process.place
        try:
            volume = await process.open()
            while not self._over and not process.is_dead:
                await asyncio.sleep(self.chance.expovariate(1 / self.climate.pace_s))
                if self.chance.random() < 0.01:
                    place.disk.cut_after(self.chance.randrange(25))
                await self._act(process, volume)
        except PowerCut:
            self._lose_power(place)
        except EXPECTED as error:
            self.ledger.note(f"{process.name} ends: {error!r:.80}")
        except StateError:
            if not process.is_dead:
                raise

    def _lose_power(self, place: Place) -> None:
        """The power of a directory, or only its processes, are gone; once for all of them."""
        if not place.disk.has_power:
            for process in [*place.processes]:
                # Nobody knows whether it was the last step that met the cut.
                if process.is_keeping:
                    place.mine = set()
                process.end_reset(done=True)
                process.die()
            if self.chance.random() < 0.5:
                self.ledger.met["power cut"] += 1
                place.disk = place.disk.power_cut(SeededEntropy(f"{self.seed} {self._lives}"))
            else:
                self.ledger.met["died at a step"] += 1
                place.disk.revive()

    async def _act(self, process: Process, volume: Volume) -> None:
        """One thing; what a client may meet is noted."""
        verbs = {
            self._transfer: 12, self._push: 4, self._pull: 2, self._look: 1, self._checkpoint: 0.4,
            self._collect: 0.6, self._branch: 0.15, self._scratch: 0.3,
        }  # fmt: skip
        verb = self.chance.choices([*verbs], [*verbs.values()])[0]
        try:
            await verb(process, volume)
        except DivergedError as error:
            self.ledger.met["diverged"] += 1
            if self.climate.directories == 1:
                raise ModelBrokenError("V6: it diverged from itself") from error
            await self._way_out(process, volume)
        except EXPECTED as error:
            self.ledger.met[type(error).__name__] += 1
            self.ledger.note(f"{process.name} {verb.__name__}: {error!r:.90}")

    # What they do.

    async def _transfer(self, process: Process, volume: Volume) -> None:
        one, two = self.chance.sample(range(1, self.climate.accounts + 1), 2)
        place = process.place
        self._count += 1
        identity, amount = self._count, self.chance.randrange(1, 50)
        async with volume.begin() as transaction:
            sender = Account.of(one, await transaction.read(one))
            receiver = Account.of(two, await transaction.read(two))
            if sender.is_full or receiver.is_full:
                return
            sender.lines.append((identity, -amount))
            receiver.lines.append((identity, amount))
            transaction.write(one, sender.page())
            transaction.write(two, receiver.page())
        if not place.resets:
            place.mine.add(identity)

    async def _scratch(self, process: Process, volume: Volume) -> None:
        """Pages behind the accounts come and go."""
        accounts = self.climate.accounts
        async with volume.begin() as transaction:
            transaction.truncate(accounts + self.chance.randrange(4))
            transaction.write(accounts + 1 + self.chance.randrange(6), bytes(PAGE_BYTES - 1) + b"!")

    async def _push(self, process: Process, volume: Volume) -> None:
        promised = frozenset(process.place.mine)
        pending = await self._pending(volume)
        try:
            lsn = await volume.push(f"by {process.name}")
        finally:
            await self._resolved(volume, pending)
        if lsn is None:
            snapshot = await volume.snapshot()
            lsn = snapshot.lsn
            await snapshot.close()
        known = self.ledger.acknowledged.get(lsn, frozenset())
        # Without what another process has given up meanwhile.
        self.ledger.acknowledged[lsn] = known | (promised & process.place.mine)
        self.ledger.met["pushed"] += 1

    async def _pull(self, process: Process, volume: Volume) -> None:
        pending = await self._pending(volume)
        try:
            await volume.pull()
        finally:
            await self._resolved(volume, pending)
        await self._look(process, volume)

    async def _look(self, process: Process, volume: Volume) -> None:
        """V1, and the bank's own rules, of what is seen here."""
        promised = frozenset(process.place.mine)
        seen = await self._transfers(volume)
        # What was given up meanwhile need not be there any more.
        lost = (promised & process.place.mine) - seen
        if lost:
            raise ModelBrokenError(f"V1: {process.name} committed {min(lost)}, which is gone")

    async def _checkpoint(self, process: Process, volume: Volume) -> None:
        await volume.checkpoint()
        self.ledger.met["checkpoint"] += 1

    async def _collect(self, process: Process, volume: Volume) -> None:
        report = await volume.collect(keep_s=self.chance.choice([0.0, 5.0, 30.0]))
        self.ledger.met["collected"] += len(report.collected)
        self.ledger.met["swept"] += report.packs

    async def _branch(self, process: Process, volume: Volume) -> None:
        name = f"branch-{self._count}-{self._lives}"
        history = await volume.log(limit=4)
        version = self.chance.choice(history)
        try:
            await volume.branch(name, at=version.lsn)
        except AlreadyExistsError:
            return
        self.ledger.met["branch"] += 1

    async def _way_out(self, process: Process, volume: Volume) -> None:
        """It has diverged: rebase, or a branch, or take theirs."""
        way = self.chance.choice([self._rebase, self._keep, self._reset])
        try:
            await way(process, volume)
        except EXPECTED as error:
            self.ledger.met[f"{way.__name__} refused"] += 1
            self.ledger.note(f"{process.name} {way.__name__}: {error!r:.90}")

    async def _rebase(self, process: Process, volume: Volume) -> None:
        await volume.rebase()
        self.ledger.met["rebased"] += 1

    async def _reset(self, process: Process, volume: Volume) -> None:
        process.begin_reset()
        try:
            await volume.reset()
        except EXPECTED:
            process.end_reset(done=False)
            raise
        process.end_reset(done=True)
        self.ledger.met["reset"] += 1

    async def _keep(self, process: Process, volume: Volume) -> None:
        """V4: what is here is in the branch then, or was published."""
        place, name = process.place, f"kept-{self._count}-{self._lives}"
        process.is_keeping = True
        try:
            await volume.branch(name, unpushed=True)
        except AlreadyExistsError:
            return
        finally:
            process.is_keeping = False
        self.ledger.branched[name] = frozenset(place.mine)
        place.mine = set()
        self.ledger.met["kept"] += 1

    # What became of a push that was cut off.

    async def _pending(self, volume: Volume) -> Commit | None:
        desk = await volume.desk()
        found = load(desk.history.disk, f"{desk.folder}/pending", "pending", push.Pending)
        return None if found is None else open_commit(found.data, "pending")

    async def _resolved(self, volume: Volume, pending: Commit | None) -> None:
        if pending is None:
            return
        key = paths.commit(pending.log, pending.lsn)
        with suppress(CordwoodError, PowerCut):
            now = await self._pending(volume)
            if now is None or now.hash != pending.hash:
                is_ours = (await self.memory.get(key)).data[-32:] == pending.hash
                self.ledger.met["ours" if is_ours else "theirs"] += 1

    # Looking.

    async def _transfers(self, volume: Volume, at: int | None = None) -> frozenset[int]:
        return await self._audited(await volume.snapshot(at))

    async def _audited(self, snapshot: object) -> frozenset[int]:
        try:
            accounts = range(1, self.climate.accounts + 1)
            return audited([await snapshot.read(n) for n in accounts])  # type: ignore[attr-defined]
        finally:
            await snapshot.close()  # type: ignore[attr-defined]

    async def _audit(self) -> None:
        """In the end: each directory, and the store as somebody finds it who was never there."""
        for place in self.places:
            self._lose_power(place)
            place.disk.revive()
            process = self._process(place, 99, calm=True)
            volume = await process.open()
            await self._look(process, volume)
            try:
                await self._push(process, volume)
            except DivergedError:
                try:
                    await self._keep(process, volume)
                except CollectedError:
                    # What it builds upon was collected: theirs is the only way left.
                    self.ledger.met["stranded"] += 1
                    await self._reset(process, volume)
                await self._look(process, volume)
        stranger = self._process(Place("stranger", CrashDisk()), 0, calm=True)
        bank = await stranger.open()
        published = await self._audit_line(bank, dict(self.ledger.acknowledged))
        for name in await bank.tags():
            branch = await stranger.open(name)
            seen = await self._audit_line(branch, {})
            lost = self.ledger.branched.get(name, frozenset()) - seen - published
            if lost:
                raise ModelBrokenError(f"V4: {min(lost)} was taken to {name}, and is not there")
        await self._audit_packs(bank)

    async def _audit_line(
        self, volume: Volume, acknowledged: dict[int, frozenset[int]]
    ) -> frozenset[int]:
        """V2, V3, V5 of one log; the transfers of its newest version."""
        history = await volume.log()
        before: frozenset[int] = frozenset()
        oldest = min((version.lsn for version in history), default=0)
        promised = {t for lsn, some in acknowledged.items() if lsn < oldest for t in some}
        for version in reversed(history):
            seen = await self._transfers(volume, version.lsn)
            if before - seen:
                raise ModelBrokenError(f"V3: {min(before - seen)} is gone from LSN {version.lsn}")
            promised |= acknowledged.get(version.lsn, frozenset())
            if promised - seen:
                raise ModelBrokenError(
                    f"V2: {min(promised - seen)} was published, and is not in LSN {version.lsn}"
                )
            before = seen
        return before

    async def _audit_packs(self, volume: Volume) -> None:
        """V7, and V5 once more."""
        for _ in range(3):
            await asyncio.sleep(self.climate.grace_s * max(2.0, self.climate.note_graces) + 2)
            await volume.collect(keep_s=1e9)
        keys = [meta.key async for meta in self.memory.list("")]
        documents = [k for k in keys if "/commits/" in k or "/checkpoints/" in k]
        commits = [open_commit((await self.memory.get(key)).data, key) for key in documents]
        named = {paths.pack(pack.id) for commit in commits for pack in commit.packs}
        left = [
            k for k in keys if "/pushes/" in k or (k.startswith(paths.PACKS) and k not in named)
        ]
        if left:
            raise ModelBrokenError(f"V7: nothing needs {left[0]}, and it is still there")
        stranger = self._process(Place("late", CrashDisk()), 0, calm=True)
        await self._audit_line(await stranger.open(), dict(self.ledger.acknowledged))
