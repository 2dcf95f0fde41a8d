"""Collectors, writers, cursors, pins and readers on one log, in simulated time, with an auditor.

The auditor stands at the store and looks at every delete and every new manifest, when it happens:

C1  nothing that the manifest, or one that was current within the grace interval, refers to is
    deleted;
C2  no manifest begins behind a cursor that holds (a save that succeeded; a move that is under way
    may have happened or not);
C3  nothing that a pin holds is deleted before it was released, or could have expired;
C4  a slot is deleted only if no manifest can name it any more;
C5  a read that begins at a cursor, of a pin, or that ends within the grace interval, succeeds and
    gives what was written; later ones fail with CollectedError at worst;
C6  in the end a collection gets through, the log is whole, and what is left in the store is what
    the log names, but for a few nodes that nobody named;
C7  of a chain, the newest manifest is the one that whoever saw every put takes for it.

Each seed draws latencies, faults, kills, and how many of each there are.
"""

from __future__ import annotations

import asyncio
import json
import random  # noqa: TID251 - seeded, and only by a simulation
from collections.abc import Iterable
from typing import Any, NamedTuple

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ConflictError,
    FormatError,
    NotFoundError,
    StateError,
    StoreError,
)
from cordwood.log import paths
from cordwood.log.chain.chain import write_id
from cordwood.log.chain.document import ChainLink, Known, walk
from cordwood.log.chain.names import manifest_index, parse_fragment
from cordwood.log.chain.options import Protocol
from cordwood.log.cursors import Witness
from cordwood.log.format import Manifest, decode, encode
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.reader import Limits
from cordwood.store.api import Buffer, PutMode
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.verdict import ModelBrokenError, judged

NAME = "log"
FAULTS = (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.ZOMBIE, Fault.HANG_AFTER, Fault.THROTTLED)


class PinHeld(NamedTuple):
    """What a pin promises, and until when at least."""

    needed: frozenset[str]
    until_s: float


class AuditedStore(MemoryStore):
    """The ground of a simulated world: it knows what must stay."""

    def __init__(self, grace_s: float) -> None:
        """Empty."""
        super().__init__(clock=LoopClock())
        self.grace_s = grace_s
        self.cursors: dict[str, int] = {}
        """Positions that hold."""
        self.pins: dict[object, PinHeld] = {}
        self._nodes: dict[str, frozenset[str]] = {}
        self._current: frozenset[str] = frozenset()
        self._past: list[tuple[float, frozenset[str]]] = []
        self.first_seq_no = self.oldest = 1
        self.links: dict[int, ChainLink] = {}
        """Of a chain: every manifest there ever was."""
        self._writes: dict[int, str] = {}
        self._manifests: dict[int, Manifest] = {}
        self._known: Known | None = None
        self.deleted = 0
        self.broken: list[str] = []
        """What was found wrong, also where whoever did it passes the error over."""

    def _break(self, what: str) -> ModelBrokenError:
        self.broken.append(what)
        return ModelBrokenError(what)

    def needed(self, pointers: Iterable[dict[str, Any]]) -> frozenset[str]:
        """The keys of everything below pointers."""
        found: set[str] = set()
        for pointer in pointers:
            path = str(pointer.get("path") or pointer["path_to_snapshot"])
            found.add(f"{NAME}/{path}")
            if path.startswith("snapshot/"):
                found |= self._below(path)
        return frozenset(found)

    def needed_by_pin(self, name: str) -> frozenset[str]:
        """The keys of everything that a pin holds."""
        versions = f"{NAME}/pin/{name}/"
        newest = min((key for key in self._objects if key.startswith(versions)), default="")
        record = json.loads(self._objects[newest or f"{NAME}/pin/{name}.json"].data)
        return self.needed(record["before"] + record["nodes"] + record["after"])

    def _below(self, path: str) -> frozenset[str]:
        if path not in self._nodes:
            entry = self._objects.get(f"{NAME}/{path}")
            if entry is None:
                raise self._break(f"C1: {path} is named and does not exist")
            node = json.loads(entry.data)
            self._nodes[path] = self.needed(node["snapshots"] + node["fragments"])
        return self._nodes[path]

    async def put(self, key: str, data: Buffer, mode: PutMode = "overwrite") -> str:
        """Write the object; a manifest is audited."""
        etag = await super().put(key, data, mode)
        index = manifest_index(key.removeprefix(f"{NAME}/"))
        if index is not None:
            self._audit_chain(index, decode(Manifest, bytes(data), key))
        elif key == f"{NAME}/{paths.MANIFEST}" and self._known is None:
            self._audit_manifest(json.loads(bytes(data)))
        return etag

    def _audit_chain(self, index: int, manifest: Manifest) -> None:
        """A manifest of a chain counts when everything before it is there.

        What was first under a name is what counts; a request that comes so late that the name had
        been freed puts something there that nobody believes in.
        """
        if index in self.links or manifest.chain is None:
            return
        self.links[index], self._writes[index] = manifest.chain, write_id(manifest)
        self._manifests[index] = manifest
        before = self._known or Known(0, self._writes[index], 1)
        self._known = walk(before, self.links, self._writes)
        if self._known != before or index == 0:
            self._audit_manifest(json.loads(encode(self._manifests[self._known.index])))

    @property
    def newest(self) -> str:
        """The newest manifest of a chain, by its etag; empty if this is none."""
        return f"{self._known.index:x}.{self._known.write}" if self._known else ""

    def _audit_manifest(self, manifest: dict[str, Any]) -> None:
        now_s = self._clock.monotonic_s()
        pointers = manifest["snapshots"] + manifest["fragments"]
        self._past = [(t, n) for t, n in self._past if now_s - t < self.grace_s]
        self._past.append((now_s, self._current))
        self._current = self.needed(pointers)
        missing = [key for key in self._current if key not in self._objects]
        if missing:
            raise self._break(f"C1: a manifest names {missing[:2]}, not there")
        self.first_seq_no = manifest.get("initial_seq_no", 1)
        self.oldest = oldest = manifest.get("initial_offset", {"offset": 1})["offset"]
        late = {name: at for name, at in self.cursors.items() if at < oldest}
        if late:
            raise self._break(f"C2: the log begins at {oldest}, behind {late}")

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; each is audited."""
        now_s = self._clock.monotonic_s()
        keys = list(keys)
        for key in keys:
            if key not in self._objects:
                continue
            self.deleted += 1
            if key in self._current:
                raise self._break(f"C1: {key} is deleted, and the manifest names it")
            if any(key in n for t, n in self._past if now_s - t < self.grace_s):
                raise self._break(f"C1: {key} is deleted within the grace interval")
            if any(key in p.needed and now_s <= p.until_s for p in self.pins.values()):
                raise self._break(f"C3: {key} is deleted, and a pin holds it")
            number = paths.fragment_seq_no(key)
            if number is not None and number >= self.first_seq_no:
                raise self._break(f"C4: slot {number} is deleted, it may be named yet")
            name = parse_fragment(key.removeprefix(f"{NAME}/"))
            if name is not None and name.start >= self.oldest:
                raise self._break(f"C4: {key} is deleted, it may be named yet")
        await super().delete(keys)

    def leftovers(self) -> list[str]:
        """Fragments and nodes that the log does not name, and nobody will."""
        named = [paths.fragment_seq_no(key) or 0 for key in self._current]
        last = max([*named, self.first_seq_no - 1])
        return [
            key
            for key in self._objects
            if key not in self._current
            and key.startswith((f"{NAME}/log/", f"{NAME}/snapshot/"))
            and (paths.fragment_seq_no(key) or 0) <= last
        ]


class CollectSimulation:
    """One seed's run."""

    def __init__(self, seed: int, *, faults: bool = True, protocol: Protocol = "cas") -> None:
        """Prepare; `run` does it."""
        self.seed = seed
        self.protocol: Protocol = protocol
        self.shape = random.Random(f"shape-{seed}")
        self.chance = chance = random.Random(f"collect-{seed}")
        self.grace_s = chance.choice([2, 10, 60])
        self.seconds = chance.uniform(2, 6) * self.grace_s
        self.rate = chance.choice([0.0, 0.0, 0.02, 0.08]) if faults else 0.0
        self.pace_s = chance.choice([0.02, 0.1]) * self.grace_s / 5
        self.kills = chance.choice([0, 2, 6])
        self.latency = Latency(
            chance.choice([0.001, 0.01, 0.05]), chance.choice([None, 0.5]), 0.02, 1.0
        )
        self.bodies: dict[int, bytes] = {}
        self.collections = 0
        self.trace: list[str] = []
        self._count = 0
        self._over = False

    def run(self) -> CollectSimulation:
        """Run in simulated time.

        Raises:
            ModelBrokenError: with the seed in the message.
        """
        # What somebody finds missing or damaged is a finding, too.
        return judged(self.seed, self._main, FormatError)

    async def _main(self) -> CollectSimulation:
        self.ground = AuditedStore(self.grace_s)
        chances = {fault: self.rate / len(FAULTS) for fault in FAULTS}
        self.faulty = FaultyStore(
            self.ground,
            SeededEntropy(f"faults-{self.seed}"),
            LoopClock(),
            latency=self.latency,
            write_faults=chances,
            read_faults={Fault.ERROR_BEFORE: self.rate / 2},
            zombie_delay=Latency(0.3, 3.0),
        )
        log, _ = self._process("creator")
        await log.create(grace_s=self.grace_s, protocol=self.protocol)
        async with asyncio.TaskGroup() as group:
            for number in range(self.chance.choice([1, 1, 2])):
                group.create_task(self._writer_life(f"w{number}"))
            for number in range(self.chance.choice([1, 2, 3])):
                group.create_task(self._cursor_life(f"c{number}"))
            for number in range(self.chance.choice([0, 1, 2])):
                group.create_task(self._pin_life(f"p{number}"))
            for number in range(2):
                group.create_task(self._collector_life(f"gc{number}"))
            group.create_task(self._reader_life())
            group.create_task(self._end())
        self.faulty.heal()
        await self.faulty.drain()
        await self._finish()
        if self.ground.broken:
            raise ModelBrokenError(self.ground.broken[0])
        return self

    async def _end(self) -> None:
        await asyncio.sleep(self.seconds)
        self._over = True

    def _note(self, event: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def _process(self, name: str) -> tuple[Log, Door]:
        self._count += 1
        entropy = SeededEntropy(f"{name}-{self.seed}-{self._count}")
        door = Door(self.faulty)
        store = RetryingStore(door, LoopClock(), entropy, deadline_s=30.0, attempt_s=5.0)
        # Local clocks are wrong: only the store's counts.
        clock = LoopClock(epoch_us=int(entropy.uniform() * 2e15))
        return Log(Store.over(store, "sim:"), NAME, clock=clock, entropy=entropy), door

    async def _pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / mean_s))

    # Writers.

    async def _writer_life(self, name: str) -> None:
        log, _ = self._process(name)
        options = Options(
            batch_bytes=1,
            in_flight=self.chance.choice([1, 4]),
            alpha=self.shape.choice([1, 4, 16]),
            shards=self.shape.choice([None, 3]),
        )
        while not self._over:
            try:
                async with log.writer(options=options) as writer:
                    while not self._over:
                        body = f"{name}-{len(self.bodies)}-{self.chance.random()}".encode()
                        offset = await writer.append(body)
                        self.bodies[offset] = body
                        await self._pause(self.pace_s)
            except (StoreError, ConflictError) as error:
                self._note(f"{name} {error.code}")

    # Cursors.

    async def _cursor_life(self, name: str) -> None:
        log, _ = self._process(name)
        held = self.ground.cursors
        witness: Witness | None = None
        while not self._over:
            await self._pause(self.grace_s / 10)
            try:
                if witness is None:
                    witness = await self._new_cursor(log, name)
                elif self.chance.random() < 0.5:
                    await self._read(log, witness.offset)
                    state = await log.manifest()
                    target = self.chance.randint(witness.offset, state.next_offset)
                    held[name] = target
                    witness = await log.cursors.save(name, target, witness)
                elif self.chance.random() < 0.6:
                    oldest = (await log.manifest()).oldest_offset
                    near = [witness.offset - self.chance.randint(1, 60), oldest]
                    back = min(max(0, self.chance.choice(near)), witness.offset)
                    witness = await log.cursors.save(name, back, witness)
                    held[name] = witness.offset
                    self._note(f"{name} went back to {back}")
                elif self.chance.random() < 0.2 and len(held) > 1:
                    del held[name]
                    await log.cursors.delete(name, witness)
                    witness = None
                else:
                    # What was given up on may have landed since, and nobody has proved it.
                    witness = await self._new_cursor(log, name)
            except CollectedError:
                self._note(f"{name} came too late")
                witness = None
            except (StoreError, ConflictError, NotFoundError, AlreadyExistsError) as error:
                # It may have happened, so nothing is promised until it is seen.
                self._note(f"{name} {error.code}")
                held.pop(name, None)
                witness = None

    async def _new_cursor(self, log: Log, name: str) -> Witness:
        """Take up what is there, or make one, perhaps too far back."""
        try:
            witness = await log.cursors.load(name)
            if not witness.is_proved:
                witness = await log.cursors.save(name, witness.offset, witness)
        except NotFoundError:
            manifest = await log.manifest()
            low = max(0, manifest.oldest_offset - 3)
            offset = self.chance.randint(low, min(low + 40, manifest.next_offset))
            witness = await log.cursors.init(name, offset)
        self.ground.cursors[name] = witness.offset
        self._note(f"{name} holds {witness.offset}")
        return witness

    # Pins.

    async def _pin_life(self, name: str) -> None:
        log, _ = self._process(name)
        clock, pins = LoopClock(), self.ground.pins
        while not self._over:
            await self._pause(self.grace_s / 4)
            try:
                manifest = await log.manifest()
                low, high = manifest.oldest_offset, manifest.next_offset
                if high - low < 2:
                    continue
                start = self.chance.randint(max(0, low - 2), high - 1)
                limit = self.chance.randint(start + 1, min(high, start + 50))
                ttl_s = self.chance.choice([self.grace_s, 5 * self.grace_s])
                began_s = clock.monotonic_s()
                pin = await log.pin(name, start, limit, ttl_s=ttl_s)
                key = object()
                needed = self.ground.needed_by_pin(name)
                pins[key] = PinHeld(needed, began_s + ttl_s)
                self._note(f"{name} pins [{pin.start}, {pin.limit})")
                try:
                    for _ in range(self.chance.randint(0, 3)):
                        await self._pause(ttl_s / 2)
                        began_s = clock.monotonic_s()
                        await pin.renew()
                        pins[key] = PinHeld(needed, began_s + ttl_s)
                        if ttl_s > 40:
                            await self._read(log, pin.start, name)
                finally:
                    del pins[key]
                    await pin.release()
            except (CollectedError, AlreadyExistsError, ConflictError, StoreError) as error:
                self._note(f"{name} {error.code}")

    # Collectors.

    async def _collector_life(self, name: str) -> None:
        while not self._over:
            log, door = self._process(name)
            work = asyncio.ensure_future(self._collect(log, name))
            if self.kills and self.chance.random() < 0.5:
                self.kills -= 1
                await asyncio.wait([work], timeout=self.chance.uniform(0, self.grace_s))
                if not work.done():
                    door.shut()
                    self._note(f"kill {name}")
                    if self.chance.random() < 0.5:
                        await asyncio.sleep(self.chance.uniform(0, 3 * self.grace_s))
                        door.reopen()
                    else:
                        work.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()

    async def _collect(self, log: Log, name: str) -> None:
        for _ in range(self.chance.randint(1, 5)):
            await self._pause(self.grace_s / 5)
            keep_from = self.chance.choice([None, None, len(self.bodies) // 2])
            try:
                report = await log.collect(
                    keep_from=keep_from,
                    max_fragments=self.chance.choice([3, 20, 10_000]),
                    rate=self.chance.choice([None, 5.0]),
                    wait_s=self.chance.choice([0.0, 2 * self.grace_s]),
                )
            except (StateError, StoreError, ConflictError) as error:
                self._note(f"{name} {error.code}: {error.message}")
            else:
                self.collections += bool(report.records)
                self._note(f"{name} {report.phase} {report.oldest_offset} -{report.deleted}")

    # Readers.

    async def _reader_life(self) -> None:
        while not self._over:
            await self._pause(self.grace_s / 4)
            log, _ = self._process("reader")
            started_s = LoopClock().monotonic_s()
            got = 0
            try:
                async for record in log.reader().read(None, Limits(max_records=200)):
                    self._check(record.offset, record.body)
                    got += 1
                    if self.chance.random() < 0.05:
                        await self._pause(self.grace_s / 3)
            except CollectedError as error:
                if LoopClock().monotonic_s() - started_s < self.grace_s:
                    raise ModelBrokenError(f"C5: within the grace: {error}") from error
            except StoreError as error:
                self._note(f"reader {error.code}")
            self._note(f"read {got}")

    async def _read(self, log: Log, start: int, pin: str | None = None) -> None:
        limits = Limits(max_records=20)
        try:
            async for record in log.reader(pin=pin).read(start, limits):
                self._check(record.offset, record.body)
        except CollectedError as error:
            if pin is None:
                raise ModelBrokenError(f"C5: a cursor holds it: {error}") from error

    def _check(self, offset: int, body: bytes) -> None:
        if self.bodies.get(offset, body) != body:
            raise ModelBrokenError(f"C5: {body!r} is read at {offset}")

    # The end.

    async def _finish(self) -> None:
        log, _ = self._process("auditor")
        self.ground.cursors.clear()
        self.ground.pins.clear()
        await asyncio.sleep(10 * self.grace_s)  # every pin has expired
        cursors = await log.cursors.list()
        end = (await log.manifest()).next_offset
        for name, witness in cursors.items():
            await log.cursors.save(name, max(witness.offset, end - 5), witness)
        if not cursors:
            await log.cursors.init("last", end)
        for _ in range(2):
            await log.collect(wait_s=5 * self.grace_s)
        report = await log.collect(wait_s=5 * self.grace_s)
        oldest = min(w.offset for w in (await log.cursors.list()).values())
        if report.held or report.due_s or report.oldest_offset < oldest - 20:
            raise ModelBrokenError(f"C6: the collection did not get through: {report}")
        async with log.writer() as writer:
            await writer.append(b"last")
        if self.ground.newest not in ("", await log.objects.manifest_etag()):
            raise ModelBrokenError(f"C7: the newest manifest is {self.ground.newest}")
        records = [record async for record in log.reader().read()]
        for record in records:
            self._check(record.offset, record.body)
        if not (await log.scrub()).ok:
            raise ModelBrokenError(f"C6: {(await log.scrub()).errors}")
        if complaints := getattr(asyncio.get_running_loop(), "complaints", []):
            raise ModelBrokenError(f"unseen exceptions: {complaints[:3]}")
