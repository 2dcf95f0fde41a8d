"""Story 24: each remedy of a collection, in the schedule it was made for; without it data is lost.

Every schedule runs twice: as the code is, and with one remedy switched off. What must hold in the
end is the same question both times: can a cursor, pin or reader that was told it holds still read?
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import nullcontext, suppress

import pytest

import cordwood
from cordwood import CollectedError, CorruptionError, StateError
from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log import collect, cursors, deletion, paths
from cordwood.log.garbage import Garbage, Phase, load_garbage
from cordwood.log.intents import Asker
from cordwood.log.pipeline import Pipeline
from cordwood.store.memory import MemoryStore
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.hooked import Hooked
from cordwood.testing.simloop import simulate

GARBAGE = f"orders/{paths.GARBAGE}"
MANIFEST = f"orders/{paths.MANIFEST}"
ON_AND_OFF = pytest.mark.parametrize("is_on", [True, False], ids=["with", "without"])


@pytest.fixture
def store(time):
    """A memory with the test's clock."""
    return MemoryStore(clock=time)


@pytest.fixture
async def log(store, numbers):
    """A log of sixty fragments, with a cursor at 41."""
    made = await numbers(store, 60)
    await made.cursors.init("jobs", 41)
    return made


class Sleeper:
    """Somebody who falls asleep at a request, and goes on when it is woken."""

    def __init__(self, store, operation, key, *, after=False, times=1):
        """At the n-th such request, before it or after it."""
        self.log = cordwood.Log(
            cordwood.Store.over(Hooked(store, **{operation: self._pass})), "orders"
        )
        self._key, self._after, self._left = key, after, times
        self._asleep, self._awake = asyncio.Event(), asyncio.Event()

    async def _pass(self, call, key, *_):
        self._left -= key == self._key
        if key != self._key or self._left != 0:
            return await call()
        if self._after:
            answer = await call()
        self._asleep.set()
        await self._awake.wait()
        return answer if self._after else await call()

    async def begin(self, work):
        """Do this with the log, until it sleeps."""
        self._work = asyncio.ensure_future(work)
        await self._asleep.wait()

    async def wake(self):
        """Do the rest; what came of it."""
        self._awake.set()
        return await self._work


async def put_cursor(store, name, offset):
    """As a careless program does it: without a look at GARBAGE."""
    record = b'{"position":{"offset":%d},"epoch_us":1,"writer":"wal3"}' % offset
    await store.put(f"orders/{paths.cursor(name)}", record)


def raising(error, match="", *, is_on):
    """With the remedy there is this error, without it there is none."""
    return pytest.raises(error, match=match) if is_on else nullcontext()


async def can_read(log, start, **options):
    """Whether everything from `start` on is there; None stands for damage."""
    try:
        async with log.reader(**options) as reader:
            return [record async for record in reader.read(start)] != []
    except CollectedError:
        return False
    except CorruptionError:
        return None


async def sweep_all(log, time):
    """The rest of a collection, after the grace interval.

    The proof before a sweep is the last net: it may find that the log has passed a cursor by, and
    then deletes nothing; but the cursor's records are out of the log by then.
    """
    time.pass_s(61)
    with suppress(StateError):
        await log.sweep()


@ON_AND_OFF
async def test_the_grace_interval(store, time, numbers, monkeypatch, is_on):
    """A reader that began before the unlink has time to finish; without it, its files are gone."""
    # EVIDENCE-OF: G-39
    log = await numbers(store, 100)
    await log.cursors.init("jobs", 101)
    reading = log.reader().read()
    await anext(reading)
    if not is_on:
        monkeypatch.setattr(collect, "age_us", lambda modified_us, now_us: 10**15)
    report = await log.collect(wait_s=0)
    assert is_on == (report.due_s > 0)
    try:
        rest = [record async for record in reading]
    except CollectedError:
        rest = []
    assert (99 if is_on else 0) == len(rest)


async def unlink_without_a_look(self):
    """As `Collector.unlink`, but the cursors are not read again."""
    garbage, etag = await self._load()
    if garbage.phase is Phase.MARKED and await self._replace_manifest(garbage):
        garbage = garbage.in_phase(Phase.UNLINKED)
        await self._put(garbage, etag)
    return garbage


@ON_AND_OFF
async def test_the_cursors_are_read_again_after_garbage_is_written(
    store, time, log, monkeypatch, is_on
):
    """A cursor is made while a collection that has read the cursors is about to write GARBAGE."""
    # EVIDENCE-OF: G-36
    if not is_on:
        monkeypatch.setattr(collect.Collector, "unlink", unlink_without_a_look)
    sleeper = Sleeper(store, "put", GARBAGE)
    await sleeper.begin(sleeper.log.mark())
    assert 11 == (await log.cursors.init("late", 11)).offset
    await sleeper.wake()
    await log.unlink()
    await sweep_all(log, time)
    assert is_on == await can_read(log, 11)


@ON_AND_OFF
async def test_a_nonce_tells_one_garbage_from_another(store, time, log, monkeypatch, is_on):
    """A sleeper applies what it had checked long ago, under cover of another garbage."""
    if not is_on:
        monkeypatch.setattr(Garbage, "nonce", property(lambda self: "same"))
    await log.mark()
    # It has read the cursors, and goes to sleep before it reads the manifest.
    sleeper = Sleeper(store, "get", MANIFEST)
    await sleeper.begin(sleeper.log.unlink())
    await cancel_and_hold(log, store, 21)
    assert Phase.MARKED is (await log.mark()).phase
    await sleeper.wake()
    await sweep_all(log, time)
    assert is_on == await can_read(log, 21)


class ContentEtags(MemoryStore):
    """A memory whose etags repeat when content repeats, as S3's do."""

    async def put(self, key, data, mode="overwrite"):
        """The etag is a digest."""
        await super().put(key, data, mode)
        entry = self._objects[key]
        etag = hashlib.md5(entry.data, usedforsecurity=False).hexdigest()
        self._objects[key] = entry._replace(etag=etag)
        return etag


@ON_AND_OFF
async def test_an_empty_garbage_is_never_the_same_again(time, numbers, monkeypatch, is_on):
    """A sleeper writes a garbage computed before others went round: its swap must be refused."""
    store = ContentEtags(clock=time)
    log = await numbers(store, 60)
    jobs = await log.cursors.init("jobs", 11)
    if not is_on:
        honest = collect.empty
        monkeypatch.setattr(collect, "empty", lambda nonce: honest("same"))
    await log.collect(wait_s=0)
    await sweep_all(log, time)
    await log.cursors.save("jobs", 41, jobs)
    sleeper = Sleeper(store, "put", GARBAGE)
    await sleeper.begin(sleeper.log.mark())
    # Another one goes once round and is cancelled; a cursor that holds is made.
    await log.mark()
    await cancel_and_hold(log, store, 21)
    if not is_on:
        # What is left then is the second look at the cursors; see there.
        monkeypatch.setattr(collect.Collector, "unlink", unlink_without_a_look)
    await sleeper.wake()
    assert ((await load_garbage(log.objects)).garbage.first_to_keep.offset > 21) == (not is_on)
    await log.unlink()
    await sweep_all(log, time)
    assert is_on == await can_read(log, 21)


@ON_AND_OFF
async def test_garbage_is_read_after_the_manifest_that_is_replaced(
    store, time, log, monkeypatch, is_on
):
    """Rule 2. In the other order a cancelled garbage is applied."""
    await log.mark()
    if not is_on:
        monkeypatch.setattr(collect.Collector, "_replace_manifest", garbage_first)
    # Third: in `unlink`, then before it swaps. The other way round it has read both by then.
    if is_on:
        sleeper = Sleeper(store, "get", MANIFEST)
    else:
        sleeper = Sleeper(store, "get", GARBAGE, after=True, times=2)
    await sleeper.begin(sleeper.log.unlink())
    await cancel_and_hold(log, store, 21)
    await sleeper.wake()
    await sweep_all(log, time)
    assert is_on == await can_read(log, 21)


async def garbage_first(self, garbage):
    """As `_replace_manifest`, in the wrong order."""
    now = (await self._load()).garbage
    manifest, etag = await self._objects.load()
    if now.nonce != garbage.nonce or now.phase is not Phase.MARKED:
        raise cordwood.ConflictError("another collection went on")
    smaller = collect.apply(manifest, garbage)
    if smaller is None:
        return False
    await self._objects.swap(smaller, etag)
    return True


async def cancel_and_hold(log, store, offset):
    """A cursor of a careless program has the garbage cancelled, one is made that relies on that.

    The careless one goes again.
    """
    await put_cursor(store, "other", 5)
    assert Phase.EMPTY is (await log.unlink()).phase
    assert offset == (await log.cursors.init("holds", offset)).offset
    await store.delete([f"orders/{paths.cursor('other')}"])


@ON_AND_OFF
async def test_a_cancelled_garbage_has_the_manifest_replaced(store, time, log, monkeypatch, is_on):
    """Rule 2, the other half: whoever is about to swap finds another manifest."""
    await log.mark()
    if not is_on:

        async def as_it_is(_objects, _entropy, seen):
            return seen.manifest

        monkeypatch.setattr(collect, "have_replaced", as_it_is)
    sleeper = Sleeper(store, "put", MANIFEST)
    await sleeper.begin(sleeper.log.unlink())
    await cancel_and_hold(log, store, 21)
    await sleeper.wake()
    await sweep_all(log, time)
    assert is_on == await can_read(log, 21)


@ON_AND_OFF
async def test_the_proof_before_a_sweep_sees_a_cursor_moved_back(
    store, time, log, monkeypatch, is_on
):
    """Another program moves a cursor back without a look: nothing is deleted, somebody is told."""
    before = (await store.get(MANIFEST)).data
    await log.collect(wait_s=0)
    await put_cursor(store, "jobs", 11)
    if not is_on:
        monkeypatch.setattr(collect.Collector, "_prove", nothing_to_prove)
    time.pass_s(61)
    with raising(StateError, "stands at 11", is_on=is_on):
        await log.sweep()
    # An operator can put the manifest back as long as nothing is deleted.
    await store.put(MANIFEST, before)
    assert (True if is_on else None) is await can_read(log, 11)


async def nothing_to_prove(self, manifest, garbage):
    """As `_prove`, trusting."""


@ON_AND_OFF
async def test_the_proof_before_a_sweep_sees_an_older_manifest(
    store, time, log, monkeypatch, is_on
):
    """Somebody put a manifest back that names what is to be deleted."""
    before = (await store.get(MANIFEST)).data
    await log.collect(wait_s=0)
    await store.put(MANIFEST, before)
    if not is_on:
        monkeypatch.setattr(collect.Collector, "_prove", nothing_to_prove)
        monkeypatch.setattr(deletion, "_check_passed", lambda name, manifest, garbage: None)
    time.pass_s(61)
    with raising(CorruptionError, "still needs", is_on=is_on):
        await log.sweep()
    assert (True if is_on else None) is await can_read(log, 1)


@ON_AND_OFF
async def test_a_sweep_looks_for_pins(store, time, numbers, monkeypatch, is_on):
    """Or what they hold is gone."""
    # EVIDENCE-OF: G-38
    log = await numbers(store, 60)
    await log.cursors.init("jobs", 61)
    await log.pin("backup", 11, 31)
    if not is_on:

        async def nobody(objects, entropy):
            return []

        monkeypatch.setattr("cordwood.log.deletion.live_holds", nobody)
    await log.collect(wait_s=0)
    await sweep_all(log, time)
    assert (True if is_on else None) is await can_read(log, None, pin="backup")


async def manifest_first(objects, start):
    """As `prove_not_collected`, in the wrong order."""
    manifest, _ = await objects.load()
    garbage, _ = await load_garbage(objects)
    reached = garbage.first_to_keep.offset if garbage.is_pending else 0
    if max(reached, manifest.oldest_offset) > start:
        raise CollectedError("too late")
    return manifest


@ON_AND_OFF
async def test_who_makes_a_cursor_reads_garbage_and_then_the_manifest(
    store, time, log, monkeypatch, is_on
):
    """In the other order a whole collection fits between the two reads."""
    # EVIDENCE-OF: G-36
    if not is_on:
        monkeypatch.setattr(cursors, "prove_not_collected", manifest_first)
    # The collection has read the cursors and is about to swap.
    collector = Sleeper(store, "put", MANIFEST)
    await collector.begin(collector.log.collect(wait_s=0))
    # The cursor is written, and one of two objects is read.
    between = {"key": GARBAGE} if is_on else {"key": MANIFEST, "times": 2}
    consumer = Sleeper(store, "get", after=True, **between)
    await consumer.begin(consumer.log.cursors.init("late", 11))
    await collector.wake()
    # Sweep passes over a cursor that is not proved: it will be withdrawn.
    await sweep_all(log, time)
    try:
        was_told_that_it_holds = (await consumer.wake()).offset == 11
    except CollectedError:
        was_told_that_it_holds = False
    assert was_told_that_it_holds == (not is_on)
    assert not await can_read(log, 11)


@ON_AND_OFF
def test_a_busy_writer_applies_the_garbage_itself(monkeypatch, is_on):
    """Or whoever reads the manifest and then swaps it is always too late."""
    if not is_on:

        async def at_once(self):
            await asyncio.sleep(0.01)

        async def as_it_is(self, manifest, intent):
            return manifest

        monkeypatch.setattr(Asker, "ask", at_once)
        monkeypatch.setattr(Pipeline, "_without_garbage", as_it_is)

    async def main():
        clock = LoopClock()
        ground = MemoryStore(clock=clock)
        # The collector is far away: whenever it swaps, the writer has swapped many times.
        near, far = (
            FaultyStore(ground, SeededEntropy(1), clock, latency=Latency(seconds))
            for seconds in (0.02, 0.1)
        )
        busy, other = (
            cordwood.Log(cordwood.Store.over(s), "orders", clock=clock, entropy=SeededEntropy(n))
            for n, s in enumerate((near, far))
        )
        await busy.create(grace_s=5)
        is_over = False

        async def write():
            # An open loop: there is always something to write, so the manifest never stands still.
            options = cordwood.Options(batch_interval_s=0, intent_interval_s=1.0)
            async with busy.writer(options=options) as writer:
                while not is_over:
                    writer.append(b"x")
                    await asyncio.sleep(0.01)

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(2)
        await other.cursors.init("jobs", 9)
        try:
            async with asyncio.timeout(60):
                while (await other.state()).oldest_offset == 1:
                    await other.collect(wait_s=0)
        except TimeoutError:
            return False
        finally:
            is_over = True
            await writing
        return True

    assert is_on == simulate(7, main)
