"""Collection of many logs and the roll-up of many members: each is by itself."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import Policy, collect_logs, roll_up_fleet

PAST_GRACE_S = 1_000


@pytest.fixture
async def fleet(store, clock):
    """Two members; three logs, one written by both."""
    made = {}
    for member in ("m1", "m2"):
        made[member] = cordwood.Fleet(store, member, create=True, clock=clock)
    await made["m1"].append_many("logs/large", [b"x"] * 50)
    await made["m1"].append("logs/both", b"x")
    await made["m2"].append("logs/both", b"y")
    await made["m2"].append("logs/small", b"x")
    yield made
    for one in made.values():
        await one.close()


async def test_collect_many(store, append, clock):
    """What can be freed is freed; what cannot is told, and holds up nothing."""
    # EVIDENCE-OF: G-76
    for name in ("a", "b", "c"):
        log = await append(name, [(None, b"x")] * 10)
        if name != "c":
            await log.cursors.init("jobs", 11)
    first = await collect_logs(store, ["a", "b", "c", "none"])
    assert [10, 10, 0, 0] == [one.records for one in first]
    assert [True, True, False, False] == [one.again for one in first]
    assert ["no cursor" in first[2].error, "no log" in first[3].error] == [True, True]
    clock.pass_s(PAST_GRACE_S)
    second = await collect_logs(store, ["a", "b"], engine="local")
    assert [(True, False), (True, False)] == [(one.deleted > 0, one.again) for one in second]
    assert (11, "") == (second[0].oldest_offset, second[0].error)


async def test_roll_up_of_all_members(store, fleet, clock):
    """Each log once, with whoever marked it; those worth it are selected, and why."""
    # EVIDENCE-OF: G-76
    found = await roll_up_fleet(store, policy=Policy(min_records=50), clock=clock)
    assert ["m1", "m2"] == [member.member for member in found.members]
    assert {"logs/large", "logs/both", "logs/small"} == {dirty.log for dirty in found.dirty}
    assert [("logs/large", ("size",))] == [(one.dirty.log, one.reasons) for one in found.selected]
    clock.pass_s(4_000)
    found = await roll_up_fleet(store, policy=Policy(min_records=50), clock=clock)
    assert 3 == len(found.selected)
    assert {} == found.errors


async def test_roll_up_tells_what_cannot_be_read(store, fleet, memory, clock):
    """A log, and a dirty log; the rest is still found."""
    await memory.put("logs/large/manifest/MANIFEST", b"spoiled")
    await memory.put("fleet/m2/dirty/manifest/MANIFEST", b"spoiled")
    found = await roll_up_fleet(store, clock=clock)
    assert {"logs/large", "m2"} == set(found.errors)
    assert ["logs/both"] == [dirty.log for dirty in found.dirty]


async def test_a_store_without_a_fleet(store):
    """Nothing is an answer."""
    found = await roll_up_fleet(store)
    assert ((), (), ()) == (found.members, found.dirty, found.selected)
