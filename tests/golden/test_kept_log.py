"""A log written by the first version, kept as bytes in `log-1/`, which must stay readable for ever.

`write_log` is how it was made, on the first version of Cordwood with pyarrow 26: its objects were
saved under their keys, once, and are never made again. A change that makes a test here fail has
changed the format: it needs a new format number, not a new folder of bytes.

What the log holds: records with and without key, headers and stream; an atomic batch; three
compressions; a node; a void slot (feature `gaps`); and, above the manifest, an orphan that the next
writer must adopt.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import cordwood
from cordwood.base.clock import SeededEntropy
from cordwood.log import paths
from cordwood.log.batch import Batch
from cordwood.log.flight import build
from cordwood.log.records import HEADERS_TYPE, Record
from cordwood.log.recovery import Tail
from cordwood.store.memory import MemoryStore

FOLDER = Path(__file__).resolve().parent / "log-1"
STAMP = 1_700_000_000_000_000
SECOND = 1_000_000

SETSUM = "21767958c0786c1eac8755130741d9227eab52882d11f94f602204efdc443489"
"""Of the log as it was saved, before the orphan is adopted."""

EXPECTED = [
    Record(1, STAMP + 1 * SECOND, b"first"),
    Record(2, STAMP + 2 * SECOND, b"keyed", b"key", {"a": b"1", "ä": b""}, "stream"),
    Record(3, STAMP + 3 * SECOND, b"atomic"),
    Record(4, STAMP + 3 * SECOND, b""),
    Record(5, STAMP + 3 * SECOND, b"\x00\xff"),
    Record(6, STAMP + 4 * SECOND, b"arrow", None, {"n": b"v"}, None),
    Record(7, STAMP + 4 * SECOND, b"arrow", b"", {}, None),
    *(Record(8 + i, STAMP + (5 + i) * SECOND, b"body %d" % i) for i in range(7)),
]
ORPHAN = Record(15, STAMP + 12 * SECOND, b"orphan")


class HandClock:
    """Wall time is set by hand; durations are the event loop's."""

    def __init__(self):
        """Before the first second."""
        self.seconds = 0

    def now_us(self):
        """So many seconds after the beginning."""
        return STAMP + self.seconds * SECOND

    def monotonic_s(self):
        """The loop's own."""
        return asyncio.get_running_loop().time()


class Silent:
    """A waiter that nobody listens to."""

    def done(self):
        """It went away."""
        return True


async def write_log(memory):
    """Make the log: this is how the kept objects came to be."""
    store, clock = cordwood.Store.over(memory), HandClock()
    log = cordwood.Log(store, "log", clock=clock, entropy=SeededEntropy("golden"))
    await log.create()
    async with log.writer() as writer:
        clock.seconds = 1
        await writer.append(b"first")
        await log.streams.open("stream")
        clock.seconds = 2
        await writer.append(b"keyed", key=b"key", headers={"a": b"1", "ä": b""}, stream="stream")
        clock.seconds = 3
        await writer.append_many([b"atomic", b"", b"\x00\xff"])
    async with log.writer(options=cordwood.Options(compression="zstd")) as writer:
        clock.seconds = 4
        headers = pa.array([[{"name": "n", "value": b"v"}], []], HEADERS_TYPE)
        key = pa.array([None, b""], pa.binary())
        table = pa.table({"body": [b"arrow"] * 2, "key": key, "headers": headers})
        await writer.append_arrow(table)
    await memory.put(f"log/{paths.fragment(5)}", b"void: this is no fragment")
    async with log.writer(options=cordwood.Options(compression="none")) as writer:
        for i in range(7):
            clock.seconds = 5 + i
            await writer.append(b"body %d" % i)
    batch = Batch()
    batch.add_row(ORPHAN.body, len(ORPHAN.body), Silent())
    tail = Tail.of(await log.manifest())
    flight, data = build(batch, tail, ORPHAN.timestamp_us, "0" * 31 + "f", "lz4")
    await memory.put(f"log/{flight.fragment.path}", data)


async def objects(memory):
    """Everything in a store, by key."""
    return {meta.key: (await memory.get(meta.key)).data async for meta in memory.list()}


@pytest.fixture
async def kept():
    """The kept log, in a store of its own."""
    memory = MemoryStore()
    for file in FOLDER.rglob("*"):
        if file.is_file():
            await memory.put(file.relative_to(FOLDER).as_posix(), file.read_bytes())
    return memory


async def read_all(memory):
    """Every record, verified."""
    async with cordwood.Log(cordwood.Store.over(memory), "log").reader() as reader:
        return [record async for record in reader.read()]


async def test_the_kept_log_is_read(kept):
    """Every record comes back with every field, and every checksum and setsum holds."""
    assert EXPECTED == await read_all(kept)


async def test_the_kept_log_is_whole(kept):
    """A deep scrub finds nothing, and the sum is the one that was written."""
    log = cordwood.Log(cordwood.Store.over(kept), "log")
    report = await log.scrub(deep=True)
    assert ([], len(EXPECTED), SETSUM) == (
        report.errors,
        report.records,
        report.setsum.hexdigest(),
    )
    state = await log.state()
    assert (1, 15, {"columns", "gaps"}) == (
        state.oldest_offset,
        state.next_offset,
        state.features,
    )


async def test_the_kept_log_has_these_objects(kept):
    """Slots 1 to 13 with their fixed paths, one node, one manifest."""
    slots = [f"log/{paths.fragment(n)}" for n in range(1, 14)]
    names = list(await objects(kept))
    assert [*slots, "log/manifest/MANIFEST"] == names[:14]
    assert 1 == len(names[14:])
    assert names[14].startswith("log/snapshot/SNAPSHOT.")


async def test_the_kept_log_goes_on(kept):
    """A writer of today adopts the orphan of then, once, and appends behind it."""
    log = cordwood.Log(cordwood.Store.over(kept), "log")
    async with log.writer() as writer:
        assert 16 == await writer.append(b"today")
    records = await read_all(kept)
    assert [*EXPECTED, ORPHAN] == records[:-1]
    assert (16, b"today") == (records[-1].offset, records[-1].body)
    assert (await log.scrub(deep=True)).ok


async def test_the_same_calls_make_the_same_log_today(kept):
    """Records, sums, slots and names are those of then; only the Parquet bytes may differ.

    Streams had no list and no filters then.
    """
    # EVIDENCE-OF: G-20
    today = MemoryStore()
    await write_log(today)
    assert await read_all(kept) == await read_all(today)
    then_manifest = await cordwood.Log(cordwood.Store.over(kept), "log").manifest()
    now_manifest = await cordwood.Log(cordwood.Store.over(today), "log").manifest()
    newer = ("log/stream/", "log/filter/")
    today_keys = [key for key in await objects(today) if not key.startswith(newer)]
    assert list(await objects(kept)) == today_keys
    for then, now in (
        (then_manifest.nodes, now_manifest.nodes),
        (then_manifest.fragments, now_manifest.fragments),
    ):
        assert [(p.path, p.start, p.limit, p.setsum_hex) for p in then] == [
            (p.path, p.start, p.limit, p.setsum_hex) for p in now
        ]
    assert then_manifest.setsum_hex == now_manifest.setsum_hex
