"""A bank in a volume whose tellers are killed: real processes, one directory, one store."""

from __future__ import annotations

from cordwood.base.clock import SeededEntropy
from cordwood.testing.bankkilling import kill_tellers


def test_killed_tellers_lose_nothing(tmp_path):
    """Every transfer that was committed is published in the end, once; every version adds up."""
    # EVIDENCE-OF: G-111, G-112
    report = kill_tellers(tmp_path, 6, SeededEntropy(1))
    assert [] == report.errors
    assert set() == report.lost
    assert report.is_right
    assert report.kills == 8
    assert report.committed
    assert report.published
