"""Run the log simulation for many seeds, on every core; print the seeds that fail."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback

from cordwood.testing.logsim import LogSimulation


def run_seed(seed: int) -> tuple[int, int, str]:
    """One seed: how many records were acknowledged, and the failure if any."""
    try:
        return seed, len(LogSimulation(seed).run().acknowledged), ""
    except BaseException:  # noqa: BLE001 - any failure of a seed is what we look for
        return seed, 0, traceback.format_exc()


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    acknowledged = 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, (seed, count, failure) in enumerate(pool.imap_unordered(run_seed, seeds, 4), 1):
            acknowledged += count
            if failure:
                failed.append(seed)
                print(f"seed {seed} failed:\n{failure}", flush=True)
            if done % 100 == 0 or done == len(seeds):
                print(f"{done} seeds, {acknowledged:,} records acknowledged, {len(failed)} failed")
    if failed:
        print(f"failing seeds: {sorted(failed)}; again with --first SEED --seeds 1")
        sys.exit(1)


if __name__ == "__main__":
    main()
