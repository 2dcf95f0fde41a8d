"""Collection of many logs and the roll-up of many members: each is by itself."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import Policy, StoreError, collect_logs, roll_up_fleet

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


async def test_a_dry_collection_changes_nothing(store, append, memory):
    """It says what the next one takes out."""
    for name, offset in (("a", 11), ("b", 5), ("c", 1), ("d", None)):
        log = await append(name, [(None, b"x" * 100)] * 10, batch_bytes=1)
        if offset is not None:
            await log.cursors.init("jobs", offset)
    names = ["a", "b", "c", "d", "none"]
    before = dict(memory._objects)
    dry = await collect_logs(store, names, dry_run=True)
    assert before == memory._objects
    done = await collect_logs(store, names)
    for foreseen, one in zip(dry[:3], done[:3], strict=True):
        assert (foreseen.records, foreseen.bytes) == (one.records, one.bytes)
        assert foreseen.oldest_offset == one.oldest_offset
    assert [10, 4, 0] == [one.records for one in dry[:3]]
    assert ["no cursor" in dry[3].error, "no log" in dry[4].error] == [True, True]


async def test_what_a_later_collection_has_to_do(store, append, clock, monkeypatch):
    """While something is held, or failed; not where there is nothing to collect."""
    log = await append("a", [(None, b"x")] * 10)
    await log.cursors.init("jobs", 11)
    await log.pin("reader", 1, 5, ttl_s=10**6)
    await collect_logs(store, ["a"])
    clock.pass_s(PAST_GRACE_S)
    (held,) = await collect_logs(store, ["a"])
    assert (("pin 'reader'",), True, "") == (held.held, held.again, held.error)
    (gone,) = await collect_logs(store, ["none"])
    assert (False, True) == (gone.again, "no log" in gone.error)

    async def fail(self, **_):
        raise StoreError("503", transient=True)

    monkeypatch.setattr(cordwood.Log, "collect", fail)
    (failed,) = await collect_logs(store, ["a", "a"])
    assert (True, "503") == (failed.again, failed.error)


async def test_a_dry_roll_up_changes_nothing(store, fleet, memory, clock):
    """It says what the next one finds."""
    before = dict(memory._objects)
    dry = await roll_up_fleet(store, policy=Policy(min_records=50), dry_run=True, clock=clock)
    assert before == memory._objects
    done = await roll_up_fleet(store, policy=Policy(min_records=50), clock=clock)
    assert (done.dirty, done.selected) == (dry.dirty, dry.selected)
    assert [one.marks for one in done.members] == [one.marks for one in dry.members]
