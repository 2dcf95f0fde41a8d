"""Two writers append equal records at what looks like the same moment: each counts."""

from __future__ import annotations

import asyncio

import cordwood
from cordwood.base.clock import SystemClock


class Fast(SystemClock):
    """The clock of a machine that is a minute ahead: everybody behind it stamps its time."""

    def now_us(self):
        """A minute from now."""
        return super().now_us() + 60_000_000


async def test_equal_records_of_two_writers_are_two_records():
    """Their fragments are equal in offset, time, bodies and length; only one of them won."""
    # EVIDENCE-OF: G-1, G-2, G-3
    store = cordwood.Store("memory:")
    fast = cordwood.Log(store, "beats", clock=Fast())
    async with fast.writer(create=True) as writer:
        await writer.append(b"boot")
    log = cordwood.Log(store, "beats")
    async with log.writer() as one, log.writer() as two:
        offsets = await asyncio.gather(one.append(b"tick"), two.append(b"tick"))
    async with log.reader() as reader:
        bodies = [record.body async for record in reader.read()]
    assert [b"boot", b"tick", b"tick"] == bodies
    assert [2, 3] == sorted(offsets)


async def test_a_writer_whose_tasks_are_cancelled_answers_everybody():
    """A program that ends cancels all tasks, the writer's own too: close returns, appends end."""
    log = cordwood.Log(cordwood.Store("memory:"), "torn")
    writer = await log.writer(create=True).open()
    append = writer.append(b"x")
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait([append])
    assert isinstance(append.exception(), cordwood.CordwoodError)
    await writer.close()


async def test_a_writer_closed_while_it_opens_is_closed():
    """It does not come to life afterwards, and cannot be opened twice at once."""
    log = cordwood.Log(cordwood.Store("memory:"), "early")
    await log.create()
    writer = log.writer()
    opening = asyncio.ensure_future(writer.open())
    await asyncio.sleep(0)
    again = asyncio.ensure_future(writer.open())
    await asyncio.wait([again])
    assert isinstance(again.exception(), cordwood.StateError)
    await writer.close()
    await asyncio.wait([opening])
    assert opening.done()
