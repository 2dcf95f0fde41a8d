"""How long an index of made-up names takes to build, and to search: CPU seconds and milliseconds.

Names are one to five made-up words, common and rare ones as in real titles; two ids in five have a
second name. Half of the queries have a typing error. Says how high the name that was meant comes:
the mean of one over its place (MRR), and how many are among the first thirty.

    python tools/time_names.py --ids 1000000
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordwood.index import names
from cordwood.sync import Index

WORDS = 60_000
SYLLABLES = [
    a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "er", "an", "is")
]


def made_up(count: int, chance: np.random.Generator) -> npt.NDArray[Any]:
    """So many names."""
    sizes = chance.integers(1, 5, WORDS)
    words = np.array(["".join(chance.choice(SYLLABLES, size)) for size in sizes])
    weights = 1 / np.arange(1, WORDS + 1) ** 0.7
    chosen = chance.choice(words, size=(count, 5), p=weights / weights.sum())
    lengths = chance.integers(1, 6, count)
    return np.array(
        [" ".join(row[:length]) for row, length in zip(chosen, lengths, strict=True)], object
    )


def mistyped(name: str, chance: np.random.Generator) -> str:
    """One letter left out, put in, or another one."""
    place = int(chance.integers(len(name)))
    return name[:place] + str(chance.choice(["", "x", "x" + name[place]])) + name[place + 1 :]


def cpu_s() -> float:
    """Of this process, so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Build, search, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=300)
    asked = parser.parse_args()
    chance = np.random.default_rng(1)
    first = made_up(asked.ids, chance)
    second = made_up(2 * asked.ids // 5, chance)
    ids = np.array([f"id{number:07d}" for number in range(asked.ids)], object)
    with tempfile.TemporaryDirectory() as folder:
        index = Index(f"{folder}/names")
        index.create(names.TOKENIZER)
        began = cpu_s()
        with index.begin() as txn:
            txn.add_arrow(*names.documents(pa.array(ids), pa.array(first)))
            txn.add_arrow(*names.documents(pa.array(ids[: len(second)]), pa.array(second)))
        print(f"build: {asked.ids + len(second):,} names, {cpu_s() - began:.1f} CPU s")
        print(f"size: {index.state().size_bytes / (asked.ids + len(second)):.0f} bytes a name")
        taken, ranks = [], []
        with index.snapshot() as snapshot:
            names.search(snapshot, "once before")
            for number in range(asked.queries):
                meant = int(chance.integers(asked.ids))
                text = first[meant] if number % 2 else mistyped(first[meant], chance)
                began = cpu_s()
                found = [one.id for one in names.search(snapshot, text or "x", 30)]
                taken.append(1e3 * (cpu_s() - began))
                ranks.append(1 / (1 + found.index(ids[meant])) if ids[meant] in found else 0.0)
        print(
            f"search: mean {np.mean(taken):.1f} ms CPU, p50 {np.median(taken):.1f}, "
            f"p95 {np.quantile(taken, 0.95):.1f}, max {max(taken):.1f}"
        )
        print(
            f"found: MRR {np.mean(ranks):.2f}, {np.mean(np.array(ranks) > 0):.0%} of the first 30"
        )


if __name__ == "__main__":
    main()
