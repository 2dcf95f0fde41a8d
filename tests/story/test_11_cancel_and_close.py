"""Story 11: one caller's cancellation is its own affair; closing waits for everything."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Code, Options, StateError


@pytest.fixture
def gated(memory, hooked):
    """A log whose puts wait for a gate, and the gate."""
    gate = asyncio.Event()

    async def wait(call, _key, _data, mode):
        if mode == "create":
            await gate.wait()
        return await call()

    gate.set()
    return cordwood.Log(cordwood.Store.over(hooked(memory, put=wait)), "orders"), gate


async def turns(count=20):
    """Let everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_cancelling_one_append_harms_no_other(log, bodies):
    """Its record was taken and is written; its neighbours get their own offsets."""
    async with log.writer(create=True) as writer:
        answers = [writer.append(b"%d" % n) for n in range(5)]
        assert answers[2].cancel()
        assert [1, 2, 4, 5] == [await answers[i] for i in (0, 1, 3, 4)]
        with pytest.raises(asyncio.CancelledError):
            await answers[2]
    assert [b"0", b"1", b"2", b"3", b"4"] == await bodies(log)


async def test_cancelling_a_task_that_waits_in_flight_harms_no_other(gated, bodies):
    """The put it waits for belongs to the writer, not to the task."""
    log, gate = gated
    await log.create()
    async with log.writer() as writer:
        gate.clear()

        async def append(body):
            return await writer.append(body)

        tasks = [asyncio.create_task(append(b"%d" % n)) for n in range(3)]
        await turns()
        tasks[0].cancel()
        await turns()
        gate.set()
        assert [2, 3] == [await task for task in tasks[1:]]
        assert tasks[0].cancelled()
    assert [b"0", b"1", b"2"] == await bodies(log)


async def test_cancelling_everything_leaves_a_writer_that_works(log, bodies):
    """Nobody waits for the batch any more; it is written all the same."""
    async with log.writer(create=True) as writer:
        for answer in [writer.append(b"%d" % n) for n in range(3)]:
            answer.cancel()
        assert 4 == await writer.append(b"last")
    assert [b"0", b"1", b"2", b"last"] == await bodies(log)


async def test_cancelling_an_atomic_batch_keeps_it_whole(log, bodies):
    """All of it is written, or none."""
    async with log.writer(create=True) as writer:
        writer.append_many([b"a", b"b"]).cancel()
        assert 3 == await writer.append(b"c")
    assert [b"a", b"b", b"c"] == await bodies(log)


async def test_closing_waits_for_everything(log, bodies):
    """Leaving the block without awaiting a single answer loses nothing."""
    async with log.writer(create=True, options=Options(batch_bytes=30)) as writer:
        answers = [writer.append(b"%d" % n) for n in range(200)]
    assert list(range(1, 201)) == [answer.result() for answer in answers]
    assert 200 == len(await bodies(log))


async def test_leaving_by_an_exception_closes_as_well(log, bodies):
    """What was appended before the exception is written; the exception goes on."""
    with pytest.raises(KeyError):
        async with log.writer(create=True) as writer:
            answer = writer.append(b"kept")
            raise KeyError("mine")
    assert 1 == answer.result()
    assert [b"kept"] == await bodies(log)


async def test_while_closing_nothing_more_is_taken(gated, bodies):
    """An append that comes too late is refused; what was taken before is written."""
    log, gate = gated
    await log.create()
    writer = await log.writer().open()
    gate.clear()
    answer = writer.append(b"in time")
    closing = asyncio.create_task(writer.close())
    await turns()
    assert not closing.done()
    with pytest.raises(StateError) as caught:
        writer.append(b"too late")
    assert Code.STATE == caught.value.code or Code.CLOSED == caught.value.code
    gate.set()
    await closing
    assert 1 == answer.result()
    assert [b"in time"] == await bodies(log)


async def test_closing_may_be_cancelled_and_done_again(gated, bodies):
    """A cancelled close has lost nothing; the next one finishes the work."""
    log, gate = gated
    await log.create()
    writer = await log.writer().open()
    gate.clear()
    answer = writer.append(b"kept")
    closing = asyncio.create_task(writer.close())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    await writer.close()
    assert 1 == await answer
    assert [b"kept"] == await bodies(log)


async def test_closing_twice_is_harmless(log):
    """At once, or one after the other."""
    writer = await log.writer(create=True).open()
    writer.append(b"x")
    await asyncio.gather(writer.close(), writer.close())
    await writer.close()


async def test_a_writer_never_opened_can_be_closed(log, bucket):
    """Nothing happened, and nothing will."""
    await log.writer().close()
    assert [] == await bucket.keys()


async def test_flush_waits_and_leaves_the_writer_open(log, bodies):
    """Everything appended so far is durable when it returns."""
    async with log.writer(create=True) as writer:
        answers = [writer.append(b"%d" % n) for n in range(10)]
        await writer.flush()
        assert all(answer.done() for answer in answers)
        assert 10 == len(await bodies(log))
        assert 11 == await writer.append(b"more")


async def test_cancelling_a_flush_harms_nobody(gated, bodies):
    """Who waited for the flush is gone; the records are written, and another flush works."""
    log, gate = gated
    await log.create()
    async with log.writer() as writer:
        gate.clear()
        answer = writer.append(b"kept")
        flushing = asyncio.create_task(writer.flush())
        await turns()
        flushing.cancel()
        await turns()
        gate.set()
        assert 1 == await answer
        await writer.flush()
        assert 2 == await writer.append(b"more")
    assert [b"kept", b"more"] == await bodies(log)


async def test_flush_of_nothing_returns(log):
    """Also before the writer is open and after it was closed."""
    writer = log.writer(create=True)
    await writer.flush()
    async with writer:
        await writer.flush()
    await writer.flush()


async def test_closing_leaves_no_tasks(log):
    """A closed writer has nothing running."""
    # EVIDENCE-OF: G-28
    # EVIDENCE-OF: G-27
    # EVIDENCE-OF: G-27
    before = asyncio.all_tasks()
    async with log.writer(create=True, options=Options(batch_bytes=1)) as writer:
        for n in range(30):
            await writer.append(b"%d" % n)
    await turns()
    assert before == asyncio.all_tasks()
