"""Story 10: an atomic batch lies in one fragment; what is too much is refused before it starts."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import cordwood
from cordwood import Code, InvalidInputError, LimitError, Options
from cordwood.base.limits import BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from cordwood.log.records import HEADERS_TYPE
from cordwood.store.api import Match


async def test_a_batch_is_one_fragment_however_large(log, bucket, bodies):
    """A batch far beyond the batch size is not split."""
    many = [b"%05d" % n for n in range(2_000)]
    async with log.writer(create=True, options=Options(batch_bytes=100)) as writer:
        assert 1 == await writer.append_many(many)
    assert [1] == await bucket.slots()
    assert many == await bodies(log)


async def test_batches_are_never_torn_apart_by_others(log, bodies):
    """However appends are mixed, the records of a batch are neighbours in their order."""
    options = Options(batch_bytes=200, in_flight=4)
    async with log.writer(create=True, options=options) as writer:
        answers = []
        for n in range(60):
            answers.append(writer.append(b"single %d" % n))
            answers.append(writer.append_many([b"%d:%d" % (n, i) for i in range(n % 7 + 1)]))
        offsets = [await answer for answer in answers]
    found = await bodies(log)
    assert len(found) == len(set(found))
    for n, offset in enumerate(offsets[1::2]):
        batch = [b"%d:%d" % (n, i) for i in range(n % 7 + 1)]
        assert batch == found[offset - 1 : offset - 1 + len(batch)]


async def test_a_batch_is_seen_whole_or_not_at_all(memory, hooked, bodies):
    """Between the fragment and the manifest nothing is seen; after the manifest everything."""
    seen = []
    quiet = cordwood.Log(cordwood.Store.over(memory), "orders")

    async def look_around(call, _key, _data, mode):
        if isinstance(mode, Match):
            seen.append(len(await bodies(quiet)))
        etag = await call()
        if isinstance(mode, Match):
            seen.append(len(await bodies(quiet)))
        return etag

    log = cordwood.Log(cordwood.Store.over(hooked(memory, put=look_around)), "orders")
    async with log.writer(create=True) as writer:
        await writer.append_many([b"x"] * 100)
        await writer.append_arrow(pa.table({"body": [b"y"] * 50}))
    assert [0, 100, 100, 150] == seen


@pytest.mark.parametrize("empty", [[], (), iter([])], ids=["list", "tuple", "iterator"])
@pytest.mark.cas
async def test_an_empty_batch_is_refused(log, bucket, empty):
    """An append of nothing has no offset to give."""
    async with log.writer(create=True) as writer:
        with pytest.raises(InvalidInputError, match="empty"):
            writer.append_many(empty)
        with pytest.raises(InvalidInputError, match="empty"):
            writer.append_arrow(pa.table({"body": pa.array([], pa.binary())}))
    assert ["manifest/MANIFEST"] == await bucket.keys()


@pytest.mark.cas
async def test_a_record_over_the_limit_is_refused(log, bucket):
    """By every way in, before anything is queued."""
    huge = bytes(RECORD_BYTES_MAX + 1)
    async with log.writer(create=True) as writer:
        for append in (
            lambda: writer.append(huge),
            lambda: writer.append(huge, key=b"k"),
            lambda: writer.append_many([b"small", huge]),
            lambda: writer.append_arrow(pa.table({"body": [b"small", huge]})),
        ):
            with pytest.raises(LimitError) as caught:
                append()
            assert Code.TOO_LARGE == caught.value.code
    assert ["manifest/MANIFEST"] == await bucket.keys()


async def test_too_many_records_in_a_batch_are_refused(log):
    """The number of records in an atomic batch is bounded too."""
    async with log.writer(create=True) as writer:
        with pytest.raises(LimitError) as caught:
            writer.append_many([b""] * (BATCH_RECORDS_MAX + 1))
    assert Code.TOO_LARGE == caught.value.code


async def test_a_full_queue_refuses_and_recovers(log, bodies):
    """LimitError says that the queue is full; once something is durable there is room again."""
    options = Options(queue_bytes=1_000)
    async with log.writer(create=True, options=options) as writer:
        taken = []
        with pytest.raises(LimitError) as caught:
            while len(taken) < 1_000:
                taken.append(writer.append(b"%d" % len(taken)))
        assert Code.QUEUE_FULL == caught.value.code
        with pytest.raises(LimitError):
            writer.append_many([b"x"] * 10)
        offsets = [await answer for answer in taken]
        assert list(range(1, len(taken) + 1)) == offsets
        assert len(taken) + 1 == await writer.append(b"room again")
    assert len(taken) + 1 == len(await bodies(log))


async def test_a_queue_takes_one_record_larger_than_itself(log, bodies):
    """Alone, anything within the record's own limit can be appended."""
    async with log.writer(create=True, options=Options(queue_bytes=10)) as writer:
        assert 1 == await writer.append(b"x" * 1_000)
        assert 2 == await writer.append_many([b"y" * 1_000, b"z"])
    assert 3 == len(await bodies(log))


async def test_a_large_batch_is_built_beside_the_loop(log, bodies):
    """Megabytes take the way through a thread, with the same result and the same order."""
    async with log.writer(create=True, options=Options(batch_bytes=2**20)) as writer:
        answers = [writer.append(bytes([n]) * 300_000) for n in range(8)]
        answers.append(writer.append_many([b"a" * 400_000, b"b"]))
        assert [1, 2, 3, 4, 5, 6, 7, 8, 9] == await asyncio.gather(*answers)
    found = await bodies(log)
    assert [bytes([n]) * 300_000 for n in range(8)] == found[:8]
    assert [400_000, 1] == [len(body) for body in found[8:]]


async def test_a_wrong_batch_does_not_take_others_with_it(log, bodies):
    """Whatever is wrong with one call, records that others appended beside it are written."""
    null_header = pa.table({"body": [b"bad"], "headers": pa.array([[None]], _loose(HEADERS_TYPE))})
    async with log.writer(create=True) as writer:
        before = writer.append(b"before")
        refused = 0
        try:
            bad = writer.append_arrow(null_header)
        except InvalidInputError:
            refused = 1
        after = writer.append(b"after")
        assert [1, 2] == await asyncio.gather(before, after)
        if not refused:
            with pytest.raises(InvalidInputError):
                await bad
    assert [b"before", b"after"] == await bodies(log)


def _loose(kind):
    """The same list type with everything nullable."""
    # EVIDENCE-OF: G-26
    # EVIDENCE-OF: G-26
    # EVIDENCE-OF: G-25
    # EVIDENCE-OF: G-12
    # EVIDENCE-OF: G-12
    return pa.list_(pa.struct([(field.name, field.type) for field in kind.value_type]))
