"""What becomes of a request that fails: every rule in the header of `store/retry.py`."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    Code,
    ContendedError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.store.api import Match
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import simulate

IN_DOUBT = [
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.HANG_BEFORE,
    Fault.HANG_AFTER,
    Fault.ZOMBIE,
]


class Setting:
    """A memory store behind faults behind retries, in simulated time."""

    def __init__(self, seed=1, **options):
        self.ground = MemoryStore(LoopClock())
        self.faulty = FaultyStore(
            self.ground,
            SeededEntropy(f"faults {seed}"),
            LoopClock(),
            latency=Latency(0.01, p99_s=0.05),
            zombie_delay=Latency(0.3, p99_s=2.0),
        )
        self.store = RetryingStore(
            self.faulty,
            LoopClock(),
            SeededEntropy(f"jitter {seed}"),
            **{"deadline_s": 30.0, "attempt_s": 1.0} | options,
        )

    async def body(self, key="object"):
        return (await self.ground.get(key)).data


def simulated(test):
    """Run an async test that takes a Setting in simulated time."""

    def run(*args, **kwargs):
        async def main():
            setting = Setting()
            await test(setting, *args, **kwargs)
            await setting.faulty.drain()

        simulate(1, main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize("fault", IN_DOUBT)
def test_create_in_doubt(fault):
    """A create whose answer was lost succeeds with the etag of the one object there is."""

    @simulated
    async def run(at):
        at.faulty.script("put", fault)
        etag = await at.store.put("object", b"ours", "create")
        await at.faulty.drain()
        assert (b"ours", etag) == await at.ground.get("object")

    run()


@pytest.mark.parametrize("mode", ["create", "match"])
def test_first_attempt_lands_before_the_second(mode):
    """A put that is refused on the second attempt because the first one landed late succeeds."""

    async def main():
        at = Setting(backoff_first_s=2.0)
        at.faulty._zombie_delay = Latency(0.5)
        etag = await at.ground.put("object", b"before") if mode == "match" else ""
        at.faulty.script("put", Fault.ZOMBIE)
        etag = await at.store.put("object", b"ours", Match(etag) if mode == "match" else mode)
        assert (b"ours", etag) == await at.ground.get("object")
        # The first get found nothing of ours, the second put was refused, the second get found it.
        assert (2, 2) == (at.faulty.counts["put"], at.faulty.counts["get"])

    simulate(1, main)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.HANG_AFTER])
def test_create_in_doubt_but_taken(fault):
    """A create whose answer was lost is refused where another object is found."""

    @simulated
    async def run(at):
        await at.ground.put("object", b"theirs")
        at.faulty.script("put", fault)
        with pytest.raises(AlreadyExistsError):
            await at.store.put("object", b"ours", "create")
        assert b"theirs" == await at.body()

    run()


def test_create_taken_by_equal_bytes():
    """Without a doubt, an object that is there was there before us, whatever its bytes."""

    @simulated
    async def run(at):
        await at.ground.put("object", b"ours")
        with pytest.raises(AlreadyExistsError):
            await at.store.put("object", b"ours", "create")
        assert {"put": 1, "head": 1} == dict(at.faulty.counts)

    run()


def test_create_conflict():
    """S3's 409, "exists" where nothing does, is sent again."""

    @simulated
    async def run(at):
        at.faulty.script("put", Fault.CONFLICT, Fault.CONFLICT)
        await at.store.put("object", b"ours", "create")
        assert b"ours" == await at.body()
        assert 3 == at.faulty.counts["put"]

    run()


@pytest.mark.parametrize("fault", IN_DOUBT)
def test_match_in_doubt(fault):
    """A swap whose answer was lost succeeds, once, with the etag of the object there is."""

    @simulated
    async def run(at):
        first = await at.ground.put("object", b"first")
        at.faulty.script("put", fault)
        etag = await at.store.put("object", b"second", Match(first))
        await at.faulty.drain()
        assert (b"second", etag) == await at.ground.get("object")

    run()


def test_match_in_doubt_and_moved_on():
    """A swap whose answer was lost is uncertain once somebody else has swapped."""

    @simulated
    async def run(at):
        first = await at.ground.put("object", b"first")
        at.faulty.script("put", Fault.HANG_AFTER)
        swap = asyncio.ensure_future(at.store.put("object", b"second", Match(first)))
        await asyncio.sleep(0.5)  # in simulated time: it has taken effect, and nobody knows yet
        assert b"second" == await at.body()
        await at.ground.put("object", b"third", Match((await at.ground.get("object")).etag))
        with pytest.raises(UncertainError):
            await swap

    run()


def test_match_in_doubt_and_gone():
    """A swap whose answer was lost is uncertain if the object is gone."""

    @simulated
    async def run(at):
        first = await at.ground.put("object", b"first")
        await at.ground.delete(["object"])
        at.faulty.script("put", Fault.ERROR_BEFORE)
        with pytest.raises(UncertainError):
            await at.store.put("object", b"second", Match(first))

    run()


def test_match_contended():
    """A swap refused without a doubt is contention, at once."""

    @simulated
    async def run(at):
        first = await at.ground.put("object", b"first")
        await at.ground.put("object", b"second")
        with pytest.raises(ContendedError):
            await at.store.put("object", b"third", Match(first))
        assert {"put": 1} == dict(at.faulty.counts)

    run()


def test_match_throttled():
    """A swap that was only throttled is not in doubt: contention afterwards is contention."""

    @simulated
    async def run(at):
        first = await at.ground.put("object", b"first")
        await at.ground.put("object", b"second")
        at.faulty.script("put", Fault.THROTTLED)
        with pytest.raises(ContendedError):
            await at.store.put("object", b"third", Match(first))
        assert 2 == at.faulty.counts["put"]

    run()


@pytest.mark.parametrize("fault", IN_DOUBT)
def test_overwrite(fault):
    """An overwrite is sent again until it is answered."""

    @simulated
    async def run(at):
        at.faulty.script("put", fault)
        await at.store.put("object", b"ours")
        await at.faulty.drain()
        assert b"ours" == await at.body()
        assert 2 == at.faulty.counts["put"]

    run()


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.HANG_BEFORE, Fault.THROTTLED])
def test_reads(fault):
    """A read is sent again until it is answered; not found is an answer."""

    @simulated
    async def run(at):
        etag = await at.ground.put("object", b"0123")
        for operation in ("get", "get_range", "head", "delete"):
            at.faulty.script(operation, fault, fault)
        assert (b"0123", etag) == await at.store.get("object")
        assert b"12" == await at.store.get_range("object", 1, 2)
        assert etag == (await at.store.head("object")).etag
        await at.store.delete(["object"])
        with pytest.raises(NotFoundError):
            await at.store.get("object")

    run()


def test_list_goes_on():
    """A list that fails between pages goes on behind the last key it gave."""

    @simulated
    async def run(at):
        expected = [f"{num:05}" for num in range(2_500)]
        for key in expected:
            await at.ground.put(key, b"")
        faults = [Fault.NONE, Fault.ERROR_BEFORE, Fault.HANG_BEFORE, Fault.NONE, Fault.THROTTLED]
        at.faulty.script("list", *faults)
        assert expected == [meta.key async for meta in at.store.list()]

    run()


def test_deadline_without_doubt():
    """A store that stays away is unreachable; nothing was written, and the error says so."""

    @simulated
    async def run(at):
        at.faulty.script("put", *[Fault.THROTTLED] * 500)
        at.faulty.script("get", *[Fault.ERROR_BEFORE] * 500)
        started_s = LoopClock().monotonic_s()
        with pytest.raises(StoreError) as caught:
            await at.store.put("object", b"ours", "create")
        assert (Code.STORE_UNREACHABLE, False) == (caught.value.code, caught.value.applied)
        assert 20.0 < LoopClock().monotonic_s() - started_s <= 30.0
        with pytest.raises(StoreError) as caught:
            await at.store.get("object")
        assert Code.STORE_UNREACHABLE == caught.value.code

    run()


@pytest.mark.parametrize("mode", ["create", "overwrite", Match("m1")])
def test_deadline_in_doubt(mode):
    """A write in doubt on a store that stays away is uncertain."""

    @simulated
    async def run(at):
        at.faulty.script("put", *[Fault.ERROR_BEFORE] * 500)
        at.faulty.script("get", *[Fault.ERROR_BEFORE] * 500)
        with pytest.raises(UncertainError):
            await at.store.put("object", b"ours", mode)

    run()


def test_store_that_never_answers():
    """A store that only hangs is given up on at the deadline."""

    @simulated
    async def run(at):
        at.faulty.script("put", *[Fault.HANG_BEFORE] * 100)
        at.faulty.script("get", *[Fault.HANG_BEFORE] * 100)
        with pytest.raises(UncertainError):
            await at.store.put("object", b"ours", "create")
        with pytest.raises(StoreError):
            await at.store.get("object")
        assert LoopClock().monotonic_s() <= 61.0

    run()


class Broken(MemoryStore):
    """A store whose puts and gets raise what they are told to."""

    def __init__(self, put_errors, get_error=None):
        super().__init__(LoopClock())
        self.put_errors = list(put_errors)
        self.get_error = get_error

    async def put(self, key, data, mode="overwrite"):
        if self.put_errors:
            raise self.put_errors.pop(0)
        return await super().put(key, data, mode)

    async def get(self, key):
        if self.get_error is not None:
            raise self.get_error
        return await super().get(key)


DENIED = StoreError("denied", code=Code.STORE_DENIED)
LOST = StoreError("lost", applied=True, transient=True)
HALF = StoreError("folder not synced", applied=True)


def test_errors_that_do_not_pass():
    """An error that will not pass is raised as it is; in doubt, the doubt is what is reported."""

    async def main():
        for error in (DENIED, HALF):
            with pytest.raises(StoreError) as caught:
                await RetryingStore(Broken([error]), LoopClock()).put("object", b"", "create")
            assert caught.value is error
        store = RetryingStore(Broken([LOST, DENIED]), LoopClock())
        with pytest.raises(UncertainError):
            await store.put("object", b"", "create")
        store = RetryingStore(Broken([LOST], get_error=DENIED), LoopClock())
        with pytest.raises(UncertainError):
            await store.put("object", b"", Match("m1"))

    simulate(1, main)


def test_found_again_is_synced():
    """An object that read-back finds to be ours is made durable before it counts."""
    synced = []

    class Syncing(MemoryStore):
        async def put(self, key, data, mode="overwrite"):
            await super().put(key, data, mode)
            raise LOST

        async def sync(self, keys):
            synced.extend(keys)

    async def main():
        await RetryingStore(Syncing(LoopClock()), LoopClock()).put("object", b"ours", "create")

    simulate(1, main)
    assert ["object"] == synced


def test_cancelled_caller():
    """A caller may be cancelled at any time; what it had sent may still happen."""

    @simulated
    async def run(at):
        at.faulty.script("put", Fault.HANG_AFTER)
        task = asyncio.ensure_future(at.store.put("object", b"ours", "create"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await at.faulty.drain()
        assert b"ours" == await at.body()

    run()
