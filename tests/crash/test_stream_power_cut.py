"""Streams on a directory store: what was said of them survives a power cut, and a full disk."""

from __future__ import annotations

import asyncio
import errno
import functools

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import StoreError, UncertainError
from cordwood.log.options import Options
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.powercut import log_on, work_until_cut


async def _work(disk, told):
    """Streams are opened and closed, and records appended to them; `told` is what returned."""
    log = log_on(disk)
    await log.create()
    async with log.writer(options=Options(batch_bytes=40)) as writer:
        for name, is_open in (("a", True), ("b", True), ("a", False), ("c", True), ("a", True)):
            told["pending"] = name
            await (log.streams.open(name) if is_open else log.streams.close(name))
            told["state"] = {**told["state"], name: is_open}
            told["pending"] = None
            for stream in [n for n, is_open in told["state"].items() if is_open]:
                offset = await writer.append(stream.encode(), stream=stream)
                told["records"][stream].append(offset)


def _told():
    return {"state": {}, "pending": None, "records": {"a": [], "b": [], "c": []}}


async def _look(disk):
    log = log_on(disk)
    await log.create(exist_ok=True)
    streams = await log.streams.list(closed=True)
    async with log.reader() as reader:
        found = {s: [r.offset async for r in reader.read(stream=s)] for s in ("a", "b", "c")}
    await log.streams.open("later")
    async with log.writer() as writer:
        await writer.append(b"later", stream="later")
    return {name: stream.open for name, stream in streams.items()}, found, await log.scrub()


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_streams_survive_a_power_cut_at_any_step(model):
    """What was acknowledged is there; what was not, is there or not; writing goes on."""
    # EVIDENCE-OF: G-98
    disk = CrashDisk(model)
    work_until_cut(disk, functools.partial(_work, disk, _told()))
    steps = disk.steps
    assert steps > 50
    for step in range(1, steps, 2):
        disk = CrashDisk(model)
        disk.cut_after(step)
        told = _told()
        work_until_cut(disk, functools.partial(_work, disk, told))
        found = disk.power_cut(SeededEntropy(f"{model}-{step}"))
        state, records, report = asyncio.run(_look(found))
        for name, is_open in told["state"].items():
            assert name == told["pending"] or state[name] == is_open, f"after step {step}"
        for stream, offsets in told["records"].items():
            assert set(offsets) <= set(records[stream]), f"after step {step}"
        assert report.ok


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_changes_nothing_that_was_said(number):
    """Whichever operation fails: the change failed, or is uncertain, or is there.

    What was acknowledged before stays, and when there is room again the same is done again.
    """
    # EVIDENCE-OF: G-98
    disk = CrashDisk("posix")
    asyncio.run(_change(disk, ()))
    steps = disk.steps
    for step in range(1, steps + 1):
        disk = CrashDisk("posix")
        asyncio.run(_change(disk, (step, number)))


async def _change(disk, failing):
    log = log_on(disk)
    await log.create()
    await log.streams.open("a", metadata={"n": 1})
    before = disk.steps
    if failing:
        disk.fail(before + failing[0], failing[1])
    try:
        await log.streams.open("b")
        await log.streams.close("a")
    except (StoreError, UncertainError):
        fresh = log_on(disk)
        known = {name: s.open for name, s in (await fresh.streams.list(closed=True)).items()}
        assert known in ({"a": True}, {"a": True, "b": True}, {"a": False, "b": True})
        await fresh.streams.open("b")
        await fresh.streams.close("a")
    streams = await log_on(disk).streams.list(closed=True)
    assert {"a": False, "b": True} == {name: stream.open for name, stream in streams.items()}
    assert {"n": 1} == streams["a"].metadata
