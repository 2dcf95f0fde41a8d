"""Story 22: a log is collected, looked at from outside the library at every step."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

import cordwood
from cordwood import CollectedError, CorruptionError, InvalidInputError, Limits, StateError, sync
from cordwood.log import paths, tree
from cordwood.log.garbage import Phase
from cordwood.store.memory import MemoryStore

WAL3_PENDING = (
    b'{"snapshots_to_drop":[],"snapshots_to_make":[],"snapshot_for_root":null,'
    b'"fragments_to_drop_start":1,"fragments_to_drop_limit":5,"fragments_are_uuids":false,'
    b'"setsum_to_discard":"' + b"0" * 64 + b'","first_to_keep":{"offset":5}}'
)


async def garbage(bucket):
    """GARBAGE, as plain JSON."""
    return json.loads(await bucket.get(paths.GARBAGE))


@pytest.mark.cas
async def test_three_steps_seen_from_outside(place, time, numbers, bucket_of, leftovers, stored):
    """Mark writes down, unlink takes out of the manifest, sweep deletes."""
    # EVIDENCE-OF: G-37
    log, bucket = await numbers(place, 100), bucket_of(place)
    await log.cursors.init("jobs", 51)
    before = await stored(bucket)

    assert Phase.MARKED is (await log.mark()).phase
    assert "marked" == (await garbage(bucket))["cordwood"]["phase"]
    assert 1 == (await log.state()).oldest_offset
    assert before <= await stored(bucket)

    report = await log.unlink()
    assert (Phase.UNLINKED, 51) == (report.phase, report.oldest_offset)
    manifest = await bucket.manifest()
    assert ({"offset": 51}, 51) == (manifest["initial_offset"], manifest["initial_seq_no"])
    assert report.setsum.hexdigest() == manifest["collected"]
    assert before <= await stored(bucket)

    report = await log.sweep()
    assert (Phase.UNLINKED, 0) == (report.phase, report.deleted)
    assert 60 == pytest.approx(report.due_s)
    time.pass_s(59)
    assert 1 == pytest.approx((await log.sweep()).due_s)
    assert before <= await stored(bucket)

    time.pass_s(1.001)
    report = await log.sweep()
    assert Phase.EMPTY is report.phase
    assert 50 < report.deleted
    assert [] == await leftovers(log, bucket)
    assert "empty" == (await garbage(bucket))["cordwood"]["phase"]
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_one_call_does_it_all(place, numbers, bucket_of, collected, leftovers, bodies):
    """And says what it did."""
    log = await numbers(place, 100)
    before = await log.state()
    await log.cursors.init("jobs", 98)
    report = await collected(log)
    assert 97 == report.records
    assert (Phase.EMPTY, 98, 0.0, []) == (
        report.phase,
        report.oldest_offset,
        report.due_s,
        report.held,
    )
    assert [] == await leftovers(log, bucket_of(place))
    assert [b"98", b"99", b"100"] == await bodies(log)
    after = await log.state()
    assert before.setsum == after.setsum
    assert 101 == after.next_offset
    again = await collected(log)
    assert (0, 0) == (again.records, again.deleted)


async def test_a_short_grace_is_waited_for():
    """One call, a second of waiting, all done."""
    log = cordwood.Log("memory:", "orders")
    await log.create(grace_s=1)
    async with log.writer() as writer:
        await writer.append(b"a")
    await log.cursors.init("jobs", 2)
    report = await log.collect()
    assert (1, 1, 0.0) == (report.records, report.deleted, report.due_s)


async def test_bytes_and_records_of_a_report(place, numbers):
    """What was taken out, by the manifest."""
    log = await numbers(place, 20)
    before = (await log.state()).bytes
    await log.cursors.init("jobs", 11)
    report = await log.collect(wait_s=0)
    assert 10 == report.records
    assert before - (await log.state()).bytes == report.bytes
    assert (await log.state()).collected == report.setsum


@pytest.mark.cas
async def test_no_cursor_no_collection(place, numbers, bucket_of, stored):
    """Refused, with a code to tell."""
    log = await numbers(place, 10)
    before = await bucket_of(place).keys()
    for attempt in (log.collect(), log.mark()):
        with pytest.raises(StateError) as caught:
            await attempt
        assert "no_cursor" == caught.value.code
        assert "cursors.init" in caught.value.hint
    assert before == await bucket_of(place).keys()


@pytest.mark.parametrize(
    "options",
    [
        {"keep_from": -1},
        {"keep_from": "5"},
        {"keep_from": True},
        {"max_fragments": 0},
        {"max_fragments": 2.5},
        {"max_share": -0.1},
        {"max_share": 1.5},
        {"max_share": float("nan")},
        {"rate": 0},
        {"rate": -1},
        {"rate": float("nan")},
        {"grace_s": -1},
        {"grace_s": float("inf")},
        {"grace_s": float("nan")},
    ],
)
async def test_bad_numbers_are_refused(place, numbers, options):
    """Before anything is done."""
    log = await numbers(place, 10)
    await log.cursors.init("jobs", 5)
    with pytest.raises(InvalidInputError):
        await log.collect(**options)
    assert 1 == (await log.state()).oldest_offset


@pytest.mark.cas
async def test_grace_may_only_be_lengthened(place, time, numbers):
    """A shorter one has no effect, a longer one has."""
    log = await numbers(place, 10, grace_s=100)
    await log.cursors.init("jobs", 5)
    assert 100 == pytest.approx((await log.collect(grace_s=1, wait_s=0)).due_s)
    time.pass_s(101)
    report = await log.collect(grace_s=1000, wait_s=0)
    assert 899 == pytest.approx(report.due_s)
    assert 0 == report.deleted
    assert 4 <= (await log.collect(grace_s=0, wait_s=0)).deleted


async def test_a_store_whose_clock_goes_back_only_waits_longer(time, numbers):
    """Never shorter."""
    log = await numbers(MemoryStore(clock=time), 10)
    await log.cursors.init("jobs", 5)
    await log.collect(wait_s=0)
    time.pass_s(-86_400)
    report = await log.collect(wait_s=0)
    assert 0 == report.deleted
    assert 86_460 == pytest.approx(report.due_s)


async def test_keep_from_lowers_and_never_raises(place, numbers, collected):
    """The cursors hold in any case."""
    log = await numbers(place, 40)
    await log.cursors.init("jobs", 20)
    # A fragment more may stay, so that none is left alone in its node.
    assert (await collected(log, keep_from=8)).oldest_offset in {7, 8}
    assert (await collected(log, keep_from=35)).oldest_offset in {19, 20}


async def test_keep_from_holds_for_what_somebody_else_marked(place, numbers, collected):
    """A collection that was begun without it is not finished past it."""
    log = await numbers(place, 40)
    await log.cursors.init("jobs", 30)
    await log.mark()
    # A fragment more may stay, so that none is left alone in its node.
    assert (await collected(log, keep_from=8)).oldest_offset in {7, 8}
    assert (await collected(log)).oldest_offset in {29, 30}


async def test_max_share_stops_a_collection_that_would_take_too_much(place, numbers, collected):
    """Nothing is marked, so the next one decides anew."""
    log = await numbers(place, 40)
    await log.cursors.init("jobs", 41)
    with pytest.raises(StateError) as caught:
        await log.collect(max_share=0.5)
    assert "limit" == caught.value.code
    assert "100%" in caught.value.message
    assert 1 == (await log.state()).oldest_offset
    assert 41 == (await collected(log, max_share=1.0)).oldest_offset


async def test_max_fragments_takes_a_part_and_the_next_goes_on(place, numbers, collected, live):
    """Pass after pass, until all is gone."""
    log = await numbers(place, 60)
    await log.cursors.init("jobs", 55)
    seen = []
    while not seen or seen[-1] < 55:
        report = await collected(log, max_fragments=10)
        # `collected` makes two passes.
        assert report.oldest_offset > (seen[-1] if seen else 1)
        assert report.records <= 22
        seen.append(report.oldest_offset)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_rate_spreads_the_deletes(time, numbers):
    """Thirty objects and some nodes at twenty a second, in steps that `progress` hears of."""
    log = await numbers(MemoryStore(clock=time), 30)
    await log.cursors.init("jobs", 31)
    await log.collect(wait_s=0)
    time.pass_s(61)
    calls = []
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await log.collect(rate=20.0, wait_s=0, progress=lambda done, total: calls.append((done, total)))
    total = calls[-1][1]
    assert 30 <= total < 60
    assert [(20, total), (total, total)] == [calls[0], calls[-1]]
    # After every step but the last it waits as long as that step may take.
    assert loop.time() - started_s >= 1.0


async def test_everything_goes_and_the_numbers_go_on(place, numbers, collected, bucket_of, bodies):
    """Offsets and slots are never given twice, also by a new writer."""
    # EVIDENCE-OF: G-37
    log = await numbers(place, 12)
    await log.cursors.init("jobs", 13)
    await collected(log)
    bucket = bucket_of(place)
    assert [] == [key for key in await bucket.keys() if key.startswith(("log/", "snapshot/"))]
    state = await log.state()
    assert (13, 13, 0) == (state.oldest_offset, state.next_offset, state.records)
    assert [] == await bodies(log)
    assert (await log.scrub(deep=True)).ok
    await numbers(place, 2)
    assert [13, 14] == await bucket.slots()
    assert [b"13", b"14"] == await bodies(log)
    with pytest.raises(CollectedError):
        await bodies(log, 12)


async def test_a_writer_goes_on_through_collections(place, numbers, collected, bodies):
    """It stays open while everything behind it goes."""
    log = await numbers(place, 5)
    jobs = await log.cursors.init("jobs", 1)
    async with log.writer() as writer:
        for _ in range(5):
            offset = await writer.append(b"x")
            jobs = await log.cursors.save("jobs", offset + 1, jobs)
            assert offset + 1 == (await collected(log)).oldest_offset
        assert 11 == await writer.append(b"last")
    assert [b"last"] == await bodies(log)


# GARBAGE that is not as it should be.


@pytest.mark.parametrize("data", [b"", b'{"snapshots_to_drop":[', b"[]", b"\x00" * 100])
@pytest.mark.cas
async def test_a_half_written_garbage_stops_everything(
    place, numbers, bucket_of, bodies, stored, data
):
    """Nothing is deleted, nothing new relies on anything; reading and appending go on."""
    log, bucket = await numbers(place, 10), bucket_of(place)
    await log.cursors.init("jobs", 5)
    await bucket.put(paths.GARBAGE, data)
    before = await stored(bucket)
    for attempt in (log.collect(), log.mark(), log.unlink(), log.sweep(), log.pin("p", 1, 3)):
        with pytest.raises(CorruptionError):
            await attempt
    assert before == await stored(bucket)
    assert 10 == len(await bodies(log))
    await numbers(place, 1)
    assert 11 == len(await bodies(log))


@pytest.mark.cas
async def test_a_foreign_collection_is_left_alone(place, numbers, bucket_of, stored):
    """wal3 marked something: we neither finish nor disturb it, and nothing new relies on it."""
    log, bucket = await numbers(place, 10), bucket_of(place)
    await log.cursors.init("jobs", 8)
    await bucket.put(paths.GARBAGE, WAL3_PENDING)
    for attempt in (log.collect(), log.mark(), log.unlink(), log.sweep()):
        with pytest.raises(StateError, match=r"another program.*orders/gc/GARBAGE") as caught:
            await attempt
        assert "make sure that it does not run any more" in caught.value.hint
    with pytest.raises(CollectedError):
        await log.cursors.init("new", 4)
    assert 5 == (await log.cursors.init("new", 5)).offset
    assert WAL3_PENDING == await bucket.get(paths.GARBAGE)


@pytest.mark.cas
async def test_a_foreign_collection_that_never_began_is_given_up(
    place, numbers, bucket_of, collected, leftovers, bodies
):
    """Taken over, what it would have freed stays, and our own collection goes on from there."""
    # EVIDENCE-OF: G-36
    log, bucket = await numbers(place, 10), bucket_of(place)
    await log.cursors.init("jobs", 3)
    await bucket.put(paths.GARBAGE, WAL3_PENDING)
    report = await collected(log, take_over=True)
    assert (3, Phase.EMPTY) == (report.oldest_offset, report.phase)
    assert [b"%d" % n for n in range(3, 11)] == await bodies(log)
    assert [] == await leftovers(log, bucket)
    again = await collected(log, take_over=True)
    assert (0, 0) == (again.records, again.deleted)


@pytest.mark.cas
async def test_a_foreign_collection_that_was_cut_off_is_finished(
    place, time, numbers, bucket_of, collected, leftovers, bodies
):
    """wal3 has replaced the manifest and deleted a little: the rest is swept, after the grace."""
    # EVIDENCE-OF: G-38, G-39
    log, bucket = await numbers(place, 40), bucket_of(place)
    await log.pin("audit", 15, 17)
    witness = await log.cursors.init("jobs", 31)
    await log.mark()
    ours = await garbage(bucket)
    await log.unlink()
    del ours["cordwood"]
    await bucket.put(paths.GARBAGE, json.dumps(ours).encode())
    await bucket.delete(paths.fragment(1))
    with pytest.raises(StateError, match="another program"):
        await log.collect()
    report = await log.collect(take_over=True, wait_s=0)
    assert (Phase.UNLINKED, 0) == (report.phase, report.deleted)
    assert 60 == pytest.approx(report.due_s)
    assert list(range(2, 41)) == await bucket.slots()
    time.pass_s(60.001)
    assert ["pin 'audit'"] == (await log.collect(wait_s=0)).held
    assert [15, 16, *range(31, 41)] == await bucket.slots()
    assert [b"%d" % n for n in range(31, 41)] == await bodies(log)
    await (await log.pinned("audit")).release()
    await log.cursors.save("jobs", 36, witness)
    await collected(log)
    assert [] == await leftovers(log, bucket)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_our_own_collection_is_not_taken_over(place, numbers, bucket_of):
    """To take over changes nothing where there is nothing of another program."""
    log, bucket = await numbers(place, 10), bucket_of(place)
    await log.cursors.init("jobs", 5)
    await log.collect(wait_s=0)
    before = await bucket.get(paths.GARBAGE)
    await log.collect(wait_s=0, take_over=True)
    assert before == await bucket.get(paths.GARBAGE)


@pytest.mark.cas
async def test_a_root_that_names_no_fragment_is_refused_at_once(place, numbers, bucket_of, bodies):
    """wal3 can leave one. It could not be written again, so nothing is begun that needs it."""
    log, bucket = await numbers(place, 20), bucket_of(place)
    await log.cursors.init("jobs", 10)
    manifest = await log.manifest()
    node = tree.make_node(manifest.fragments, manifest.writer)
    await bucket.put(node.path, msgspec.json.encode(node))
    nodes = (*manifest.nodes, node.pointer())
    bare = msgspec.structs.replace(manifest, nodes=nodes, fragments=())
    await bucket.put(paths.MANIFEST, msgspec.json.encode(bare))
    before = await bucket.keys()
    other = cordwood.Log(log.store, "other")
    await bucket.put(paths.GARBAGE, WAL3_PENDING)
    with pytest.raises(CorruptionError, match=r"LOG-8\b.*names nodes and no fragment"):
        await log.collect(take_over=True)
    await bucket.delete(paths.GARBAGE)
    for attempt in (log.collect(), log.mark(), log.fork(other), log.copy(other)):
        with pytest.raises(
            CorruptionError, match=r"LOG-8\b.*names nodes and no fragment"
        ) as caught:
            await attempt
        assert "append its records to a new log" in caught.value.hint
    assert before == await bucket.keys()
    assert [] == [meta.key async for meta in place.list("other/")]
    assert 20 == len(await bodies(log))


async def test_a_tree_that_changed_between_mark_and_unlink(place, numbers, collected, bodies):
    """The garbage does not fit any more: it is cancelled, and the next one is right."""
    # EVIDENCE-OF: G-37
    log = await numbers(place, 10)
    await log.cursors.init("jobs", 6)
    await log.mark()
    await numbers(place, 60)  # folds what the garbage would cut
    report = await log.unlink()
    # In a directory nodes may come so late that nothing is folded yet: then the garbage still fits.
    late = set() if isinstance(place, MemoryStore) else {(Phase.UNLINKED, 6)}
    assert (report.phase, report.oldest_offset) in {(Phase.EMPTY, 1)} | late
    assert 6 == (await collected(log)).oldest_offset
    assert [b"%d" % n for n in range(6, 71)] == await bodies(log)
    assert (await log.scrub(deep=True)).ok


@pytest.mark.cas
async def test_a_manifest_put_back_stops_the_sweep(place, time, numbers, bucket_of, stored):
    """Somebody restored an older manifest: it names what GARBAGE says is unlinked."""
    log, bucket = await numbers(place, 30), bucket_of(place)
    await log.cursors.init("jobs", 20)
    older = await bucket.get(paths.MANIFEST)
    await log.collect(wait_s=0)
    await bucket.put(paths.MANIFEST, older)
    before = await stored(bucket)
    time.pass_s(61)
    with pytest.raises(CorruptionError, match="nothing was deleted"):
        await log.sweep()
    assert before == await stored(bucket)


# Readers.


async def test_a_reader_within_the_grace_sees_everything(place, time, numbers, bodies):
    """It began before the unlink."""
    # EVIDENCE-OF: G-39
    log = await numbers(place, 100)
    await log.cursors.init("jobs", 91)
    reader = log.reader()
    reading = reader.read()
    first = await anext(reading)
    await log.collect(wait_s=0)
    time.pass_s(59)
    await log.collect(wait_s=0)
    rest = [record.offset async for record in reading]
    assert list(range(1, 101)) == [first.offset, *rest]


async def test_a_reader_after_the_grace_is_told_that_it_is_late(place, numbers, collected):
    """CollectedError with the place to go on, not damage: whatever it does with old pointers."""
    # EVIDENCE-OF: G-39
    log = await numbers(place, 100)
    await log.cursors.init("jobs", 91)
    reader = log.reader()
    fragments = await reader.scan()
    reading = reader.read()
    await anext(reading)
    await collected(log)
    with pytest.raises(CollectedError):
        [record async for record in reading]
    for attempt in (reader.fetch(fragments[0]), reader.fetch_bytes(fragments[0])):
        with pytest.raises(CollectedError, match="91"):
            await attempt
    assert 1 == (await reader.fetch(fragments[-1])).num_rows
    with pytest.raises(CollectedError):
        [record async for record in reader.read(1)]


async def test_a_slow_reader_of_what_is_held_goes_on(place, numbers, collected):
    """The nodes of its manifest are gone, and not its records: it goes on with the newest one."""
    # EVIDENCE-OF: G-39
    log = await numbers(place, 100)
    await log.cursors.init("jobs", 41)
    reader = log.reader()
    load, old = reader._load, await reader._load()
    await collected(log)
    views = []

    async def slow():
        return views.pop() if views else await load()

    reader._load = slow
    for way in (reader.read(41), reader.tail(41)):
        views = [old]
        assert list(range(41, 101)) == [(await anext(way)).offset for _ in range(60)]
        await way.aclose()
    views = [old]
    assert list(range(41, 44)) == [r.offset async for r in reader.read(41, Limits(max_files=3))]
    views = [old]
    fragments = await reader.scan(41)
    assert (41, 101) == (fragments[0].start, fragments[-1].limit)
    views = [old]
    assert 41 == await reader.offset_at(0)
    views = [old]
    with pytest.raises(CollectedError, match=r"offset 40 has been collected; .* is 41"):
        [record async for record in reader.read(40)]


async def test_a_tail_that_is_passed_by_is_told(place, numbers, collected):
    """It never skips over what it has not seen."""
    log = await numbers(place, 10)
    tail = log.reader().tail(1)
    assert 1 == (await anext(tail)).offset
    await log.cursors.init("jobs", 11)
    await numbers(place, 30)
    jobs = await log.cursors.load("jobs")
    await log.cursors.save("jobs", 41, jobs)
    await collected(log)
    with pytest.raises(CollectedError):
        async for _ in tail:
            pass
    await tail.aclose()


@pytest.mark.parametrize("part", ["/snapshot/", "/log/"])
@pytest.mark.parametrize("end", [51, 60, 101])
@pytest.mark.cas
async def test_a_scrub_that_is_overtaken_finds_nothing_wrong(
    time, numbers, hooked, collected, part, end
):
    """What is collected while it runs is not missing; what is damaged still is."""
    store = MemoryStore(clock=time)
    log = await numbers(store, 100)
    await log.cursors.init("jobs", end)

    async def overtake(call, key, *_):
        answer = await call()
        if part in key and not over:
            over.append(key)
            await collected(log)
        return answer

    over = []
    slow = cordwood.Log(
        cordwood.Store.over(hooked(store, get=overtake, get_range=overtake)), "orders"
    )
    report = await slow.scrub(deep=True)
    assert 1 == len(over)
    assert [] == report.errors
    assert report.setsum == (await log.state()).setsum
    for fragment in (await log.reader().scan())[-1:]:
        await store.delete([f"orders/{fragment.path}"])
        assert ["missing_object"] == [e.code for e in (await log.scrub(deep=True)).errors]


async def test_the_blocking_twin_collects(tmp_path):
    """The same calls without await."""
    log = sync.Log(str(tmp_path / "wood"), "orders")

    def run():
        log.create(grace_s=1)
        with log.writer() as writer:
            writer.append_many([b"a", b"b"])
        made = log.cursors.init("jobs", 1)
        log.cursors.save("jobs", 3, made)
        with log.pin("p", 1, 3) as pin:
            assert (1, 3) == (pin.start, pin.limit)
            assert Phase.MARKED is log.mark().phase
            assert Phase.UNLINKED is log.unlink().phase
            assert 0 < log.sweep().due_s
            assert ["pin 'p'"] == log.collect().held
            with log.reader(pin="p") as reader:
                assert [1, 2] == [record.offset for record in reader.read()]
        return log.collect().deleted

    assert 1 == await asyncio.to_thread(run)
