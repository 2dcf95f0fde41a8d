"""Story 05: a fragment in the next slot that no manifest names is adopted, once."""

from __future__ import annotations

import pytest

import cordwood
from cordwood import CorruptionError, StoreError, UncertainError
from cordwood.log import paths
from cordwood.store.api import Match


@pytest.fixture
async def orphaned(log, memory, hooked):
    """A log whose writer was cut off between its second fragment and the manifest."""
    async with log.writer(create=True) as writer:
        await writer.append(b"named")

    async def refuse_swaps(call, key, _data, mode):
        if isinstance(mode, Match):
            raise StoreError("the network is gone", operation="put", key=key)
        return await call()

    cut_off = cordwood.Log(cordwood.Store.over(hooked(memory, put=refuse_swaps)), "orders")
    async with cut_off.writer() as writer:
        with pytest.raises(UncertainError) as caught:
            await writer.append(b"orphan")
    return caught.value


async def test_readers_do_not_see_an_orphan(orphaned, log, bucket, bodies):
    """It lies in its slot; the manifest does not name it; nobody reads it."""
    assert [1, 2] == await bucket.slots()
    assert 1 == len((await bucket.manifest())["fragments"])
    assert [b"named"] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


async def test_the_error_said_what_to_look_for(orphaned, log, bucket):
    """The write id in the error is the one in the orphan's footer; asking for it finds it."""
    data = await bucket.get(paths.fragment(2))
    assert orphaned.write_id.encode() in data
    assert "find_write" in orphaned.hint
    assert 2 == await log.find_write(orphaned)


async def test_the_next_opener_adopts_it(orphaned, log, bucket, bodies):
    """Opening is enough; the record appears once, at the offset it was meant for."""
    async with log.writer():
        pass
    assert [b"named", b"orphan"] == await bodies(log)
    assert [1, 2] == [f["seq_no"] for f in (await bucket.manifest())["fragments"]]
    assert "cordwood" not in await bucket.manifest()


async def test_it_is_adopted_once(orphaned, log, bucket, bodies):
    """Later openers find it named and write nothing."""
    async with log.writer():
        pass
    before = await bucket.get("manifest/MANIFEST")
    async with log.writer():
        pass
    assert before == await bucket.get("manifest/MANIFEST")
    assert [b"named", b"orphan"] == await bodies(log)


async def test_the_next_append_goes_behind_it(orphaned, log, bucket, bodies):
    """Its slot and offset are taken."""
    async with log.writer() as writer:
        assert 3 == await writer.append(b"next")
    assert [b"named", b"orphan", b"next"] == await bodies(log)
    assert [1, 2, 3] == await bucket.slots()
    assert (await log.scrub(deep=True)).ok


async def test_a_live_writer_that_is_refused_the_slot_adopts_it(log, memory, bucket, bodies):
    """A writer opened before the orphan was made meets it, adopts it and goes on."""
    async with log.writer(create=True) as writer:
        await writer.append(b"first")
        async with log.writer() as other:
            answer = other.append(b"by another")
            await answer
        assert 3 == await writer.append(b"second")
    assert [b"first", b"by another", b"second"] == await bodies(log)


async def test_a_damaged_orphan_is_passed_by(orphaned, log, bucket, bodies):
    """It was never acknowledged: its slot is skipped, and the log says that it has gaps."""
    data = bytearray(await bucket.get(paths.fragment(2)))
    data[100] ^= 1
    await bucket.put(paths.fragment(2), bytes(data))
    async with log.writer() as writer:
        assert 2 == await writer.append(b"next")
    assert [b"named", b"next"] == await bodies(log)
    manifest = await bucket.manifest()
    assert [1, 3] == [f["seq_no"] for f in manifest["fragments"]]
    assert ["gaps"] == manifest["cordwood"]["features"]
    assert (await log.scrub(deep=True)).ok


async def test_no_manifest_is_not_recovered_silently(orphaned, log, bucket):
    """Slots without a manifest are not a log: nothing is guessed from them."""
    # EVIDENCE-OF: G-17
    # EVIDENCE-OF: G-13
    await bucket.put("manifest/MANIFEST", b"")
    with pytest.raises(CorruptionError):
        async with log.writer():
            pass
