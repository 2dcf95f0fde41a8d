"""Seeded worlds of writers, readers, crashes and faults keep the model; broken logs do not."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.log import flight, recovery
from cordwood.log.flight import Fate
from cordwood.testing.logsim import LogSimulation
from cordwood.testing.simloop import DeadlockError, simulate
from cordwood.testing.verdict import ModelBrokenError

SEEDS = range(20)
MUTANT_SEEDS = range(60)


@pytest.mark.parametrize("protocol", ["cas", "chain"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_the_model(seed, protocol):
    """Nothing acknowledged is lost, doubled or moved, whatever the seed brings."""
    # EVIDENCE-OF: G-1, G-2, G-3, G-4, G-5, G-11, G-35, G-117, G-118
    LogSimulation(seed, protocol=protocol).run()


def test_equal_seeds_give_equal_traces():
    """A run is a pure function of its seed, so a failure can be replayed."""
    first, second = LogSimulation(9).run().trace, LogSimulation(9).run().trace
    assert first == second
    assert len(first) > 100


def test_different_seeds_give_different_traces():
    """The seed is what decides."""
    assert LogSimulation(9).run().trace != LogSimulation(10).run().trace


def test_hours_pass_at_once():
    """Time is virtual: it jumps to the next timer when nothing is left to run."""

    async def main():
        await asyncio.sleep(30 * 3600)
        return asyncio.get_running_loop().time()

    assert simulate(1, main) == pytest.approx(30 * 3600)


def test_a_deadlock_is_noticed():
    """A run that waits for something that cannot come fails instead of hanging."""

    async def main():
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        simulate(1, main)


def _seeds_that_fail():
    failures = []
    for seed in MUTANT_SEEDS:
        try:
            LogSimulation(seed).run()
        except ModelBrokenError:
            failures.append(seed)
            break
    return failures


def test_adoption_without_links_is_caught(monkeypatch):
    """A log that adopts whatever fits by offset writes records twice: the model sees it."""

    def fits(tail, link):
        return link.start == tail.next_offset

    monkeypatch.setattr(recovery.Tail, "is_followed_by", fits)
    assert _seeds_that_fail()


def test_writing_again_without_judging_is_caught(monkeypatch):
    """A writer that writes again everything it was not told about writes records twice."""

    def hasty(flights, manifest, tail, is_named):
        return [Fate.DEAD for _ in flights]

    monkeypatch.setattr("cordwood.log.pipeline.judge", hasty)
    assert _seeds_that_fail()


def test_acknowledging_what_merely_landed_is_caught(monkeypatch):
    """A writer that takes a landed fragment for a committed one loses records."""
    honest = flight.judge

    def trusting(flights, manifest, tail, is_named):
        fates = honest(flights, manifest, tail, is_named)
        landed = [f.stage is flight.Stage.LANDED for f in flights]
        return [
            Fate.COMMITTED if there else fate for there, fate in zip(landed, fates, strict=True)
        ]

    monkeypatch.setattr("cordwood.log.pipeline.judge", trusting)
    assert _seeds_that_fail()
