"""A streaming query that copies a log is killed with all its processes, and started again."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.spark import missing
from cordwood.testing.sparkkilling import kill_copies


@pytest.mark.slow
def test_a_copy_that_is_killed_is_exact(tmp_path):
    """The same bodies, as many, in the same order. `make crash` does it twenty times."""
    # EVIDENCE-OF: G-64
    if reason := missing():
        pytest.skip(reason)
    account = kill_copies(str(tmp_path), 2, 12_000, SYSTEM_ENTROPY)
    assert account.is_exact, str(account)
    assert 2 == account.kills
