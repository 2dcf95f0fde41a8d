"""Story 28: a collection that sleeps while the log is destroyed, and wakes beside another one."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import CorruptionError, StateError
from cordwood.base.clock import SYSTEM_ENTROPY
from cordwood.log import deletion, paths
from cordwood.log.deletion import Deleter
from cordwood.store.memory import MemoryStore


@pytest.fixture
def store(time):
    """A memory with the test's clock."""
    return MemoryStore(clock=time)


def log_over(store):
    """The log in a store."""
    return cordwood.Log(cordwood.Store.over(store), "orders")


async def unlinked(store, time, numbers, *, pin=False):
    """A log of 30 fragments, 24 of them unlinked, their grace interval over."""
    log = await numbers(store, 30)
    await log.cursors.init("jobs", 25)
    if pin:
        await log.pin("audit", 5, 10)
    await log.collect(wait_s=0)
    time.pass_s(61)
    return log


async def reborn(store, numbers):
    """Another log of the same name, with the same slots."""
    await log_over(store).destroy()
    return await numbers(store, 30)


async def test_a_sweep_that_sleeps_between_batches_leaves_the_next_log_alone(
    store, time, numbers, hooked, monkeypatch
):
    """It looks before each batch whether it is still the same log."""
    monkeypatch.setattr(deletion, "DELETES_AT_ONCE", 4)
    await unlinked(store, time, numbers)
    slept, woken = asyncio.Event(), asyncio.Event()

    async def delete(call, keys):
        await call()
        slept.set()
        await woken.wait()

    sweep = asyncio.ensure_future(log_over(hooked(store, delete=delete)).sweep())
    await slept.wait()
    new = await reborn(store, numbers)
    woken.set()
    with pytest.raises(StateError, match="replaced by another one"):
        await sweep
    assert (await new.scrub(deep=True)).ok


async def test_what_it_held_means_nothing_to_the_next_log(store, time, numbers, hooked):
    """HELD of the old log, put after the new one was made, frees nothing of the new one, ever."""
    await unlinked(store, time, numbers, pin=True)
    slept, woken = asyncio.Event(), asyncio.Event()

    async def put(call, key, *_):
        if paths.HELD_PREFIX in key:
            slept.set()
            await woken.wait()
        return await call()

    sweep = asyncio.ensure_future(log_over(hooked(store, put=put)).sweep())
    await slept.wait()
    new = await reborn(store, numbers)
    woken.set()
    with pytest.raises(StateError, match="replaced by another one"):
        await sweep
    assert [key async for key in store.list(f"orders/{paths.HELD_PREFIX}")]
    await new.cursors.init("jobs", 20)
    await new.collect(wait_s=0)
    await new.collect(wait_s=0)
    slots = [key async for key in store.list("orders/log/")]
    assert 30 == len(slots), "deleted within the grace interval"
    assert (await new.scrub(deep=True)).ok


async def test_a_manifest_from_a_backup_keeps_its_slots(store, time, numbers):
    """What was held is not deleted while an older manifest, put back by hand, names it."""
    log = await numbers(store, 30)
    before = (await store.get(f"orders/{paths.MANIFEST}")).data
    await log.cursors.init("jobs", 25)
    pin = await log.pin("audit", 5, 10)
    await log.collect(wait_s=0)
    time.pass_s(61)
    await log.sweep()
    await pin.release()
    await store.put(f"orders/{paths.MANIFEST}", before)
    with pytest.raises(CorruptionError, match="gone back"):
        await Deleter(log.objects, SYSTEM_ENTROPY).delete_held("")
    assert 11 == len([key async for key in store.list("orders/log/")])
