"""Sending slow requests twice: the budget, the first answer, and who owns a create."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    NotFoundError,
    StoreError,
    UncertainError,
)
from cordwood.store.api import Match
from cordwood.store.hedged import HedgedStore
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.simloop import SimLoop, simulate

TAIL = Latency(0.03, p99_s=0.09, tail_probability=0.02, tail_mean_s=0.6)


class Scripted(MemoryStore):
    """A store whose requests follow plans: seconds before and after the effect, then an error.

    With None for the seconds after it there is no effect, only the error.
    """

    def __init__(self):
        super().__init__(LoopClock())
        self.plans = []
        self.sent_s = []
        self.cancelled = 0

    async def _follow(self, call):
        before_s, after_s, error = self.plans.pop(0) if self.plans else (0.01, 0.0, None)
        self.sent_s.append(LoopClock().monotonic_s())
        try:
            await asyncio.sleep(before_s)
            if after_s is None:
                raise error
            answer = await call()
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if error is not None:
            raise error
        return answer

    async def get(self, key):
        parent = super()
        return await self._follow(lambda: parent.get(key))

    async def put(self, key, data, mode="overwrite"):
        parent = super()
        return await self._follow(lambda: parent.put(key, data, mode))


async def warmed(**options):
    """A hedged store that has seen requests take up to 12 ms; from now on they take 10."""
    inner = Scripted()
    store = HedgedStore(inner, LoopClock(), **{"hedges_per_s": 1_000.0} | options)
    inner.plans = [(0.012, 0.0, None)] * 40
    for num in range(20):
        await store.put(f"warm/{num}", b"", "create")
        await store.get(f"warm/{num}")
    inner.sent_s.clear()
    return store, inner


def test_slow_get_is_sent_again():
    """A get past the threshold is sent again, the first answer counts, the loser is cancelled."""

    async def main():
        store, inner = await warmed()
        inner.plans = [(5.0, 0.0, None), (0.01, 0.0, None)]
        started_s = LoopClock().monotonic_s()
        assert b"" == (await store.get("warm/3")).data
        # After half more than the 12 ms that they took; the twin takes 10.
        assert 0.028 == pytest.approx(LoopClock().monotonic_s() - started_s)
        await asyncio.sleep(0)
        assert (1, 1, 2) == (store.hedges, inner.cancelled, len(inner.sent_s))

    simulate(1, main)


def test_quick_requests_are_sent_once():
    """A request within the threshold is sent once."""

    async def main():
        store, inner = await warmed()
        for num in range(20):
            await store.get(f"warm/{num}")
        assert (0, 20) == (store.hedges, len(inner.sent_s))

    simulate(1, main)


def test_budget():
    """Hedges are 1/X seconds apart: a request past the threshold waits for its turn."""

    async def main():
        store, inner = await warmed(hedges_per_s=10.0)
        inner.plans = [(5.0, 0.0, None)] * 6 + [(0.001, 0.0, None)] * 6
        await asyncio.gather(*(store.get(f"warm/{num}") for num in range(6)))
        firsts, hedges = inner.sent_s[:6], inner.sent_s[6:]
        assert firsts == [firsts[0]] * 6
        gaps = [later - earlier for earlier, later in itertools.pairwise(hedges)]
        assert [0.1] * 5 == pytest.approx(gaps, abs=1e-6)
        assert 6 == store.hedges

    simulate(1, main)


def test_no_budget():
    """Without a budget nothing is ever sent twice."""

    async def main():
        store, inner = await warmed(hedges_per_s=0)
        inner.plans = [(5.0, 0.0, None)]
        await store.get("warm/1")
        assert (0, 1) == (store.hedges, len(inner.sent_s))

    simulate(1, main)


def test_nothing_is_hedged_before_enough_is_known():
    """The first requests of a kind are sent once, however slow."""

    async def main():
        inner = Scripted()
        store = HedgedStore(inner, LoopClock(), hedges_per_s=1_000.0)
        inner.plans = [(3.0, 0.0, None)] * 19
        for num in range(19):
            await store.put(f"{num}", b"", "create")
        assert (0, 19) == (store.hedges, len(inner.sent_s))

    simulate(1, main)


def test_failed_twin_waits_for_the_other():
    """An error of one twin does not count while the other may still answer; of both, it does."""

    async def main():
        store, inner = await warmed()
        lost = StoreError("lost", transient=True)
        inner.plans = [(1.0, 0.0, None), (0.01, 0.0, lost)]
        assert b"" == (await store.get("warm/1")).data
        inner.plans = [(1.0, 0.0, lost), (0.01, 0.0, lost)]
        with pytest.raises(StoreError):
            await store.get("warm/1")

    simulate(1, main)


def test_not_found_is_an_answer():
    """Not found from the quicker twin is final."""

    async def main():
        store, inner = await warmed()
        inner.plans = [(5.0, 0.0, None), (0.01, 0.0, None)]
        started_s = LoopClock().monotonic_s()
        with pytest.raises(NotFoundError):
            await store.get("absent")
        assert LoopClock().monotonic_s() - started_s < 1.0

    simulate(1, main)


def test_create_meets_itself():
    """A create refused because of its own twin succeeds with the twin's etag."""

    async def main():
        store, inner = await warmed()
        # The first takes effect at once and answers late; the second finds the first's object.
        inner.plans = [(0.001, 1.0, None), (0.001, 0.0, None)]
        etag = await store.put("object", b"ours", "create")
        assert (b"ours", etag) == await inner.get("object")
        assert 1 == store.hedges

    simulate(1, main)


def test_create_taken_before():
    """A create refused on both ways was taken before, also by equal bytes."""

    async def main():
        store, inner = await warmed()
        await inner.put("object", b"ours")
        inner.plans = [(1.0, 0.0, None), (0.001, 0.0, None)]
        with pytest.raises(AlreadyExistsError):
            await store.put("object", b"ours", "create")
        assert 1 == store.hedges

    simulate(1, main)


@pytest.mark.parametrize("error", [StoreError("lost", applied=True), UncertainError("lost")])
def test_create_with_a_lost_twin(error):
    """Refused on one way and unknown on the other, the bytes decide whose the object is."""

    async def main():
        store, inner = await warmed()
        inner.plans = [(0.001, 1.0, error), (0.001, 0.0, None)]
        etag = await store.put("ours", b"ours", "create")
        assert (b"ours", etag) == await inner.get("ours")
        await MemoryStore.put(inner, "theirs", b"theirs")
        inner.plans = [(1.0, 0.0, error), (0.001, 0.0, None)]
        with pytest.raises(AlreadyExistsError):
            await store.put("theirs", b"ours", "create")

    simulate(1, main)


def test_create_with_both_lost():
    """With no answer on either way, the error that leaves it open is raised."""

    async def main():
        store, inner = await warmed()
        denied, lost = StoreError("denied"), StoreError("lost", applied=True)
        inner.plans = [(0.5, None, lost), (0.001, None, denied)]
        with pytest.raises(StoreError) as caught:
            await store.put("object", b"ours", "create")
        assert lost is caught.value

    simulate(1, main)


def test_a_steady_store_is_not_asked_twice():
    """Where all requests take about the same time the slowest are not slow."""

    async def main():
        inner = Scripted()
        store = HedgedStore(inner, LoopClock(), hedges_per_s=1e6)
        inner.plans = [(0.010 + 0.001 * (n % 5), 0.0, None) for n in range(400)]
        for number in range(200):
            await store.put(f"{number}", b"", "create")
            await store.get(f"{number}")
        assert 0 == store.hedges

    simulate(1, main)


def test_overwrites_and_deletes_are_sent_once():
    """A late twin could undo what came after, so there is none."""
    # EVIDENCE-OF: G-104

    async def main():
        store, inner = await warmed()
        inner.plans = [(5.0, 0.0, None)] * 50
        for _ in range(25):
            await store.put("object", b"1", "overwrite")
        await store.delete(["object"])
        assert (0, 25) == (store.hedges, len(inner.sent_s))

    simulate(1, main)


# A swap: (before and after its effect, its error) for the first request and its twin, and for the
# read that looks whose the object is.


async def warmed_for_swaps(**options):
    """As `warmed`, for swaps; the object, and the etag that it has now."""
    store, inner = await warmed(**options)
    etag = await inner.put("object", b"before")
    for number in range(30):
        etag = await store.put("object", b"warm %d" % number, Match(etag))
    inner.sent_s.clear()
    assert 0 == store.hedges
    return store, inner, etag


SWAPS = {
    "the twin is faster": [(0.5, 0.0, None), (0.001, 0.0, None)],
    "the first is slow to answer, the twin is refused": [(0.0, 0.5, None), (0.001, 0.0, None)],
    "the first is lost, the twin is refused": [
        (0.0, 0.1, StoreError("lost", applied=True)),
        (0.001, 0.0, None),
    ],
    "the first fails, the twin succeeds": [
        (0.1, None, StoreError("failed")),
        (0.2, 0.0, None),
    ],
    "both take long": [(0.5, 0.5, None), (0.5, 0.6, None)],
}


@pytest.mark.parametrize("plans", SWAPS.values(), ids=SWAPS)
def test_a_swap_that_meets_itself_is_ours(plans):
    """However the two end: it took effect once, and that is what is said."""
    # EVIDENCE-OF: G-104

    async def main():
        store, inner, etag = await warmed_for_swaps()
        inner.plans = list(plans)
        given = await store.put("object", b"ours", Match(etag))
        found = await MemoryStore.get(inner, "object")
        assert (b"ours", given) == (found.data, found.etag)
        assert 1 == store.hedges

    simulate(1, main)


def test_a_swap_that_met_itself_does_not_wait_for_the_slow_answer():
    """The object is read, and is ours: that is known long before the first request is answered."""

    async def main():
        store, inner, etag = await warmed_for_swaps()
        started_s = LoopClock().monotonic_s()
        inner.plans = [(0.0, 60.0, None), (0.001, 0.0, None)]
        await store.put("object", b"ours", Match(etag))
        assert LoopClock().monotonic_s() - started_s < 0.1

    simulate(1, main)


def test_a_swap_refused_twice_was_not_written():
    """Somebody else replaced the object before: ContendedError, and theirs stays."""
    # EVIDENCE-OF: G-104

    async def main():
        store, inner, etag = await warmed_for_swaps()
        await MemoryStore.put(inner, "object", b"theirs")
        inner.plans = [(0.5, 0.0, None), (0.001, 0.0, None)]
        with pytest.raises(ContendedError):
            await store.put("object", b"ours", Match(etag))
        assert b"theirs" == (await MemoryStore.get(inner, "object")).data

    simulate(1, main)


def test_a_swap_in_doubt_whose_object_moved_on_is_uncertain():
    """Ours may have been there in between: nobody says that it was not."""
    # EVIDENCE-OF: G-104, G-105

    async def main():
        store, inner, etag = await warmed_for_swaps()
        inner.plans = [(0.0, 0.1, StoreError("lost", applied=True)), (0.05, 0.0, None)]
        swap = asyncio.ensure_future(store.put("object", b"ours", Match(etag)))
        await asyncio.sleep(0.02)
        ours = await MemoryStore.get(inner, "object")
        assert b"ours" == ours.data
        await MemoryStore.put(inner, "object", b"theirs", Match(ours.etag))
        with pytest.raises(UncertainError, match="has changed since"):
            await swap
        # Two puts, and no more than two reads to find out whose it is.
        assert len(inner.sent_s) <= 4

    simulate(1, main)


def test_a_late_twin_changes_nothing():
    """The loser of a swap arrives when the object is long another one."""
    # EVIDENCE-OF: G-104

    async def main():
        ground = MemoryStore(LoopClock())
        faulty = FaultyStore(
            ground, SeededEntropy(5), LoopClock(), latency=Latency(0.02, p99_s=2.0)
        )
        store = HedgedStore(faulty, LoopClock(), hedges_per_s=1e6, quantile=0.3)
        etag = await store.put("object", b"-1", "create")
        for number in range(200):
            etag = await store.put("object", b"%d" % number, Match(etag))
        await faulty.drain()
        assert b"199" == (await ground.get("object")).data
        assert store.hedges > 50

    simulate(1, main)


@pytest.mark.parametrize("seed", range(4))
def test_swaps_over_a_faulty_store(seed):
    """Several swap a counter over a store that loses answers: each that was told so counted."""
    # EVIDENCE-OF: G-104

    async def main():
        ground = MemoryStore(LoopClock())
        entropy = SeededEntropy(seed)
        faulty = FaultyStore(
            ground,
            entropy,
            LoopClock(),
            latency=TAIL,
            write_faults={Fault.ERROR_AFTER: 0.05, Fault.ERROR_BEFORE: 0.05, Fault.ZOMBIE: 0.02},
        )
        told, doubtful = [], []
        await ground.put("object", b"start")

        async def swap(name):
            inner = RetryingStore(faulty, LoopClock(), entropy)
            store = HedgedStore(inner, LoopClock(), hedges_per_s=1e6, quantile=0.4)
            for number in range(60):
                data, etag = await store.get("object")
                mine = b" %s%d" % (name, number)
                try:
                    await store.put("object", data + mine, Match(etag))
                    told.append(mine.strip())
                except ContendedError:
                    pass
                except UncertainError:
                    doubtful.append(mine.strip())
            return store.hedges

        hedges = await asyncio.gather(*map(swap, (b"a", b"b", b"c")))
        await faulty.drain()
        found = (await ground.get("object")).data.split()[1:]
        assert len(found) == len(set(found))
        assert set(told) <= set(found) <= set(told) | set(doubtful)
        assert sum(hedges) > 20

    simulate(seed, main)


@pytest.mark.parametrize("hedges_per_s", [0.5, 3.0, 10.0])
def test_the_budget_bounds_what_is_sent(hedges_per_s):
    """However slow the store becomes: so many second requests a second, and one, are all."""
    # EVIDENCE-OF: G-105

    async def main():
        entropy = SeededEntropy(1)
        ground = MemoryStore(LoopClock())
        faulty = FaultyStore(ground, entropy, LoopClock(), latency=Latency(0.01, p99_s=0.02))
        store = HedgedStore(faulty, LoopClock(), hedges_per_s=hedges_per_s)
        for number in range(100):
            await store.put(f"{number}", b"", "create")
            await store.get(f"{number}")
        # From now on everything takes a hundred times as long, and a lot is asked at once.
        faulty._latency = Latency(1.0, p99_s=3.0)
        before, hedges, started_s = faulty.counts.copy(), store.hedges, LoopClock().monotonic_s()
        works = [store.put(f"late/{n}", b"", "create") for n in range(150)]
        works += [store.get(f"{n % 100}") for n in range(150)]
        await asyncio.gather(*works)
        elapsed_s = LoopClock().monotonic_s() - started_s
        sent = sum((faulty.counts - before).values()) - 300
        assert sent == store.hedges - hedges
        assert 0 < sent <= hedges_per_s * elapsed_s + 1

    simulate(1, main)


def test_cancelled_caller():
    """Cancelling the caller cancels both twins, and nobody complains of what they ended with."""
    loop = SimLoop(1)

    async def main():
        store, inner = await warmed()
        inner.plans = [(5.0, 0.0, None), (5.0, 0.0, None)]
        task = asyncio.ensure_future(store.get("warm/1"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert 2 == inner.cancelled
        # A loser that fails after it has lost.
        inner.plans = [(0.5, 0.0, StoreError("late")), (0.001, 0.0, None)]
        await store.get("warm/1")
        await asyncio.sleep(10)

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main())
        gc.collect()
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert [] == loop.complaints


def latencies(hedged, seed):
    """Seconds of many gets and creates over a store with a slow tail, and requests sent."""

    async def main():
        faulty = FaultyStore(
            MemoryStore(LoopClock()), SeededEntropy(seed), LoopClock(), latency=TAIL
        )
        store = HedgedStore(faulty, LoopClock(), hedges_per_s=100.0) if hedged else faulty
        took_s = []

        async def one(num):
            started_s = LoopClock().monotonic_s()
            await store.put(f"{num}", str(num).encode(), "create")
            took_s.append(LoopClock().monotonic_s() - started_s)
            started_s = LoopClock().monotonic_s()
            assert str(num).encode() == (await store.get(f"{num}")).data
            took_s.append(LoopClock().monotonic_s() - started_s)

        for num in range(1_500):
            await one(num)
        await faulty.drain()
        return sorted(took_s), faulty.counts["get"] + faulty.counts["put"]

    return simulate(seed, main)


def test_the_tail_is_shorter():
    """Over a store with a slow tail, hedging halves the 99.9th percentile for some 5 % more."""
    plain, sent = latencies(hedged=False, seed=3)
    hedged, hedged_sent = latencies(hedged=True, seed=3)
    at = math.floor(0.999 * len(plain))
    assert hedged[at] < plain[at] / 2
    assert sent < hedged_sent < 1.08 * sent


@pytest.mark.parametrize("seed", range(4))
def test_creates_over_a_faulty_store(seed):
    """Of concurrent hedged creates with lost answers, none that is told a win did not."""

    async def main():
        ground = MemoryStore(LoopClock())
        faulty = FaultyStore(
            ground,
            SeededEntropy(seed),
            LoopClock(),
            latency=TAIL,
            write_faults={Fault.ERROR_AFTER: 0.1, Fault.ERROR_BEFORE: 0.1},
        )
        store = HedgedStore(faulty, LoopClock(), hedges_per_s=1e6, quantile=0.5)
        for number in range(60):
            bodies = [f"{number}.{num}".encode() for num in range(4)]
            outcomes = await asyncio.gather(
                *(store.put(f"{number}", body, "create") for body in bodies),
                return_exceptions=True,
            )
            pairs = zip(bodies, outcomes, strict=True)
            won = [body for body, outcome in pairs if isinstance(outcome, str)]
            assert len(won) <= 1
            if won:
                assert won[0] == (await ground.get(f"{number}")).data
        await faulty.drain()
        assert store.hedges > 0

    simulate(seed, main)
