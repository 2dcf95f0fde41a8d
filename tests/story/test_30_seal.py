"""Story 30: a log is sealed, beside readers, writers, collectors and an orphan.

A seal is one swap. The question in each of these is what becomes of an append that was under way
when it came: either the sealed manifest names it, and it is acknowledged, or it was certainly not
written. Nobody is left in doubt.
"""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Code, InvalidInputError, Options, StateError, UncertainError
from cordwood.base.clock import SeededEntropy
from cordwood.base.errors import ContendedError, StoreError
from cordwood.log import paths
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.records import content_of_bodies
from cordwood.log.recovery import find_ground

MANIFEST = "orders/manifest/MANIFEST"


def over(store):
    """The log as another process sees it."""
    return cordwood.Log(cordwood.Store.over(store), "orders")


def is_slot(key):
    """Whether the key is a fragment's."""
    return "FragmentSeqNo" in key


async def leave_orphan(log, bodies, tail=None):
    """Take the next slot and die before a manifest names it; the tail behind it."""
    entropy = SeededEntropy(repr(bodies))
    if tail is None:
        tail = (await find_ground(log.objects, entropy, {})).tail
    batch = Batch()
    batch.add_block(content_of_bodies(bodies), None)
    flight, data = build(batch, tail, tail.at_us + 1, entropy.token(), "none")
    await log.objects.put_fragment(flight.fragment.path, data)
    return tail.after(flight.link, flight.seq_no)


@pytest.mark.cas
async def test_a_sealed_log_takes_no_more(log, bucket, bodies):
    """An opener is refused with the reason and the place, as in the manifest; reading goes on."""
    # EVIDENCE-OF: G-40
    async with log.writer(create=True) as writer:
        await writer.append_many([b"a", b"b"])
    seal = await log.seal("moved", moved_to="orders2")
    before = await bucket.keys()
    for again in (log.writer(), log.writer(create=True)):
        with pytest.raises(StateError, match=r"sealed \(moved\) and moved to 'orders2'") as caught:
            await again.open()
        assert Code.SEALED is caught.value.code
        assert "append to 'orders2'" in caught.value.hint
    extension = (await bucket.manifest())["cordwood"]
    assert ["seal"] == extension["features"]
    assert {"reason": "moved", "at_us": seal.at_us, "moved_to": "orders2"} == extension["seal"]
    state = await log.state()
    assert (True, seal, 3) == (state.sealed, state.seal, state.next_offset)
    assert [b"a", b"b"] == await bodies(log)
    assert before == await bucket.keys()


async def test_a_second_seal_changes_nothing(log, bucket):
    """The first reason stands, and not a byte is written."""
    # EVIDENCE-OF: G-40
    await log.create(grace_s=60)
    first = await log.seal("enough")
    before = await bucket.get(paths.MANIFEST)
    assert first == await log.seal("other", "elsewhere")
    assert before == await bucket.get(paths.MANIFEST)
    assert 60 == (await log.state()).grace_s


@pytest.mark.parametrize(
    ("reason", "moved_to"), [("destroyed", ""), ("x" * 1025, ""), ("", "a\nb"), (7, "")]
)
async def test_a_seal_says_something_sensible(log, reason, moved_to):
    """A reason is short printable text, and not that of a destruction."""
    await log.create()
    with pytest.raises(InvalidInputError):
        await log.seal(reason, moved_to)
    assert not (await log.state()).sealed


@pytest.mark.cas
async def test_what_waits_is_adopted_first(log, bodies):
    """A seal adopts the run that a dead writer left, and nothing that comes after."""
    # EVIDENCE-OF: G-40
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    tail = await leave_orphan(log, [b"b"])
    tail = await leave_orphan(log, [b"c"], tail)
    await log.seal()
    assert [b"a", b"b", b"c"] == await bodies(log)
    await leave_orphan(log, [b"late"], tail)
    ground = await find_ground(log.objects, SeededEntropy(1), {})
    assert (True, 4) == (ground.named, ground.manifest.next_offset)
    with pytest.raises(StateError):
        await log.writer().open()
    assert [b"a", b"b", b"c"] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.parametrize("landed", [True, False])
async def test_a_live_writer_meets_the_seal(log, memory, hooked, bodies, landed):
    """What it had in the air, what it had queued and what comes later fails for certain."""
    # EVIDENCE-OF: G-41
    gate, reached = asyncio.Event(), asyncio.Event()

    async def slow(call, key, data, mode):
        is_held = is_slot(key) if not landed else key == MANIFEST
        if is_held and gates:
            reached.set()
            await gate.wait()
        return await call()

    gates = []
    other = over(hooked(memory, put=slow))
    writer = await other.writer(create=True, options=Options(batch_bytes=1, in_flight=2)).open()
    await writer.append(b"before")
    gates.append(1)
    futures = [writer.append(b"%d" % n) for n in range(6)]
    await reached.wait()
    # The seal adopts what has landed; the writer is stopped before its swap, or before its slots.
    await log.seal("enough")
    named = await bodies(log)
    gate.set()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for body, outcome in zip([b"%d" % n for n in range(6)], outcomes, strict=True):
        if body in named:
            assert named.index(body) + 1 == outcome
        else:
            assert isinstance(outcome, StateError), outcome
            assert Code.SEALED is outcome.code
            assert "nothing was written" in outcome.message
    assert landed == (len(named) > 1)
    assert any(isinstance(outcome, StateError) for outcome in outcomes)
    for append in (
        lambda: writer.append(b"later"),
        lambda: writer.append_many([b"later"]),
    ):
        with pytest.raises(StateError, match="sealed") as caught:
            append()
        assert Code.SEALED is caught.value.code
    await writer.flush()
    await writer.close()
    with pytest.raises(StateError, match="sealed"):
        writer.append(b"after closing")
    assert named == await bodies(log)


async def test_a_quiet_writer_learns_of_the_seal_with_its_next_append(log, bodies):
    """Its fragment lands above the seal, where it is void."""
    # EVIDENCE-OF: G-41
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
        await log.seal("enough")
        with pytest.raises(StateError, match="enough"):
            await writer.append(b"b")
    assert [b"a"] == await bodies(log)


@pytest.mark.cas
async def test_the_seal_loses_to_an_append_and_comes_again(log, memory, hooked, bodies):
    """A swap lost to an append means: look again, seal what is there now."""
    # EVIDENCE-OF: G-40
    await log.create()
    once = [1]

    async def late(call, key, data, mode):
        if key == MANIFEST and once:
            once.clear()
            async with log.writer() as writer:
                await writer.append(b"quick")
        return await call()

    await over(hooked(memory, put=late)).seal("enough")
    assert not once
    state = await log.state()
    assert (True, 2) == (state.sealed, state.next_offset)
    assert [b"quick"] == await bodies(log)


@pytest.mark.parametrize("took_effect", [True, False])
@pytest.mark.cas
async def test_a_seal_without_an_answer_is_sealed_again(log, memory, hooked, took_effect):
    """Whether or not the swap happened, sealing again gives a sealed log with one reason."""
    await log.create()

    async def lost(call, key, data, mode):
        if key == MANIFEST:
            if took_effect:
                await call()
            raise StoreError("no answer", applied=True)
        return await call()

    with pytest.raises(StoreError):
        await over(hooked(memory, put=lost)).seal("first")
    assert took_effect == (await log.state()).sealed
    seal = await log.seal("second")
    assert ("first" if took_effect else "second") == seal.reason


async def test_a_lost_answer_to_the_seal_is_found(log, memory, hooked):
    """A swap that reports a conflict although it was ours is recognized by what is there."""
    await log.create()

    async def lost(call, key, data, mode):
        answer = await call()
        if key == MANIFEST:
            raise UncertainError("the answer was lost")
        return answer

    seal = await over(hooked(memory, put=lost)).seal("only")
    assert "only" == seal.reason
    assert seal == (await log.state()).seal


@pytest.mark.cas
async def test_an_uncertain_append_is_certain_once_the_log_is_sealed(log, memory, hooked, bodies):
    """find_write says None where it had to say "still open": no place is open any more."""
    # EVIDENCE-OF: G-41
    await log.create()

    async def broken(call, key, *_):
        if gone:
            raise StoreError("no answer", applied=True)
        return await call()

    gone = []
    writer = await over(hooked(memory, put=broken, get=broken)).writer().open()
    gone.append(1)
    with pytest.raises(UncertainError) as caught:
        await writer.append(b"lost")
    with pytest.raises(UncertainError, match="still open"):
        await log.find_write(caught.value)
    await log.seal()
    assert await log.find_write(caught.value) is None
    assert [] == await bodies(log)


@pytest.mark.cas
async def test_collection_removes_the_proof(log, memory, hooked):
    """Only a fragment whose place was collected after the seal stays uncertain."""
    # EVIDENCE-OF: G-41
    async with log.writer(create=True) as writer:
        await writer.append(b"a")
    held = []

    async def refused(call, key, data, mode):
        if key == MANIFEST and held:
            held.clear()
            # Somebody adopts what landed, seals, and collects all of it.
            await log.seal("enough")
            await log.cursors.init("done", 3)
            await log.collect()
            raise ContendedError("replaced")
        return await call()

    async with over(hooked(memory, put=refused)).writer() as writer:
        held.append(1)
        future = writer.append(b"b")
        with pytest.raises(UncertainError):
            await future
        with pytest.raises(StateError, match="enough"):
            writer.append(b"c")
    state = await log.state()
    assert (3, 3, True) == (state.oldest_offset, state.next_offset, state.sealed)


async def test_life_goes_on_without_appends(log, bodies, bucket):
    """Cursors, pins, collection, scrubs and readers work on a sealed log, which stays sealed."""
    # EVIDENCE-OF: G-42
    await log.create(grace_s=1)
    async with log.writer(options=Options(batch_bytes=1)) as writer:
        for n in range(30):
            await writer.append(b"%02d" % n)
    seal = await log.seal("enough", "elsewhere")
    witness = await log.cursors.init("consumer", 5)
    pin = await log.pin("audit", 1, 9)
    witness = await log.cursors.save("consumer", 21, witness)
    report = await log.collect(wait_s=5.0)
    assert (20, 21) == (report.records, report.oldest_offset)
    assert ["pin 'audit'"] == report.held
    assert [b"%02d" % n for n in range(20, 30)] == await bodies(log)
    async with log.reader(pin="audit") as reader:
        assert 8 <= len([record async for record in reader.read()])
    await pin.release()
    await log.cursors.save("consumer", 31, witness)
    await log.collect(wait_s=5.0)
    state = await log.state()
    assert (31, 31, seal) == (state.oldest_offset, state.next_offset, state.seal)
    assert (await log.scrub(deep=True)).ok
    assert [] == await bodies(log)
    assert seal == await log.seal("again")
    with pytest.raises(StateError, match="enough"):
        await log.writer().open()


@pytest.mark.cas
async def test_a_seal_and_a_collection_at_once(log, memory, hooked):
    """The unlink of a collection that lost its swap to a seal keeps the seal."""
    # EVIDENCE-OF: G-42
    async with log.writer(create=True, options=Options(batch_bytes=1)) as writer:
        for n in range(4):
            await writer.append(b"%d" % n)
    await log.cursors.init("consumer", 3)
    once = [1]

    async def late(call, key, data, mode):
        if key == MANIFEST and once:
            once.clear()
            await log.seal("enough")
        return await call()

    collecting = over(hooked(memory, put=late))
    await collecting.mark()
    await collecting.unlink()
    state = await log.state()
    assert (3, "enough") == (state.oldest_offset, state.seal.reason)
