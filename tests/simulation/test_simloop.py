"""The simulated loop: work that would go to a thread."""

from __future__ import annotations

import asyncio

import pytest

from cordwood.base.workers import in_worker
from cordwood.testing.logsim import LogSimulation
from cordwood.testing.simloop import simulate


def test_work_for_a_thread_is_a_step_of_its_own():
    """Others may come before it, and it is not done for who was cancelled."""
    done = []

    def work(number):
        done.append(number)
        if number == 2:
            raise KeyError("lost")
        return number

    async def main():
        one, two, three = (asyncio.ensure_future(in_worker(work, n)) for n in (1, 2, 3))
        await asyncio.sleep(0)
        three.cancel()
        assert await one == 1
        with pytest.raises(KeyError, match="lost"):
            await two
        with pytest.raises(asyncio.CancelledError):
            await three

    for seed in range(10):
        done.clear()
        simulate(seed, main)
        assert {1, 2} <= set(done)


@pytest.mark.parametrize(("seed", "protocol"), [(590, "cas"), (915, "chain")])
def test_large_fragments_are_read_in_a_simulation(seed, protocol):
    """These worlds have fragments that are decoded beside the loop."""
    first, second = (LogSimulation(seed, protocol=protocol).run() for _ in range(2))
    assert first.trace == second.trace
