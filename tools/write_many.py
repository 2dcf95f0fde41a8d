"""Write many records by Spark while its workers are killed; fail unless each is at its place."""

from __future__ import annotations

import argparse
import sys
import tempfile

from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.testing.sparkkilling import write_many


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        written = write_many(directory, options.records, SYSTEM_ENTROPY, kill=options.kill)
    print(written)
    sys.exit(bool(written.wrong or not written.is_whole))


if __name__ == "__main__":
    main()
