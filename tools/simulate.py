"""Simulate many worlds, on every core; print the seeds that fail.

Each seed is one world, and the kinds take turns: `--seeds 2000 --world chain` plays five hundred of
each kind that has a log of the chain protocol.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from functools import partial

from cordwood.testing.bulksim import BulkSimulation
from cordwood.testing.collectsim import CollectSimulation
from cordwood.testing.fleetsim import FleetSimulation
from cordwood.testing.lifesim import LifeSimulation
from cordwood.testing.logsim import LogSimulation
from cordwood.testing.volumesim import VolumeSimulation

WORLDS = {
    "log": LogSimulation,
    "collect": CollectSimulation,
    "life": LifeSimulation,
    "bulk": BulkSimulation,
    "fleet": FleetSimulation,
    "chain-log": partial(LogSimulation, protocol="chain"),
    "chain-collect": partial(CollectSimulation, protocol="chain"),
    "chain-life": partial(LifeSimulation, protocol="chain"),
    "chain-bulk": partial(BulkSimulation, protocol="chain"),
    "volume": VolumeSimulation,
}
"""Appending alone; collection watched at every delete; everything that happens to a log; the same
with bulk commits; many. Then the same on logs of the chain protocol, and a bank in a volume."""

FAMILIES = {
    "all": list(WORLDS),
    "chain": [world for world in WORLDS if world.startswith("chain-")],
    "cas": ["log", "collect", "life", "bulk", "fleet"],
}


def run_seed(job: tuple[str, int]) -> tuple[str, int, int, str]:
    """One seed in one world: how many records were acknowledged, and the failure if any."""
    world, seed = job
    try:
        outcome = WORLDS[world](seed).run()
        return world, seed, len(getattr(outcome, "acknowledged", ())), ""
    except BaseException:  # noqa: BLE001 - any failure of a seed is what we look for
        return world, seed, 0, traceback.format_exc()


def main() -> None:
    """Parse arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--world", choices=[*FAMILIES, *WORLDS], default="all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    worlds = FAMILIES.get(options.world, [options.world])
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(worlds[seed % len(worlds)], seed) for seed in seeds]
    failed: list[tuple[str, int]] = []
    acknowledged = 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.imap_unordered(run_seed, jobs, 4)
        for done, (world, seed, count, failure) in enumerate(results, 1):
            acknowledged += count
            if failure:
                failed.append((world, seed))
                print(f"world {world}, seed {seed} failed:\n{failure}", flush=True)
            if done % 100 == 0 or done == len(jobs):
                print(
                    f"{done} seeds, {acknowledged:,} records acknowledged, {len(failed)} failed",
                    flush=True,
                )
    if failed:
        for world, seed in sorted(failed):
            print(f"again with --world {world} --first {seed} --seeds 1")
        sys.exit(1)


if __name__ == "__main__":
    main()
