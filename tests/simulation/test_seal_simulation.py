"""Seals and migrations beside writers that never rest, in simulated time."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - seeded: each seed draws its own world

import msgspec
import pytest
from msgspec import UNSET

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    Code,
    CordwoodError,
    NotFoundError,
    StateError,
    StoreError,
    UncertainError,
)
from cordwood.log import flight, recovery
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.store.url import Store
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.processes import Door
from cordwood.testing.simloop import simulate


async def _bodies(log):
    async with log.reader() as reader:
        return [record.body async for record in reader.read()]


# A seal beside a busy writer.


async def _seal_beside(intent_interval_s, patience_s=120.0, protocol="cas"):
    """How long a seal takes beside a writer that never rests, and what that writer was told."""
    entropy = SeededEntropy("seal")
    store = FaultyStore(
        MemoryStore(clock=LoopClock()), entropy, LoopClock(), latency=Latency(0.05, 0.1)
    )
    log = Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)
    await log.create(protocol=protocol)
    loop = asyncio.get_running_loop()
    futures = []
    is_over = False

    async def saturate():
        options = Options(batch_bytes=200, intent_interval_s=intent_interval_s)
        async with log.writer(options=options) as writer:
            while not is_over:
                try:
                    futures.extend(writer.append(b"%d" % len(futures)) for _ in range(50))
                except StateError as error:
                    futures.append(loop.create_future())
                    futures[-1].set_exception(error)
                    return
                await asyncio.wait(futures[-25:])

    busy = asyncio.ensure_future(saturate())
    await asyncio.sleep(3.0)
    started_s = loop.time()
    sealing = asyncio.ensure_future(log.seal("enough"))
    await asyncio.wait([sealing], timeout=patience_s)
    took_s = loop.time() - started_s
    if not sealing.done():
        is_over = True
        sealing.cancel()
        await asyncio.wait([sealing])
    await busy
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    return took_s, (await log.state()).sealed, outcomes, await _bodies(log)


@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(6)), *((n, "chain") for n in range(2))]
)
def test_a_seal_gets_through_beside_a_busy_writer(seed, protocol):
    """Within seconds; the writer is told for each append whether it is in the log, for certain."""
    # EVIDENCE-OF: G-7, G-40, G-41
    took_s, is_sealed, outcomes, bodies = simulate(
        seed, lambda: _seal_beside(2.0, protocol=protocol)
    )
    assert is_sealed
    assert took_s < 10
    refused = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    assert 0 < len(refused) < len(outcomes)
    assert {Code.SEALED} == {error.code for error in refused}
    # What was acknowledged is a beginning of what was appended, and is all that is there.
    acknowledged = len(outcomes) - len(refused)
    assert list(range(1, acknowledged + 1)) == outcomes[:acknowledged]
    assert [b"%d" % n for n in range(acknowledged)] == bodies


def test_without_turns_a_seal_starves():
    """Beside a writer that never looks for those who ask, it does not get through."""
    took_s, is_sealed, _, _ = simulate(1, lambda: _seal_beside(1e9, patience_s=40.0))
    assert not is_sealed
    assert took_s >= 40


# A migration under way.


class Move:
    """Writers on a log that moves to another store while they work, and follow it there."""

    def __init__(self, seed, *, rough, protocol="cas"):
        """A world by chance; if `rough`, with a faulty store."""
        self.seed = seed
        self.protocol = protocol
        self.chance = random.Random(f"move-{seed}")
        self.rough = rough
        self.acknowledged = {}
        """By body: which log, and the offset."""
        self.over = False

    def store(self, name):
        """A store that is slow and, in a rough world, loses requests and answers."""
        kinds = [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.ZOMBIE, Fault.HANG_AFTER]
        rate = self.chance.choice([0.01, 0.04]) if self.rough else 0.0
        return FaultyStore(
            MemoryStore(clock=LoopClock()),
            SeededEntropy(f"{name}-{self.seed}"),
            LoopClock(),
            latency=Latency(self.chance.choice([0.005, 0.03]), 0.2),
            write_faults=dict.fromkeys(kinds, rate),
            read_faults={Fault.ERROR_BEFORE: rate},
            zombie_delay=Latency(0.3, 3.0),
        )

    def logs(self, name):
        """Both logs and the doors to them, as one process sees them."""
        found, doors = [], []
        for number, base in enumerate(self.bases):
            entropy = SeededEntropy(f"{name}-{number}-{self.seed}")
            doors.append(Door(base))
            store = RetryingStore(doors[-1], LoopClock(), entropy, deadline_s=20.0, attempt_s=5.0)
            url = f"sim{number}:"
            found.append(Log(Store.over(store, url), "log", clock=LoopClock(), entropy=entropy))
        return found, doors

    async def main(self):
        """Run; return what is in both logs together."""
        self.bases = [self.store("old"), self.store("new")]
        (old, new), _ = self.logs("creator")
        await self.until_done(lambda: old.create(exist_ok=True, protocol=self.protocol))
        writers = [
            asyncio.ensure_future(self.write(f"w{n}")) for n in range(self.chance.choice([1, 2, 3]))
        ]
        await asyncio.sleep(self.chance.uniform(0.5, 6.0))
        await self.move()
        await asyncio.sleep(5.0)
        self.over = True
        await asyncio.gather(*writers)
        for base in self.bases:
            base.heal()
            await base.drain()
        # Whatever arrived late is void, and an opener does not change that.
        with pytest.raises(StateError, match="moved to 'sim1:/log'"):
            await old.writer().open()
        async with new.writer() as writer:
            await writer.append(b"the end")
        records = []
        for log in (old, new):
            async with log.reader() as reader:
                records += [record async for record in reader.read()]
            assert (await log.scrub()).ok
        assert [] == asyncio.get_running_loop().complaints
        return records

    async def move(self):
        """Migrators: some are killed at any moment, the last one is not."""
        for life in range(3):
            (old, new), doors = self.logs(f"mover {life}")
            moving = asyncio.ensure_future(self.until_done(lambda o=old, n=new: o.migrate(n)))
            if life < 2:
                await asyncio.wait([moving], timeout=self.chance.uniform(0.0, 1.5))
                for door in doors:
                    door.shut()
                moving.cancel()
                await asyncio.wait([moving])
            else:
                await moving

    async def until_done(self, work):
        """Repeat what the store failed to do."""
        while True:
            try:
                return await work()
            except (StoreError, UncertainError):
                await asyncio.sleep(0.1)

    async def write(self, name):
        """Append, several at a time, to whichever log takes it, until all is over."""
        (old, new), _ = self.logs(name)
        log, writer = old, None
        waiting = []
        number = 0
        while waiting or not self.over:
            if not waiting:
                waiting = [f"{name} {number + i:05}".encode() for i in range(6)]
                number += len(waiting)
            try:
                if writer is None:
                    writer = await log.writer(options=Options(batch_bytes=30)).open()
                futures = [writer.append(body) for body in waiting]
            except StateError as error:
                if log is not old or error.code is not Code.SEALED:
                    raise
                log, writer = new, None
                continue
            except (StoreError, UncertainError, NotFoundError):
                # The new log is not there yet, or the store fails.
                await asyncio.sleep(0.1)
                continue
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            judged = zip(waiting, outcomes, strict=True)
            waiting = [body for body, told in judged if await self.failed(log, body, told)]
            await asyncio.sleep(self.chance.expovariate(20))
        if writer is not None:
            await writer.close()

    async def failed(self, log, body, outcome):
        """Whether a body is not in the log, and has to be appended again."""
        while isinstance(outcome, UncertainError):
            assert self.rough
            try:
                outcome = await log.find_write(outcome)
            except UncertainError as error:
                outcome = error
                await asyncio.sleep(0.3)
                if log.store.url != "sim0:":
                    # Nobody seals the new log: an append closes the place.
                    async with log.writer() as writer:
                        await asyncio.wait([writer.append(b"closing")])
            except CordwoodError:
                await asyncio.sleep(0.3)
        if isinstance(outcome, int):
            assert body not in self.acknowledged
            self.acknowledged[body] = (log.store.url, outcome)
            return False
        assert outcome is None or isinstance(outcome, StateError | StoreError)
        return True


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize(
    ("seed", "protocol"), [*((n, "cas") for n in range(8)), *((n, "chain") for n in range(3))]
)
def test_writers_follow_a_log_that_moves(seed, rough, protocol):
    """Both logs together hold each acknowledged record once, in order, without a hole."""
    # EVIDENCE-OF: G-41, G-43
    _check(Move(seed, rough=rough, protocol=protocol))


def _check(move):
    records = simulate(move.seed, move.main)
    assert list(range(1, len(records) + 1)) == [record.offset for record in records]
    times = [record.timestamp_us for record in records]
    assert sorted(times) == times
    bodies = [record.body for record in records if record.body not in {b"the end", b"closing"}]
    assert len(set(bodies)) == len(bodies)
    assert set(bodies) == set(move.acknowledged)
    places = {record.body: record.offset for record in records}
    assert all(places[body] == offset for body, (_, offset) in move.acknowledged.items())
    assert {"sim0:", "sim1:"} == {url for url, _ in move.acknowledged.values()}
    if not move.rough:
        for name in {body.split()[0] for body in bodies}:
            own = [body for body in bodies if body.split()[0] == name]
            assert sorted(own) == own


def _fails():
    for seed in range(12):
        for rough in (False, True):
            try:
                _check(Move(seed, rough=rough))
            except (AssertionError, pytest.fail.Exception):
                return True
    return False


def test_adoption_above_a_seal_is_caught(monkeypatch):
    """A log that goes on adopting after its seal has records twice: the check sees it."""
    honest = recovery.scan

    async def greedy(objects, manifest, own):
        return await honest(objects, msgspec.structs.replace(manifest, cordwood=UNSET), own)

    monkeypatch.setattr(recovery, "scan", greedy)
    assert _fails()


def test_a_seal_that_does_not_judge_is_caught(monkeypatch):
    """A writer that takes everything for lost when it meets the seal writes records twice."""
    monkeypatch.setattr(
        "cordwood.log.pipeline.judge",
        lambda flights, *_: [flight.Fate.DEAD for _ in flights],
    )
    assert _fails()
