"""Copy a log by a streaming query that is killed again and again; fail unless the copy is exact."""

from __future__ import annotations

import argparse
import sys
import tempfile

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.sparkkilling import kill_copies


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        account = kill_copies(directory, options.kills, options.records, SYSTEM_ENTROPY)
    print(account)
    sys.exit(not account.is_exact)


if __name__ == "__main__":
    main()
