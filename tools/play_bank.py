"""Run the bank in SQL for many seeds, on every core; print the seeds that fail."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from cordwood.testing.bank import Bank

STEPS = 80


def run_seed(seed: int) -> tuple[int, Counter[str], str]:
    """One seed: what happened, and the failure if any."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return seed, Bank(seed, Path(folder)).run(STEPS), ""
    except BaseException:  # noqa: BLE001 - any failure of a seed is what we look for
        return seed, Counter(), traceback.format_exc()


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    failed: list[int] = []
    happened: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for seed, seen, trace in pool.imap_unordered(run_seed, seeds, chunksize=4):
            happened += seen
            if trace:
                failed.append(seed)
                print(f"seed {seed} failed:\n{trace}")
    print(f"{options.seeds} banks: " + ", ".join(f"{n:,} {what}" for what, n in happened.items()))
    print(f"failing seeds: {sorted(failed)}" if failed else "every sum was kept")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
