"""A seal on a directory store keeps its word through a power cut, and a destruction is finished."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import NotFoundError, StateError
from cordwood.log.options import Options
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.powercut import log_on, work_until_cut


async def _append_and_seal(disk, told):
    """A writer appends two at a time, before a migration and, unaware of it, after its seal."""
    log, other = log_on(disk), log_on(disk, "other")
    async with log.writer(create=True, options=Options(batch_bytes=1)) as writer:
        for number in range(2):
            bodies = [b"%d" % (2 * number), b"%d" % (2 * number + 1)]
            futures = [writer.append(body) for body in bodies]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            for body, outcome in zip(bodies, outcomes, strict=True):
                assert isinstance(outcome, int | StateError)
                told[body] = outcome if isinstance(outcome, int) else None
            if number == 0:
                await log.migrate(other)
                told["moved"] = True
    # Time for the power to go after the refusals.
    await log.cursors.init("consumer", 1)


async def _look(disk, told):
    """What is there afterwards, once an opener has adopted what it may and the move is done."""
    log, other = log_on(disk), log_on(disk, "other")
    try:
        with contextlib.suppress(StateError):
            await log.writer(create=True).open()
        is_sealed = (await log.state()).sealed
        await log.migrate(other)
        async with other.writer() as writer:
            next_offset = await writer.append(b"on")
        async with log.reader() as reader:
            return is_sealed, next_offset, [r.body async for r in reader.read()]
    except NotFoundError:
        assert not told
        raise


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_what_a_seal_refused_never_comes_back(model):
    """Cut at any step: what was acknowledged is there, what was refused by the seal is not."""
    # EVIDENCE-OF: G-9, G-41, G-43
    disk = CrashDisk(model)
    told = {}
    work_until_cut(disk, lambda: _append_and_seal(disk, told))
    steps = disk.steps
    assert steps > 50
    assert told.pop("moved")
    refusals = 0
    for step in range(1, steps + 1):
        disk, told = CrashDisk(model), {}
        disk.cut_after(step)
        work_until_cut(disk, lambda d=disk, t=told: _append_and_seal(d, t))
        found = disk.power_cut(SeededEntropy(f"{model}-{step}"))
        is_sealed, next_offset, bodies = asyncio.run(_look(found, told))
        moved = told.pop("moved", False)
        assert is_sealed or not moved, f"the seal is gone after step {step}"
        assert next_offset == len(bodies) + 1
        assert len(set(bodies)) == len(bodies)
        for body, offset in told.items():
            refusals += offset is None
            expected = [] if offset is None else [offset - 1]
            assert expected == [i for i, b in enumerate(bodies) if b == body], f"step {step}"
    assert refusals


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_a_destruction_that_was_cut_off_is_finished(model):
    """Cut at any step: the log is whole, or is sealed and can be destroyed; or it is gone."""
    # EVIDENCE-OF: G-9, G-45

    async def furnish(disk):
        async with log_on(disk).writer(create=True, options=Options(batch_bytes=1)) as writer:
            for n in range(3):
                await writer.append(b"%d" % n)
        await log_on(disk).cursors.init("consumer", 2)

    async def finish(disk):
        log = log_on(disk)
        try:
            manifest = await log.manifest()
        except NotFoundError:
            was = "gone"
        else:
            was = "sealed" if manifest.seal else "whole"
            if was == "whole":
                assert (await log.scrub(deep=True)).ok
            await log.destroy()
        # What a cut brings back is void to a new log, and goes with it.
        async with log.writer(create=True) as writer:
            assert await writer.append(b"new") == 1
        async with log.reader() as reader:
            assert [r.body async for r in reader.read()] == [b"new"]
        await log.destroy()
        return was, [meta.key async for meta in log.store.list()]

    disk = CrashDisk(model)
    asyncio.run(furnish(disk))
    before = disk.steps
    asyncio.run(log_on(disk).destroy())
    steps = disk.steps - before
    assert steps > 10
    seen = set()
    for step in range(steps + 1):
        disk = CrashDisk(model)
        asyncio.run(furnish(disk))
        disk.cut_after(step)
        work_until_cut(disk, lambda d=disk: log_on(d).destroy())
        found = disk.power_cut(SeededEntropy(f"{model}-{step}"))
        was, left = asyncio.run(finish(found))
        seen.add(was)
        assert left == []
    assert seen == {"whole", "sealed", "gone"}
