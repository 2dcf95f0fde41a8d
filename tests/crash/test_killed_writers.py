"""Real writer processes are killed with SIGKILL; nothing they were told is lost or doubled."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.testing.killing import kill_writers


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "kills"), [("cas", 20), ("chain", 8)])
def test_twenty_killed_writers_lose_and_double_nothing(tmp_path, protocol, kills):
    """Every record whose append returned is in the log once, at its offset."""
    # EVIDENCE-OF: G-1, G-117
    account = kill_writers(f"file://{tmp_path}/log", kills, SeededEntropy("kills"), protocol)
    assert account.lost == []
    assert account.doubled == []
    assert account.is_whole
    assert len(account.acknowledged) > 20
