"""The life of a log in simulated time: writers, cursors, pins, forks, collectors, an auditor.

Everybody works through a faulty store, is killed and paused, and has a clock that may be wrong. The
auditor looks at the store itself, between any two steps of the others, and demands

A1  everything the manifest names is there, and holds the records that were acknowledged at their
    offsets; what was collected apart, nothing acknowledged is missing;
A2  the oldest and the next offset never go back, and sums balance;
A3  no record at or behind a cursor that its owner was told about is collected;
A4  every file of a pin that has not ended is there;
A5  a read gives what was appended, or says that it was collected;
A6  every fork that was finished has all it shares with its parent, until it is destroyed.

In the end, when nothing holds anything back, a few collections leave no file behind that no
manifest names and whose slot the log has passed.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded, and only by a simulation
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    CordwoodError,
    FormatError,
    InternalError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.chain.names import parse_fragment
from cordwood.log.chain.options import Protocol
from cordwood.log.cursors import Witness
from cordwood.log.format import Fragment, Manifest, NodePointer, decode
from cordwood.log.holds import PinRecord
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.options import Options
from cordwood.log.pins import Pin
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.logsim import WrongClock
from cordwood.testing.processes import Door
from cordwood.testing.verdict import ModelBrokenError, judged

LOG = "log"


@dataclass(frozen=True, slots=True)
class Climate:
    """What one seed's world is like."""

    writers: int
    movers: int
    pinners: int
    forkers: int
    collectors: int
    seconds: float
    latency: Latency
    fault_rate: float
    grace_s: int
    deadline_s: float
    life_s: float
    """How long a process lives on average before it is killed or paused."""
    pace_s: float
    in_flight: int
    clocks_off_s: float

    @classmethod
    def draw(cls, chance: random.Random) -> Climate:
        """A world by chance."""
        return cls(
            writers=chance.choice([1, 1, 2]),
            movers=chance.choice([1, 2, 3]),
            pinners=chance.choice([0, 1, 2]),
            forkers=chance.choice([0, 0, 1, 2]),
            collectors=chance.choice([1, 2, 3]),
            seconds=chance.uniform(20, 60),
            latency=Latency(
                chance.choice([0.002, 0.02, 0.1]), chance.choice([None, 0.4]), 0.02, 2.0
            ),
            fault_rate=chance.choice([0.0, 0.02, 0.1]),
            grace_s=chance.choice([1, 3, 10]),
            deadline_s=chance.choice([1.0, 10.0, 30.0]),
            life_s=chance.choice([2.0, 10.0, 1000.0]),
            pace_s=chance.choice([0.02, 0.1, 0.4]),
            in_flight=chance.choice([1, 8]),
            clocks_off_s=chance.choice([0.0, 5.0, 86_400.0]),
        )


@dataclass(slots=True)
class Ledger:
    """What was promised."""

    bodies: set[bytes] = field(default_factory=set)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    cursors: dict[str, int | None] = field(default_factory=dict)
    """Where each owner was told its cursor stands, if it was."""
    oldest: int = 1
    next: int = 1
    trace: list[str] = field(default_factory=list)
    collected: int = 0
    pins: int = 0
    forks: set[str] = field(default_factory=set)
    """Forks that were finished and not destroyed."""
    forked: int = 0

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")


class LifeSimulation:
    """One seed's run."""

    def __init__(
        self, seed: int, climate: Climate | None = None, protocol: Protocol = "cas"
    ) -> None:
        """Prepare; `run` does it."""
        self.seed = seed
        self.protocol: Protocol = protocol
        self.shape = random.Random(f"shape-{seed}")
        self.chance = random.Random(f"climate-{seed}")
        self.climate = climate or Climate.draw(self.chance)
        self.ledger = Ledger()
        self._count = 0
        self._over = False
        self._decoded: dict[str, list[bytes]] = {}

    def run(self) -> Ledger:
        """Run in simulated time.

        Raises:
            ModelBrokenError: with the seed in the message.
        """
        return judged(self.seed, self._main, Exception)

    async def _main(self) -> Ledger:
        climate = self.climate
        self.ground = MemoryStore(clock=LoopClock())
        self.objects = LogObjects(self.ground, LOG)
        kinds = [
            Fault.ERROR_BEFORE,
            Fault.ERROR_AFTER,
            Fault.ZOMBIE,
            Fault.HANG_AFTER,
            Fault.CONFLICT,
            Fault.THROTTLED,
        ]
        self.faulty = FaultyStore(
            self.ground,
            SeededEntropy(f"faults-{self.seed}"),
            LoopClock(),
            latency=climate.latency,
            write_faults={kind: climate.fault_rate / len(kinds) for kind in kinds},
            read_faults={Fault.ERROR_BEFORE: climate.fault_rate / 2},
            zombie_delay=Latency(0.3, 3.0),
        )
        creator, _ = self.log_of("creator", patient=True)
        await creator.create(grace_s=climate.grace_s, protocol=self.protocol)
        async with asyncio.TaskGroup() as group:
            for role, count in self._cast():
                for number in range(count):
                    group.create_task(self._live(role, f"{role.__name__[1:]}{number}"))
            group.create_task(self._audit_often())
            group.create_task(self._end())
        self.faulty.heal()
        await self.faulty.drain()
        await self._settle()
        return self.ledger

    def _cast(self) -> list[tuple[Callable[..., Coroutine[Any, Any, None]], int]]:
        climate = self.climate
        return [
            (self._writer, climate.writers),
            (self._mover, climate.movers),
            (self._pinner, climate.pinners),
            (self._forker, climate.forkers),
            (self._collector, climate.collectors),
            (self._reader, 1),
        ]

    async def _end(self) -> None:
        await asyncio.sleep(self.climate.seconds)
        self._over = True

    def log_of(self, process: str, *, patient: bool = False, name: str = LOG) -> tuple[Log, Door]:
        """The log as one process sees it, and that process's door."""
        self._count += 1
        entropy = SeededEntropy(f"{process}-{self.seed}-{self._count}")
        door = Door(self.faulty)
        deadline_s = 600.0 if patient else self.climate.deadline_s
        store = RetryingStore(door, LoopClock(), entropy, deadline_s=deadline_s, attempt_s=3.0)
        off_us = int((2 * entropy.uniform() - 1) * self.climate.clocks_off_s * 1_000_000)
        clock = WrongClock(off_us, stands=False)
        return Log(Store.over(store, "sim:"), name, clock=clock, entropy=entropy), door

    async def _live(self, role: Callable[..., Coroutine[Any, Any, None]], name: str) -> None:
        """Process after process in one role: each works until it ends, is killed or paused."""
        life = 0
        while not self._over:
            life += 1
            log, door = self.log_of(f"{name}.{life}")
            work = asyncio.ensure_future(role(log, f"{name}.{life}"))
            lifetime_s = self.chance.expovariate(1 / self.climate.life_s)
            await asyncio.wait([work], timeout=lifetime_s)
            if not work.done():
                door.shut()
                if self.chance.random() < 0.5:
                    self.ledger.note(f"pause {name}.{life}")
                    await asyncio.sleep(self.chance.choice([0.5, 5.0, 30.0]))
                    door.reopen()
                    await asyncio.wait([work])
                else:
                    self.ledger.note(f"kill {name}.{life}")
                    work.cancel()
                    await asyncio.wait([work])
            if not work.cancelled() and (error := work.exception()) is not None:
                if isinstance(error, FormatError | InternalError) or not isinstance(
                    error, CordwoodError
                ):
                    raise error
                self.ledger.note(f"{name}.{life}: {error.code}")
                await asyncio.sleep(0.2)

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / self.climate.pace_s))

    # Writers and readers.

    async def _writer(self, log: Log, name: str) -> None:
        options = Options(
            batch_bytes=self.chance.choice([40, 200, 8_000_000]),
            in_flight=self.climate.in_flight,
            intent_interval_s=0.5,
            alpha=self.shape.choice([1, 2, 4, 4, 16]),
            shards=self.shape.choice([None, 1, 3, 12]),
        )
        answers = []
        place = 0
        async with log.writer(options=options) as writer:
            while not self._over:
                place += 1
                body = f"{name}:{place}".encode()
                self.ledger.bodies.add(body)
                try:
                    future = writer.append(body)
                except (LimitError, StateError):
                    self.ledger.refused.add(body)
                    break
                answers.append(asyncio.ensure_future(self._answer(future, body)))
                await self._pause()
        await asyncio.gather(*answers)

    async def _answer(self, future: asyncio.Future[int], body: bytes) -> None:
        try:
            offset = await future
        except UncertainError:
            return
        except (StoreError, StateError):
            self.ledger.refused.add(body)
        else:
            self.ledger.acknowledged[offset] = body
            self.ledger.note(f"{body!r} at {offset}")

    async def _reader(self, log: Log, _: str) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.2, 2.0))
            promised = dict(self.ledger.acknowledged)
            try:
                async with log.reader() as reader:
                    found = {r.offset: r.body async for r in reader.read()}
            except (CollectedError, StoreError):
                continue
            first = min(found, default=None)
            for offset, body in promised.items():
                if first is not None and offset >= first and found.get(offset) != body:
                    raise ModelBrokenError(f"A5: {body!r} at {offset}: read {found.get(offset)!r}")

    # Cursors.

    async def _mover(self, log: Log, name: str) -> None:
        mine = name.partition(".")[0]
        witness = await self._take_cursor(log, mine)
        while not self._over:
            await self._pause()
            place = self.chance.random()
            if place < 0.1:
                target = max(1, witness.offset - self.chance.randrange(1, 30))
            else:
                target = min(self.ledger.next, witness.offset + self.chance.randrange(60))
            held = self.ledger.cursors.get(mine)
            # While it is under way nobody can say which of the two counts.
            self.ledger.cursors[mine] = None if held is None else max(held, target)
            try:
                witness = await log.cursors.save(mine, target, witness)
            except (CollectedError, ConflictError):
                witness = await self._take_cursor(log, mine)
            else:
                self.ledger.cursors[mine] = witness.offset
                self.ledger.note(f"cursor {mine} at {witness.offset}")

    async def _take_cursor(self, log: Log, name: str) -> Witness:
        """The cursor of this name, made if there is none."""
        while True:
            try:
                witness = await log.cursors.load(name)
            except NotFoundError:
                offset = (await log.manifest()).oldest_offset
                try:
                    witness = await log.cursors.init(name, offset)
                except (CollectedError, AlreadyExistsError):
                    continue
                self.ledger.cursors[name] = witness.offset
                return witness
            # An earlier save that nobody heard of may still arrive, and move it on.
            self.ledger.cursors[name] = None
            return witness

    # Pins.

    async def _pinner(self, log: Log, name: str) -> None:
        number = 0
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.2, 3.0))
            number += 1
            manifest = await log.manifest()
            oldest, end = manifest.oldest_offset, manifest.next_offset
            if end - oldest < 2:
                continue
            start = self.chance.randrange(oldest, end - 1)
            limit = self.chance.randrange(start + 1, end)
            pin_name = f"{name.partition('.')[0]}_{number % 3}"
            try:
                pin = await log.pin(pin_name, start, limit, ttl_s=self.chance.choice([2, 8, 20]))
            except (AlreadyExistsError, CollectedError):
                continue
            self.ledger.pins += 1
            self.ledger.note(f"pin {pin_name} [{pin.start}, {pin.limit})")
            await self._hold(log, pin)

    async def _hold(self, log: Log, pin: Pin) -> None:
        ends = self.chance.choice(["release", "renew", "expire"])
        await asyncio.sleep(self.chance.uniform(0.0, 6.0))
        try:
            async with log.reader(pin=pin.name) as reader:
                found = {r.offset: r.body async for r in reader.read()}
            for offset, body in self.ledger.acknowledged.items():
                if pin.start <= offset < pin.limit and found.get(offset) != body:
                    raise ModelBrokenError(f"A4: pin {pin.name}: {body!r} is not at {offset}")
            if ends == "renew":
                await pin.renew()
            elif ends == "release":
                await pin.release()
        except CollectedError:
            return
        except FormatError as error:
            # It may have ended while it was being read.
            try:
                await log.pinned(pin.name)
            except (CollectedError, NotFoundError):
                return
            except StoreError:
                return
            if not self._has_expired(pin.name):
                raise ModelBrokenError(f"A4: pin {pin.name}: {error}") from error

    def _has_expired(self, name: str) -> bool:
        objects = self.ground._objects  # noqa: SLF001
        versions = f"{LOG}/pin/{name}/"
        newest = min((key for key in objects if key.startswith(versions)), default="")
        entry = objects.get(newest or self.objects.key(paths.pin(name)))
        if entry is None:
            return True
        record = decode(PinRecord, entry.data, name)
        age_s = (LoopClock().now_us() - entry.modified_us) / 1_000_000
        return record.ended or age_s > record.ttl_s

    # Forks.

    async def _forker(self, log: Log, name: str) -> None:
        number = 0
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.5, 4.0))
            number += 1
            child = Log(
                log.store,
                f"{name.replace('.', '_')}_{number}",
                clock=log._clock,  # noqa: SLF001 - the same process
                entropy=log._entropy,  # noqa: SLF001
            )
            start = self.chance.choice([None, self.ledger.oldest + self.chance.randrange(20)])
            try:
                await log.fork(child, start)
            except (CollectedError, InvalidInputError):
                continue
            self.ledger.forked += 1
            self.ledger.forks.add(child.name)
            self.ledger.note(f"fork {child.name}")
            await self._use_fork(child)

    async def _use_fork(self, child: Log) -> None:
        """Append to a fork, collect it, fork it again; destroy it, or leave it."""
        await asyncio.sleep(self.chance.uniform(0.0, 3.0))
        if self.chance.random() < 0.6:
            async with child.writer() as writer:
                for _ in range(self.chance.randrange(12)):
                    await writer.append(b"of a fork")
        if self.chance.random() < 0.5:
            manifest = await child.manifest()
            oldest, end = manifest.oldest_offset, manifest.next_offset
            await child.cursors.init("c", self.chance.randrange(oldest, end + 1))
            await child.collect(wait_s=20.0)
        if self.chance.random() < 0.3:
            again = Log(
                child.store,
                f"{child.name}_again",
                clock=child._clock,  # noqa: SLF001
                entropy=child._entropy,  # noqa: SLF001
            )
            await child.fork(again)
            self.ledger.forks.add(again.name)
        elif self.chance.random() < 0.5:
            self.ledger.forks.discard(child.name)
            await child.destroy()

    # Collectors.

    async def _collector(self, log: Log, _: str) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.1, 4.0))
            try:
                report = await log.collect(
                    max_fragments=self.chance.choice([3, 20, 10_000]),
                    wait_s=self.chance.choice([0.0, 2.0, 20.0]),
                    rate=self.chance.choice([None, 20.0]),
                )
            except (StateError, StoreError, ConflictError, InvalidInputError) as error:
                self.ledger.note(f"collect: {error.code}")
                continue
            self.ledger.collected += report.deleted
            self.ledger.note(f"collected up to {report.oldest_offset}, deleted {report.deleted}")

    # The auditor.

    async def _audit_often(self) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.05, 0.5))
            await self.audit()

    async def audit(self) -> None:
        """Look at the store as it is at this moment. Nothing else runs meanwhile."""
        manifest, _ = await self.objects.load()
        ledger = self.ledger
        if manifest.oldest_offset < ledger.oldest or manifest.next_offset < ledger.next:
            raise ModelBrokenError("A2: the log went back")
        ledger.oldest, ledger.next = manifest.oldest_offset, manifest.next_offset
        await self._audit_log(manifest)
        for name, offset in ledger.cursors.items():
            if offset is not None and offset < manifest.oldest_offset:
                raise ModelBrokenError(
                    f"A3: cursor {name} stands at {offset}, the oldest is {manifest.oldest_offset}"
                )
        async for meta in self.objects.list(paths.PIN_PREFIX):
            pin = paths.pin_name(meta.key.removeprefix(f"{LOG}/"))
            if pin is not None and not self._has_expired(pin):
                await self._audit_pin(pin)
        for fork in sorted(ledger.forks):
            await self._audit_fork(LogObjects(self.ground, fork))

    async def _audit_log(self, manifest: Manifest) -> None:
        offset = manifest.oldest_offset
        for fragment in await self._fragments(tree.roots(manifest)):
            for body in self._bodies(fragment):
                expected = self.ledger.acknowledged.get(offset)
                if expected not in (None, body):
                    raise ModelBrokenError(f"A1: {expected!r} was at {offset}, now {body!r}")
                if body in self.ledger.refused or body not in self.ledger.bodies:
                    raise ModelBrokenError(f"A1: {body!r} at {offset} was never appended")
                offset += 1
        lost = [at for at in self.ledger.acknowledged if at >= offset]
        if lost or offset != manifest.next_offset:
            raise ModelBrokenError(f"A1: acknowledged behind the end: {lost[:3]}")

    async def _audit_pin(self, name: str) -> None:
        """A pin that is not proved yet may be about to be withdrawn: only its owner's count."""
        data, _ = await self.objects.store.get(self.objects.key(paths.pin(name)))
        record = decode(PinRecord, data, name)
        if not any(f"pin {name} [{record.start}, {record.limit})" in t for t in self.ledger.trace):
            return
        for fragment in await self._fragments(record.pointers):
            self._bodies(fragment)

    async def _audit_fork(self, objects: LogObjects) -> None:
        manifest, _ = await objects.load()
        shared = max((a.limit for a in manifest.ancestors if objects.name_of(a) == LOG), default=0)
        for fragment in await self._fragments(tree.roots(manifest), objects):
            for offset, body in enumerate(self._bodies(fragment, objects), fragment.start):
                expected = self.ledger.acknowledged.get(offset)
                if offset < shared and expected not in (None, body):
                    raise ModelBrokenError(f"A6: {objects.name}: {expected!r} was at {offset}")

    async def _fragments(
        self, pointers: Sequence[NodePointer | Fragment], objects: LogObjects | None = None
    ) -> list[Fragment]:
        found: list[Fragment] = []
        for pointer in pointers:
            if isinstance(pointer, NodePointer):
                node = await (objects or self.objects).read_node(pointer)
                found += await self._fragments(node.children, objects)
            else:
                found.append(pointer)
        return found

    def _bodies(self, fragment: Fragment, objects: LogObjects | None = None) -> list[bytes]:
        key = (objects or self.objects).key_of(fragment)
        entry = self.ground._objects.get(key)  # noqa: SLF001
        if entry is None:
            raise ModelBrokenError(f"A1: {key} is gone")
        if entry.etag not in self._decoded:
            table = fragments.decode(entry.data, fragment)
            self._decoded[entry.etag] = table.column("body").to_pylist()
        return self._decoded[entry.etag]

    _quiet_s = 60.0
    """So long after the last of them, everything that expires has expired."""

    async def _settle(self) -> None:
        """When all is quiet: everything can be read, and garbage is freed."""
        log, _ = self.log_of("auditor", patient=True)
        async with log.writer() as writer:
            self.ledger.bodies.add(b"last")
            self.ledger.acknowledged[await writer.append(b"last")] = b"last"
        await self.audit()
        for name, witness in (await log.cursors.list()).items():
            await log.cursors.delete(name, witness)
        self.ledger.cursors.clear()
        await self._destroy_forks(log)
        await asyncio.sleep(self._quiet_s)
        end = (await log.manifest()).next_offset
        await log.cursors.init("end", end)
        for _ in range(3):
            await log.collect(wait_s=60.0)
        await self.audit()
        manifest, _ = await self.objects.load()
        if manifest.oldest_offset != end:
            raise ModelBrokenError(f"not all was collected: {manifest.oldest_offset} of {end}")
        left = [meta.key async for meta in self.ground.list(f"{LOG}/log/")]
        passed = [k for k in left if (paths.fragment_seq_no(k) or 0) < manifest.first_seq_no]
        shards = [m.key.removeprefix(f"{LOG}/") async for m in self.ground.list(f"{LOG}/shard")]
        passed += [p for p in shards if (at := parse_fragment(p)) and at.start < end]
        if len(passed) > self._late_puts():
            raise ModelBrokenError(f"left behind: {passed[:3]} of {len(passed)}")
        if complaints := getattr(asyncio.get_running_loop(), "complaints", []):
            raise ModelBrokenError(f"unseen exceptions: {complaints[:3]}")

    async def _destroy_forks(self, log: Log) -> None:
        """Children before parents: a log that is forked cannot be destroyed."""
        self.ledger.forks.clear()
        suffix = f"/{paths.MANIFEST}"
        keys = [meta.key async for meta in self.ground.list("")]
        names = [key.removesuffix(suffix) for key in keys if key.endswith(suffix)]
        for name in sorted(names, reverse=True):
            if name != LOG:
                await Log(log.store, name, entropy=log._entropy).destroy()  # noqa: SLF001

    def _late_puts(self) -> int:
        """Slots that a dead or sleeping writer's requests may have filled after they were freed."""
        lives = sum("kill" in t or "pause" in t or "uncertain" in t for t in self.ledger.trace)
        latency = self.climate.latency
        # A request may itself be under way for longer than the grace.
        is_slow = latency.tail_probability and 4 * latency.tail_mean_s > self.climate.grace_s / 2
        is_rough = bool(self.climate.fault_rate or is_slow)
        return (lives + 10 * is_rough) * self.climate.in_flight
