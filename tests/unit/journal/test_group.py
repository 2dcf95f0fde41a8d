"""Group commit: one works for all who wait, nobody is forgotten, and what waits is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cordwood.base.errors import StoreError
from cordwood.journal.group import Group


class Work:
    """Settles tickets with twice their item; can be held up, and can fail."""

    def __init__(self):
        self.rounds = []
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.error = None

    def __call__(self, tickets):
        self.begun.set()
        assert self.go.wait(30)
        self.rounds.append([ticket.item for ticket in tickets])
        for ticket in tickets:
            if self.error is not None and ticket.item % 2:
                raise self.error
            ticket.succeed(2 * ticket.item)


def in_threads(calls):
    """Start them; the threads."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_one_alone_works_for_itself():
    """In its own thread, at once."""
    work = Work()
    group = Group(work)
    assert [0, 2, 4] == [group.call(number, 1) for number in range(3)]
    assert [[0], [1], [2]] == work.rounds


def test_those_who_come_meanwhile_share_a_round():
    """And each gets its own result."""
    work, results = Work(), {}
    group = Group(work)
    work.go.clear()
    first = in_threads([lambda: results.update({0: group.call(0, 1)})])
    assert work.begun.wait(30)
    others = in_threads([lambda n=n: results.update({n: group.call(n, 1)}) for n in range(1, 20)])
    while group.waiting_bytes < 19:
        threading.Event().wait(0.001)
    work.go.set()
    for thread in first + others:
        thread.join()
    assert {number: 2 * number for number in range(20)} == results
    assert [1, 19] == [len(one) for one in work.rounds]


def test_what_waits_is_bounded():
    """Whoever would exceed it waits; one that is larger by itself does not wait for ever."""
    work, most = Work(), []
    group = Group(work, waiting_bytes=100)

    def send():
        for number in range(30):
            group.call(number, 40)
            most.append(group.waiting_bytes)

    for thread in in_threads([send] * 6):
        thread.join()
    assert 100 >= max(most)
    assert all(len(one) <= 2 for one in work.rounds)
    assert 180 == sum(len(one) for one in work.rounds)
    assert 14 == group.call(7, 1_000)
    assert 0 == group.waiting_bytes


def test_an_error_reaches_those_it_concerns():
    """Those that were settled before it are well; and the group goes on."""
    work = Work()
    group = Group(work)
    work.error = OSError("no")
    assert 8 == group.call(4, 1)
    with pytest.raises(OSError, match="no"):
        group.call(5, 1)
    work.error = None
    assert 10 == group.call(5, 1)


def test_whoever_is_stopped_does_not_stop_the_others():
    """They are told that it was not done, and may try again."""
    work, told = Work(), []
    group = Group(work)
    work.go.clear()

    def call():
        with pytest.raises((KeyboardInterrupt, StoreError)) as error:
            group.call(1, 1)
        told.append(error.type)

    leader = in_threads([lambda: group.call(0, 1)])
    assert work.begun.wait(30)
    threads = in_threads([call] * 3)
    while group.waiting_bytes < 3:
        threading.Event().wait(0.001)
    work.error = KeyboardInterrupt()
    work.go.set()
    for thread in leader + threads:
        thread.join()
    assert [KeyboardInterrupt, StoreError, StoreError] == sorted(told, key=str)
    work.error = None
    assert 6 == group.call(3, 1)


def test_tasks_do_not_block_their_loop():
    """One thread works for all of them; errors and cancellation as well."""
    work = Work()
    group = Group(work, waiting_bytes=1_000)

    async def main():
        work.go.clear()
        calls = [asyncio.ensure_future(group.call_async(number, 1)) for number in range(0, 400, 2)]
        await asyncio.sleep(0)
        calls[7].cancel()
        work.go.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(done[7], asyncio.CancelledError)
        assert [4 * place for place in range(200) if place != 7] == done[:7] + done[8:]
        work.error = ValueError("odd")
        with pytest.raises(ValueError, match="odd"):
            await group.call_async(3, 1)
        return await asyncio.gather(*(group.call_async(2, 600) for _ in range(5)))

    assert [4] * 5 == asyncio.run(main())
    assert len(work.rounds) < 50


def test_a_loop_that_has_no_threads_any_more_does_not_keep_others_waiting():
    """Whoever comes next does its work; what failed is not done later."""
    done = []

    def work(tickets):
        for ticket in tickets:
            done.append(ticket.item)
            ticket.succeed(ticket.item)

    group = Group(work)

    async def late():
        await asyncio.get_running_loop().shutdown_default_executor()
        with pytest.raises(RuntimeError):
            await group.call_async(1, 1)

    async def next_one():
        return await group.call_async(2, 1)

    asyncio.run(late())
    assert 0 == group.waiting_bytes
    assert 2 == asyncio.run(next_one())
    assert [2] == done
