"""Kill processes that share a volume's directory; fail if anything was lost, doubled or mixed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.volumekilling import main as kill_processes


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(SYSTEM_ENTROPY.uniform() * 1e9))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = kill_processes(str(Path(directory) / "volume"), options.kills, options.seed)
    print(
        f"{options.kills} kills (seed {options.seed}): {report.acknowledged:,} commits "
        f"acknowledged, {len(report.lost)} lost, {len(report.twice)} made twice; {report.reads:,} "
        f"snapshots compared, {len(report.errors)} wrong; version {report.published} published"
    )
    for error in report.errors[:5]:
        print(error)
    sys.exit(bool(report.lost or report.twice or report.errors))


if __name__ == "__main__":
    main()
