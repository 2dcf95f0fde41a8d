"""Tables and compactions on a real S3 server and a real Azure server."""

from __future__ import annotations

import asyncio

import pytest

import cordwood
from cordwood import Delta, Table, compact
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


async def append(store, name, records):
    """A few fragments."""
    log = cordwood.Log(store, name)
    options = cordwood.Options(batch_bytes=200)
    async with log.writer(create=True, options=options) as writer:
        await asyncio.gather(*(writer.append(body, key=key) for key, body in records))
    return log


async def rows(table):
    """What is in it, by key; nothing twice."""
    found = (await table.to_arrow()).to_pylist()
    named = {row["key"]: row["body"] for row in found}
    assert len(named) == len(found)
    return named


async def test_a_table_from_first_to_swept(store):
    """Compacted, replaced, collected, swept, proved."""
    # EVIDENCE-OF: G-66, G-68, G-72
    table = Table(store, "tables/orders")
    await table.create(mode="upsert", grace_s=1)
    with pytest.raises(cordwood.AlreadyExistsError):
        await table.create(mode="upsert")
    model = {}
    for number in range(3):
        pairs = [(b"%d" % n, b"%d-%d" % (number, n)) for n in range(number, 40, number + 1)]
        log = await append(store, "orders", pairs)
        model |= dict(pairs)
        report = await compact(log, table, engine="local")
        assert (len(pairs), True) == (report.records, report.committed)
        assert model == await rows(table)
    assert (await log.state()).next_offset == (await log.cursors.load("compaction")).offset
    await table.sweep()
    for _ in range(20):
        if not (left := await table.sweep()).waiting:
            break
        await asyncio.sleep(0.5)
    assert 0 == left.waiting
    assert model == await rows(table)
    assert [] == await table.scrub()
    names = {file.path for file in await table.files()}
    there = [meta.key async for meta in store.list("tables/orders/data/")]
    assert {f"tables/orders/{name}" for name in names} == set(there)
    with pytest.raises(cordwood.AlreadyExistsError, match="the name of a table"):
        await cordwood.Log(store, "tables/orders").create()


async def test_two_compactions_at_once(store):
    """One commits, and everything is there once."""
    # EVIDENCE-OF: G-66
    table = Table(store, "t")
    await table.create()
    log = await append(store, "a", [(b"%d" % n, b"x") for n in range(30)])
    reports = await asyncio.gather(*(compact(log, table, engine="local") for _ in range(3)))
    assert 1 == sum(report.committed for report in reports)
    assert 30 == len(await rows(table))
    assert () == (await log.state()).pins


async def test_damage_is_found(store):
    """A file of the table that another one took the place of is not carried over."""
    # EVIDENCE-OF: G-73
    table = Table(store, "t")
    await table.create(mode="upsert")
    log = await append(store, "a", [(b"%d" % n, b"x") for n in range(30)])
    await compact(log, table, engine="local")
    (file,) = await table.files()
    data = bytearray((await store.get(f"t/{file.path}")).data)
    data[len(data) // 2] ^= 1
    await store.put(f"t/{file.path}", bytes(data))
    await append(store, "a", [(b"7", b"y")])
    with pytest.raises(cordwood.CorruptionError, match=file.path):
        await compact(log, table, engine="local")
    assert [file] == await table.files()


@pytest.mark.s3
async def test_delta_on_s3(s3, monkeypatch):
    """Delta's library takes endpoint and credentials from the environment, and nowhere else."""
    # EVIDENCE-OF: G-78
    for name, value in {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": s3.options["region"],
        "AWS_ACCESS_KEY_ID": s3.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.options["secret_access_key"],
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    store = cordwood.Store(f"{s3.url}/{SYSTEM_ENTROPY.token()}")
    await _delta(store)


@pytest.mark.azure
async def test_delta_on_azure(azure, monkeypatch):
    """The same on Azure."""
    # EVIDENCE-OF: G-78
    for name, value in {
        "AZURE_STORAGE_ENDPOINT": azure.endpoint,
        "AZURE_STORAGE_ACCOUNT_NAME": azure.options["account_name"],
        "AZURE_STORAGE_ACCOUNT_KEY": azure.options["account_key"],
        "AZURE_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    store = cordwood.Store(f"{azure.url}/{SYSTEM_ENTROPY.token()}")
    await _delta(store)


async def _delta(store):
    """Compactions, three at once among them."""
    table = Delta(store, "tables/orders")
    await table.create(mode="upsert")
    log = await append(store, "orders", [(b"%d" % n, b"1") for n in range(30)])
    reports = await asyncio.gather(*(compact(log, table, engine="local") for _ in range(3)))
    assert 1 == sum(report.committed for report in reports)
    await append(store, "orders", [(b"%d" % n, b"2") for n in range(0, 30, 2)])
    assert (await compact(log, table, engine="local")).committed
    assert {b"%d" % n: b"1" if n % 2 else b"2" for n in range(30)} == await rows(table)
