"""Story 03: one append, and exactly what it leaves in the store."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cordwood
from cordwood import Code, InvalidInputError, Setsum, StateError
from cordwood.base.clock import SeededEntropy
from cordwood.log import paths
from cordwood.log.format import ZERO, WriterTag

SLOT_ONE = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet"


@pytest.mark.cas
async def test_the_first_append_leaves_one_fragment_and_names_it(log, bucket):
    """Offset 1 in slot 1; the manifest has its pointer, its bytes and its sum, and stays plain."""
    async with log.writer(create=True) as writer:
        assert 1 == await writer.append(b"hello")
    assert [SLOT_ONE, "manifest/MANIFEST"] == await bucket.keys()
    data = await bucket.get(SLOT_ONE)
    table = pq.read_table(pa.BufferReader(data))
    assert ["offset", "timestamp_us", "body"] == table.schema.names
    assert ([1], [b"hello"]) == (
        table.column("offset").to_pylist(),
        table.column("body").to_pylist(),
    )
    setsum = Setsum.of_fragment(table).hexdigest()
    manifest = await bucket.manifest()
    tag = WriterTag.parse(manifest.pop("writer"))
    assert {
        "setsum": setsum,
        "collected": ZERO,
        "acc_bytes": len(data),
        "snapshots": [],
        "fragments": [
            {
                "path": SLOT_ONE,
                "seq_no": 1,
                "start": {"offset": 1},
                "limit": {"offset": 2},
                "num_bytes": len(data),
                "setsum": setsum,
            }
        ],
    } == manifest
    assert table.column("timestamp_us").to_pylist() == [tag.tail_us]


async def test_offsets_go_on(log, bodies):
    """One after the other, over several writers, without a hole."""
    offsets = []
    for n in range(6):
        async with log.writer(create=True) as writer:
            offsets.append(await writer.append(b"%d" % n))
    assert [1, 2, 3, 4, 5, 6] == offsets
    assert [b"0", b"1", b"2", b"3", b"4", b"5"] == await bodies(log)


async def test_appends_made_together_share_a_fragment(log, bucket, read):
    """What is appended before anything flies lies in one fragment, in the order of the calls."""
    async with log.writer(create=True) as writer:
        answers = [writer.append(b"%d" % n) for n in range(100)]
        assert list(range(1, 101)) == [await answer for answer in answers]
    assert [1] == await bucket.slots()
    records = await read(log)
    assert [b"%d" % n for n in range(100)] == [record.body for record in records]
    assert 1 == len({record.timestamp_us for record in records})


async def test_state_follows(log, bucket):
    """State tells offsets, bytes and sum of what is there."""
    async with log.writer(create=True) as writer:
        await writer.append_many([b"a", b"b", b"c"])
    state = await log.state()
    manifest = await bucket.manifest()
    assert (1, 4, 3) == (state.oldest_offset, state.next_offset, state.records)
    assert (manifest["setsum"], manifest["acc_bytes"]) == (state.setsum.hexdigest(), state.bytes)
    assert Setsum() == state.collected


@pytest.mark.cas
async def test_state_shows_cursors_and_ignores_what_is_none(log, bucket):
    """Objects that do not belong to the log do not disturb it."""
    await log.create()
    cursor = b'{"position":{"offset":42},"epoch_us":12345,"writer":"test-writer"}'
    await bucket.put("cursor/compaction.json", cursor)
    await bucket.put("cursor/notes.txt", b"not a cursor")
    await bucket.put("cursor/old/compaction.json", b"not a cursor")
    await bucket.put("README", b"not part of the log")
    assert {"compaction": 42} == (await log.state()).cursors
    assert (await log.scrub(deep=True)).ok


async def test_every_manifest_is_another(log, bucket):
    """No two manifests have the same bytes, so that no etag can repeat."""
    texts = []
    async with log.writer(create=True) as writer:
        for _ in range(3):
            await writer.append(b"same")
            texts.append((await bucket.manifest())["writer"])
    tags = [WriterTag.parse(text) for text in texts]
    assert 3 == len({tag.write_id for tag in tags}) == len({tag.tail_id for tag in tags})
    assert 1 == len({tag.incarnation for tag in tags})


async def test_timestamps_never_go_back(memory, read):
    """Where the clock jumps back, records keep the time of the one before."""

    class Jumping:
        """Wall time as the test sets it."""

        wall_us = 2_000_000

        def now_us(self):
            """What the test says."""
            return self.wall_us

        def monotonic_s(self):
            """Nothing takes time."""
            return 0.0

    clock = Jumping()
    log = cordwood.Log(cordwood.Store.over(memory), "orders", clock=clock, entropy=SeededEntropy(1))
    for clock.wall_us in (2_000_000, 1_000_000, 3_000_000):
        async with log.writer(create=True) as writer:
            await writer.append(b"x")
    assert [2_000_000, 2_000_000, 3_000_000] == [r.timestamp_us for r in await read(log)]


async def test_a_body_is_copied_when_it_is_taken(log, bodies):
    """What the caller does to its buffer or its headers afterwards does not reach the log."""
    buffer, headers = bytearray(b"before"), {"h": b"before"}
    async with log.writer(create=True) as writer:
        answers = [writer.append(buffer), writer.append(memoryview(buffer), headers=headers)]
        buffer[:] = b"after!"
        headers["h"] = b"after!"
        headers["more"] = b"x"
        for answer in answers:
            await answer
    assert [b"before", b"before"] == await bodies(log)
    async with log.reader() as reader:
        records = [record async for record in reader.read(2)]
    assert {"h": b"before"} == records[0].headers


async def test_a_wrong_append_harms_nobody(log, bodies):
    """It is refused at once, and what was appended before and after it is written."""
    async with log.writer(create=True) as writer:
        before = writer.append(b"before")
        for wrong in ("text", None, 7):
            with pytest.raises(InvalidInputError):
                writer.append(wrong)
        after = writer.append(b"after")
        assert (1, 2) == (await before, await after)
    assert [b"before", b"after"] == await bodies(log)


async def test_a_writer_has_one_life(log):
    """Not before it is open, not twice, not after it was closed; and it cannot be pickled."""
    await log.create()
    writer = log.writer()
    with pytest.raises(StateError):
        writer.append(b"x")
    async with writer:
        with pytest.raises(StateError):
            await writer.open()
    for use in (lambda: writer.append(b"x"), lambda: writer.append_many([b"x"])):
        with pytest.raises(StateError) as caught:
            use()
        assert Code.CLOSED == caught.value.code
    with pytest.raises(StateError):
        await writer.open()
    await writer.close()
    with pytest.raises(StateError):
        pickle.dumps(writer)


async def test_a_log_is_a_value(log):
    """Equal by store and name, hashable, and named by one URL."""
    store = cordwood.Store("memory:story-03")
    one, other = cordwood.Log(store, "a"), cordwood.Log.from_url("memory:story-03/a")
    assert one == other
    assert hash(one) == hash(other)
    assert one == pickle.loads(pickle.dumps(one))
    assert one != cordwood.Log(store, "b")
    assert "memory:story-03/a" == one.url


async def test_the_path_of_the_4096th_slot_is_in_the_next_bucket():
    """Buckets of 4,096 slots, as wal3 has them."""
    # EVIDENCE-OF: G-4
    # EVIDENCE-OF: G-15, G-32
    # EVIDENCE-OF: G-32
    # EVIDENCE-OF: G-34
    # EVIDENCE-OF: G-1
    assert "log/Bucket=0000000000001000/" in paths.fragment(4096)
