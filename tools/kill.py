"""Kill a real writer process many times; fail if anything acknowledged was lost or doubled."""

from __future__ import annotations

import argparse
import sys
import tempfile

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.killing import kill_writers


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--protocol", choices=["cas", "chain"], default="cas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = f"file://{directory}/log"
        account = kill_writers(url, options.kills, SYSTEM_ENTROPY, options.protocol)
    print(
        f"{account.kills} kills: {len(account.acknowledged):,} records acknowledged, "
        f"{len(account.found):,} in the log, {len(account.lost)} lost, "
        f"{len(account.doubled)} doubled, {'whole' if account.is_whole else 'DAMAGED'}"
    )
    sys.exit(bool(account.lost or account.doubled or not account.is_whole))


if __name__ == "__main__":
    main()
