"""Kill processes that write to a database in a volume; fail if a row was lost or a page torn."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.sqlitekilling import kill_databases


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        account = kill_databases(Path(directory), options.kills, SYSTEM_ENTROPY)
    print(
        f"{account.kills} kills: {account.acknowledged:,} rows acknowledged, version "
        f"{account.published} published, wrong after {len(account.wrong)} of them"
    )
    for each in account.wrong[:5]:
        print(each)
    sys.exit(bool(account.wrong))


if __name__ == "__main__":
    main()
