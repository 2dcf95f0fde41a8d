"""Bulk commits among everybody else, in seeded worlds; broken remedies do not go unnoticed."""

from __future__ import annotations

import pytest

from cordwood.base.limits import OFFSET_LIMIT
from cordwood.log import bulk, uploads
from cordwood.testing.bulksim import BulkSimulation
from cordwood.testing.verdict import ModelBrokenError

SEEDS = range(12)
MUTANT_SEEDS = range(60)


WORLDS = [*((seed, "cas") for seed in SEEDS), *((seed, "chain") for seed in SEEDS[:5])]


@pytest.mark.parametrize(("seed", "protocol"), WORLDS)
def test_a_seed_keeps_the_model(seed, protocol):
    """No batch is lost or doubled, no upload that is needed is swept."""
    # EVIDENCE-OF: G-61, G-62, G-63
    world = BulkSimulation(seed, protocol=protocol)
    world.run()
    assert world.commits


def is_caught():
    """Whether a world breaks."""
    for seed in MUTANT_SEEDS:
        try:
            BulkSimulation(seed).run()
        except ModelBrokenError:
            return True
    return False


def test_a_commit_that_forgets_its_token_is_caught(monkeypatch):
    """A batch made again would be in the log twice."""

    async def none(*_):
        return None

    monkeypatch.setattr(bulk.Committer, "_find", none)
    assert is_caught()


@pytest.mark.slow
def test_a_sweep_that_does_not_fence_is_caught(monkeypatch):
    """A slow commit would name what is gone."""

    async def load(objects, *_):
        return (await objects.load()).manifest

    async def nothing(*_):
        return OFFSET_LIMIT

    monkeypatch.setattr(uploads, "have_replaced", load)
    monkeypatch.setattr(bulk.Committer, "_look_at", nothing)
    assert is_caught()
