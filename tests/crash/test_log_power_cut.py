"""A log on a directory store keeps every acknowledged record through a power cut, at any step."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cordwood.base.clock import SeededEntropy
from cordwood.log.log import Log
from cordwood.log.options import Options
from cordwood.store.directory import DirectoryStore
from cordwood.store.url import Store
from cordwood.testing.crashdisk import CrashDisk, PowerCut
from cordwood.testing.simloop import abandon


def _log(disk):
    return Log(Store.over(DirectoryStore("/wood", disk=disk), "crash:"), "log")


async def _work(disk, acknowledged):
    """Appends one by one and several at once, by two writers in turn, enough to fold a node."""
    log = _log(disk)
    options = Options(batch_bytes=40)
    for life in range(2):
        async with log.writer(create=True, options=options) as writer:
            for number in range(4):
                bodies = [f"{life}.{number}.{i}".encode() for i in range(3)]
                futures = [writer.append(body) for body in bodies]
                for body, future in zip(bodies, futures, strict=True):
                    acknowledged[body] = await future


def _run(disk, acknowledged):
    """Work until done or until the power is gone; then drop everything where it stands."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)

    async def watched():
        work = asyncio.ensure_future(_work(disk, acknowledged))
        while not work.done() and not disk._dead:
            await asyncio.sleep(0)
        if not disk._dead:
            work.result()

    try:
        with contextlib.suppress(PowerCut):
            loop.run_until_complete(watched())
    finally:
        abandon(loop)
        loop.close()


async def _read(disk):
    log = _log(disk)
    async with log.writer(create=True) as writer:
        await writer.append(b"after the cut")
    async with log.reader() as reader:
        records = [record async for record in reader.read()]
    return records, await log.scrub()


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_acknowledged_records_survive_a_power_cut_at_any_step(model):
    """Whatever the step at which the power goes, what was acknowledged is there, once."""
    # EVIDENCE-OF: G-9
    disk = CrashDisk(model)
    _run(disk, {})
    steps = disk.steps
    assert steps > 100
    for step in range(1, steps):
        disk = CrashDisk(model)
        disk.cut_after(step)
        acknowledged = {}
        _run(disk, acknowledged)
        found = disk.power_cut(SeededEntropy(f"{model}-{step}"))
        records, report = asyncio.run(_read(found))
        places = {record.body: record.offset for record in records}
        assert len(places) == len(records), f"doubled after step {step}"
        assert acknowledged == {b: places.get(b) for b in acknowledged}, f"lost after step {step}"
        assert report.ok
