"""Story 07: a chain of orphans is adopted in one go; what does not link is void for ever."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Options, StoreError, UncertainError
from cordwood.log import paths
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.records import content_of_bodies
from cordwood.log.recovery import Tail
from cordwood.store.api import Match

ONE_EACH = Options(batch_bytes=1, in_flight=8)
"""Every record is a fragment of its own, and all of them fly at once."""


@pytest.fixture
def cut_off(memory, hooked):
    """`await cut_off(*bodies)`: a writer puts a fragment for each body and names none of them."""

    async def append(*bodies, lost=()):
        async def refuse(call, key, _data, mode):
            is_lost = any(key.endswith(paths.fragment(number)) for number in lost)
            if isinstance(mode, Match) or is_lost:
                raise StoreError("gone", operation="put", key=key, applied=is_lost)
            return await call()

        store = cordwood.Store.over(hooked(memory, put=refuse))
        async with cordwood.Log(store, "orders").writer(options=ONE_EACH) as writer:
            answers = [writer.append(body) for body in bodies]
            return await asyncio.gather(*answers, return_exceptions=True)

    return append


@pytest.fixture
async def named(log):
    """A log with one record."""
    async with log.writer(create=True) as writer:
        await writer.append(b"named")
    return log


async def test_a_chain_is_adopted_in_one_go(named, cut_off, bucket, bodies):
    """Five fragments, one manifest, in their order, and no feature is needed."""
    errors = await cut_off(b"a", b"b", b"c", b"d", b"e")
    assert {UncertainError} == {type(error) for error in errors}
    assert ([1, 2, 3, 4, 5, 6], [b"named"]) == (await bucket.slots(), await bodies(named))
    before = await bucket.manifest()
    async with named.writer():
        pass
    assert [b"named", b"a", b"b", b"c", b"d", b"e"] == await bodies(named)
    after = await bucket.manifest()
    assert before["fragments"] == after["fragments"][:1]
    assert "cordwood" not in after
    assert (await named.scrub(deep=True)).ok


async def test_adoption_costs_one_swap(named, cut_off, memory, hooked):
    """Each slot is read once, what was found is synced, and one manifest names it all."""
    await cut_off(b"a", b"b", b"c")
    counting = hooked(memory)
    async with cordwood.Log(cordwood.Store.over(counting), "orders").writer():
        pass
    read = [key for operation, key in counting.calls if operation == "get"]
    assert len(set(read)) == len(read)
    slots = [f"orders/{paths.fragment(number)}" for number in (2, 3, 4)]
    assert ["orders/manifest/MANIFEST", *slots] == read[:4]
    writes = [call for call in counting.calls if call[0] in {"put", "sync"}]
    assert [("sync", slots), ("put", "orders/manifest/MANIFEST")] == writes


async def test_a_long_chain_is_adopted_whole(named, bucket, bodies):
    """Far more orphans than a writer has in the air are all adopted before anything is added."""
    tail = Tail.of(await named.manifest())
    for n in range(100):
        batch = Batch()
        batch.add_block(content_of_bodies([b"%d" % n]), None)
        flight, data = build(batch, tail, tail.at_us, f"{n:032x}", "none")
        await bucket.put(flight.fragment.path, data)
        tail = tail.after(flight.link, flight.seq_no)
    async with named.writer() as writer:
        assert 102 == await writer.append(b"last")
    assert [b"named", *(b"%d" % n for n in range(100)), b"last"] == await bodies(named)
    assert (await named.scrub(deep=True)).ok


async def test_what_lies_behind_a_hole_is_not_adopted(named, cut_off, bucket, bodies):
    """The chain ends at the empty slot; the rest becomes void when the slot is taken."""
    await cut_off(b"a", b"b", b"c", b"d", lost={4})
    assert [1, 2, 3, 5] == await bucket.slots()
    async with named.writer() as writer:
        assert 4 == await writer.append(b"next")
        assert 5 == await writer.append(b"after")
    assert [b"named", b"a", b"b", b"next", b"after"] == await bodies(named)
    manifest = await bucket.manifest()
    assert [1, 2, 3, 4, 6] == [f["seq_no"] for f in manifest["fragments"]]
    assert ["gaps"] == manifest["cordwood"]["features"]
    assert (await named.scrub(deep=True)).ok


async def test_a_void_slot_is_skipped_and_stays_void(named, cut_off, bucket, bodies):
    """A chain whose first fragment is gone never comes back, however often the log is opened."""
    await cut_off(b"a", b"b")
    await bucket.put(paths.fragment(2), b"damaged beyond repair")
    for n in range(3):
        async with named.writer() as writer:
            assert 2 + n == await writer.append(b"%d" % n)
    assert [b"named", b"0", b"1", b"2"] == await bodies(named)
    assert [1, 4, 5, 6] == [f["seq_no"] for f in (await bucket.manifest())["fragments"]]
    assert {"gaps"} == (await named.state()).features


async def test_a_restored_void_fragment_is_not_adopted_later(named, cut_off, bucket, bodies):
    """Even if its bytes come back: its slot was passed, and its writer may have written again."""
    await cut_off(b"a")
    lost = await bucket.get(paths.fragment(2))
    await bucket.put(paths.fragment(2), b"")
    async with named.writer() as writer:
        await writer.append(b"next")
    await bucket.put(paths.fragment(2), lost)
    async with named.writer() as writer:
        await writer.append(b"last")
    assert [b"named", b"next", b"last"] == await bodies(named)


async def test_a_fragment_of_the_log_that_had_the_name_before_is_void(named, bucket, bodies):
    """A log made again under the same name does not adopt what the old one left."""
    old = await bucket.get(paths.fragment(1))
    for key in await bucket.keys():
        await bucket.delete(key)
    await bucket.put(paths.fragment(1), old)
    async with named.writer(create=True) as writer:
        assert 1 == await writer.append(b"new")
    assert [b"new"] == await bodies(named)
    assert [1, 2] == await bucket.slots()


async def test_two_chains_behind_one_tail_do_not_mix(named, memory, hooked, bucket, bodies):
    """Of two writers cut off at the same place only the one that took the first slot is adopted."""
    # EVIDENCE-OF: G-17
    # EVIDENCE-OF: G-13

    async def refuse(call, key, _data, mode):
        if isinstance(mode, Match):
            raise StoreError("gone", operation="put", key=key)
        return await call()

    store = cordwood.Store.over(hooked(memory, put=refuse))
    log = cordwood.Log(store, "orders")
    first, second = log.writer(options=ONE_EACH), log.writer(options=ONE_EACH)
    await first.open()
    await second.open()
    answers = [first.append(b"1a"), first.append(b"1b")]
    await asyncio.gather(*answers, return_exceptions=True)
    answers = [second.append(b"2a"), second.append(b"2b")]
    await asyncio.gather(*answers, return_exceptions=True)
    await first.close()
    await second.close()
    async with named.writer() as writer:
        await writer.append(b"last")
    found = await bodies(named)
    assert [b"named", b"1a", b"1b"] == found[:3]
    assert b"last" == found[-1]
    assert len(found) == len(set(found))
    assert (await named.scrub(deep=True)).ok
