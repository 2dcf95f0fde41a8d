"""Time the permutation of the vector kernel alone, beside the whole kernel: how far it could go."""

from __future__ import annotations

import argparse
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from cordwood.base import keccak
from cordwood.base.permutation import LANES, permute
from cordwood.cli.bench.harness import best_of

STATE_BYTES = 25 * 8 * LANES
VECTOR_OPERATIONS = 24 * (10 + 5 + 25 + 24 + 25 + 1)
"""Per permutation, with three-way logic and rotation in one instruction each: theta's parities,
their rotations, their application; rho; chi; iota."""


def permutation() -> Any:
    """A function that permutes the state at an address so many times."""
    row_at = keccak._row  # noqa: SLF001 - what is measured uses it

    def define(_typing: Any, _address: Any) -> Any:
        def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            rows = [row_at(builder, arguments[0], i * LANES) for i in range(25)]
            state = [builder.load(row, align=8 * LANES) for row in rows]
            for word, row in zip(permute(builder, state), rows, strict=True):
                builder.store(word, row, align=8 * LANES)
            return context.get_dummy_value()

        return types.void(types.int64), emit

    permute_at: Any = intrinsic(define)

    def repeat(address: int, times: int) -> None:
        for _ in range(times):
            permute_at(address)

    return numba.njit([types.void(types.int64, types.int64)])(repeat)


def least_ns(work: Any, times: int, rounds: int) -> float:
    """CPU time of one of `times`, in the best of some rounds."""
    return best_of(rounds, work)[0].cpu_s / times * 1e9


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    room = np.zeros(STATE_BYTES + 64, np.uint8)
    address = -(-room.ctypes.data // 64) * 64
    repeat = permutation()
    alone_ns = least_ns(lambda: repeat(address, 10_000), 10_000, options.rounds)
    kernel = keccak.load()
    count = 2**23 // options.record
    numbers = np.arange(count, dtype=np.uint64)
    places = np.arange(count + 1, dtype=np.int64) * options.record
    values = np.random.default_rng(1).integers(0, 256, places[-1], np.uint8)
    whole_ns = least_ns(lambda: kernel(numbers, numbers, values, places), count, options.rounds)
    share = ((options.record + 16) // 136 + 1) / LANES
    print(f"{LANES} lanes; one permutation of all of them {alone_ns:.0f} ns,")
    print(f"that is {VECTOR_OPERATIONS / alone_ns:.2f} of its {VECTOR_OPERATIONS} steps per ns")
    print(f"a record of {options.record} bytes: permutations {alone_ns * share:.0f} ns,")
    print(f"the whole kernel {whole_ns:.0f} ns")


if __name__ == "__main__":
    main()
