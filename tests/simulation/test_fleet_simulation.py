"""Seeded worlds of members, compactors and roll-ups keep the promise; broken fleets do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from cordwood.fleet import rollup
from cordwood.fleet.dirty import EVERYTHING, DirtyLog, Reading
from cordwood.fleet.fleet import Fleet
from cordwood.fleet.marks import Said, gather
from cordwood.log import pipeline
from cordwood.testing.fleetsim import FleetSimulation
from cordwood.testing.verdict import ModelBrokenError

SEEDS = range(16)
MUTANT_SEEDS = range(120)


@cache
def run(seed):
    """One seed's world, simulated."""
    return FleetSimulation(seed).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_the_promise(seed):
    """Whatever the seed brings, a log with something to compact has a mark, after every put."""
    # EVIDENCE-OF: G-51, G-52, G-54
    assert run(seed).events["append"]


def test_the_seeds_bring_something():
    """Kills, pauses, purges and damage happen in the seeds above, and records are written."""
    events = sum((run(seed).events for seed in SEEDS), Counter())
    assert {"append", "compact", "damage", "kill", "pause", "purge", "roll"} == set(events)
    assert events["append"] > 1_000


def test_equal_seeds_give_equal_traces():
    """A run is a pure function of its seed, so a failure can be replayed."""
    first, second = FleetSimulation(4).run().trace, FleetSimulation(4).run().trace
    assert first == second
    assert len(first) > 20


def is_caught(first=0, **weather):
    """Whether some seed's world, with this weather, finds a log without a mark; `first` did."""
    for seed in (*MUTANT_SEEDS[first:], *MUTANT_SEEDS[:first]):
        simulation = FleetSimulation(seed)
        simulation.weather = replace(simulation.weather, **weather)
        try:
            simulation.run()
        except ModelBrokenError as error:
            if "F1" in str(error):
                return True
    return False


def test_a_writer_that_does_not_mark_is_caught(monkeypatch):
    """The mark is what finds a log again."""

    async def nothing(offset):
        pass

    monkeypatch.setattr(Fleet, "_marker", lambda self, name: nothing)
    assert is_caught()


def test_adoption_without_a_mark_is_caught(monkeypatch):
    """An orphan may be adopted long after its writer's mark is gone (the lost dirty bit)."""
    honest = pipeline.find_ground

    async def silent(objects, entropy, own, fold, before_naming):
        return await honest(objects, entropy, own, fold)

    monkeypatch.setattr(pipeline, "find_ground", silent)
    assert is_caught(24)


def test_dropping_a_mark_without_a_fence_is_caught(monkeypatch):
    """Between the look and the drop a writer may name records."""

    async def nothing(objects, entropy, seen):
        pass

    monkeypatch.setattr(rollup, "fence", nothing)
    assert is_caught(24)


def test_relying_on_a_mark_after_a_lost_swap_is_caught(monkeypatch):
    """Who loses a swap may have lost it to a fence."""
    honest = pipeline.Pipeline._stand_on

    def trusting(self, ground, started_s):
        was = self._is_announced
        honest(self, ground, started_s)
        self._is_announced = self._is_announced or was

    monkeypatch.setattr(pipeline.Pipeline, "_stand_on", trusting)
    assert is_caught(67, logs=1, kills=0.0, fault_rate=0.2, deadline_s=60.0, quiet_s=0.0)


def test_a_roll_up_that_forgets_survivors_is_caught(monkeypatch):
    """What is still dirty has to be marked again before the cursor moves."""

    async def nothing(self, marks):
        pass

    monkeypatch.setattr(DirtyLog, "append", nothing)
    assert is_caught()


def test_advancing_past_what_cannot_be_read_is_caught(monkeypatch):
    """The marks in a damaged fragment are not known to be unneeded."""
    honest = DirtyLog.read

    async def careless(self, start, *, max_marks=1_000_000):
        reading = await honest(self, start, max_marks=max_marks)
        limit = (await self.log.manifest()).next_offset if reading.damage else reading.limit
        return Reading([*reading.marks, *reading.beyond], limit, [], None)

    monkeypatch.setattr(DirtyLog, "read", careless)
    assert is_caught(damage=True)


def test_a_purge_of_what_came_after_it_is_caught(monkeypatch):
    """A log that was purged and then written again is dirty."""

    def careless(marks):
        said = gather(marks)
        for mark in marks:
            if mark.is_purge:
                said[mark.log] = Said((mark,), EVERYTHING)
        return said

    monkeypatch.setattr(rollup, "gather", careless)
    assert is_caught(purges=0.2)
