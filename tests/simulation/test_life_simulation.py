"""Cursors, pins, collectors and writers in seeded worlds; broken remedies do not go unnoticed."""

from __future__ import annotations

import pytest

from cordwood.log import cursors, deletion
from cordwood.testing.lifesim import LifeSimulation
from cordwood.testing.verdict import ModelBrokenError

SEEDS = range(16)
MUTANT_SEEDS = range(120)


WORLDS = [*((seed, "cas") for seed in SEEDS), *((seed, "chain") for seed in SEEDS[:10])]


@pytest.mark.parametrize(("seed", "protocol"), WORLDS)
def test_a_seed_keeps_the_model(seed, protocol):
    """Nothing that is needed is collected, whatever the seed brings."""
    # EVIDENCE-OF: G-36, G-37, G-122
    LifeSimulation(seed, protocol=protocol).run()


def test_equal_seeds_give_equal_traces():
    """A run is a pure function of its seed, so a failure can be replayed."""
    first, second = LifeSimulation(3).run().trace, LifeSimulation(3).run().trace
    assert first == second
    assert len(first) > 100


def is_caught(first=0):
    """Whether a world breaks; `first` is one that did."""
    for seed in (*MUTANT_SEEDS[first:], *MUTANT_SEEDS[:first]):
        try:
            LifeSimulation(seed).run()
        except ModelBrokenError:
            return True
    return False


def test_a_sweep_that_ignores_pins_is_caught(monkeypatch):
    """Files of a pin would go."""

    async def none(*_):
        return []

    monkeypatch.setattr(deletion, "live_holds", none)
    assert is_caught()


@pytest.mark.slow
def test_a_cursor_that_is_not_proved_is_caught(monkeypatch):
    """A cursor that is new or moves back would come too late."""

    async def trusting(*_):
        """Ask nobody."""

    monkeypatch.setattr(cursors, "prove_not_collected", trusting)
    assert is_caught(95)
