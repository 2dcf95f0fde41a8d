"""Seeded worlds of two collectors, writers, cursors, pins, readers, kills and faults."""

from __future__ import annotations

import pytest

from cordwood.log import collect, holds
from cordwood.log.garbage import Phase
from cordwood.testing.collectsim import CollectSimulation
from cordwood.testing.verdict import ModelBrokenError

SEEDS = range(16)
MUTANT_SEEDS = (5, *range(40))
"""The first one has a pin that is needed to its end."""
ORPHANS_MAX = 8
"""Nodes of a collection that was given up, or that a writer made and could not name in time."""


WORLDS = [*((seed, "cas") for seed in SEEDS), *((seed, "chain") for seed in SEEDS[:8])]


@pytest.mark.parametrize(("seed", "protocol"), WORLDS)
def test_a_seed_deletes_nothing_that_is_needed(seed, protocol):
    """Not by a manifest, a cursor, a pin or a reader within its grace; and in the end all goes."""
    # EVIDENCE-OF: G-36, G-37, G-38, G-39, G-57, G-58, G-122, G-123
    simulation = CollectSimulation(seed, protocol=protocol).run()
    leftovers = simulation.ground.leftovers()
    assert [] == [key for key in leftovers if "/snapshot/" not in key and not simulation.rate]
    assert ORPHANS_MAX >= len(leftovers)


def test_equal_seeds_give_equal_traces():
    """A failure can be replayed."""
    first, second = CollectSimulation(6).run(), CollectSimulation(6).run()
    assert first.trace == second.trace
    assert 20 < len(first.trace)


def test_the_worlds_collect_something():
    """The auditor has something to look at."""
    simulation = CollectSimulation(2).run()
    assert 3 < simulation.collections
    assert 300 < simulation.ground.deleted


def some_seed_fails(seeds=MUTANT_SEEDS):
    """Whether the auditor notices."""
    for seed in seeds:
        try:
            CollectSimulation(seed).run()
        except ModelBrokenError:
            return True
    return False


@pytest.mark.slow
def test_a_sweep_without_grace_is_caught(monkeypatch):
    """Readers of an older manifest lose their files."""
    monkeypatch.setattr(collect, "age_us", lambda modified_us, now_us: 10**18)
    assert some_seed_fails()


@pytest.mark.slow
def test_a_sweep_that_looks_at_no_pin_is_caught(monkeypatch):
    """Pins lose their files."""

    async def nothing(objects, entropy):
        return []

    monkeypatch.setattr("cordwood.log.deletion.live_holds", nothing)
    assert some_seed_fails()


@pytest.mark.slow
def test_a_cursor_that_is_not_proved_is_caught(monkeypatch):
    """Cursors that moved back too late are passed by."""

    async def trusting(objects, start):
        return (await objects.load()).manifest

    monkeypatch.setattr("cordwood.log.cursors.prove_not_collected", trusting)
    # It takes a move in the moment between the look and the swap: two or three seeds in a hundred.
    assert some_seed_fails(range(85, 125))


@pytest.mark.slow
def test_an_unlink_that_reads_no_cursors_is_caught(monkeypatch):
    """Cursors that moved back between mark and unlink are passed by."""

    async def unlink(self):
        garbage, etag = await self._load()
        if garbage.phase is Phase.MARKED and await self._replace_manifest(garbage):
            garbage = garbage.in_phase(Phase.UNLINKED)
            await self._put(garbage, etag)
        return garbage

    monkeypatch.setattr(collect.Collector, "unlink", unlink)
    assert some_seed_fails()


@pytest.mark.slow
def test_a_pin_that_is_ended_before_its_time_is_caught(monkeypatch):
    """Its files go while its owner relies on them."""
    monkeypatch.setattr(holds, "age_us", lambda modified_us, now_us: 10**18)
    assert some_seed_fails()
