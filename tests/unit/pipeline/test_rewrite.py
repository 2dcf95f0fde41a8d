"""One unit of a compaction: what it writes is what it read, and it holds little of it at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cordwood
from cordwood import CorruptionError, InternalError, Table, compact
from cordwood.log.bulk import Token
from cordwood.pipeline import columns, rewrite
from cordwood.pipeline.columns import DataFile
from cordwood.pipeline.compact import Compact
from cordwood.pipeline.tabledoc import data_path

MIB = 2**20
PATH = data_path("0" * 32)


@pytest.fixture
def held(monkeypatch):
    """What Arrow holds whenever rows are handed on, beyond what it held in the beginning."""
    found, before, add = [], [], columns.Builder.add

    def looked_at(self, rows):
        found.append(pa.total_allocated_bytes() - before[0])
        return add(self, rows)

    def begin():
        before.append(pa.total_allocated_bytes())
        monkeypatch.setattr(columns.Builder, "add", looked_at)
        return found

    return begin


def _changed(records, log):
    """Rows of the records, one body of them another."""
    rows = columns.rows_of(records, log)
    bodies = rows.column("body").to_pylist()
    bodies[0] = b"changed"
    place = rows.schema.get_field_index("body")
    return rows.set_column(place, rows.schema.field(place), pa.array(bodies, pa.binary()))


async def _plain(log):
    async with log.writer(create=True) as writer:
        await writer.append_many([b"1", b"2"])


async def _keyed(log):
    async with log.writer(create=True) as writer:
        await writer.append(b"1", key=b"k")


async def _bulk(log, data):
    await log.create()
    token = Token("job", 1)
    await log.commit([await log.stage(pa.table(data), token)], token)


async def _plain_bulk(log):
    await _bulk(log, {"body": [b"1", b"2"]})


async def _keyed_bulk(log):
    await _bulk(log, {"key": [b"k", b"l"], "body": [b"1", b"2"]})


FORMS = [_plain, _keyed, _plain_bulk, _keyed_bulk]


@pytest.mark.parametrize("fill", FORMS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
async def test_a_changed_row_is_noticed(store, monkeypatch, fill, mode):
    """Whatever form the fragment has: rows that are not its records are not committed."""
    # EVIDENCE-OF: G-71
    log, table = cordwood.Log(store, "a"), Table(store, "t")
    await fill(log)
    await table.create(mode=mode, keyless="keep")
    monkeypatch.setattr(rewrite, "rows_of", _changed)
    with pytest.raises(InternalError, match=r"fragment .* of log 'a': its records have the setsum"):
        await compact(log, table, engine="local")
    assert [] == await table.files()
    monkeypatch.undo()
    report = await compact(log, table, engine="local")
    assert (await log.state()).setsum == report.setsum


@pytest.mark.parametrize("field", ["kept_sum", "left_sum"])
async def test_a_wrong_result_is_noticed(store, append, monkeypatch, field):
    """What the units tell must add up, too: results travel."""
    # EVIDENCE-OF: G-71
    log, table = await append("a", [(None, b"1")]), Table(store, "t")
    await table.create()
    work = Compact.work

    async def wrong(self, unit):
        result = await work(self, unit)
        return type(result)(**{**_fields(result), field: "1" + "0" * 63})

    monkeypatch.setattr(Compact, "work", wrong)
    with pytest.raises(InternalError, match="do not add up"):
        await compact(log, table, engine="local")
    assert [] == await table.files()


def _fields(result):
    return {name: getattr(result, name) for name in result.__struct_fields__}


async def test_a_lost_row_of_the_table_is_noticed(store, append, monkeypatch):
    """What is carried over is what the table says its file holds."""
    # EVIDENCE-OF: G-73
    log, table = await append("a", [(b"k%d" % n, b"1") for n in range(4)]), Table(store, "t")
    await table.create(mode="upsert")
    await compact(log, table, engine="local")
    (file,) = await table.files()
    await append("a", [(b"k0", b"2")])

    def forgetful(data, file):
        for rows in columns.read_pieces(data, file):
            yield rows.slice(0, rows.num_rows - 1)

    monkeypatch.setattr(rewrite, "read_pieces", forgetful)
    with pytest.raises(CorruptionError, match=f"{file.path} is damaged"):
        await compact(log, table, engine="local")
    assert [file] == await table.files()


# How much it holds.


def _rows(num_rows, num_bytes):
    """Rows with bodies that are large and compress well."""
    body = bytes(num_bytes)
    records = pa.table(
        {
            "offset": pa.array(range(1, num_rows + 1), pa.uint64()),
            "timestamp_us": pa.array([7] * num_rows, pa.uint64()),
            "body": pa.array([body] * num_rows, pa.binary()),
            "key": pa.array([b"%d" % n for n in range(num_rows)], pa.binary()),
        }
    )
    return columns.rows_of(records, "a")


def _in_one_group(rows):
    """A file as another program may write it."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=rows.num_rows)
    data = sink.getvalue().to_pybytes()
    return DataFile(PATH, rows.num_rows, len(data), "", ""), data


def _in_groups(rows):
    """A file of ours."""
    builder = columns.Builder("zstd")
    for piece in columns.cut(rows):
        builder.add(piece)
    return builder.finish(PATH)


def _unit(file, *loses):
    drop = np.isin(np.arange(file.rows), loses)
    part = rewrite.FilePart(file, columns.pack(drop))
    return rewrite.RewriteUnit(mode="upsert", keyless="refuse", files=(part,))


@pytest.mark.parametrize(("write", "most"), [(_in_groups, 10), (_in_one_group, 24)])
async def test_a_file_that_was_compressed_well(store, monkeypatch, held, write, most):
    """Its rows are never in memory all at once, however the file was written."""
    monkeypatch.setattr(columns, "ROW_GROUP_BYTES", MIB)
    rows = _rows(640, MIB // 10)
    file, data = write(rows)
    expected = columns.setsum_of(rows.slice(0, 5)) + columns.setsum_of(rows.slice(6))
    assert rows.nbytes > 60 * MIB
    await store.put(f"t/{PATH}", data)
    del rows
    found = held()
    done = await rewrite.rewrite(_unit(file, 5), store, rewrite.Place(store, "t", "zstd"))
    assert max(found) < most * MIB
    assert (1, 639, expected.hexdigest()) == (
        done.replaced,
        sum(made.rows for made in done.files),
        done.files[0].setsum,
    )


async def test_a_file_that_grows_is_several(store, monkeypatch, held):
    """Written without compression it would be too large: each is closed in time, in order."""
    monkeypatch.setattr(columns, "ROW_GROUP_BYTES", MIB)
    rows = _rows(320, MIB // 10)
    file, data = _in_groups(rows)
    await store.put(f"t/{PATH}", data)
    del rows
    found = held()
    place = rewrite.Place(store, "t", "none", 4 * MIB)
    done = await rewrite.rewrite(_unit(file, 0, 319), store, place)
    assert max(found) < 20 * MIB
    assert len(done.files) > 5
    assert max(made.bytes for made in done.files) < 6 * MIB
    offsets = []
    for made in done.files:
        stored = await columns.get_file(store, "t", made)
        offsets += columns.read_file(stored, made, ["offset"])["offset"].to_pylist()
    assert list(range(2, 320)) == offsets


async def test_a_large_fragment(store, monkeypatch):
    """Is cut into row groups; the sums are those of the whole."""
    # EVIDENCE-OF: G-71
    monkeypatch.setattr(columns, "ROW_GROUP_BYTES", 2_000)
    log, table = cordwood.Log(store, "a"), Table(store, "t")
    async with log.writer(create=True) as writer:
        await writer.append_many([b"%d" % n * 100 for n in range(100)])
    await table.create()
    report = await compact(log, table, engine="local")
    assert (await log.state()).setsum == report.setsum
    (file,) = await table.files()
    stored = await columns.get_file(store, "t", file)
    assert pq.ParquetFile(pa.BufferReader(stored)).num_row_groups > 5
    assert 100 == (await table.to_arrow()).num_rows
    assert [] == await table.scrub()
