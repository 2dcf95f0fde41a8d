"""What holds a chain together is needed: without any one of it, a seeded world breaks."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.clock import LoopClock, SeededEntropy
from cordwood.log.chain import chain, document
from cordwood.log.chain.document import Known
from cordwood.log.chain.pipeline import ChainPipeline
from cordwood.log.flight import Stage
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.memory import MemoryStore
from cordwood.store.url import Store
from cordwood.testing.faults import FaultyStore, Latency
from cordwood.testing.logsim import LogSimulation
from cordwood.testing.simloop import DeadlockError, simulate
from cordwood.testing.verdict import ModelBrokenError

SEEDS = (72, 15, *range(140))
"""The first one is hard on whoever does not fence, the second on who passes an empty name."""


def some_seed_fails():
    """Whether the model notices."""
    for seed in SEEDS:
        try:
            LogSimulation(seed, protocol="chain").run()
        except (ModelBrokenError, DeadlockError):
            return True
    return False


def test_equal_seeds_give_equal_traces():
    """A run is a pure function of its seed, so a failure can be replayed."""
    runs = [LogSimulation(9, protocol="chain").run().trace for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 100


def test_writing_again_without_a_fence_is_caught(monkeypatch):
    """A manifest in doubt arrives after its fragments were written again: records are doubled."""
    monkeypatch.setattr(ChainPipeline, "_is_open", lambda self: False)
    assert some_seed_fails()


def test_acknowledging_before_all_earlier_ones_is_caught(monkeypatch):
    """A manifest that landed behind a gap is nothing yet: what it names is lost."""
    honest = ChainPipeline._advance

    def hasty(self, started_s, started_us):
        for sent in self._sent:
            if sent.stage is Stage.UNKNOWN:
                sent.stage = Stage.LANDED
        return honest(self, started_s, started_us)

    monkeypatch.setattr(ChainPipeline, "_advance", hasty)
    assert some_seed_fails()


def test_taking_the_highest_manifest_for_the_newest_is_caught(monkeypatch):
    """It may be a stray."""

    def highest(start, docs, writes):
        top = max(docs, default=start.index)
        return Known(top, writes.get(top, start.write), top + 1)

    monkeypatch.setattr(chain, "walk", highest)
    assert some_seed_fails()


def test_passing_an_empty_name_is_caught(monkeypatch):
    """What lies behind it comes to life when the name is filled by another."""

    def past_holes(start, docs, writes):
        index, write, place = start.index, start.write, start.undecided
        while place <= max(docs, default=0):
            if place in docs and docs[place].follows(write):
                index, write = place, writes[place]
            place += 1
        return Known(index, write, place)

    monkeypatch.setattr(chain, "walk", past_holes)
    assert some_seed_fails()


def test_a_reader_beside_a_busy_writer_is_not_held_up():
    """Manifests land in any order, so there is nearly always a gap; a look takes few requests."""
    # EVIDENCE-OF: G-119

    async def main():
        latency = Latency(0.05, p99_s=0.2)
        store = FaultyStore(
            MemoryStore(clock=LoopClock()), SeededEntropy(1), LoopClock(), latency=latency
        )
        loop = asyncio.get_running_loop()
        looks = []

        def log(name):
            entropy = SeededEntropy(name)
            return Log(Store.over(store, "sim:"), "log", clock=LoopClock(), entropy=entropy)

        async def look():
            while True:
                started = loop.time()
                await log("reader").manifest()
                looks.append(loop.time() - started)

        await log("creator").create(protocol="chain")
        reading = asyncio.ensure_future(look())
        options = Options(batch_bytes=1, in_flight=64, alpha=32, batch_interval_s=0.004)
        async with log("writer").writer(options=options) as writer:
            for number in range(500):
                writer.append(b"%d" % number)
                await asyncio.sleep(0.004)
        reading.cancel()
        return looks

    looks = simulate(3, main)
    assert 5 < len(looks)
    assert max(looks) < 1.0


@pytest.mark.parametrize("alpha", [1, 2, 5])
def test_the_walk_ends_where_a_name_is_empty(alpha):
    """The pure function: a run that links, a stray that does not, and the free name behind it."""
    links, writes = {}, {0: "w0"}
    for i in range(1, alpha + 1):
        writes[i] = f"w{i}"
        links[i] = linked(i, f"w{i - 1}")
    links[alpha + 1], writes[alpha + 1] = linked(alpha + 1, "somebody"), "stray"
    end = document.walk(Known(0, "w0", 1), links, writes)
    assert Known(alpha, f"w{alpha}", alpha + 2) == end


def linked(index, prev):
    """A link behind the manifest with this write id."""
    path = document.names.manifest
    return document.ChainLink(
        index,
        path(index + 1),
        Known(0, "w0", 1),
        1,
        (1,),
        1,
        document.Prev(path(index - 1), "0" * 64, prev),
    )
