"""Processes killed with SIGKILL: nothing acknowledged is lost, doubled or out of order."""

from __future__ import annotations

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.compactkilling import kill_compactors
from cordwood.testing.topickilling import kill_producers


def test_producers_killed_at_random_moments_lose_nothing(tmp_path):
    """Two processes of two threads at a time, fifty in all, on files so small that they roll."""
    # EVIDENCE-OF: G-88, G-89
    account = kill_producers(tmp_path, 50, SYSTEM_ENTROPY)
    assert account.is_right, (account.lost[:5], account.doubled[:5], account.disordered[:5])
    assert 100 < len(account.acknowledged) <= len(account.found)


def test_compactors_killed_at_random_moments_lose_nothing_and_bring_nothing_back(tmp_path):
    """A producer and a compactor at a time, forty in all, on files of a few records each."""
    # EVIDENCE-OF: G-88, G-89
    account = kill_compactors(tmp_path, 40, SYSTEM_ENTROPY)
    assert not account.wrong, account.wrong[:5]
    assert 20 < account.acknowledged
    assert account.left <= account.acknowledged + 20
