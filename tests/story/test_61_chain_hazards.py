"""Story 61: what can go wrong around a chain, and does not.

A gap below the top that is filled later, collectors that meet, witnesses of a log that is gone, and
what a rebuild must not lose.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import NotFoundError, Options, StateError
from cordwood.base.errors import StoreError, UncertainError
from cordwood.log.bulk import pa
from cordwood.log.chain import names
from cordwood.log.garbage import Phase, load_garbage
from cordwood.store.memory import MemoryStore
from cordwood.testing.filling import fill
from cordwood.testing.hooked import Hooked


class Lost(BaseException):
    """The process is gone."""


EACH = Options(batch_bytes=1, alpha=4)


@pytest.fixture
def protocol():
    """These stories are about chains."""
    return "chain"


@pytest.fixture
def memory(time):
    """A store whose time is in the test's hand."""
    return MemoryStore(clock=time)


@pytest.fixture
def log(memory, over, time):
    """A log that does not exist yet."""
    return cordwood.Log(over(memory), "orders", clock=time)


async def lose_manifests(bucket):
    """A disaster: nothing says any more which fragments the log has."""
    for key in await bucket.keys():
        if key.startswith("manifest/"):
            await bucket.delete(key)


async def stray(log, memory, over):
    """Leave a manifest behind a gap: its writer was cut off, and its predecessor never arrives."""
    top = (await log.objects.chain.head()).index

    async def cut(call, key, data, mode):
        index = names.manifest_index(key.removeprefix("orders/"))
        if index == top + 1:
            await asyncio.Event().wait()
        return await call()

    hooked = Hooked(memory, put=cut)
    writer = await cordwood.Log(over(hooked), "orders").writer(options=EACH).open()
    futures = [writer.append(b"lost")]
    while ("put", f"orders/{names.manifest(top + 1)}") not in hooked.calls:
        await asyncio.sleep(0)
    futures.append(writer.append(b"lost as well"))
    while names.manifest(top + 2) not in {
        key.removeprefix("orders/") async for key in _keys(memory)
    }:
        await asyncio.sleep(0)
    return futures


async def _keys(memory):
    async for meta in memory.list("orders/manifest/"):
        yield meta.key


async def test_who_waits_at_the_end_sees_what_fills_a_gap(log, memory, over):
    """The next record goes below a stray: the highest name stays what it was."""
    # EVIDENCE-OF: G-118
    await fill(log, 1)
    abandoned = await stray(log, memory, over)
    async with log.reader() as reader:
        records = reader.tail(1)
        assert b"r0" == (await anext(records)).body
        top = (await log.objects.chain.head()).top
        await fill(cordwood.Log(over(memory), "orders"), 1, "new")
        assert top == (await log.objects.chain.head()).top
        async with asyncio.timeout(20):
            assert b"new0" == (await anext(records)).body
        await records.aclose()
    for future in abandoned:
        future.cancel()


async def test_the_newest_manifest_is_told_by_more_than_its_name(log, memory, over):
    """Who polls which one is the newest is told when a gap was filled."""
    # EVIDENCE-OF: G-118
    await fill(log, 1)
    abandoned = await stray(log, memory, over)
    before = (await log.objects.load()).etag
    assert before == await log.objects.manifest_etag()
    await fill(cordwood.Log(over(memory), "orders"), 1, "new")
    assert before != await log.objects.manifest_etag()
    for future in abandoned:
        future.cancel()


async def test_a_witness_of_a_destroyed_log_moves_nothing(log):
    """The new log's cursor was moved as often as the old one's was; that is no proof."""
    await fill(log, 5)
    old = await log.cursors.init("app", 2)
    await log.destroy()
    await fill(log, 5)
    new = await log.cursors.init("app", 3)
    with pytest.raises(cordwood.ContendedError):
        await log.cursors.save("app", 5, old)
    assert 3 == (await log.cursors.load("app")).offset
    await log.cursors.save("app", 4, new)


async def test_who_only_moves_a_cursor_knows_the_grace(log, memory, over, time):
    """It never looked at the log, so it must learn how soon names become free."""
    # EVIDENCE-OF: G-123
    await log.create(grace_s=10)
    await fill(log, 5)
    witness = await log.cursors.init("app", 2)

    async def slow(call, key, data, mode):
        await log.cursors.save("app", 3, await log.cursors.load("app"))
        other = await log.cursors.load("app")
        await log.cursors.save("app", 4, other)
        time.pass_s(11)
        await log.collect(wait_s=0)
        return await call()

    late = cordwood.Log(over(Hooked(memory, put=slow)), "orders", clock=time)
    with pytest.raises(UncertainError, match="too long"):
        await late.cursors.save("app", 5, witness)
    assert 4 == (await log.cursors.load("app")).offset


async def test_two_collectors_meet_between_list_and_verdict(log, memory, over, time):
    """Whoever comes second goes on from what the first one did, and no error is raised."""
    # EVIDENCE-OF: G-122
    await log.create(grace_s=10)
    await fill(log, 20)
    await log.cursors.init("app", 10)
    others = []

    async def meet(call, key, data, mode):
        if key.startswith("orders/snapshot/MANIFEST.") and not others:
            others.append(await cordwood.Log(over(memory), "orders", clock=time).mark())
        return await call()

    first = cordwood.Log(over(Hooked(memory, put=meet)), "orders", clock=time)
    # One that was cut off when it had listed what goes.
    with pytest.raises(Lost):
        await cordwood.Log(over(Hooked(memory, put=cut_verdict)), "orders", clock=time).mark()
    assert Phase.LISTED is (await load_garbage(log.objects)).garbage.phase
    report = await first.mark()
    assert ("marked", "marked") == (others[0].phase, report.phase)
    assert 10 == (await first.collect(wait_s=0)).oldest_offset


async def cut_verdict(call, key, data, mode):
    """The process is gone before the new beginning is offered."""
    if key.startswith("orders/snapshot/MANIFEST."):
        raise Lost
    return await call()


async def test_a_beginning_that_was_given_up_goes(log, bucket, time):
    """A cursor moves back before it is unlinked; what was offered is nobody's then."""
    # EVIDENCE-OF: G-122
    await log.create(grace_s=10)
    await fill(log, 20)
    witness = await log.cursors.init("app", 11)
    assert "marked" == (await log.mark()).phase
    # As somebody does who does not ask whether it may go back.
    await log.cursors._write("app", 5, cordwood.store.api.Match(witness.etag), "", proved=True)
    assert "empty" == (await log.unlink()).phase

    async def offered():
        return [key for key in await bucket.keys() if key.startswith(names.PREFIX_PREFIX)]

    assert 1 == len(await offered())
    time.pass_s(11)
    assert "marked" == (await log.mark()).phase
    assert 2 == len(await offered())
    await log.sweep()
    garbage = (await load_garbage(log.objects)).garbage
    assert [names.prefix(garbage.prefix)] == await offered()


async def test_a_store_too_slow_for_the_grace_is_not_damage(log, memory, over, time):
    """With a gap, what was read must be read again if it took long; that is said as it is."""
    await log.create(grace_s=1)
    await fill(log, 1)
    abandoned = await stray(log, memory, over)

    async def slow(call, key):
        time.pass_s(1)
        return await call()

    crawling = cordwood.Log(over(Hooked(memory, get=slow)), "orders", clock=time)
    with pytest.raises(StoreError, match="grace"):
        await crawling.manifest()
    assert 2 == (await log.manifest()).next_offset
    for future in abandoned:
        future.cancel()


async def test_a_new_log_is_not_taken_for_leftovers(log, memory, over, time, bodies):
    """A cas log is made under the name between the last delete and the last look."""
    # EVIDENCE-OF: G-127
    await log.create(grace_s=1)
    await fill(log, 3)
    await log.destroy()
    time.pass_s(2)
    other = cordwood.Log(log.store, "orders")

    async def remake(call, keys):
        answer = await call()
        if keys == ["orders/manifest/MANIFEST"]:
            await other.create(protocol="cas")
            await fill(other, 2, "new")
        return answer

    await cordwood.Log(over(Hooked(memory, delete=remake)), "orders", clock=time).destroy()
    assert [b"new0", b"new1"] == await bodies(cordwood.Log(log.store, "orders"))


# Rebuilding.


async def test_a_rebuild_keeps_the_streams(log, bucket):
    """Which of them are open, and their metadata, are not in the manifests."""
    # EVIDENCE-OF: G-125
    await log.create()
    await log.streams.open("eu", metadata={"team": "a"})
    await log.streams.open("us")
    await log.streams.close("us")
    async with log.writer() as writer:
        await writer.append(b"x", stream="eu")
    await lose_manifests(bucket)
    fresh = cordwood.Log(log.store, "orders")
    await fresh.rebuild()
    assert ["eu"] == list(await fresh.streams.list())
    assert {"team": "a"} == await fresh.streams.meta("eu")
    assert ["eu", "us"] == list(await fresh.streams.list(closed=True))
    async with fresh.writer() as writer:
        assert 2 == await writer.append(b"y", stream="eu")
    async with fresh.reader() as reader:
        assert [b"x", b"y"] == [r.body async for r in reader.read(stream="eu")]


async def test_holds_hold_after_a_rebuild(log, bucket, over, memory, time, free, bodies):
    """Numbers of fragments begin anew; a pin and a fork keep their files all the same."""
    # EVIDENCE-OF: G-125
    await log.create(grace_s=10)
    await fill(log, 30)
    await free(log, 11)
    await log.pin("backup", 16, 20)
    child = cordwood.Log(log.store, "trial", clock=time)
    await log.fork(child, 21)
    shared = await bodies(child)
    await lose_manifests(bucket)
    fresh = cordwood.Log(log.store, "orders", clock=time)
    report = await fresh.rebuild()
    assert (11, 31) == (report.oldest_offset, report.next_offset)
    await free(fresh, 31)
    assert 31 == (await fresh.state()).oldest_offset
    assert shared == await bodies(child)
    async with fresh.reader(pin="backup") as reader:
        assert [16, 17, 18, 19] == [record.offset async for record in reader.read()]


async def test_a_rebuild_cut_off_is_completed(log, bucket, memory, over, time, free):
    """What was being collected ends before there is a manifest that it would not fit."""
    # EVIDENCE-OF: G-125
    await log.create(grace_s=10)
    await fill(log, 30)
    await log.cursors.init("done", 11)
    assert 11 == (await log.collect(wait_s=0)).oldest_offset
    await lose_manifests(bucket)

    async def die(call, key, data, mode):
        answer = await call()
        if names.manifest_index(key.removeprefix("orders/")) is not None:
            raise Lost
        return answer

    with pytest.raises(Lost):
        await cordwood.Log(over(Hooked(memory, put=die)), "orders", clock=time).rebuild()
    fresh = cordwood.Log(log.store, "orders", clock=time)
    with pytest.raises(StateError, match="signpost"):
        await fresh.rebuild()
    # What had been unlinked was not deleted yet, and is there again.
    assert (1, 31) == ((await fresh.state()).oldest_offset, (await fresh.state()).next_offset)
    await free(fresh, 21)
    assert 21 == (await fresh.state()).oldest_offset
    assert (await fresh.scrub(deep=True)).ok


async def test_a_copy_that_went_on_is_rebuilt(log, over, memory, read, bucket_of):
    """Its first fragment of its own follows no fragment by its id, but by its sum."""
    # EVIDENCE-OF: G-125
    await fill(log, 5)
    copy = cordwood.Log(log.store, "copy")
    await log.copy(copy)
    await fill(copy, 5, "own")
    before = await read(copy)
    await lose_manifests(bucket_of(memory, "copy"))
    again = cordwood.Log(log.store, "copy")
    assert (1, 11) == ((await again.rebuild()).oldest_offset, (await again.state()).next_offset)
    assert before == await read(again)


async def test_a_signpost_alone_is_put_back(log, bucket, read):
    """The manifests are whole: nothing is made anew from the fragments."""
    # EVIDENCE-OF: G-125
    await fill(log, 5)
    before, incarnation = await read(log), (await log.manifest()).incarnation
    await bucket.delete("manifest/MANIFEST")
    fresh = cordwood.Log(log.store, "orders")
    with pytest.raises(NotFoundError):
        await fresh.state()
    with pytest.raises(StateError, match="signpost"):
        await fresh.rebuild()
    assert before == await read(fresh)
    assert incarnation == (await fresh.manifest()).incarnation


async def test_uploads_stay_after_a_rebuild(log, bucket, time):
    """They cannot be placed; a person may still want them, so no sweep takes them for old."""
    # EVIDENCE-OF: G-125
    await log.create(grace_s=1)
    await fill(log, 3)
    token = cordwood.Token("job")
    staged = await log.stage(pa.table({"body": [b"bulk"]}), token)
    assert 4 == (await log.commit([staged], token)).offset
    await fill(log, 3, "more")
    await lose_manifests(bucket)
    fresh = cordwood.Log(log.store, "orders", clock=time)
    with pytest.raises(StateError, match="after offset 4 nothing follows"):
        await fresh.rebuild()
    assert 5 == (await fresh.rebuild(start=5)).oldest_offset
    await fresh.cursors.init("app", 5)
    for _ in range(3):
        time.pass_s(100_000)
        await fresh.collect(wait_s=0)
    assert staged.path in await bucket.keys()


# Bulk commits.


async def test_a_commit_in_doubt_is_not_denied(log, memory, over):
    """Its manifest may still arrive where it was sent, so nobody says that nothing was written."""
    await log.create()
    token = cordwood.Token("job")
    lost = []

    async def lose(call, key, data, mode):
        if names.manifest_index(key.removeprefix("orders/")) == 1 and not lost:
            lost.append(call)
            raise UncertainError("no answer")
        if lost and key == "orders/gc/CLOCK":
            raise StoreError("the store is down", transient=True)
        return await call()

    shaky = cordwood.Log(over(Hooked(memory, put=lose)), "orders")
    staged = await shaky.stage(pa.table({"body": [b"once"]}), token)
    with pytest.raises(UncertainError, match="may have taken effect"):
        await shaky.commit([staged], token)
    await lost[0]()
    assert (1, False) == _told(await log.commit([staged], token))


def _told(committed):
    return committed.offset, committed.is_new


# Names that were used before.


async def test_where_a_chain_was_destroyed(memory, bodies):
    """On a store whose logs are cas by default, the name is usable at once, and errors agree."""
    # EVIDENCE-OF: G-127
    log = cordwood.Log(cordwood.Store.over(memory), "orders")
    await log.create(protocol="chain")
    await fill(log, 2)
    await log.destroy()
    with pytest.raises(StateError, match="was destroyed") as caught:
        await log.create(protocol="cas")
    assert "protocol='chain'" in caught.value.hint
    async with cordwood.Log(log.store, "orders").writer(create=True) as writer:
        assert 1 == await writer.append(b"new")
    assert "chain" == (await log.state()).protocol
    await log.destroy()
    await log.create()
    with pytest.raises(cordwood.AlreadyExistsError):
        await log.create()
    await fill(log, 1)
    assert [b"r0"] == await bodies(log)
