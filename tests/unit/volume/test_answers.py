"""Lost answers, at every put of every operation: what was done once is done once."""

from __future__ import annotations

import os

import pytest
from volume_desk import Desk, bytes_of

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import AlreadyExistsError, ContendedError, NotFoundError, StoreError
from cordwood.store.memory import MemoryStore
from cordwood.store.retry import RetryingStore
from cordwood.testing.faults import Fault, FaultyStore, Latency
from cordwood.testing.handclock import HandClock
from cordwood.testing.hooked import Hooked
from cordwood.volume.checkpoints import make_checkpoint
from cordwood.volume.collect import Collector
from cordwood.volume.tags import delete_tag, look_up, set_tag


async def life(desk):
    """A bit of everything that writes; what is there in the end."""
    log = await desk.volume()
    for n in (1, 2, 3):
        await desk.push(log, {n: bytes_of(n, n), 9: bytes_of(n, 9)})
    await make_checkpoint(desk.history, await desk.reader(log, 3), log)
    child = await desk.branch(log, 2, "branch")
    await desk.push(child, {4: bytes_of(4, 4)})
    await set_tag(desk.remote, "v1", log)
    await set_tag(desk.remote, "v1", child, seen=await desk.remote.get_tag("v1"))
    return [
        await desk.content(log),
        await desk.content(child),
        {name: tag.log == child for name, tag in (await desk.remote.list_tags()).items()},
        (await desk.remote.load(log)).manifest.checkpoints,
        len(await desk.keys("logs/")),
        len(await desk.keys("segments/")),
    ]


def faulty(directory, seed=1):
    """A desk on a store that can be told to fail, with the retries that every store has."""
    clock = HandClock()
    inner = MemoryStore(clock)
    broken = FaultyStore(inner, SeededEntropy(seed), clock, zombie_delay=Latency(0.0))
    retrying = RetryingStore(broken, clock, SeededEntropy(seed), backoff_first_s=0.0)
    return Desk(directory, retrying, clock=clock), broken


async def test_a_lost_answer_at_every_put(tmp_path):
    """Whether the put happened, did not, or happens later: the end is the same."""
    desk, broken = faulty(tmp_path / "plain")
    expected = await life(desk)
    puts = broken.counts["put"]
    assert 15 < puts < 60
    faults = (Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.ZOMBIE, Fault.CONFLICT, Fault.THROTTLED)
    for fault in faults:
        for number in range(puts):
            desk, broken = faulty(tmp_path / f"{fault}{number}")
            broken.script("put", *[Fault.NONE] * number, fault)
            assert expected == await life(desk), (fault, number)
            assert 1 == broken.counts[f"put:{fault}"]
            await broken.drain()


async def test_a_swap_that_was_swapped_again_is_made_again(tmp_path):
    """The answer is lost, and another change follows: both are there in the end."""
    clock = HandClock()
    hooked = Hooked(MemoryStore(clock))
    store = RetryingStore(hooked, clock, SeededEntropy(1), backoff_first_s=0.0)
    desk = Desk(tmp_path, store, clock=clock)
    log = await desk.volume()
    for n in (1, 2):
        await desk.push(log, {n: bytes_of(n, n)})
    other = Desk(tmp_path / "other", hooked.inner, seed=2, clock=clock)
    calls = []

    async def lose(call, key, data, mode):
        etag = await call()
        if key.endswith("/manifest") and not calls:
            calls.append(key)
            await make_checkpoint(other.history, await other.reader(log, 1), log)
            raise StoreError("lost", applied=True, transient=True)
        return etag

    hooked.hooks["put"] = lose
    await make_checkpoint(desk.history, await desk.reader(log, 2), log)
    assert (1, 2) == (await desk.remote.load(log)).manifest.checkpoints


async def test_tags_are_moved_by_who_saw_them(desk):
    """Create if absent, replace what was seen, or by force; a tag moved under us is noticed."""
    one, two = await desk.volume("one"), await desk.volume("two")
    await set_tag(desk.remote, "v1", one)
    await set_tag(desk.remote, "v1", one)
    with pytest.raises(AlreadyExistsError, match="force=True"):
        await set_tag(desk.remote, "v1", two)
    seen = await desk.remote.get_tag("v1")
    await set_tag(desk.remote, "v1", two, seen=seen)
    with pytest.raises(ContendedError):
        await set_tag(desk.remote, "v1", one, seen=seen)
    assert two == (await look_up(desk.history, "v1")).log
    await set_tag(desk.remote, "v1", one, force=True)
    assert two == desk.history.tag("v1").log  # as it was known when we were online
    assert one == (await look_up(desk.history, "v1")).log
    with pytest.raises(NotFoundError, match="no log"):
        await set_tag(desk.remote, "v2", "0" * 32)
    await delete_tag(desk.remote, "v1")
    with pytest.raises(NotFoundError, match="no volume named 'v1'"):
        await look_up(desk.history, "v1")
    assert {"one", "two"} == set(await desk.remote.list_tags())


async def test_a_crash_at_every_request_leaves_what_the_next_one_can_use(tmp_path):
    """Whoever is stopped between two requests leaves whole versions, and no name without a log."""
    clock = HandClock()
    hooked = Hooked(MemoryStore(clock))
    desk = Desk(tmp_path / "plain", hooked, clock=clock)
    expected = await life(desk)
    writes = [call for call in hooked.calls if call[0] in {"put", "delete"}]

    class DeadError(Exception):
        """The power is off."""

    for number in range(len(writes)):
        hooked = Hooked(MemoryStore(clock))
        left = [number]

        async def die(call, *args, left=left):
            if not left[0]:
                raise DeadError
            left[0] -= 1
            return await call()

        hooked.hooks |= {"put": die, "delete": die}
        desk = Desk(tmp_path / str(number), hooked, clock=clock)
        with pytest.raises(DeadError):
            await life(desk)
        hooked.hooks.clear()
        survivor = Desk(tmp_path / f"{number}-next", hooked, seed=2, clock=clock)
        for tag in (await survivor.remote.list_tags()).values():
            await survivor.content(tag.log)
        # A collection clears away what the dead one left, and the same can be done from the start.
        for _ in range(3):
            await Collector(survivor.remote).collect()
            clock.pass_s(601)
        for tag in (await survivor.remote.list_tags()).values():
            await survivor.content(tag.log)
        for name in await survivor.remote.list_tags():
            await delete_tag(survivor.remote, name)
        for _ in range(4):
            await Collector(survivor.remote).collect()
            clock.pass_s(601)
        assert [] == await survivor.keys("logs/") + await survivor.keys("segments/")
        again = Desk(os.path.join(tmp_path, f"{number}-again"), hooked, seed=3, clock=clock)
        assert expected == await life(again)
