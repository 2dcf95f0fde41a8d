"""Processes that share a volume's directory, killed with SIGKILL at random moments."""

from __future__ import annotations

import json
import subprocess
import sys

# EVIDENCE-OF: G-106, G-107


def test_fifty_kills(tmp_path):
    """Nothing acknowledged is lost, no version is made twice, and nobody sees a mixture of two."""
    command = [sys.executable, "-m", "cordwood.testing.volumekilling", str(tmp_path / "v")]
    done = subprocess.run(
        [*command, "50", "1"], capture_output=True, text=True, check=False, timeout=200
    )
    assert (0, "") == (done.returncode, done.stderr)
    report = json.loads(done.stdout)
    assert ([], [], []) == (report["errors"], report["lost"], report["twice"])
    assert report["acknowledged"] > 50
    assert report["reads"] > 50
    assert report["published"] > 0
