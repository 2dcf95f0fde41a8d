"""Work in threads: what takes turns is done one after the other, and all hear of their own."""

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from cordwood.base import workers
from cordwood.base.workers import Turns, in_worker, share


async def test_everybody_gets_their_own_result_or_error():
    """Work that fails is told to who asked for it, and to nobody else."""
    turns = Turns()

    def work(number):
        if number % 3 == 0:
            raise ValueError(f"{number} will not do")
        return number

    found = await asyncio.gather(*(turns.take(work, n) for n in range(20)), return_exceptions=True)
    for number, outcome in enumerate(found):
        if number % 3:
            assert outcome == number
        else:
            assert str(outcome) == f"{number} will not do"


async def test_one_at_a_time_in_the_order_they_came():
    """Also after a rest."""
    turns, running, order, pause = Turns(), [], [], threading.Event()

    def work(number):
        running.append(number)
        order.append((number, len(running)))
        pause.wait(0.001)
        running.remove(number)

    await asyncio.gather(*(turns.take(work, n) for n in range(20)))
    await turns.take(work, 20)  # after a rest
    assert order == [(number, 1) for number in range(21)]


async def test_who_no_longer_waits_is_passed_over_and_hurts_nobody():
    """Work that was given up before its turn is not done."""
    turns, begun, may_go, done = Turns(), threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        may_go.wait(10)
        return "held"

    first = asyncio.ensure_future(turns.take(hold))
    await asyncio.to_thread(begun.wait, 10)
    others = [asyncio.ensure_future(turns.take(done.append, n)) for n in range(3)]
    await asyncio.sleep(0)
    others[1].cancel()
    may_go.set()
    assert await first == "held"
    outcomes = await asyncio.gather(*others, return_exceptions=True)
    assert done == [0, 2]
    assert isinstance(outcomes[1], asyncio.CancelledError)


def test_nobody_waits_for_ever_when_the_loop_ends():
    """Who waits is cancelled with everything else."""
    begun, may_go = threading.Event(), threading.Event()
    waiting = []

    def hold():
        begun.set()
        may_go.wait(10)

    async def main():
        turns = Turns()
        waiting.append(asyncio.ensure_future(turns.take(hold)))
        await asyncio.to_thread(begun.wait, 10)
        waiting.append(asyncio.ensure_future(turns.take(hold)))
        await asyncio.sleep(0)

    asyncio.run(main())
    may_go.set()
    assert all(task.cancelled() for task in waiting)


async def test_an_interrupt_of_the_rounds_is_not_a_result():
    """Who waited is cancelled, and the next one is served."""
    turns = Turns()
    begun, may_go = threading.Event(), threading.Event()

    def hold():
        begun.set()
        may_go.wait(10)

    waiting = asyncio.ensure_future(turns.take(hold))
    await asyncio.to_thread(begun.wait, 10)
    (rounds,) = (task for task in asyncio.all_tasks() if "_work" in repr(task.get_coro()))
    rounds.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_go.set()
    assert await turns.take(lambda: "again") == "again"


async def test_no_thread_to_be_had(monkeypatch, caplog):
    """Who waits is told why, not that it was cancelled; the next one is served."""
    turns = Turns()

    async def refuse(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "in_worker", refuse)
        found = await asyncio.gather(*(turns.take(int) for _ in range(3)), return_exceptions=True)
    assert ["can't start new thread"] * 3 == list(map(str, found))
    assert 0 == await turns.take(int)
    gc.collect()
    assert "" == caplog.text


async def test_stopped_in_the_middle():
    """No task is left, though a thread cannot be stopped; who waits is cancelled."""
    turns, begun, may_go, done = Turns(), threading.Event(), threading.Event(), []

    def hold():
        begun.set()
        may_go.wait(10)

    waiting = [asyncio.ensure_future(turns.take(hold))]
    await asyncio.to_thread(begun.wait, 10)
    waiting.append(asyncio.ensure_future(turns.take(done.append, 1)))
    await asyncio.sleep(0)
    await turns.stop()
    may_go.set()
    assert all(
        isinstance(o, asyncio.CancelledError)
        for o in await asyncio.gather(*waiting, return_exceptions=True)
    )
    assert {asyncio.current_task()} == asyncio.all_tasks()
    assert "again" == await turns.take(lambda: "again")
    assert [] == done
    early = asyncio.ensure_future(turns.take(int))
    await asyncio.sleep(0)
    await turns.stop()  # before the round has begun
    assert early.cancelled() or isinstance(
        (await asyncio.gather(early, return_exceptions=True))[0], asyncio.CancelledError
    )
    assert 0 == await turns.take(int)


async def test_what_has_gathered_goes_step_by_step():
    """All first steps come before any second one, and who fails or is given up holds up nobody."""
    turns, order, begun, may_go = Turns(), [], threading.Event(), threading.Event()

    def hold():
        begun.set()
        may_go.wait(10)

    def work(number, num_steps):
        for step in range(num_steps):
            order.append((step, number))
            yield
        if number == 2:
            raise ValueError("two will not do")
        return number

    first = asyncio.ensure_future(turns.take(hold))
    await asyncio.to_thread(begun.wait, 10)
    steps = {1: 2, 2: 1, 3: 3, 4: 0, 5: 9}
    tasks = [asyncio.ensure_future(turns.take(work, *pair)) for pair in steps.items()]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    may_go.set()
    await first
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (found[0], str(found[1]), *found[2:4]) == (1, "two will not do", 3, 4)
    assert isinstance(found[4], asyncio.CancelledError)
    assert order == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 3), (2, 3)]


async def test_all_steps_are_done_in_a_worker():
    """Without turns, one after the other."""

    def work():
        yield
        yield
        return threading.get_ident()

    assert await workers.in_worker(work) != threading.get_ident()
    assert await workers.in_worker(threading.get_ident) != threading.get_ident()


async def test_a_function_that_stops_an_iteration_by_mistake_has_failed():
    """It is not taken for the end of steps."""

    def stray():
        return next(iter(()))

    for run in (Turns().take, in_worker):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(run(stray), 10)


class TestShare:
    """Work that several threads may do."""

    @pytest.mark.parametrize("count", [0, 1, 2, 50])
    def test_everything_is_done_once_and_in_order(self, count):
        """Whoever did it."""
        done = []

        def work(number):
            done.append(number)
            return number * 2

        assert [n * 2 for n in range(count)] == share([partial(work, n) for n in range(count)])
        assert sorted(done) == list(range(count))

    def test_two_at_a_time(self, monkeypatch):
        """Where there are two cores, a second thread helps."""
        monkeypatch.setattr(workers.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(workers, "_pool", None)
        both = threading.Barrier(2)
        assert len(share([lambda: both.wait(10)] * 2)) == 2

    @pytest.mark.parametrize("error", [IndexError("index"), ValueError("value")])
    @pytest.mark.parametrize("place", [0, 1, 7])
    def test_an_error_ends_it(self, error, place):
        """It is told, whoever met it, when nobody works any more."""
        running = []

        def work(number):
            running.append(number)
            try:
                if number == place:
                    raise error
                threading.Event().wait(0.001)
            finally:
                running.remove(number)

        with pytest.raises(type(error), match=str(error)):
            share([partial(work, n) for n in range(8)])
        assert running == []

    def test_an_error_keeps_nothing_in_memory(self):
        """What was worked on is free as soon as nobody looks at the error any more."""

        class Large:
            def fail(self):
                raise ValueError

        large = Large()
        left = weakref.ref(large)
        gc.disable()
        try:
            with pytest.raises(ValueError):
                share([large.fail, large.fail, large.fail])
            del large
            assert left() is None
        finally:
            gc.enable()

    async def test_workers_that_share_do_not_wait_for_each_other(self):
        """All of them at once, and each of them asks for help."""

        def work(number):
            return sum(share([partial(int, number)] * 20))

        found = await asyncio.gather(*(in_worker(work, n) for n in range(40)))
        assert found == [20 * n for n in range(40)]

    @pytest.mark.parametrize("count", [8, 9])
    def test_a_thread_that_cannot_be_started(self, monkeypatch, count):
        """What was handed in all the same is begun later, by another one, and waited for."""
        pool, begun, may_go = ThreadPoolExecutor(2), threading.Event(), threading.Event()
        pool.submit(lambda: (begun.set(), may_go.wait(10)))
        assert begun.wait(10)

        def refuse():
            raise RuntimeError("can't start new thread")

        def work(number):
            may_go.set()
            threading.Event().wait(0.01)
            return number

        monkeypatch.setattr(workers.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(workers, "_pool", pool)
        monkeypatch.setattr(pool, "_adjust_thread_count", refuse)
        assert list(range(count)) == share([partial(work, n) for n in range(count)])
        pool.shutdown()

    def test_without_threads(self, monkeypatch):
        """When the interpreter is about to end there are none to be had."""
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        monkeypatch.setattr(workers, "_pool", pool)
        assert share([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
