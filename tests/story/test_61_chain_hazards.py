"""Story 61: what can go wrong around a chain, and does not.

A gap below the top that is filled later, collectors that meet, witnesses of a log that is gone, and
what a rebuild must not lose.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Options
from cordwood.base.errors import StoreError
from cordwood.log.chain import names
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill
from cordwood.testing.hooked import Hooked


class Lost(BaseException):
    """The process is gone."""


EACH = Options(batch_bytes=1, alpha=4)


@pytest.fixture
def protocol():
    """These stories are about chains."""
    return "chain"


@pytest.fixture
def memory(time):
    """A store whose time is in the test's hand."""
    return MemoryStore(clock=time)


@pytest.fixture
def log(memory, over, time):
    """A log that does not exist yet."""
    return cordwood.Log(over(memory), "orders", clock=time)


async def lose_manifests(bucket):
    """A disaster: nothing says any more which fragments the log has."""
    for key in await bucket.keys():
        if key.startswith("manifest/"):
            await bucket.delete(key)


async def stray(log, memory, over):
    """Leave a manifest behind a gap: its writer was cut off, and its predecessor never arrives."""
    top = (await log.objects.chain.head()).index

    async def cut(call, key, data, mode):
        index = names.manifest_index(key.removeprefix("orders/"))
        if index == top + 1:
            await asyncio.Event().wait()
        return await call()

    hooked = Hooked(memory, put=cut)
    writer = await cordwood.Log(over(hooked), "orders").writer(options=EACH).open()
    futures = [writer.append(b"lost")]
    while ("put", f"orders/{names.manifest(top + 1)}") not in hooked.calls:
        await asyncio.sleep(0)
    futures.append(writer.append(b"lost as well"))
    while names.manifest(top + 2) not in {
        key.removeprefix("orders/") async for key in _keys(memory)
    }:
        await asyncio.sleep(0)
    return futures


async def _keys(memory):
    async for meta in memory.list("orders/manifest/"):
        yield meta.key


async def test_who_waits_at_the_end_sees_what_fills_a_gap(log, memory, over):
    """The next record goes below a stray: the highest name stays what it was."""
    # EVIDENCE-OF: G-118
    await fill(log, 1)
    abandoned = await stray(log, memory, over)
    async with log.reader() as reader:
        records = reader.tail(1)
        assert b"r0" == (await anext(records)).body
        top = (await log.objects.chain.head()).top
        await fill(cordwood.Log(over(memory), "orders"), 1, "new")
        assert top == (await log.objects.chain.head()).top
        async with asyncio.timeout(20):
            assert b"new0" == (await anext(records)).body
        await records.aclose()
    for future in abandoned:
        future.cancel()


async def test_the_newest_manifest_is_told_by_more_than_its_name(log, memory, over):
    """Who polls which one is the newest is told when a gap was filled."""
    # EVIDENCE-OF: G-118
    await fill(log, 1)
    abandoned = await stray(log, memory, over)
    before = (await log.objects.load()).etag
    assert before == await log.objects.manifest_etag()
    await fill(cordwood.Log(over(memory), "orders"), 1, "new")
    assert before != await log.objects.manifest_etag()
    for future in abandoned:
        future.cancel()


async def test_a_store_too_slow_for_the_grace_is_not_damage(log, memory, over, time):
    """With a gap, what was read must be read again if it took long; that is said as it is."""
    await log.create(grace_s=1)
    await fill(log, 1)
    abandoned = await stray(log, memory, over)

    async def slow(call, key):
        time.pass_s(1)
        return await call()

    crawling = cordwood.Log(over(Hooked(memory, get=slow)), "orders", clock=time)
    with pytest.raises(StoreError, match="grace"):
        await crawling.manifest()
    assert 2 == (await log.manifest()).next_offset
    for future in abandoned:
        future.cancel()
