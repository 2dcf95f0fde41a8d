"""Kill tellers of a bank in a volume many times; fail if a transfer was lost or does not add up."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.bankkilling import kill_tellers


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = kill_tellers(Path(directory), options.kills, SYSTEM_ENTROPY)
    print(
        f"{report.kills} kills: {len(report.committed):,} transfers committed, "
        f"{report.versions:,} versions, {len(report.lost)} lost"
    )
    for error in report.errors:
        print(error)
    sys.exit(not report.is_right)


if __name__ == "__main__":
    main()
