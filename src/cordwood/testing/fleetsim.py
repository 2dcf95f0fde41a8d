"""Members, compactors, roll-ups, crashes and a faulty store against the promise of dirty logs.

A watcher stands directly at the store. After every put it checks, without any time passing:

F1  a log with records behind its compaction cursor (and behind what was purged) has a mark in some
    member's dirty log, at or behind the cursor there;
F2  nothing of a dirty log is collected that its cursor has not passed.

At the end, when nothing goes wrong any more:

F3  a survey finds the logs that need compaction (but for what only a damaged part marks);
F4  once all is compacted, a few roll-ups leave no mark (unless part of a dirty log is damaged);
F5  every record that was acknowledged is in its log.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded, and only by a simulation
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import CordwoodError, NotFoundError
from cordwood.fleet.dirty import COMPACTION, PREFIX, STABLE_PREFIX, dirty_name
from cordwood.fleet.fleet import Fleet
from cordwood.fleet.marks import Mark, decode
from cordwood.fleet.survey import members, survey
from cordwood.log import fragment as fragments
from cordwood.log import paths, tree
from cordwood.log.cursors import CursorRecord
from cordwood.log.format import Manifest
from cordwood.log.format import decode as decode_document
from cordwood.log.log import Log
from cordwood.log.objects import LogObjects
from cordwood.log.options import Options
from cordwood.store.api import Buffer, Meta, Object, ObjectStore, PutMode
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.verdict import ModelBrokenError, judged

FACTS = {
    paths.MANIFEST: "manifest",
    paths.cursor(COMPACTION): "compaction",
    paths.cursor(STABLE_PREFIX): "stable",
}
"""The objects of a log that the watcher looks at, besides its slots."""


@dataclass(slots=True)
class _Said:
    """What the watcher knows of one dirty log."""

    cursor: int = 1
    by_slot: dict[str, list[tuple[int, Mark]]] = field(default_factory=dict)
    """Everything ever put, by its path: damage does not make the watcher forget."""
    named: dict[int, Mark] = field(default_factory=dict)
    """By offset."""
    read_to: int = 1


class Watcher:
    """A store that checks the promise after every put."""

    def __init__(self, inner: ObjectStore) -> None:
        """Nothing seen yet."""
        self._inner = inner
        self.limits: dict[str, int] = {}
        """Next offsets of the logs."""
        self.cursors: dict[str, int] = {}
        """Their compaction cursors."""
        self.purged: Counter[str] = Counter()
        """Up to where somebody said that they need no compaction."""
        self.said: dict[str, _Said] = {}
        """By the name of the dirty log."""

    async def get(self, key: str) -> Object:
        """As the store's; so are the others."""
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Part of an object."""
        return await self._inner.get_range(key, start, length)

    async def head(self, key: str) -> Meta:
        """Size, etag and time."""
        return await self._inner.head(key)

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write an object, then look whether the promise holds."""
        etag = await self._inner.put(key, data, mode)
        if key.startswith(PREFIX):
            await self._see_dirty(key, bytes(data))
        else:
            self._see_log(key, bytes(data))
        return etag

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        await self._inner.delete(keys)

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """List objects."""
        return self._inner.list(prefix, start_after)

    async def sync(self, keys: Iterable[str]) -> None:
        """Make objects durable."""
        await self._inner.sync(keys)

    async def damage(self, key: str) -> None:
        """Spoil an object behind everybody's back."""
        await self._inner.put(key, b"spoiled")

    def is_dirty(self, log: str) -> bool:
        """Whether a log needs compaction."""
        return self.limits[log] > max(self.cursors.get(log, 1), self.purged[log])

    def _see_log(self, key: str, data: bytes) -> None:
        log, _, path = key.partition("/")
        kind = FACTS.get(path)
        if kind == "manifest":
            self.limits[log] = decode_document(Manifest, data, key).next_offset
            self._check(log)
        elif kind == "compaction":
            self.cursors[log] = decode_document(CursorRecord, data, key).position.offset

    async def _see_dirty(self, key: str, data: bytes) -> None:
        member = key.split("/")[1]
        name = dirty_name(member)
        path = key.removeprefix(f"{name}/")
        said = self.said.setdefault(name, _Said())
        kind = FACTS.get(path)
        if path.startswith("log/"):
            table, _ = fragments.inspect(data, key)
            rows = zip(table["offset"].to_pylist(), table["body"].to_pylist(), strict=True)
            said.by_slot[path] = [(offset, decode(body, key)) for offset, body in rows]
        elif kind == "manifest":
            await self._see_named(name, said, decode_document(Manifest, data, key))
        elif kind == "stable":
            said.cursor = decode_document(CursorRecord, data, key).position.offset
            for log in self.limits:
                self._check(log)

    async def _see_named(self, name: str, said: _Said, manifest: Manifest) -> None:
        if manifest.oldest_offset > said.cursor:
            raise ModelBrokenError(f"F2: {name} is collected beyond its cursor {said.cursor}")
        objects = LogObjects(self._inner, name)
        roots = tree.roots(manifest)
        async for fragment in objects.walk(roots, said.read_to, manifest.next_offset):
            for offset, mark in said.by_slot[fragment.path]:
                said.named[offset] = mark
                if mark.is_purge:
                    self.purged[mark.log] = max(self.purged[mark.log], mark.offset)
        said.read_to = manifest.next_offset

    def _check(self, log: str) -> None:
        if not self.is_dirty(log):
            return
        for said in self.said.values():
            if any(m.log == log and o >= said.cursor for o, m in said.named.items()):
                return
        raise ModelBrokenError(
            f"F1: {log} ends at {self.limits[log]}, is compacted to {self.cursors.get(log, 1)}, "
            f"purged to {self.purged[log]}, and nobody has marked it"
        )


@dataclass(frozen=True, slots=True)
class FleetWeather:
    """What one seed's world is like."""

    members: int
    logs: int
    seconds: float
    latency: Latency
    fault_rate: float
    deadline_s: float
    kills: float
    """How likely a life ends in a kill."""
    pauses: float
    pause_s: float
    quiet_s: float
    purges: float
    damage: bool

    @classmethod
    def draw(cls, chance: random.Random) -> FleetWeather:
        """A world by chance: most of them rough."""
        return cls(
            members=chance.choice([1, 2, 2, 3]),
            logs=chance.choice([1, 2, 5]),
            seconds=chance.uniform(10, 40),
            latency=Latency(chance.choice([0.002, 0.02, 0.1]), chance.choice([None, 0.4])),
            fault_rate=chance.choice([0.0, 0.0, 0.02, 0.08]),
            deadline_s=chance.choice([1.0, 10.0, 60.0]),
            kills=chance.choice([0.0, 0.4, 0.8]),
            pauses=chance.choice([0.0, 0.3]),
            pause_s=chance.choice([3.0, 100.0, 900.0]),
            quiet_s=chance.choice([0.0, 0.0, 2.0]),
            purges=chance.choice([0.0, 0.02]),
            damage=chance.random() < 0.2,
        )


class FleetSimulation:
    """One seed's run."""

    def __init__(self, seed: int, weather: FleetWeather | None = None) -> None:
        """Prepare; `run` does it."""
        self.seed = seed
        self.chance = random.Random(f"fleet-{seed}")
        self.weather = weather or FleetWeather.draw(self.chance)
        self.acknowledged: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        """What happened how often: a run in which nothing happens proves nothing."""
        self.trace: list[str] = []
        self._lives = 0
        self._damaged: dict[str, set[int]] = {}
        """What can be read no more of each dirty log."""
        self._broken: list[ModelBrokenError] = []
        self._over = False

    def run(self) -> FleetSimulation:
        """Run in simulated time.

        Raises:
            ModelBrokenError: with the seed in the message.
        """
        judged(self.seed, self._main)
        if self._broken:
            raise ModelBrokenError(f"seed {self.seed}: {self._broken[0]}")
        return self

    async def _main(self) -> None:
        weather = self.weather
        self.watcher = Watcher(MemoryStore(clock=LoopClock()))
        kinds = [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.ZOMBIE, Fault.HANG_AFTER]
        self.faulty = FaultyStore(
            _Reporting(self.watcher, self._broken),
            SeededEntropy(f"faults-{self.seed}"),
            LoopClock(),
            latency=weather.latency,
            write_faults={kind: weather.fault_rate / len(kinds) for kind in kinds},
            read_faults={Fault.ERROR_BEFORE: weather.fault_rate / 2},
            zombie_delay=Latency(0.3, 3.0),
        )
        async with asyncio.TaskGroup() as group:
            for number in range(weather.members):
                group.create_task(self._lifetimes(f"m{number}", self._write_all))
            group.create_task(self._lifetimes("roller", self._roll_all))
            group.create_task(self._lifetimes("compactor", self._compact_all))
            if weather.damage:
                group.create_task(self._damage())
            group.create_task(self._end())
        self.faulty.heal()
        await self.faulty.drain()
        if not self._broken:
            await self._audit()

    async def _end(self) -> None:
        await asyncio.sleep(self.weather.seconds)
        self._over = True

    # Processes.

    def _fleet(self, member: str, door: Door, deadline_s: float | None = None) -> Fleet:
        self._lives += 1
        entropy = SeededEntropy(f"{member}-{self.seed}-{self._lives}")
        deadline_s = deadline_s or self.weather.deadline_s
        store = RetryingStore(door, LoopClock(), entropy, deadline_s=deadline_s, attempt_s=5.0)
        return Fleet(
            Store.over(store, "sim:"),
            member,
            create=True,
            options=Options(batch_bytes=self.chance.choice([60, 8_000_000])),
            max_open=self.chance.choice([1, 2, 100]),
            idle_s=self.chance.choice([0.1, 2.0]),
            clock=LoopClock(),
            entropy=entropy,
        )

    async def _lifetimes(self, name: str, live: Any) -> None:
        """Process after process under one name: each works until it ends, or is killed."""
        while not self._over and not self._broken:
            door = Door(self.faulty)
            work = asyncio.ensure_future(live(self._fleet(name, door)))
            fate = self.chance.random()
            await asyncio.wait([work], timeout=self.chance.uniform(0, self.weather.seconds / 3))
            if fate < self.weather.kills:
                self._note(f"kill {name}")
                door.shut()
                work.cancel()
            elif fate < self.weather.kills + self.weather.pauses:
                self._note(f"pause {name}")
                door.shut()
                await asyncio.sleep(self.weather.pause_s)
                door.reopen()
            # A process that was killed has tasks of its own; behind a shut door they wait for ever.
            await asyncio.wait([work], timeout=600.0)
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                raise error

    def _note(self, event: str) -> None:
        self.events[event.split(maxsplit=1)[0]] += 1
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def _some_log(self) -> str:
        return f"log-{self.chance.randrange(self.weather.logs)}"

    async def _write_all(self, fleet: Fleet) -> None:
        until_s = asyncio.get_running_loop().time() + self.chance.uniform(0, self.weather.seconds)
        answers: list[asyncio.Future[None]] = []
        while not self._over and asyncio.get_running_loop().time() < until_s:
            if self.chance.random() < self.weather.purges:
                await self._try(fleet.purge(self._some_log()), "purge")
            answers.append(asyncio.ensure_future(self._append(fleet, self._some_log())))
            await asyncio.sleep(self.chance.expovariate(1 / self.chance.choice([0.05, 1.0])))
        await asyncio.gather(*answers)
        await fleet.close()

    async def _append(self, fleet: Fleet, log: str) -> None:
        if await self._try(fleet.append(log, b"x"), f"append {log}"):
            self.acknowledged[log] += 1

    async def _roll_all(self, fleet: Fleet) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.01, 2.0))
            member = f"m{self.chance.randrange(self.weather.members)}"
            work = fleet.roll_up(
                member,
                quiet_s=self.weather.quiet_s,
                max_marks=self.chance.choice([1, 10, 1_000]),
                collect=self.chance.random() < 0.3,
            )
            await self._try(work, "roll")
        await fleet.close()

    async def _compact_all(self, fleet: Fleet) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.01, 1.0))
            log = Log(fleet.store, self._some_log(), clock=LoopClock())
            await self._try(self._compact(log), "compact")

    async def _compact(self, log: Log, *, whole: bool = False) -> None:
        """Move a log's compaction cursor on, most often to its end."""
        limit = (await log.manifest()).next_offset
        try:
            witness = await log.cursors.load(COMPACTION)
        except NotFoundError:
            witness = await log.cursors.init(COMPACTION, 1)
        if whole or self.chance.random() < 0.7:
            to = limit
        else:
            to = self.chance.randrange(witness.offset, limit + 1)
        await log.cursors.save(COMPACTION, max(to, witness.offset), witness)

    async def _damage(self) -> None:
        """Spoil a fragment of a dirty log that no roll-up has read yet."""
        await asyncio.sleep(self.chance.uniform(0, self.weather.seconds / 2))
        for name, said in self.watcher.said.items():
            for path, rows in said.by_slot.items():
                if rows and rows[0][0] >= said.cursor and rows[0][0] in said.named:
                    await self.watcher.damage(f"{name}/{path}")
                    self._damaged[name] = {offset for offset, _ in rows}
                    self._note(f"damage {name}")
                    return

    async def _try(self, work: Coroutine[Any, Any, Any], event: str) -> bool:
        try:
            await work
        except CordwoodError as error:
            self._note(f"{event} failed: {error.code}")
            return False
        self._note(event)
        return True

    # At the end.

    def _only_in_damage(self, logs: set[str]) -> set[str]:
        """Those whose every mark was in a part that is damaged: nobody can know of them."""
        legible = {
            mark.log
            for name, said in self.watcher.said.items()
            for offset, mark in said.named.items()
            if offset >= said.cursor and offset not in self._damaged.get(name, ())
        }
        return logs - legible if self._damaged else set()

    async def _audit(self) -> None:
        fleet = self._fleet("auditor", Door(self.faulty), deadline_s=600.0)
        store, watcher = fleet.store, self.watcher
        found = {one.log for one in (await survey(store)).dirty}
        needed = {log for log in watcher.limits if watcher.is_dirty(log)}
        needed -= self._only_in_damage(needed)
        # What was purged is found again once the log is written again.
        if not needed <= found:
            raise ModelBrokenError(f"F3: {needed - found} need compaction and were not found")
        for log, count in self.acknowledged.items():
            if watcher.limits[log] <= count:
                raise ModelBrokenError(f"F5: {log} has lost something")
            await self._compact(Log(store, log, clock=LoopClock()), whole=True)
        for log in watcher.limits:
            with suppress(NotFoundError):
                await self._compact(Log(store, log, clock=LoopClock()), whole=True)
        for member in await members(store):
            if dirty_name(member) in self._damaged:
                continue
            await fleet.roll_up(member, quiet_s=0.0)
            report = await fleet.roll_up(member, quiet_s=0.0)
            if report.marks or report.dirty or report.errors:
                raise ModelBrokenError(f"F4: {member} still has {report}")
        await fleet.close()


class _Reporting:
    """Keeps what the watcher finds: between it and the model stand layers that retry errors."""

    def __init__(self, watcher: Watcher, broken: list[ModelBrokenError]) -> None:
        self._watcher = watcher
        self._broken = broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watcher, name)

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write; remember what is wrong."""
        try:
            return await self._watcher.put(key, data, mode)
        except ModelBrokenError as error:
            self._broken.append(error)
            raise
