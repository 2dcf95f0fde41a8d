"""A streaming query that copies a log is killed with all its processes, and started again."""

from __future__ import annotations

import pytest

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.sparkkilling import kill_copies


@pytest.mark.slow
def test_a_copy_that_is_killed_is_exact(tmp_path, spark):
    """The same bodies, as many, in the same order. `make crash` does it twenty times."""
    # EVIDENCE-OF: G-64
    account = kill_copies(str(tmp_path), 1, 8_000, SYSTEM_ENTROPY)
    assert account.is_exact, str(account)
    assert 1 == account.kills
