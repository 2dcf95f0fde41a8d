"""What each party of a stress test does, in a task or in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, SeededEntropy
from cordwood.base.errors import CollectedError, CordwoodError, LimitError, NotFoundError
from cordwood.base.setsum import Setsum
from cordwood.cli.stress.streams import MARKER, Follower, Place, after, begin, choose, record
from cordwood.log.format import ZERO
from cordwood.log.garbage import Phase, load_garbage
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.log.reader import Limits

CURSOR = "stress"
BEAT_S = 0.25
"""How long a writer keeps one speed, and how often it says what is durable."""

UNDER_WAY_MAX = 2_000
KEPT_RECORDS = 2_000
"""Records that a collection leaves, so that readers have something to read."""

MAPS_KEPT = 20

Tell = Callable[[dict[str, int]], None]
"""Called with how many records of each stream are durable."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stress test is like."""

    url: str
    streams: int
    rate: float
    """Records per second that each writer aims for on average."""
    seed: str


# Where the generators stood when a prefix was collected.


def _map_key(log: Log, collected_hex: str) -> str:
    return f"{log.name}.stress/{collected_hex}.json"


async def load_map(log: Log, collected_hex: str) -> Follower:
    """A follower for a log of which this much was collected.

    Raises:
        NotFoundError: the collection was revealed before the map was written: a violation.
    """
    if collected_hex == ZERO:
        return Follower()
    data, _ = await log.store.get(_map_key(log, collected_hex))
    return Follower(msgspec.json.decode(data, type=dict[str, tuple[int, int]]))


async def _save_map(log: Log, collected_hex: str, follower: Follower) -> None:
    data = msgspec.json.encode(follower.places)
    await log.store.put(_map_key(log, collected_hex), data, "overwrite")
    older = [(m.modified_us, m.key) async for m in log.store.list(f"{log.name}.stress/")]
    await log.store.delete([key for _, key in sorted(older)[:-MAPS_KEPT]])


# Reading.


async def follow(
    log: Log, follower: Follower, start: int, limit: int, on_wrong: Callable[[str], None]
) -> None:
    """Check the records of `[start, limit)`."""
    async with log.reader() as reader:
        async for batch in reader.read_arrow(start, Limits(limit_offset=limit)):
            columns = (batch.column(name).to_pylist() for name in ("offset", "body"))
            for offset, body in zip(*columns, strict=True):
                wrong = follower.check(offset, body)
                if wrong is not None:
                    on_wrong(wrong)
            await asyncio.sleep(0)


async def read_all(log: Log, on_wrong: Callable[[str], None]) -> tuple[Follower, int]:
    """Read and check the whole log as it is now; how far the streams are, and the next offset."""
    while True:
        manifest = await log.manifest()
        try:
            follower = await load_map(log, manifest.collected_hex)
            start, limit = manifest.oldest_offset, manifest.next_offset
            await follow(log, follower, start, limit, on_wrong)
        except CollectedError:
            continue  # a collection overtook us: begin again behind it
        return follower, limit


# Writing.


async def write(
    plan: Plan, log: Log, name: str, life: int, tell: Tell, is_over: Callable[[], bool]
) -> None:
    """Append to the streams of one writer until it is over; begin anew after a failure."""
    entropy = SeededEntropy(f"{plan.seed} {name} {life}")
    while not is_over():
        try:
            async with log.writer(options=Options(batch_bytes=20_000)) as writer:
                # What a predecessor left in the air is named or void once something follows it.
                await writer.append(MARKER + entropy.token().encode())
                follower, _ = await read_all(log, lambda _: None)
                mine = {n: p for n, p in follower.places.items() if n.startswith(f"{name}-")}
                await _generate(plan, writer.append, name, entropy, mine, tell, is_over)
        except CordwoodError:
            await asyncio.sleep(BEAT_S)


async def _generate(
    plan: Plan,
    append: Callable[[bytes], Awaitable[int]],
    name: str,
    entropy: SeededEntropy,
    places: dict[str, Place],
    tell: Tell,
    is_over: Callable[[], bool],
) -> None:
    pending: list[tuple[asyncio.Future[int], str, int]] = []
    while not is_over():
        # Bursts and lulls: between nothing and twice the average.
        for _ in range(int(plan.rate * BEAT_S * 2 * entropy.uniform()) + 1):
            stream = f"{name}-{choose(plan.streams, entropy.uniform())}"
            place = places.get(stream) or begin(stream)
            try:
                future = asyncio.ensure_future(append(record(stream, place)))
            except LimitError:
                break
            places[stream] = after(place)
            pending.append((future, stream, place.number + 1))
        await asyncio.sleep(BEAT_S)
        done = [p for p in pending if p[0].done()]
        pending = [p for p in pending if not p[0].done()]
        while len(pending) > UNDER_WAY_MAX:
            done.append(pending.pop(0))
        # One that failed ends this life: what follows it in its stream would have a hole before it.
        results = await asyncio.gather(*(future for future, _, _ in done), return_exceptions=True)
        tell({s: c for (_, s, c), r in zip(done, results, strict=True) if isinstance(r, int)})
        for result in results:
            if isinstance(result, BaseException):
                await asyncio.gather(*(f for f, _, _ in pending), return_exceptions=True)
                raise result
    results = await asyncio.gather(*(future for future, _, _ in pending), return_exceptions=True)
    tell({s: c for (_, s, c), r in zip(pending, results, strict=True) if isinstance(r, int)})


# Collecting.


async def collect(log: Log, tell: Tell, is_over: Callable[[], bool]) -> None:
    """Move the cursor on and collect, until it is over."""
    while not is_over():
        await asyncio.sleep(BEAT_S)
        try:
            await _collect_once(log, tell)
        except CordwoodError:
            continue


async def _collect_once(log: Log, tell: Tell) -> None:
    try:
        witness = await log.cursors.load(CURSOR)
    except NotFoundError:
        witness = await log.cursors.init(CURSOR, (await log.manifest()).oldest_offset)
    target = (await log.manifest()).next_offset - KEPT_RECORDS
    if target > witness.offset:
        await log.cursors.save(CURSOR, target, witness)
    await log.sweep()
    before = await log.manifest()
    await log.mark(max_fragments=500)
    garbage, _ = await load_garbage(log.objects)
    if garbage.phase is not Phase.MARKED:
        return
    manifest = await log.manifest()
    first = garbage.first_to_keep.offset
    if manifest.collected_hex == before.collected_hex and manifest.oldest_offset < first:
        follower = await load_map(log, manifest.collected_hex)
        await follow(log, follower, manifest.oldest_offset, first, lambda _: None)
        total = Setsum.from_hex(manifest.collected_hex) + Setsum.from_hex(garbage.discard_hex)
        await _save_map(log, total.hexdigest(), follower)
        await log.unlink()
        tell({"collected": first - manifest.oldest_offset})


def chance() -> float:
    """A number in [0, 1)."""
    return SYSTEM_ENTROPY.uniform()


def now_s() -> float:
    """For measuring durations."""
    return SYSTEM_CLOCK.monotonic_s()
