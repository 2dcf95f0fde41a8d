"""Writers, readers, crashes and a faulty store against a model of a log, in simulated time.

The model gives every record appended a name of its own, whatever its body, so at any time

M1  a record whose append was acknowledged is read at the offset it was told, by every read that
    begins afterwards, with its own body; no two records were told one offset;
M2  no body is read more often than it was appended,
M3  not counting appends that failed for certain;
M4  what a read returned, every later read returns again (the log only grows);
M5  records of one writer keep the order of its calls, an atomic batch is read whole, and times
    never go back (bodies that several records share are left out here: nobody can tell which);
M6  once something else has been appended, what was uncertain can be found out, and is so; nothing
    else is read, but for what a killed writer never heard of;
M7  at the end the log opens, a scrub finds nothing, and every fragment read was verified;
M8  who waits at the end of the log is given what is appended then.

Each seed draws its own mix: number of writers, batch sizes, latencies, fault rates, kills, pauses,
clocks that go wrong, and whether all records look alike.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded, and only by a simulation
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import NamedTuple

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    CordwoodError,
    LimitError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.log.chain.options import Protocol
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.records import Record
from cordwood.log.writer import Writer
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.verdict import ModelBrokenError, judged


class Name(NamedTuple):
    """One record that was appended: by which writer, and its place in that writer's calls."""

    writer: str
    place: int


@dataclass(slots=True)
class Model:
    """What has been promised and seen."""

    bodies: dict[Name, bytes] = field(default_factory=dict)
    """Everything appended."""
    acknowledged: dict[Name, int] = field(default_factory=dict)
    refused: set[Name] = field(default_factory=set)
    uncertain: list[tuple[UncertainError, list[Name]]] = field(default_factory=list)
    groups: list[list[Name]] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def check_read(self, promised: dict[Name, int], records: list[Record]) -> None:
        """Check one whole read against what was promised before it began."""
        bodies = [record.body for record in records]
        if [record.offset for record in records] != list(range(1, len(records) + 1)):
            raise ModelBrokenError("M4: offsets are not 1, 2, 3, …")
        if len(set(promised.values())) != len(promised):
            raise ModelBrokenError("M1: two records were told one offset")
        for name, offset in promised.items():
            if bodies[offset - 1 : offset] != [self.bodies[name]]:
                raise ModelBrokenError(f"M1: {name} was promised at {offset}, is not there")
        appended = Counter(self.bodies.values())
        refused = Counter(self.bodies[name] for name in self.refused)
        for body, times in Counter(bodies).items():
            if times > appended[body]:
                raise ModelBrokenError(f"M2: {body!r} was read {times} times")
            if times > appended[body] - refused[body]:
                raise ModelBrokenError(f"M3: {body!r} failed for certain, but was read")
        if bodies[: len(self.seen)] != self.seen[: len(bodies)]:
            raise ModelBrokenError("M4: an earlier read saw something else")
        if len(bodies) > len(self.seen):
            self.seen = bodies
        self._check_order(records, appended)

    def _check_order(self, records: list[Record], appended: Counter[bytes]) -> None:
        for before, after in pairwise(records):
            if before.timestamp_us > after.timestamp_us:
                raise ModelBrokenError(f"M5: time goes back at offset {after.offset}")
        names = {body: name for name, body in self.bodies.items() if appended[body] == 1}
        places = {names[r.body]: r.offset for r in records if r.body in names}
        last: dict[str, int] = {}
        for name in places:
            if name.place <= last.get(name.writer, -1):
                raise ModelBrokenError(f"M5: {name} was appended before something read earlier")
            last[name.writer] = name.place
        for group in self.groups:
            where = [places[name] for name in group if name in places]
            if where and where != list(range(where[0], where[0] + len(group))):
                raise ModelBrokenError(f"M5: an atomic batch was split: {group[0]}")


class WrongClock(LoopClock):
    """A wall clock that is off, or stands still."""

    def __init__(self, off_us: int, *, stands: bool) -> None:
        """Off by so much; if it `stands`, for ever."""
        super().__init__()
        self._off_us = off_us
        self._stands = stands

    def now_us(self) -> int:
        """What a wrong clock says."""
        right_us = super().now_us()
        return self._off_us + (1_700_000_000_000_000 if self._stands else right_us)


@dataclass(frozen=True, slots=True)
class Weather:
    """What one seed's world is like."""

    writers: int
    seconds: float
    latency: Latency
    write_faults: dict[Fault, float]
    read_faults: dict[Fault, float]
    kills: int
    pauses: int
    pause_s: float
    deadline_s: float
    in_flight: int
    pace_s: float
    alike: bool
    """Whether all records of a moment have one body."""
    clocks_off_s: float
    """How far wall clocks may be off, either way."""
    clocks_stand: float
    """The share of wall clocks that stand still."""

    @classmethod
    def draw(cls, chance: random.Random) -> Weather:
        """A world by chance: most of them rough."""
        rate = chance.choice([0.0, 0.01, 0.05, 0.15])
        kinds = [
            Fault.ERROR_BEFORE,
            Fault.ERROR_AFTER,
            Fault.ZOMBIE,
            Fault.HANG_AFTER,
            Fault.CONFLICT,
            Fault.THROTTLED,
        ]
        return cls(
            writers=chance.choice([1, 1, 2, 2, 3]),
            seconds=chance.uniform(5, 20),
            latency=Latency(
                chance.choice([0.002, 0.02, 0.1]), chance.choice([None, 0.4]), 0.01, 2.0
            ),
            write_faults={kind: rate / len(kinds) for kind in kinds},
            read_faults={Fault.ERROR_BEFORE: rate / 2},
            kills=chance.choice([0, 1, 3]),
            pauses=chance.choice([0, 1, 2]),
            pause_s=chance.choice([1.0, 8.0, 700.0]),
            deadline_s=chance.choice([1.0, 10.0, 60.0]),
            in_flight=chance.choice([1, 3, 8]),
            pace_s=chance.choice([0.005, 0.03, 0.3]),
            alike=chance.random() < 0.3,
            clocks_off_s=chance.choice([0.0, 0.0, 5.0, 86_400.0]),
            clocks_stand=chance.choice([0.0, 0.0, 1.0, 0.5]),
        )


class LogSimulation:
    """One seed's run."""

    def __init__(
        self, seed: int, weather: Weather | None = None, protocol: Protocol = "cas"
    ) -> None:
        """Prepare; `run` does it. Writers of a chain log differ in alpha and in shards."""
        self.seed = seed
        self.protocol: Protocol = protocol
        self.shape = random.Random(f"shape-{seed}")
        self.chance = random.Random(f"weather-{seed}")
        self.weather = weather or Weather.draw(self.chance)
        self.model = Model()
        self._count = 0
        self._over = False

    def run(self) -> Model:
        """Run in simulated time and check the model.

        Raises:
            ModelBrokenError: with the seed in the message.
        """
        return judged(self.seed, self._main)

    async def _main(self) -> Model:
        weather = self.weather
        self.ground = MemoryStore(clock=LoopClock())
        self.faulty = FaultyStore(
            self.ground,
            SeededEntropy(f"faults-{self.seed}"),
            LoopClock(),
            latency=weather.latency,
            write_faults=weather.write_faults,
            read_faults=weather.read_faults,
            zombie_delay=Latency(0.3, 3.0),
        )
        log, _ = self._process("creator", deadline_s=600.0)
        await log.create(protocol=self.protocol)
        async with asyncio.TaskGroup() as group:
            for number in range(weather.writers):
                group.create_task(self._writer_life(f"w{number}"))
            group.create_task(self._reader_life())
            group.create_task(self._end())
        self.faulty.heal()
        await self.faulty.drain()
        await self._audit()
        return self.model

    async def _end(self) -> None:
        await asyncio.sleep(self.weather.seconds)
        self._over = True

    def _process(self, name: str, deadline_s: float | None = None) -> tuple[Log, Door]:
        entropy = SeededEntropy(f"{name}-{self.seed}-{self._count}")
        door = Door(self.faulty)
        store = RetryingStore(
            door,
            LoopClock(),
            entropy,
            deadline_s=deadline_s or self.weather.deadline_s,
            attempt_s=5.0,
        )
        off_us = int((2 * entropy.uniform() - 1) * self.weather.clocks_off_s * 1_000_000)
        clock = WrongClock(off_us, stands=entropy.uniform() < self.weather.clocks_stand)
        log = Log(Store.over(store, "sim:"), "log", clock=clock, entropy=entropy)
        return log, door

    # Writers.

    async def _writer_life(self, name: str) -> None:
        """Process after process under one name: each appends until it ends, is killed or fails."""
        kills, pauses, life = self.weather.kills, self.weather.pauses, 0
        while not self._over:
            life += 1
            log, door = self._process(f"{name}.{life}")
            options = Options(
                batch_bytes=self.chance.choice([60, 400, 8_000_000]),
                in_flight=self.weather.in_flight,
                alpha=self.shape.choice([1, 2, 4, 4, 16]),
                shards=self.shape.choice([None, 1, 3, 12]),
            )
            writer = log.writer(options=options)
            work = asyncio.ensure_future(self._append_all(writer, f"{name}.{life}"))
            if kills and self.chance.random() < 0.7:
                kills -= 1
                await self._wait(work, self.chance.uniform(0, self.weather.seconds / 3))
                door.shut()
                self.model.note(f"kill {name}.{life}")
                work.cancel()
                await asyncio.wait([work])
            elif pauses:
                pauses -= 1
                await self._wait(work, self.chance.uniform(0, self.weather.seconds / 3))
                door.shut()
                self.model.note(f"pause {name}.{life}")
                await asyncio.sleep(self.weather.pause_s)
                door.reopen()
                await asyncio.wait([work])
            else:
                await asyncio.wait([work])
            if not work.cancelled() and (error := work.exception()) is not None:
                raise error

    async def _wait(self, work: asyncio.Future[None], seconds: float) -> None:
        await asyncio.wait([work], timeout=seconds)

    async def _append_all(self, writer: Writer, name: str) -> None:
        try:
            await writer.open()
        except CordwoodError as error:
            self.model.note(f"{name} cannot open: {error.code}")
            await asyncio.sleep(1.0)
            return
        answers: set[asyncio.Task[None]] = set()
        place = 0
        until = self.chance.uniform(0, self.weather.seconds)
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not self._over and loop.time() - started < until:
            names = [
                self._append(name, place + i) for i in range(self.chance.choice([1, 1, 1, 2, 5]))
            ]
            place += len(names)
            bodies = [self.model.bodies[n] for n in names]
            try:
                if len(bodies) == 1:
                    future = writer.append(bodies[0])
                else:
                    self.model.groups.append(names)
                    future = writer.append_many(bodies)
            except (LimitError, StateError):
                self.model.refused.update(names)
                await asyncio.sleep(0.1)
                continue
            answers.add(asyncio.ensure_future(self._answer(future, names)))
            if self.chance.random() < 0.7:
                await asyncio.sleep(self.chance.expovariate(1 / self.weather.pace_s))
        await writer.close()
        if answers:
            await asyncio.wait(answers)
            for answer in answers:
                answer.result()

    def _append(self, writer: str, place: int) -> Name:
        """A new record, known to the model."""
        self._count += 1
        name = Name(writer, place)
        body = b"same" if self.weather.alike else f"{writer}:{place}:{self._count}".encode()
        self.model.bodies[name] = body
        return name

    async def _answer(self, future: asyncio.Future[int], names: list[Name]) -> None:
        first = names[0]
        try:
            offset = await future
        except UncertainError as error:
            self.model.note(f"{first} uncertain")
            self.model.uncertain.append((error, names))
        except StoreError as error:
            self.model.note(f"{first} failed: {error.code}")
            self.model.refused.update(names)
        else:
            self.model.note(f"{first} acknowledged at {offset}")
            self.model.acknowledged.update(zip(names, count(offset), strict=False))

    # Readers.

    async def _reader_life(self) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.1, 3.0))
            await self._read_all()

    async def _read_all(self, deadline_s: float | None = None) -> None:
        log, _ = self._process("reader", deadline_s)
        promised = dict(self.model.acknowledged)
        try:
            async with log.reader() as reader:
                records = [record async for record in reader.read()]
        except StoreError as error:
            self.model.note(f"read failed: {error.code}")
            return
        self.model.note(f"read {len(records)}")
        self.model.check_read(promised, records)

    async def _tail(self, log: Log, tailed: list[bytes]) -> None:
        """Wait for records; not for ever, or nobody would notice that nothing goes on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(600.0), log.reader() as reader:
                async for record in reader.tail():
                    tailed += [record.body]

    async def _append_last(self, log: Log) -> list[bytes]:
        """One more record; what was seen by somebody who waited for it."""
        tailed: list[bytes] = []
        waiting, _ = self._process("tailer", deadline_s=600.0)
        tailing = asyncio.ensure_future(self._tail(waiting, tailed))
        await asyncio.sleep(5.0)
        async with log.writer() as writer:
            last = self._append("auditor", 0)
            self.model.acknowledged[last] = await writer.append(self.model.bodies[last])
        await asyncio.sleep(30.0)
        tailing.cancel()
        await asyncio.wait([tailing])
        return tailed

    async def _audit(self) -> None:
        log, _ = self._process("auditor", deadline_s=600.0)
        tailed = await self._append_last(log)
        await self._read_all(deadline_s=600.0)
        if not tailed or tailed != self.model.seen[-len(tailed) :]:
            raise ModelBrokenError(f"M8: who waited at the end saw {tailed}")
        known = dict(self.model.acknowledged)
        for error, names in self.model.uncertain:
            offset = await log.find_write(error)
            if offset is not None:
                known.update(zip(names, count(offset), strict=False))
        doubtful = sum(len(names) for _, names in self.model.uncertain)
        answered = len(self.model.acknowledged) + len(self.model.refused) + doubtful
        # A killed writer's appends were never answered: they may be there or not.
        others = len(self.model.seen) - len(known)
        if len(set(known.values())) < len(known) or others > len(self.model.bodies) - answered:
            raise ModelBrokenError(f"M6: {len(self.model.seen)} were read, {len(known)} are known")
        if any(self.model.seen[offset - 1] != self.model.bodies[n] for n, offset in known.items()):
            raise ModelBrokenError("M6: something is not where it was found")
        # A deep scrub decodes in threads, which the loop refuses; the reads above verified it all.
        report = await log.scrub(deep=False)
        if not report.ok or report.records != len(self.model.seen):
            raise ModelBrokenError(f"M7: scrub: {[str(e) for e in report.errors]} {report.records}")
        loop = asyncio.get_running_loop()
        if complaints := getattr(loop, "complaints", []):
            raise ModelBrokenError(f"unseen exceptions: {complaints[:3]}")
