"""A log on a directory store keeps every acknowledged record through a power cut, at any step."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress

import pytest

from cordwood import AlreadyExistsError
from cordwood.base.clock import SeededEntropy
from cordwood.log.options import Options
from cordwood.testing.crashdisk import CrashDisk
from cordwood.testing.powercut import log_on, work_until_cut


async def _work(disk, acknowledged, protocol="cas"):
    """Appends one by one and several at once, by two writers in turn, enough to fold a node."""
    log = log_on(disk)
    await log.create(exist_ok=True, protocol=protocol)
    options = Options(batch_bytes=40)
    for life in range(2):
        async with log.writer(options=options) as writer:
            for number in range(4):
                bodies = [f"{life}.{number}.{i}".encode() for i in range(3)]
                futures = [writer.append(body) for body in bodies]
                for body, future in zip(bodies, futures, strict=True):
                    acknowledged[body] = await future


async def _read(disk, protocol="cas"):
    log = log_on(disk)
    with suppress(AlreadyExistsError):
        await log.create(protocol=protocol)
    async with log.writer() as writer:
        await writer.append(b"after the cut")
    async with log.reader() as reader:
        records = [record async for record in reader.read()]
    return records, await log.scrub()


WORLDS = [("posix", "cas", 1), ("ext4", "cas", 1), ("posix", "chain", 3), ("ext4", "chain", 7)]


@pytest.mark.parametrize(("model", "protocol", "stride"), WORLDS)
def test_acknowledged_records_survive_a_power_cut_at_any_step(model, protocol, stride):
    """Whatever the step at which the power goes, what was acknowledged is there, once."""
    # EVIDENCE-OF: G-9, G-128
    disk = CrashDisk(model)
    work_until_cut(disk, functools.partial(_work, disk, {}, protocol))
    steps = disk.steps
    assert steps > 100
    for step in range(1, steps, stride):
        disk = CrashDisk(model)
        disk.cut_after(step)
        acknowledged = {}
        work_until_cut(disk, functools.partial(_work, disk, acknowledged, protocol))
        found = disk.power_cut(SeededEntropy(f"{model}-{step}"))
        records, report = asyncio.run(_read(found, protocol))
        places = {record.body: record.offset for record in records}
        assert len(places) == len(records), f"doubled after step {step}"
        assert acknowledged == {b: places.get(b) for b in acknowledged}, f"lost after step {step}"
        assert report.ok
