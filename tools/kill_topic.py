"""Kill producers and compactors of topics many times; fail if anything acknowledged was lost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.compactkilling import kill_compactors
from cordwood.testing.topickilling import kill_producers


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        account = kill_producers(Path(directory), options.kills, SYSTEM_ENTROPY)
    with tempfile.TemporaryDirectory() as directory:
        compacted = kill_compactors(Path(directory), options.kills, SYSTEM_ENTROPY)
    print(
        f"{account.kills} kills: {len(account.acknowledged):,} records acknowledged, "
        f"{len(account.found):,} in the topic, {len(account.lost)} lost, "
        f"{len(account.doubled)} doubled, {len(account.disordered)} out of order"
    )
    print(
        f"{compacted.kills} kills with a compactor: {compacted.acknowledged:,} "
        f"records acknowledged, {compacted.left:,} left, {len(compacted.wrong)} wrong"
    )
    for line in compacted.wrong[:10]:
        print(line)
    sys.exit(not account.is_right or bool(compacted.wrong))


if __name__ == "__main__":
    main()
