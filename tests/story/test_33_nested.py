"""Story 33: a log whose name lies inside another's; neither takes the other's objects for its."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cordwood
from cordwood import InvalidInputError, Token
from cordwood.log import kinds

HOLDING = ["cursor", "pin", "fork", "producer"]


async def filled(log, count=15):
    """Made, with some records."""
    async with log.writer() as writer:
        for number in range(count):
            await writer.append(b"%d" % number)
    return log


@pytest.mark.parametrize("folder", HOLDING)
async def test_no_log_lies_in_a_folder_that_holds(log, folder):
    """The name is refused where it would be ambiguous, and nowhere else."""
    inside = cordwood.Log(log.store, f"{log.name}/{folder}")
    deeper = cordwood.Log(log.store, f"{log.name}/{folder}/x")
    elsewhere = cordwood.Log(log.store, f"other/{folder}")
    await log.create()
    for refused in (inside, deeper):
        for making in (refused.create(), log.fork(refused), log.copy(refused)):
            with pytest.raises(InvalidInputError, match="keeps its"):
                await making
    with pytest.raises(InvalidInputError, match="cannot name a table"):
        await cordwood.Table(log.store, f"{log.name}/{folder}").create()
    await elsewhere.create()
    await cordwood.Log(log.store, f"{log.name}/x").create()


@pytest.mark.cas
@pytest.mark.parametrize("folder", HOLDING)
async def test_a_collection_leaves_the_holds_of_another_log(log, folder, monkeypatch):
    """One that was made so before: its holds, and what they hold, outlive collections of ours."""
    await log.create(grace_s=1)
    await filled(log)
    await log.cursors.init("c", 10)
    inside = cordwood.Log(log.store, f"{log.name}/{folder}")
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "_HOLDING", ())
        await inside.create(grace_s=1)
    await filled(inside)
    # Named as seen from the other log, this is nothing: it would be taken for gone.
    fork = cordwood.Log(log.store, f"{log.name}/z")
    await inside.fork(fork)
    pin = await inside.pin("p", 1, 3)
    token = Token("job", once=True)
    staged = await inside.stage(pa.table({"body": [b"bulk"]}), token)
    await inside.commit([staged], token)
    assert {"c"} == set(await log.cursors.list())
    report = await log.collect(wait_s=2)
    assert (10, []) == (report.oldest_offset, report.held)
    assert () == (await log.state()).pins
    await inside.cursors.init("c", 17)
    assert await inside.collect(wait_s=2)
    await inside.collect(wait_s=2)
    assert 15 == len([record async for record in fork.reader().read()])
    assert 2 == len([record async for record in inside.reader(pin="p").read()])
    assert not (await inside.commit([staged], token)).is_new
    await pin.release()
