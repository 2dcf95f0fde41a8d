"""A bank in a volume, in seeded worlds; every way is gone, and broken remedies are noticed."""

from __future__ import annotations

from collections import Counter

from cordwood.testing.verdict import ModelBrokenError
from cordwood.testing.volumesim import VolumeSimulation
from cordwood.volume import push

SEEDS = range(26)
WAYS = (
    "branch",
    "checkpoint",
    "collected",
    "died at a step",
    "diverged",
    "dropped",
    "kept",
    "killed",
    "note",
    "ours",
    "power cut",
    "pushed",
    "rebased",
    "reset",
    "slept",
    "swept",
    "theirs",
    "UncertainError",
)
"""Each must be met over the seeds; `ours` and `theirs` are what became of pushes cut off."""


def test_the_bank_adds_up_whatever_happens():
    """Nothing lost, doubled or mixed up, over seeds in which each of these happened."""
    # EVIDENCE-OF: G-111, G-112, G-113, G-114, G-115
    met = Counter()
    for seed in SEEDS:
        met += VolumeSimulation(seed).run().met
    assert [] == [way for way in WAYS if not met[way]]


def test_a_seed_is_a_whole_world():
    """The same seed, the same trace."""
    one, two = (VolumeSimulation(7).run().trace for _ in range(2))
    assert one == two


def is_caught(seeds):
    """Whether a world breaks."""
    for seed in seeds:
        try:
            VolumeSimulation(seed).run()
        except ModelBrokenError:
            return True
    return False


def test_a_push_that_forgets_its_pending_commit_is_caught(monkeypatch):
    """It would be taken for somebody else's when it lands."""

    async def none(_):
        return None

    monkeypatch.setattr(push, "resolve", none)
    assert is_caught(range(10, 60))


def test_a_way_out_that_looks_away_is_caught(monkeypatch):
    """What was committed while a branch was made would be gone with the rest."""
    whole = push.Desk.publish

    async def publish(desk, *args, **named):
        return await whole(desk, *args, **{**named, "only_at": None})

    monkeypatch.setattr(push.Desk, "publish", publish)
    assert is_caught(range(20))
