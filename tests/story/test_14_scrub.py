"""Story 14: a scrub finds each kind of damage and names the object."""

from __future__ import annotations

import json

import pytest

from cordwood import Code, CorruptionError, Limits, Setsum
from cordwood.log import paths
from cordwood.log.tree import FANOUT

COUNT = FANOUT * FANOUT + FANOUT + 3


@pytest.fixture
async def whole(log):
    """A log with two levels of nodes and nothing wrong."""
    async with log.writer(create=True) as writer:
        for n in range(COUNT):
            await writer.append(b"%d" % n)
    return log


async def damage(bucket, path, change):
    """Change an object's bytes by hand."""
    await bucket.put(path, change(await bucket.get(path)))


def flip(data, at=None):
    """One bit, in the middle."""
    at = len(data) // 2 if at is None else at
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def faults(report):
    """What a report says, as (code, object)."""
    return [(fault.code, fault.where) for fault in report.errors]


async def nodes(bucket):
    """The node objects, by depth."""
    found = {}
    for key in await bucket.keys():
        if key.startswith("snapshot/"):
            node = json.loads(await bucket.get(key))
            found.setdefault(node["depth"], []).append((node["fragments"], key))
    return found


@pytest.mark.parametrize("deep", [False, True])
async def test_a_whole_log_is_whole(whole, deep):
    """Everything is counted, and the sum is the manifest's."""
    report = await whole.scrub(deep=deep)
    state = await whole.state()
    assert (True, [], deep) == (report.ok, report.errors, report.deep)
    assert (COUNT, COUNT, FANOUT + 2) == (report.records, report.fragments, report.nodes)
    assert (state.setsum, state.bytes) == (report.setsum, report.bytes)


async def test_an_empty_log_is_whole(log):
    """Nothing is there, and nothing is wrong."""
    await log.create()
    report = await log.scrub(deep=True)
    assert (True, 0, Setsum()) == (report.ok, report.records, report.setsum)


@pytest.mark.parametrize("slot", [1, FANOUT, FANOUT + 1, COUNT - 1, COUNT])
async def test_a_missing_fragment_is_found(whole, bucket, slot):
    """A deep scrub names it, goes on, and counts the rest; a shallow one does not look."""
    path = await bucket.slot(slot)
    await bucket.delete(path)
    report = await whole.scrub(deep=True)
    assert [(Code.MISSING_OBJECT, f"orders/{path}")] == faults(report)
    assert path in str(report.errors[0])
    assert COUNT - 1 == report.records
    assert (await whole.scrub()).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data + b"x",
        lambda data: bytes(len(data)),
        flip,
        lambda data: flip(data, 20),
        lambda data: flip(data, len(data) - 30),
    ],
    ids=["cut", "halved", "emptied", "grown", "zeroed", "flipped", "flipped early", "flipped late"],
)
async def test_a_damaged_fragment_is_found(whole, bucket, change):
    """Whatever happened to its bytes, it alone is named."""
    path = await bucket.slot(5)
    await damage(bucket, path, change)
    report = await whole.scrub(deep=True)
    assert [f"orders/{path}"] == [fault.where for fault in report.errors]
    assert report.errors[0].code in {Code.CORRUPT, Code.SETSUM_MISMATCH}


async def test_a_replaced_fragment_is_found(whole, bucket):
    """A valid fragment of the same log in another's place."""
    path = await bucket.slot(5)
    await bucket.put(path, await bucket.get(await bucket.slot(6)))
    report = await whole.scrub(deep=True)
    assert [f"orders/{path}"] == [fault.where for fault in report.errors]


async def test_every_damaged_fragment_is_found(whole, bucket):
    """A scrub goes on after a fault: all of them are in the report, in any number."""
    broken = [await bucket.slot(slot) for slot in (2, 3, 30, COUNT)]
    for path in broken:
        await damage(bucket, path, flip)
    report = await whole.scrub(deep=True)
    expected = {f"orders/{path}" for path in broken}
    assert expected == {fault.where for fault in report.errors}
    assert COUNT - len(broken) == report.records


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_missing_node_is_found(whole, bucket, depth, deep):
    """Named by either scrub; what lies below it cannot be counted, everything else is."""
    key = (await nodes(bucket))[depth][0][1]
    await bucket.delete(key)
    report = await whole.scrub(deep=deep)
    assert [(Code.MISSING_OBJECT, f"orders/{key}")] == faults(report)
    below = FANOUT**depth
    assert COUNT - below == report.records


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-10],
        lambda _: b"",
        lambda _: b"{}",
        lambda data: data.replace(b'"num_bytes":', b'"num_bites":', 1),
        lambda data: data.replace(b'"depth":1', b'"depth":0'),
        lambda data: flip(data, data.index(b'"fragments"') + 120),
    ],
    ids=["cut", "emptied", "another document", "another field", "another depth", "flipped"],
)
async def test_a_damaged_node_is_found(whole, bucket, change):
    """By either scrub, by its name."""
    key = (await nodes(bucket))[1][0][1]
    await damage(bucket, key, change)
    for deep in (False, True):
        report = await whole.scrub(deep=deep)
        assert f"orders/{key}" in [fault.where for fault in report.errors]


async def test_a_node_in_anothers_place_is_found(whole, bucket):
    """A valid node of the same log under another's name."""
    (_, first), (_, second), *_ = (await nodes(bucket))[1]
    await bucket.put(first, await bucket.get(second))
    assert [f"orders/{first}"] == [fault.where for fault in (await whole.scrub()).errors]


async def change_manifest(bucket, change):
    """Change the manifest's JSON by hand."""
    document = await bucket.manifest()
    change(document)
    await bucket.put(await bucket.newest(), json.dumps(document).encode())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda m: m.update(setsum="0" * 64), Code.SETSUM_MISMATCH),
        (lambda m: m.update(collected=m["setsum"]), Code.SETSUM_MISMATCH),
        (lambda m: m["fragments"].pop(), Code.SETSUM_MISMATCH),
        (lambda m: m["snapshots"].pop(0), Code.SETSUM_MISMATCH),
        (lambda m: m["fragments"].pop(0), Code.CORRUPT),
        (lambda m: m["fragments"].reverse(), Code.CORRUPT),
        (lambda m: m.clear(), Code.NOT_A_LOG),
    ],
    ids=[
        "another sum",
        "another collected",
        "a fragment less at the end",
        "a node less at the beginning",
        "a fragment less in the middle",
        "out of order",
        "empty",
    ],
)
async def test_a_wrong_manifest_is_found(whole, bucket, change, code):
    """The report has one fault: the manifest itself."""
    await change_manifest(bucket, change)
    path = await bucket.newest()
    for deep in (False, True):
        assert [(code, f"orders/{path}")] == faults(await whole.scrub(deep=deep))


async def test_a_manifest_that_moves_its_records_is_found(log, bucket):
    """Offsets that are not those in the fragments: balanced, contiguous, and still wrong."""
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
        await writer.append(b"b")

    def shift(manifest):
        for fragment in manifest["fragments"]:
            fragment["start"]["offset"] += 10
            fragment["limit"]["offset"] += 10

    await change_manifest(bucket, shift)
    assert not (await log.scrub(deep=True)).ok


async def test_a_manifest_that_lies_about_lengths_is_found(whole, bucket):
    """A pointer's num_bytes is the object's length."""
    await change_manifest(bucket, lambda m: m["fragments"][0].update(num_bytes=7))
    report = await whole.scrub(deep=True)
    manifest = await bucket.manifest()
    assert [f"orders/{manifest['fragments'][0]['path']}"] == [f.where for f in report.errors]


async def test_a_manifest_that_lies_about_the_bytes_below_a_node_is_found(whole, bucket):
    """A node pointer's num_bytes is the sum of the fragments below it."""
    await change_manifest(bucket, lambda m: m["snapshots"][0].update(num_bytes=7))
    assert not (await whole.scrub()).ok


@pytest.mark.cas
async def test_a_slot_missing_in_the_sequence_is_found(log, bucket):
    """Without the feature `gaps`, slots follow each other also inside nodes."""
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
        await writer.append(b"b")

    def renumber(manifest):
        manifest["fragments"][1] |= {"seq_no": 5, "path": paths.fragment(5)}

    await bucket.put(paths.fragment(5), await bucket.get(paths.fragment(2)))
    await change_manifest(bucket, renumber)
    report = await log.scrub()
    assert not report.ok
    assert "slot 5" in str(report.errors[0])


async def test_readers_meet_the_damage_too(whole, bucket, bodies):
    """A read does not pass over it in silence; what lies before it can still be read."""
    path = await bucket.slot(40)
    await damage(bucket, path, flip)
    with pytest.raises(CorruptionError, match=path):
        await bodies(whole)
    assert 39 == len(await bodies(whole, 1, Limits(limit_offset=40)))


async def test_progress_is_told(whole):
    """Once per fragment, with what was found so far."""
    # EVIDENCE-OF: G-20
    # EVIDENCE-OF: G-22
    # EVIDENCE-OF: G-22
    seen = []
    await whole.scrub(deep=True, progress=lambda report, manifest: seen.append(report.fragments))
    assert COUNT == len(seen)
    assert COUNT == seen[-1]
    assert sorted(seen) == seen
