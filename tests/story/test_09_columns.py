"""Story 09: key, headers and stream, by every way in, and back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordwood import Record, Setsum
from cordwood.log import paths
from cordwood.log.records import HEADERS_TYPE

ROWS = [
    (b"all", b"k", {"a": b"1", "ä": b"", "": b"2"}, "s"),
    (b"key", b"", None, None),
    (b"headers", None, {"n": b"v"}, None),
    (b"no headers", None, {}, None),
    (b"stream", None, None, "ström"),
    (b"", None, None, None),
]


def as_table(rows):
    """The rows as a producer of Arrow data would have them."""
    bodies, keys, headers, streams = zip(*rows, strict=True)
    pairs = [None if h is None else list(h.items()) for h in headers]
    return pa.table(
        {
            "body": pa.array(bodies, pa.binary()),
            "key": pa.array(keys, pa.binary()),
            "headers": pa.array(pairs, HEADERS_TYPE),
            "stream": pa.array(streams, pa.string()),
        }
    )


@pytest.fixture(autouse=True)
async def opened(log):
    """The streams of the rows are open."""
    await log.create()
    await log.streams.open("s", "ström", "k")


def expected(records, rows):
    """The records that these rows should have become."""
    return [Record(r.offset, r.timestamp_us, *row) for r, row in zip(records, rows, strict=True)]


async def test_columns_survive_single_appends(log, read):
    """Null, empty and filled are told apart."""
    async with log.writer(create=True) as writer:
        answers = [
            writer.append(body, key=key, headers=headers, stream=stream)
            for body, key, headers, stream in ROWS
        ]
        assert [1, 2, 3, 4, 5, 6] == [await answer for answer in answers]
    records = await read(log)
    assert expected(records, ROWS) == records


async def test_columns_survive_arrow(log, read):
    """The same rows as one atomic Arrow batch."""
    async with log.writer(create=True) as writer:
        assert 1 == await writer.append_arrow(as_table(ROWS))
    records = await read(log)
    assert expected(records, ROWS) == records


async def test_what_was_read_as_arrow_can_be_appended_again(log, read):
    """A copy of a log through Arrow has the same records."""
    other = type(log)(log.store, "copy")
    await other.create()
    await other.streams.open("s", "ström")
    async with log.writer(create=True) as writer:
        await writer.append_arrow(as_table(ROWS))
        await writer.append(b"plain")
    async with log.reader() as reader, other.writer(create=True) as writer:
        async for batch in reader.read_arrow():
            await writer.append_arrow(batch.drop_columns(["offset", "timestamp_us"]))
    fields = [(r.offset, r.body, r.key, r.headers, r.stream) for r in await read(log)]
    assert fields == [(r.offset, r.body, r.key, r.headers, r.stream) for r in await read(other)]


@pytest.mark.cas
async def test_the_feature_is_declared_with_the_first_such_record(log, bucket):
    """A plain log stays plain until a record needs more, and never goes back."""
    async with log.writer(create=True) as writer:
        await writer.append(b"plain")
        assert "cordwood" not in await bucket.manifest()
        await writer.append(b"keyed", key=b"k")
        assert {"format": 1, "features": ["columns"]} == (await bucket.manifest())["cordwood"]
        await writer.append(b"plain again")
    assert {"columns"} == (await log.state()).features


@pytest.mark.cas
async def test_only_fragments_that_need_them_have_six_columns(log, bucket):
    """A fragment of plain records is as wal3 writes it, also in a log with the feature."""
    async with log.writer(create=True) as writer:
        await writer.append(b"keyed", key=b"k")
        await writer.append(b"plain")
    names = []
    for slot in (1, 2):
        data = await bucket.get(paths.fragment(slot))
        names.append(pq.read_table(pa.BufferReader(data)).schema.names)
    plain = ["offset", "timestamp_us", "body"]
    assert [[*plain, "key", "headers", "stream"], plain] == names


@pytest.mark.cas
async def test_an_orphan_with_columns_brings_the_feature(log, bucket, read):
    """Adoption declares what it adopts."""
    async with log.writer(create=True) as writer:
        await writer.append(b"keyed", key=b"k")
    manifest = await bucket.manifest()
    await bucket.delete("manifest/MANIFEST")
    incarnation = manifest["writer"].split()[1].removeprefix("log=")
    await log.create()
    empty = await bucket.get("manifest/MANIFEST")
    fresh = (await bucket.manifest())["writer"].split()[1].removeprefix("log=")
    await bucket.put("manifest/MANIFEST", empty.replace(fresh.encode(), incarnation.encode()))
    async with log.writer():
        pass
    assert {"columns"} == (await log.state()).features
    assert [b"k"] == [record.key for record in await read(log)]


@pytest.mark.cas
async def test_arrow_data_without_extra_columns_stays_plain(log, bucket):
    """Bodies alone, and extra columns of nulls alone, need no feature."""
    async with log.writer(create=True) as writer:
        await writer.append_arrow(pa.table({"body": [b"a", b"b"]}))
        await writer.append_arrow(pa.table({"body": [b"c"], "key": pa.nulls(1, pa.binary())}))
        await writer.append_arrow(pa.record_batch({"body": pa.array(["text"])}))
    assert "cordwood" not in await bucket.manifest()


async def test_every_column_is_in_the_sum(log, bucket):
    """Changing a key, a header or a stream changes the setsum; so does null against empty."""
    sums = set()
    variants = [
        {"key": b"k"},
        {"key": b"l"},
        {"key": b""},
        {"headers": {"a": b"1"}},
        {"headers": {"a": b"2"}},
        {"headers": {"b": b"1"}},
        {"headers": {}},
        {"stream": "k"},
    ]
    async with log.writer(create=True) as writer:
        for fields in variants:
            await writer.append(b"", **fields)
    for fragment in (await log.manifest()).fragments:
        table = await log.reader().fetch(fragment)
        moved = table.set_column(0, "offset", pa.array([1], pa.uint64()))
        moved = moved.set_column(1, "timestamp_us", pa.array([1], pa.uint64()))
        sums.add(Setsum.of_fragment(moved).hexdigest())
    assert len(variants) == len(sums)


async def test_plain_and_full_records_share_a_fragment(log, bucket, read):
    """Appends made together lie together, whatever they have."""
    async with log.writer(create=True) as writer:
        answers = [
            writer.append(b"1"),
            writer.append(b"2", key=b"k"),
            writer.append_many([b"3", b"4"]),
            writer.append_arrow(as_table(ROWS[:1])),
            writer.append(b"6"),
        ]
        assert [1, 2, 3, 5, 6] == [await answer for answer in answers]
    assert [1] == await bucket.slots()
    keys = [record.key for record in await read(log)]
    assert [None, b"k", None, None, b"k", None] == keys


@pytest.mark.parametrize("count", [1, 1000])
async def test_many_records_with_columns(log, read, count):
    """A thousand records with everything, in one atomic batch, deeply scrubbed."""
    async with log.writer(create=True) as writer:
        await writer.append_arrow(as_table(ROWS[:1] * count))
    assert [ROWS[0]] * count == [(r.body, r.key, r.headers, r.stream) for r in await read(log)]
    report = await log.scrub(deep=True)
    assert ([], count) == (report.errors, report.records)
