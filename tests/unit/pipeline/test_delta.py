"""A Delta table as the target of compactions: the same, exactly once through its transactions."""

from __future__ import annotations

import asyncio
import json
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

import cordwood
from cordwood import (
    AlreadyExistsError,
    ContendedError,
    CorruptionError,
    Delta,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
    compact,
)
from cordwood.pipeline.columns import SCHEMA

ODD = '{"cordwood.mode":"sideways"}'


@pytest.fixture
def store(tmp_path):
    """A directory: Delta has its own client."""
    return cordwood.Store(f"file://{tmp_path}/wood")


@pytest.fixture
def make(store):
    """`await make(mode)`: a Delta table."""

    async def work(mode="append", keyless="refuse"):
        table = Delta(store, "delta")
        await table.create(mode=mode, keyless=keyless)
        return table

    return work


async def test_records_become_rows(append, make, rows):
    """Read by Delta's own library; the second compaction adds what is new."""
    # EVIDENCE-OF: G-78
    table = await make()
    log = await append("a", [(None, b"%d" % n) for n in range(20)])
    assert (await compact(log, table, engine="local")).committed
    assert not (await compact(log, table, engine="local")).committed
    await append("a", [(b"k", b"more")])
    await compact(log, table, engine="local")
    found = DeltaTable(table.url).to_pyarrow_table().sort_by("offset").to_pylist()
    assert list(range(1, 22)) == [row["offset"] for row in found]
    assert ("a", b"k", b"more") == (found[-1]["log"], found[-1]["key"], found[-1]["body"])
    incarnation = (await log.manifest()).incarnation
    assert 22 == DeltaTable(table.url).transaction_version(incarnation)
    assert {"offset"} == set((await table.to_arrow(["offset"])).schema.names)
    assert 2 == len(await table.files())


async def test_newest_by_key(append, make, rows):
    """With tombstones; files that lose rows are replaced in the same commit."""
    # EVIDENCE-OF: G-78
    table = await make("upsert")
    log = await append("a", [(b"k1", b"1"), (b"k2", b"1"), (b"k1", b"2")])
    await compact(log, table, engine="local")
    await append("a", [(b"k2", b""), (b"k3", b"1")])
    report = await compact(log, table, engine="local")
    assert (1, 1, 1) == (report.tombstones, report.replaced, report.dropped)
    assert {("a", b"k1"): b"2", ("a", b"k3"): b"1"} == await rows(table)


async def test_what_others_wrote_is_kept(append, make, rows):
    """Delta's own tools may put files together; the next compaction works on what they made."""
    table = await make("upsert")
    log = await append("a", [(b"k%d" % n, b"1") for n in range(5)])
    for number in range(3):
        await append("a", [(b"k%d" % number, b"2")])
        await compact(log, table, engine="local")
    DeltaTable(table.url).optimize.compact()
    await append("a", [(b"k4", b"3")])
    await compact(log, table, engine="local")
    found = await rows(table)
    assert {b"2", b"1", b"3"} == set(found.values())
    assert (5, b"3") == (len(found), found["a", b"k4"])


@pytest.mark.parametrize("place", ["body", "key", "footer", "end"])
async def test_a_damaged_file_is_not_carried_over(append, make, tmp_path, place):
    """Neither a changed row, which the decoder would not notice, nor anything else."""
    # EVIDENCE-OF: G-73, G-78
    table = await make("upsert")
    log = await append("a", [(b"key-%d" % n, b"body-%d" % n) for n in range(20)])
    await compact(log, table, engine="local", compression="none")
    (file,) = await table.files()
    path = tmp_path / "wood" / "delta" / file.path
    data = bytearray(path.read_bytes())
    where = {"body": b"body-7", "key": b"key-7", "footer": b"parquet-cpp", "end": b"PAR1"}
    data[data.rindex(where[place])] ^= 1
    path.write_bytes(data)
    await append("a", [(b"key-3", b"new")])
    with pytest.raises(CorruptionError, match=file.path):
        await compact(log, table, engine="local")
    assert [file] == await table.files()


async def test_a_damaged_file_of_others_is_found_by_its_pages(append, make, tmp_path):
    """If its writer made checksums for them; nobody knows another one."""
    table = await make("upsert")
    log = await append("a", [(b"k%d" % n, b"body-%d" % n) for n in range(9)])
    await compact(log, table, engine="local", compression="none")
    (file,) = await table.files()
    assert 64 == len(file.setsum)
    folder = tmp_path / "wood" / "delta"
    data = (folder / file.path).read_bytes()
    (folder / "theirs.parquet").write_bytes(data)
    _exchange(DeltaTable(table.url), file, "theirs.parquet")
    assert [("theirs.parquet", "", "")] == [(f.path, f.xxh3, f.setsum) for f in await table.files()]
    (folder / "theirs.parquet").write_bytes(data.replace(b"body-7", b"body-8"))
    await append("a", [(b"k3", b"new")])
    with pytest.raises(CorruptionError, match=r"theirs\.parquet is damaged.*CRC"):
        await compact(log, table, engine="local")


def _exchange(table, file, path):
    """As another program would rewrite a file."""
    stats = json.dumps({"numRecords": file.rows})
    actions = [
        AddAction(path, file.bytes, {}, 0, True, stats),
        RemoveAction(file.path, True, 0, file.bytes, {}),
    ]
    table.create_write_transaction(actions, "append", SCHEMA)


@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_columns_of_others_are_not_erased(append, make, mode):
    """A table that somebody gave another column is refused, and left as it is."""
    table = await make(mode)
    log = await append("a", [(b"k1", b"1"), (b"k2", b"1")])
    await compact(log, table, engine="local")
    theirs = DeltaTable(table.url)
    theirs.alter.add_columns([Field("note", PrimitiveType("string"))])
    theirs.update(updates={"note": "'mine'"})
    await append("a", [(b"k1", b"2")])
    with pytest.raises(StateError, match="'note' is not as a compaction writes it"):
        await compact(log, table, engine="local")
    found = DeltaTable(table.url).to_pyarrow_table().to_pylist()
    assert [("1", "mine")] * 2 == [(row["body"].decode(), row["note"]) for row in found]


async def test_reading_checks_the_files(append, make, tmp_path):
    """A changed byte is found by whoever reads; so is a column that no table has."""
    # EVIDENCE-OF: G-70
    table = await make()
    log = await append("a", [(None, b"body-%d" % n) for n in range(9)])
    await compact(log, table, engine="local", compression="none")
    (file,) = await table.files()
    path = tmp_path / "wood" / "delta" / file.path
    path.write_bytes(path.read_bytes().replace(b"body-7", b"body-8"))
    with pytest.raises(CorruptionError, match=f"{file.path} is damaged"):
        await table.to_arrow(["body"])
    with pytest.raises(InvalidInputError, match="no column 'colour'"):
        await table.to_arrow(["colour"])


async def test_small_files_are_left_to_delta(append, make):
    """Whoever owns the table may `optimize` it."""
    table = await make()
    log = cordwood.Log(table.store, "a")
    for number in range(9):
        await append("a", [(None, b"%d" % number)])
        await compact(log, table, engine="local")
    assert 9 == len(await table.files())


async def test_two_at_once(append, make, rows):
    """One commits; everything is there once."""
    # EVIDENCE-OF: G-78
    table = await make()
    log = await append("a", [(None, b"x")] * 20)
    reports = await asyncio.gather(*(compact(log, table, engine="local") for _ in range(3)))
    assert 1 == sum(report.committed for report in reports)
    assert 20 == len(await rows(table))


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_lost_answer_is_found(append, make, rows, monkeypatch, arrives):
    """The commit is in the table, or not; either way it is made once."""
    # EVIDENCE-OF: G-78
    table = await make()
    log = await append("a", [(None, b"x")] * 20)
    write = DeltaTable.create_write_transaction
    lost = []

    def losing(self, *args, **kwargs):
        if lost:
            return write(self, *args, **kwargs)
        lost.append(True)
        if arrives:
            write(self, *args, **kwargs)
        raise CommitFailedError("nobody knows")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    assert (await compact(log, table, engine="local")).committed
    assert 20 == len(await rows(table))


async def test_a_table_that_never_rests(append, make, monkeypatch):
    """Is given up after some tries, and says so."""
    table = await make()
    log = await append("a", [(None, b"x")])

    def refuse(self, *args, **kwargs):
        raise CommitFailedError("too late")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)
    with pytest.raises(ContendedError, match="changes too fast"):
        await compact(log, table, engine="local")


async def test_another_log_of_the_name(append, make):
    """Its records would pass for the other's."""
    table = await make()
    log = await append("a", [(None, b"x")])
    await compact(log, table, engine="local")
    await log.destroy()
    await append("a", [(None, b"y")])
    with pytest.raises(StateError, match="another log that was named 'a'"):
        await compact(log, table, engine="local")


async def test_create(store, make):
    """Once, in one mode."""
    table = await make("upsert")
    await table.create(mode="upsert", exist_ok=True)
    for wrong in (
        {"mode": "upsert"},
        {"mode": "append", "exist_ok": True},
        {"mode": "upsert", "keyless": "skip", "exist_ok": True},
    ):
        with pytest.raises(AlreadyExistsError, match="in mode upsert, keyless refuse"):
            await table.create(**wrong)
    with pytest.raises(InvalidInputError, match="no table has mode 'sideways'"):
        await Delta(store, "other").create(mode="sideways")
    assert "delta" in repr(Delta.from_url(table.url))


async def test_bad_input(store, append, tmp_path):
    """No table, no Delta table, one of somebody else's, a place it cannot be."""
    log = await append("a", [(None, b"x")])
    with pytest.raises(NotFoundError, match="no Delta table at"):
        await compact(log, Delta(store, "none"), engine="local")
    write_deltalake(f"{tmp_path}/wood/theirs", pa.table({"x": [1]}))
    with pytest.raises(InvalidInputError, match="not a Delta table that was made for"):
        await compact(log, Delta(store, "theirs"), engine="local")
    with pytest.raises(InvalidInputError, match="cannot lie in memory:"):
        Delta("memory:", "t")
    (tmp_path / "wood" / "spoiled" / "_delta_log").mkdir(parents=True)
    (tmp_path / "wood" / "spoiled" / "_delta_log" / "00000000000000000000.json").write_text("{")
    with pytest.raises((StoreError, NotFoundError), match="spoiled") as caught:
        await Delta(store, "spoiled").files()
    assert 1 == len(str(caught.value).splitlines()), "and not the library's own stack"
    for name in ("../../escape", "a//b", "", "/etc"):
        with pytest.raises(InvalidInputError, match="cannot name a table"):
            Delta(store, name)
    with pytest.raises(InvalidInputError, match="does not name a table"):
        Delta.from_url("foo")
    where = tmp_path / "wood" / "theirs" / "_delta_log" / f"{0:020}.json"
    text = where.read_text()
    where.write_text(text.replace('"configuration":{}', f'"configuration":{ODD}'))
    assert text != where.read_text()
    with pytest.raises(InvalidInputError, match="not a Delta table that was made for"):
        await compact(log, Delta(store, "theirs"), engine="local")


LONG = """Generic MicrosoftAzure error
          \x1b[31m↳\x1b[0m Error performing list request
           \x1b[31m↳\x1b[0m URL scheme is not allowed
   0: <unknown>
   1: <unknown>
"""


async def test_errors_of_the_library_are_one_line(make, monkeypatch):
    """With the reason, without colours and stack."""
    table = await make()

    def fail(self, *args, **kwargs):
        raise OSError(LONG)

    monkeypatch.setattr(DeltaTable, "version", fail)
    with pytest.raises(StoreError) as caught:
        await table.files()
    assert str(caught.value).endswith(
        "Generic MicrosoftAzure error: Error performing list request: URL scheme is not allowed"
    )


async def test_without_the_library(store, monkeypatch):
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(StateError, match="need the library deltalake"):
        await Delta(store, "t").files()
