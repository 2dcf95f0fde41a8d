"""Writers, readers, crashes and a faulty store against a model of a log, in simulated time.

The model is a dictionary: every record appended has a body of its own, so at any time

M1  a record whose append was acknowledged is read at the offset it was told, by every read that
    begins afterwards, with its own body;
M2  no body is read twice;
M3  a record whose append failed for certain is never read;
M4  what a read returned, every later read returns again (the log only grows);
M5  records of one writer keep the order of its calls, and an atomic batch is read whole;
M6  once something else has been appended, what was uncertain can be found out, and is so;
M7  at the end the log opens, a scrub finds nothing, and every fragment read was verified.

Each seed draws its own mix: number of writers, batch sizes, latencies, fault rates, kills and
pauses.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded, and only by a simulation
from dataclasses import dataclass, field

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    CordwoodError,
    LimitError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.records import Record
from cordwood.log.writer import Writer
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.simloop import simulate


class ModelBrokenError(AssertionError):
    """The log did something the model does not allow."""


@dataclass(slots=True)
class Model:
    """What has been promised and seen."""

    acknowledged: dict[bytes, int] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    appended: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Each body, with its writer and its place in that writer's calls."""
    uncertain: list[tuple[UncertainError, list[bytes]]] = field(default_factory=list)
    groups: list[list[bytes]] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def note(self, event: str) -> None:
        """Add to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def check_read(self, promised: dict[bytes, int], records: list[Record]) -> None:
        """Check one whole read against what was promised before it began."""
        bodies = [record.body for record in records]
        places = {record.body: record.offset for record in records}
        if len(places) != len(bodies):
            twice = sorted({b for b in bodies if bodies.count(b) > 1})
            raise ModelBrokenError(f"M2: read twice: {twice[:3]}")
        for body, offset in promised.items():
            if places.get(body) != offset:
                raise ModelBrokenError(
                    f"M1: {body!r} was promised at {offset}, is at {places.get(body)}"
                )
        if wrong := self.refused & places.keys():
            raise ModelBrokenError(f"M3: failed for certain, but read: {sorted(wrong)[:3]}")
        if bodies[: len(self.seen)] != self.seen[: len(bodies)]:
            raise ModelBrokenError("M4: an earlier read saw something else")
        if len(bodies) > len(self.seen):
            self.seen = bodies
        if [record.offset for record in records] != list(range(1, len(records) + 1)):
            raise ModelBrokenError("M4: offsets are not 1, 2, 3, …")
        last: dict[str, int] = {}
        for body in bodies:
            writer, place = self.appended[body]
            if place <= last.get(writer, -1):
                raise ModelBrokenError(f"M5: {body!r} was appended before something read earlier")
            last[writer] = place
        for group in self.groups:
            where = [places[b] for b in group if b in places]
            if where and where != list(range(where[0], where[0] + len(group))):
                raise ModelBrokenError(f"M5: an atomic batch was split: {group[0]!r}")


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
        )


class LogSimulation:
    """One seed's run."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        """Prepare; `run` does it."""
        self.seed = seed
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
        try:
            return simulate(self.seed, self._main)
        except ModelBrokenError as error:
            raise ModelBrokenError(f"seed {self.seed}: {error}") from error
        except BaseExceptionGroup as group:
            broken, _ = group.split(ModelBrokenError)
            if broken is None:
                raise
            first: BaseException = broken
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise ModelBrokenError(f"seed {self.seed}: {first}") from group

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
        await log.create()
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
        log = Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)
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
            bodies = []
            for _ in range(self.chance.choice([1, 1, 1, 2, 5])):
                self._count += 1
                bodies.append(f"{name}:{place}:{self._count}".encode())
                self.model.appended[bodies[-1]] = (name, place)
                place += 1
            try:
                if len(bodies) == 1:
                    future = writer.append(bodies[0])
                else:
                    self.model.groups.append(bodies)
                    future = writer.append_many(bodies)
            except (LimitError, StateError):
                self.model.refused.update(bodies)
                await asyncio.sleep(0.1)
                continue
            answers.add(asyncio.ensure_future(self._answer(future, bodies, name)))
            if self.chance.random() < 0.7:
                await asyncio.sleep(self.chance.expovariate(1 / self.weather.pace_s))
        await writer.close()
        if answers:
            await asyncio.wait(answers)
            for answer in answers:
                answer.result()

    async def _answer(self, future: asyncio.Future[int], bodies: list[bytes], name: str) -> None:
        try:
            offset = await future
        except UncertainError as error:
            self.model.note(f"{name} uncertain {bodies[0]!r}")
            self.model.uncertain.append((error, bodies))
        except StoreError as error:
            self.model.note(f"{name} failed {bodies[0]!r}: {error.code}")
            self.model.refused.update(bodies)
        else:
            self.model.note(f"{name} acknowledged {bodies[0]!r} at {offset}")
            for i, body in enumerate(bodies):
                self.model.acknowledged[body] = offset + i

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

    async def _audit(self) -> None:
        log, _ = self._process("auditor", deadline_s=600.0)
        async with log.writer() as writer:
            self.model.appended[b"last"] = ("auditor", 0)
            self.model.acknowledged[b"last"] = await writer.append(b"last")
        await self._read_all(deadline_s=600.0)
        if len(self.model.seen) < len(self.model.acknowledged):
            raise ModelBrokenError("M1: fewer records than were acknowledged")
        seen = set(self.model.seen)
        for error, bodies in self.model.uncertain:
            if (await log.find_write(error) is not None) != (seen >= set(bodies)):
                raise ModelBrokenError(f"M6: {bodies[0]!r}: {error} is not where it was found")
        # A deep scrub decodes in threads, which the loop refuses; the reads above verified it all.
        report = await log.scrub(deep=False)
        if not report.ok or report.records != len(self.model.seen):
            raise ModelBrokenError(f"M7: scrub: {[str(e) for e in report.errors]} {report.records}")
        loop = asyncio.get_running_loop()
        if complaints := getattr(loop, "complaints", []):
            raise ModelBrokenError(f"unseen exceptions: {complaints[:3]}")
