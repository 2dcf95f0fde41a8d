"""The same log on a real S3 server and a real Azure server."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import cordwood
from cordwood.base.clock import SYSTEM_ENTROPY


@pytest.fixture(
    params=[
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def store(request):
    """A fresh prefix on a server."""
    server = request.getfixturevalue(request.param)
    return cordwood.Store(f"{server.url}/{SYSTEM_ENTROPY.token()}", **server.options)


@pytest.mark.parametrize("protocol", ["cas", "chain"])
async def test_append_read_and_scrub(store, protocol):
    """Records survive the trip, nodes and all."""
    log = cordwood.Log(store, "orders")
    await log.create(protocol=protocol)
    with pytest.raises(cordwood.AlreadyExistsError):
        await log.create()
    async with log.writer() as writer:
        offsets = [await writer.append(f"{n}".encode(), key=b"k") for n in range(30)]
        futures = [writer.append(f"{n}".encode()) for n in range(30, 500)]
        offsets += await asyncio.gather(*futures)
    assert list(range(1, 501)) == offsets
    async with log.reader() as reader:
        bodies = [record.body async for record in reader.read()]
    assert [f"{n}".encode() for n in range(500)] == bodies
    report = await log.scrub(deep=True)
    assert report.ok
    assert report.nodes > 0
    witness = await log.cursors.init("jobs", 100)
    moved = await log.cursors.save("jobs", 300, witness)
    moved = await log.cursors.save("jobs", 200, moved)
    assert moved == await log.cursors.load("jobs")
    with pytest.raises(cordwood.ContendedError):
        await log.cursors.save("jobs", 400, witness)
    async with await log.pin("backup", 1, 50) as pin:
        await pin.renew()
    assert 1 < (await log.collect(wait_s=0)).oldest_offset <= 200


@pytest.mark.parametrize("protocol", ["cas", "chain"])
async def test_two_writers_lose_and_double_nothing(store, protocol):
    """Two writers at once: every append is acknowledged once, at an offset of its own."""
    log = cordwood.Log(store, "contended")
    await log.create(protocol=protocol)

    async def work(name):
        offsets = {}
        async with log.writer() as writer:
            for number in range(12):
                body = f"{name}{number}".encode()
                offsets[body] = await writer.append(body)
        return offsets

    promised = {}
    for offsets in await asyncio.gather(work("a"), work("b")):
        promised |= offsets
    async with log.reader() as reader:
        found = {record.body: record.offset async for record in reader.read()}
    assert promised == found
    assert len(promised) == 24


async def test_copy_and_fork(store, tmp_path):
    """A fork shares files on the server; copies go beside the log, to a directory and back."""
    log, fork = cordwood.Log(store, "orders"), cordwood.Log(store, "trial")
    async with log.writer(create=True) as writer:
        for number in range(20):
            await writer.append(f"{number}".encode())
    await log.fork(fork, 5)
    async with fork.writer() as writer:
        await writer.append(b"trial")
    async with fork.reader() as reader:
        bodies = [record.body async for record in reader.read()]
    assert [*(f"{n}".encode() for n in range(20)), b"trial"][-len(bodies) :] == bodies
    assert len(bodies) in {17, 18}
    beside = cordwood.Log(store, "beside")
    local = cordwood.Log(cordwood.Store(tmp_path), "local")
    again = cordwood.Log(store, "again")
    reports = [await fork.copy(beside), await fork.copy(local), await local.copy(again)]
    # Azure's own copies are not used: they may be seen before they are whole.
    helped = len(bodies) if store.scheme == "s3" else 0
    assert [helped, 0, 0] == [report.by_store for report in reports]
    for copy in (beside, local, again):
        async with copy.reader() as reader:
            assert bodies == [record.body async for record in reader.read()]
        assert (await copy.scrub(deep=True)).ok
    with pytest.raises(cordwood.AlreadyExistsError):
        await log.copy(beside)


async def test_bulk_commits_beside_a_writer(store):
    """Uploads become visible once, between the appends of a writer that stays open."""
    # EVIDENCE-OF: G-61, G-62
    log = cordwood.Log(store, "bulk")
    await log.create(grace_s=1)
    async with log.writer(options=cordwood.Options(intent_interval_s=0.2)) as writer:
        await writer.append(b"first")
        for batch in range(3):
            token = cordwood.Token("query", batch)
            tables = [pa.table({"body": [b"%d.%d" % (batch, n)] * 3}) for n in range(10)]
            staged = await asyncio.gather(*(log.stage(table, token) for table in tables))
            first = await log.commit(staged, token)
            again = await log.commit(staged, token)
            assert (first.offset, True, False) == (again.offset, first.is_new, again.is_new)
            await writer.append(b"between")
    async with log.reader() as reader:
        bodies = [record.body async for record in reader.read()]
    part = [[b"%d.%d" % (batch, n) for n in range(10) for _ in range(3)] for batch in range(3)]
    assert [b"first", *part[0], b"between", *part[1], b"between", *part[2], b"between"] == bodies
    await log.cursors.init("jobs", 80)
    report = await log.collect(wait_s=10.0)
    assert report.deleted > 20
    assert (await log.scrub(deep=True)).ok
