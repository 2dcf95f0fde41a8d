"""Kill producers of a topic many times; fail if anything acknowledged was lost or doubled."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.topickilling import kill_producers


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        account = kill_producers(Path(directory), options.kills, SYSTEM_ENTROPY)
    print(
        f"{account.kills} kills: {len(account.acknowledged):,} records acknowledged, "
        f"{len(account.found):,} in the topic, {len(account.lost)} lost, "
        f"{len(account.doubled)} doubled, {len(account.disordered)} out of order"
    )
    sys.exit(not account.is_right)


if __name__ == "__main__":
    main()
