"""Story 00: creating a log leaves one object, an empty manifest that wal3 could go on with."""

from __future__ import annotations

import re

import pytest

from cordwood import InvalidInputError
from cordwood.log.format import ZERO


async def test_a_new_log_is_one_empty_manifest(log, bucket):
    """Nothing but MANIFEST is written, and it has wal3's fields in wal3's order."""
    await log.create()
    assert ["manifest/MANIFEST"] == await bucket.keys()
    manifest = await bucket.manifest()
    writer = manifest.pop("writer")
    assert {
        "setsum": ZERO,
        "collected": ZERO,
        "acc_bytes": 0,
        "snapshots": [],
        "fragments": [],
    } == manifest
    assert re.fullmatch(r"cordwood/1 log=([0-9a-f]{32}) write=[0-9a-f]{32} tail=\1 at=0", writer), (
        writer
    )


async def test_a_new_log_is_empty(log, bodies):
    """It begins at offset 1, has no records, no features, and scrubs clean."""
    await log.create()
    state = await log.state()
    assert (1, 1, 0, 0) == (state.oldest_offset, state.next_offset, state.records, state.bytes)
    assert (frozenset(), 600, "cas", False) == (
        state.features,
        state.grace_s,
        state.protocol,
        state.sealed,
    )
    assert [] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


async def test_two_logs_of_one_store_do_not_meet(log, bodies):
    """Each has its own objects under its own name, also where one name begins like the other."""
    other = type(log)(log.store, "orders2")
    await log.create()
    await other.create()
    async with log.writer() as writer:
        await writer.append(b"here")
    assert ([b"here"], []) == (await bodies(log), await bodies(other))


async def test_every_log_has_an_incarnation_of_its_own(log, bucket):
    """A log made again under the same name can be told from the one before it."""
    await log.create()
    first = (await bucket.manifest())["writer"]
    await bucket.delete("manifest/MANIFEST")
    await log.create()
    assert first != (await bucket.manifest())["writer"]


async def test_a_grace_of_its_own_is_kept_for_ever(log, bucket):
    """Another grace is a declared feature; the default one leaves the log plain."""
    await log.create(grace_s=60)
    manifest = await bucket.manifest()
    assert {"format": 1, "features": ["grace"], "grace_s": 60} == manifest["cordwood"]
    assert 60 == (await log.state()).grace_s


@pytest.mark.parametrize(
    "wrong",
    [{"grace_s": 0}, {"grace_s": -1}, {"grace_s": 1.5}, {"grace_s": "9"}, {"protocol": "x"}],
    ids=repr,
)
async def test_what_cannot_be_is_refused_before_anything_is_written(log, bucket, wrong):
    """A wrong argument leaves no object."""
    with pytest.raises(InvalidInputError):
        await log.create(**wrong)
    assert [] == await bucket.keys()
