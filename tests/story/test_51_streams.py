"""Story 51: streams are opened, written, read by themselves, closed; by several at once."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cordwood
from cordwood import CorruptionError, InvalidInputError, LimitError, NotFoundError, StateError
from cordwood.base.errors import Code
from cordwood.log import bulk, paths, roll
from cordwood.log.watch import FRESH_S
from cordwood.testing.handclock import HandClock


@pytest.fixture
async def two(memory):
    """Two processes with one log, and the clock that both go by."""
    clock = HandClock()
    store = cordwood.Store.over(memory)
    logs = [cordwood.Log(store, "orders", clock=clock) for _ in range(2)]
    await logs[0].create()
    return *logs, clock


async def of_stream(log, stream, **limits):
    """The bodies of one stream."""
    async with log.reader() as reader:
        found = reader.read(limits=cordwood.Limits(**limits), stream=stream)
        return [record.body async for record in found]


async def append(log, body, stream):
    """By a writer of its own."""
    async with log.writer() as writer:
        return await writer.append(body, stream=stream)


# Opening and closing.


async def test_a_stream_is_opened_written_read_closed(log):
    """The whole life of one, beside another and beside records of none."""
    await log.create()
    await log.streams.open("a", metadata={"team": "eu"})
    await log.streams.open("b")
    async with log.writer() as writer:
        assert [1, 2, 3] == [
            await writer.append(b"1", stream="a"),
            await writer.append(b"2"),
            await writer.append(b"3", stream="b"),
        ]
    assert [b"1"] == await of_stream(log, "a")
    assert [] == await of_stream(log, "never")
    await log.streams.close("a")
    assert ["b"] == list(await log.streams.list())
    assert {"a": False, "b": True} == {
        name: stream.open for name, stream in (await log.streams.list(closed=True)).items()
    }
    assert [b"1"] == await of_stream(log, "a")
    assert {"team": "eu"} == await log.streams.meta("a")
    assert "streams" in (await log.state()).features


async def test_a_stream_that_is_not_open_refuses(log, bucket):
    """One never opened, and one closed; nothing is written, and the error says what to do."""
    # EVIDENCE-OF: G-98
    await log.create()
    await log.streams.open("shut")
    await log.streams.close("shut")
    async with log.writer() as writer:
        for stream, word in (("never", "is not open"), ("shut", "is closed")):
            with pytest.raises(StateError, match=word) as caught:
                await writer.append(b"x", stream=stream)
            assert Code.STREAM_NOT_OPEN == caught.value.code
            with pytest.raises(StateError, match=word):
                await writer.append_many([b"x", b"y"], stream=stream)
            table = pa.table({"body": [b"x", b"y"], "stream": [None, stream]})
            with pytest.raises(StateError, match=word):
                await writer.append_arrow(table)
            with pytest.raises(StateError, match=word):
                await log.stage(table, bulk.Token("job"))
        assert 1 == await writer.append(b"plain")
    assert [1] == await bucket.slots()
    assert not [key for key in await bucket.keys() if "Uuid" in key]


async def test_one_of_many_that_is_not_open_refuses_all_of_an_atomic_batch(log, bodies):
    """Ten thousand records of a hundred streams, of which one is not open."""
    await log.create()
    names = [f"s{n}" for n in range(100)]
    await log.streams.open(*names)
    column = pa.array([names[n % 100] for n in range(9_999)] + ["other"])
    table = pa.table({"body": pa.array([b""] * 10_000), "stream": column})
    async with log.writer() as writer:
        with pytest.raises(StateError, match="'other'"):
            await writer.append_arrow(table)
        await writer.append_arrow(table.slice(0, 9_999))
    assert 9_999 == len(await bodies(log))
    assert 100 == len(await of_stream(log, "s7"))


async def test_streams_are_there_after_reopening(memory, log):
    """Another process, later: the same streams with the same metadata."""
    # EVIDENCE-OF: G-98
    await log.create()
    await log.streams.open("a", "b", metadata={"n": [1, None, "ü"]})
    await log.streams.close("b")
    later = cordwood.Log(cordwood.Store.over(memory), "orders")
    streams = await later.streams.list(closed=True)
    assert [("a", True), ("b", False)] == [(name, s.open) for name, s in streams.items()]
    assert {"n": [1, None, "ü"]} == streams["a"].metadata
    assert 1 == await append(later, b"x", "a")


async def test_metadata_is_set_and_kept(log, memory):
    """By opening, by `meta`, also of a closed stream; what is not said stays."""
    await log.create()
    await log.streams.open("a")
    assert {} == await log.streams.meta("a")
    assert {"x": 1} == await log.streams.meta("a", {"x": 1})
    await log.streams.open("a")
    assert {"x": 1} == await log.streams.meta("a")
    await log.streams.open("a", metadata={})
    assert {} == await log.streams.meta("a")
    await log.streams.close("a")
    await log.streams.meta("a", {"y": 2})
    assert not (await log.streams.list(closed=True))["a"].open
    other = cordwood.Log(cordwood.Store.over(memory), "orders")
    assert {"y": 2} == await other.streams.meta("a")


async def test_to_do_it_again_changes_nothing(log, bucket):
    """What is open is not opened again, what is closed not closed: no object is written."""
    await log.create()
    await log.streams.open("a", "b", metadata={"x": 1})
    await log.streams.close("b")
    before = await bucket.keys()
    await log.streams.open("a")
    await log.streams.open("a", metadata={"x": 1})
    await log.streams.close("b")
    await log.streams.meta("a", {"x": 1})
    await log.streams.open()
    assert before == await bucket.keys()


async def test_bad_input_is_refused(log):
    """Names and metadata that cannot be; streams and logs that are not there."""
    with pytest.raises(NotFoundError, match="no log named"):
        await log.streams.open("a")
    await log.create()
    for name in ("", None, 3, "x" * 5_000, "\ud800"):
        with pytest.raises(InvalidInputError, match="cannot name a stream"):
            await log.streams.open("fine", name)
    for metadata in ([1], "text", {"x": object()}, {1: object()}):
        with pytest.raises(InvalidInputError, match="JSON object"):
            await log.streams.open("a", metadata=metadata)
    with pytest.raises(LimitError, match="metadata"):
        await log.streams.open("a", metadata={"x": "x" * 70_000})
    with pytest.raises(NotFoundError, match="no stream 'a'"):
        await log.streams.close("a")
    with pytest.raises(NotFoundError, match="no stream 'a'"):
        await log.streams.meta("a", {})
    assert {} == await log.streams.list(closed=True)
    async with log.writer() as writer:
        with pytest.raises(InvalidInputError, match="non-empty"):
            writer.append_many([b"x"], stream="")
    async with log.reader() as reader:
        with pytest.raises(InvalidInputError, match="non-empty"):
            await reader.scan(stream="")


async def test_a_sealed_log_opens_no_stream(log):
    """It takes no more records, so it takes no more streams."""
    await log.create()
    await log.streams.open("a")
    await log.seal("done")
    with pytest.raises(StateError, match="sealed"):
        await log.streams.open("b")
    assert ["a"] == list(await log.streams.list())


# Several at once.


async def test_a_stream_opened_elsewhere_is_learnt(two):
    """A writer that is open, and knows nothing of it, takes the very next record."""
    # EVIDENCE-OF: G-99
    mine, theirs, _ = two
    await mine.streams.open("known")
    async with mine.writer() as writer:
        await writer.append(b"1", stream="known")
        await theirs.streams.open("new")
        assert 2 == await writer.append(b"2", stream="new")


async def test_a_stream_closed_elsewhere_is_refused_in_time(two):
    """Not later than `FRESH_S` after it was closed; before that, records may still be taken."""
    # EVIDENCE-OF: G-100
    mine, theirs, clock = two
    await mine.streams.open("a")
    async with mine.writer() as writer:
        await writer.append(b"1", stream="a")
        await theirs.streams.close("a")
        assert 2 == await writer.append(b"2", stream="a")
        clock.pass_s(FRESH_S + 0.001)
        with pytest.raises(StateError, match="is closed"):
            await writer.append(b"3", stream="a")


async def test_a_stream_closed_here_is_refused_at_once(log):
    """Through the log that closed it there is nothing to learn."""
    # EVIDENCE-OF: G-100
    await log.create()
    await log.streams.open("a")
    async with log.writer() as writer:
        await writer.append(b"1", stream="a")
        await log.streams.close("a")
        with pytest.raises(StateError, match="is closed"):
            await writer.append(b"2", stream="a")
        await log.streams.open("a")
        assert 2 == await writer.append(b"2", stream="a")


async def test_a_busy_writer_looks_beside_its_work(memory, hooked):
    """While records come, the roll is looked at in good time, and no record waits for that."""
    clock = HandClock()
    seen = hooked(memory)
    log = cordwood.Log(cordwood.Store.over(seen), "orders", clock=clock)
    await log.create()
    await log.streams.open("a")
    gate = asyncio.Event()

    async def slow(call, *_):
        await gate.wait()
        return await call()

    async with log.writer() as writer:
        await writer.append(b"1", stream="a")
        clock.pass_s(FRESH_S * 0.6)
        seen.hooks["list"] = slow
        # The look begins, and does not end: the record is taken all the same.
        await writer.append(b"2", stream="a")
        looks = [call for call in seen.calls if call[0] == "list" and "stream/" in call[1]]
        gate.set()
        await writer.append(b"3", stream="a")
        clock.pass_s(FRESH_S * 0.6)
        assert log._watch.admits(["a"])
    assert 2 == len(looks)


async def test_ten_thousand_appends_cost_one_look(memory, hooked):
    """Whether a stream is open is not asked per record, nor per stream."""
    seen = hooked(memory)
    maker = cordwood.Log(cordwood.Store.over(memory), "orders")
    await maker.create()
    names = [f"s{n}" for n in range(1_000)]
    await maker.streams.open(*names)
    log = cordwood.Log(cordwood.Store.over(seen), "orders")
    async with log.writer() as writer:
        seen.calls.clear()
        futures = [writer.append(b"", stream=names[n % 1_000]) for n in range(10_000)]
        await asyncio.gather(*futures)
    asked = [operation for operation, key in seen.calls if "stream/" in str(key)]
    assert {"list": 1, "get": 1} == {name: asked.count(name) for name in set(asked)}


async def test_order_is_kept_while_a_stream_is_asked_about(log, bodies):
    """Records with and without a stream, single and in batches, in the order of the calls."""
    await log.create()
    await log.streams.open("a")
    async with log.writer() as writer:
        futures = [
            writer.append(b"1"),
            writer.append(b"2", stream="a"),
            writer.append(b"3"),
            writer.append(b"refused", stream="never"),
            writer.append_many([b"4", b"5"]),
            writer.append_many([b"6"], stream="a"),
            writer.append(b"7", key=b"k"),
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results.pop(3), StateError)
    assert [1, 2, 3, 4, 6, 7] == results
    assert [b"1", b"2", b"3", b"4", b"5", b"6", b"7"] == await bodies(log)


async def test_flush_and_close_wait_for_the_gate(log, bodies):
    """Nothing that was appended is forgotten there."""
    await log.create()
    await log.streams.open("a", "b")
    async with log.writer() as writer:
        first = writer.append(b"1", stream="a")
        await writer.flush()
        assert first.done()
        await log.streams.close("b")
        log._watch._seen_s = float("-inf")
        last = writer.append(b"2", stream="a")
    assert (1, 2) == (first.result(), last.result())
    assert [b"1", b"2"] == await bodies(log)


async def test_refused_records_leave_room_in_the_queue(log):
    """Bytes that were counted for a record that is refused count no more."""
    await log.create()
    options = cordwood.Options(queue_bytes=10_000)
    async with log.writer(options=options) as writer:
        for _ in range(20):
            futures = [writer.append(b"x" * 1_000, stream="never") for _ in range(5)]
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(result, StateError) for result in results)
        assert 0 == writer._queue.unresolved_bytes


async def test_a_store_that_cannot_be_asked_writes_nothing(memory, hooked, log, bodies):
    """The record is refused for certain, and the next one is asked for anew."""

    async def fail(call, key, *_):
        if "stream/" in key:
            raise cordwood.StoreError("no answer", transient=True)
        return await call()

    await log.create()
    await log.streams.open("a")
    unwell = hooked(memory, list=fail)
    other = cordwood.Log(cordwood.Store.over(unwell), "orders")
    async with other.writer() as writer:
        with pytest.raises(cordwood.StoreError, match="nothing was written: no answer"):
            await writer.append(b"1", stream="a")
        unwell.hooks.clear()
        assert 1 == await writer.append(b"1", stream="a")
    assert [b"1"] == await bodies(log)


async def test_a_cancelled_append_gives_up_the_answer_alone(log, bodies):
    """As for any record, also while it waits at the gate."""
    await log.create()
    await log.streams.open("a")
    async with log.writer() as writer:
        writer.append(b"1", stream="a").cancel()
        writer.append(b"refused", stream="never").cancel()
        await writer.append(b"2")
    assert [b"1", b"2"] == await bodies(log)


async def test_many_changes_are_one_order(two):
    """Two that open and close at the same time: every change counts, none is lost."""
    # EVIDENCE-OF: G-98
    mine, theirs, _ = two
    names = [f"s{n}" for n in range(40)]
    await asyncio.gather(*(mine.streams.open(n) for n in names[:20]))
    await asyncio.gather(
        *(mine.streams.open(name) for name in names[20:]),
        *(theirs.streams.close(name) for name in names[:20]),
    )
    assert names[20:] == sorted(await mine.streams.list(), key=names.index)
    assert await mine.streams.list(closed=True) == await theirs.streams.list(closed=True)


async def test_a_long_roll_is_read_from_its_last_full_change(memory, hooked, log, bucket):
    """Two hundred changes: who comes new reads those since the last full one alone."""
    await log.create()
    for number in range(200):
        await log.streams.open(f"s{number % 50}", metadata={"n": number})
    seen = hooked(memory)
    later = cordwood.Log(cordwood.Store.over(seen), "orders")
    assert {f"s{n}": 150 + n for n in range(50)} == {
        name: stream.metadata["n"] for name, stream in (await later.streams.list()).items()
    }
    gets = [key for operation, key in seen.calls if operation == "get" and "stream/" in key]
    assert 200 % roll.FULL_EVERY == len(gets)
    assert 200 == len([key for key in await bucket.keys() if key.startswith("stream/")])


async def test_a_change_that_is_damaged_or_missing_is_told(log, bucket, memory):
    """Nobody guesses which streams are open."""
    await log.create()
    for name in ("a", "b", "c"):
        await log.streams.open(name)
    second = sorted(key for key in await bucket.keys() if key.startswith("stream/"))[1]
    data = await bucket.get(second)
    for damage in (data[:-1], data.replace(b'"number":2', b'"number":3'), b"{}", None):
        if damage is None:
            await bucket.delete(second)
        else:
            await bucket.put(second, damage)
        fresh = cordwood.Log(cordwood.Store.over(memory), "orders")
        with pytest.raises(CorruptionError):
            await fresh.streams.list()


# Reading.


async def test_limits_hold_for_the_stream(log):
    """So many records of it, from a place on, up to a place."""
    await log.create()
    await log.streams.open("a", "b")
    async with log.writer() as writer:
        for number in range(30):
            await writer.append(b"%d" % number, stream="ab"[number % 2])
    assert [b"1", b"3", b"5"] == await of_stream(log, "b", max_records=3)
    assert [] == await of_stream(log, "b", max_records=0)
    assert [b"1", b"3"] == await of_stream(log, "b", limit_offset=5)
    async with log.reader() as reader:
        batches = [b async for b in reader.read_arrow(20, stream="a")]
        assert [21, 23, 25, 27, 29] == [n for b in batches for n in b.column("offset").to_pylist()]
        assert 15 == len(await reader.scan(stream="a"))


async def test_a_tail_of_one_stream(log):
    """Its records as they come, and those alone; it ends with a sealed log."""
    await log.create()
    await log.streams.open("a", "b")
    found = []

    async def follow():
        async with log.reader() as reader:
            found.extend([record.body async for record in reader.tail(1, stream="a")])

    async with log.writer() as writer:
        await writer.append(b"1", stream="a")
        task = asyncio.ensure_future(follow())
        await writer.append(b"2", stream="b")
        await writer.append(b"3", stream="a")
    await log.seal()
    await task
    assert [b"1", b"3"] == found


# Proofs.


@pytest.mark.cas
async def test_a_name_that_was_changed_does_not_pass_the_scrub(log, bucket):
    """The setsum covers the stream, so a fragment in which it was changed is told."""
    # EVIDENCE-OF: G-102
    await log.create()
    await log.streams.open("aaaa", "bbbb")
    await append(log, b"x", "aaaa")
    data = await bucket.get(paths.fragment(1))
    assert (await log.scrub(deep=True)).ok
    table = pq.read_table(pa.BufferReader(data))
    place = table.schema.get_field_index("stream")
    changed = table.set_column(place, table.schema.field(place), pa.array(["bbbb"]))
    sink = pa.BufferOutputStream()
    pq.write_table(changed.replace_schema_metadata(None), sink, store_schema=False)
    bytes_now = sink.getvalue().to_pybytes()
    manifest = await bucket.manifest()
    manifest["fragments"][0]["num_bytes"] = len(bytes_now)
    await bucket.put(paths.fragment(1), bytes_now)
    await bucket.put(paths.MANIFEST, cordwood_json(manifest))
    report = await log.scrub(deep=True)
    assert [Code.SETSUM_MISMATCH] == [error.code for error in report.errors]
    with pytest.raises(CorruptionError):
        await of_stream(log, "aaaa")


def cordwood_json(document):
    """As it is on disk: no whitespace."""
    import json

    return json.dumps(document, separators=(",", ":")).encode()


async def test_an_orphan_of_a_stream_is_adopted_with_its_filter(log, bucket):
    """A writer that was cut off before it named its fragment: the next one does, filter and all."""
    await log.create()
    await log.streams.open("a")
    before = await bucket.get(paths.MANIFEST)
    await append(log, b"x", "a")
    await bucket.put(paths.MANIFEST, before)
    async with log.writer() as writer:
        await writer.append(b"y")
    assert ["1", "2"] == sorted((await bucket.manifest())["cordwood"]["filters"])
    assert [b"x"] == await of_stream(log, "a")


# Other logs.


async def test_a_copy_a_fork_and_a_moved_log_have_the_streams(log, memory):
    """Open ones are open there, and each goes its own way from then on."""
    # EVIDENCE-OF: G-103
    await log.create()
    await log.streams.open("a", "b", metadata={"x": 1})
    await log.streams.close("b")
    await append(log, b"1", "a")
    copied, forked, moved = (cordwood.Log(log.store, n) for n in ("copied", "forked", "moved"))
    await log.copy(copied)
    await log.fork(forked)
    await log.migrate(moved)
    await log.migrate(moved)
    for other, offset in ((copied, 2), (forked, 2), (moved, 2)):
        assert await log.streams.list(closed=True) == await other.streams.list(closed=True)
        assert offset == await append(other, b"2", "a")
        with pytest.raises(StateError, match="closed"):
            await append(other, b"3", "b")
        await other.streams.close("a")
    assert ["a"] == list(await log.streams.list())
    assert [b"1", b"2"] == await of_stream(copied, "a") == await of_stream(forked, "a")


async def test_a_log_made_anew_has_no_streams(log, bucket):
    """What an earlier log of the name had is gone, also what somebody slow puts afterwards."""
    # EVIDENCE-OF: G-103
    await log.create()
    await log.streams.open("a")
    old = {key: await bucket.get(key) for key in await bucket.keys() if key.startswith("stream/")}
    await log.destroy()
    assert [] == [key for key in await bucket.keys() if key in old]
    await log.create()
    for key, data in old.items():
        await bucket.put(key, data)
    assert {} == await log.streams.list(closed=True)
    with pytest.raises(StateError, match="not open"):
        await append(log, b"x", "a")
    await log.streams.open("b")
    assert ["b"] == list(await log.streams.list())
    await log.destroy()
    assert [] == [key for key in await bucket.keys() if key.startswith("stream/")]


@pytest.mark.cas
async def test_a_log_of_another_program_opens_streams_once_we_wrote_it(log, bucket):
    """Without an incarnation nobody could tell whose streams they are."""
    await log.create()
    manifest = await bucket.manifest()
    manifest["writer"] = "another program"
    await bucket.put(paths.MANIFEST, cordwood_json(manifest))
    assert {} == await log.streams.list()
    with pytest.raises(StateError, match="another program"):
        await log.streams.open("a")
    async with log.writer() as writer:
        await writer.append(b"x")
    await log.streams.open("a")
    assert 2 == await append(log, b"y", "a")
