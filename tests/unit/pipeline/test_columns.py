"""Rows of a table: made of fragments, summed, written as plain Parquet, read back or refused."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import CorruptionError, Setsum
from cordwood.pipeline import columns
from cordwood.pipeline.columns import (
    SCHEMA,
    Builder,
    get_columns,
    pack,
    read_file,
    rows_of,
    setsum_of,
    unpack,
)
from cordwood.pipeline.ranged import RangedFile
from cordwood.pipeline.tabledoc import data_path
from cordwood.store.memory import MemoryStore
from cordwood.store.metered import MeteredStore

PATH = data_path("0" * 32)


def records(count=3, *, full=True):
    """Some records of a fragment."""
    found = {
        "offset": pa.array(range(7, 7 + count), pa.uint64()),
        "timestamp_us": pa.array([1_700_000_000_000_001] * count, pa.uint64()),
        "body": pa.array([b"%d" % i for i in range(count)], pa.binary()),
    }
    if full:
        headers = [[{"name": "h", "value": b"v"}]] * count
        found |= {
            "key": pa.array([b"k%d" % i if i else None for i in range(count)], pa.binary()),
            "headers": pa.array(headers, SCHEMA.field("headers").type),
            "stream": pa.array(["s"] * count),
        }
    return pa.table(found)


def test_records_become_rows():
    """Every column as other programs like it."""
    rows = rows_of(records(2), "orders")
    assert SCHEMA == rows.schema
    assert rows.to_pylist()[1] == {
        "log": "orders",
        "offset": 8,
        "timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC),
        "key": b"k1",
        "headers": [{"name": "h", "value": b"v"}],
        "stream": "s",
        "body": b"1",
    }
    plain = rows_of(records(2, full=False), "orders").to_pylist()[0]
    assert (None, None, None) == (plain["key"], plain["headers"], plain["stream"])
    assert 0 == rows_of(records(0), "orders").num_rows


def test_the_sum_is_that_of_the_records():
    """In the form with all columns it is the fragment's own; it adds up, whatever the cut."""
    full = records(5)
    rows = rows_of(full, "orders")
    assert Setsum.of_fragment(full) == setsum_of(rows)
    assert setsum_of(rows) == setsum_of(rows.slice(0, 2)) + setsum_of(rows.slice(2))
    assert Setsum() == setsum_of(rows.slice(0, 0))


def test_a_file_is_plain_parquet(monkeypatch):
    """What is written is read by anything, in row groups, and tells what it holds."""
    monkeypatch.setattr(columns, "ROW_GROUP_BYTES", 100)
    builder = Builder("zstd")
    rows = rows_of(records(6), "orders")
    for start in range(0, 6, 2):
        builder.add(rows.slice(start, 2))
    builder.add(rows.slice(0, 0))
    file, data = builder.finish(PATH)
    assert (PATH, 6, len(data)) == (file.path, file.rows, file.bytes)
    assert setsum_of(rows).hexdigest() == file.setsum
    parquet = pq.ParquetFile(pa.BufferReader(data))
    assert parquet.metadata.num_row_groups > 1
    assert rows.to_pylist() == parquet.read().to_pylist()
    assert rows == read_file(data, file)
    assert ["key", "offset"] == read_file(data, file, ["key", "offset"]).schema.names


def test_a_damaged_file_is_refused():
    """Any byte changed, one more, one less, or another file altogether."""
    builder = Builder("none")
    builder.add(rows_of(records(3), "orders"))
    file, data = builder.finish(PATH)
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    for wrong in (bytes(changed), data + b"x", data[:-1], b""):
        with pytest.raises(CorruptionError, match=r"data/0+\.parquet is damaged"):
            read_file(wrong, file)
    nobody_knows = columns.DataFile(PATH, 3, 4, "", "")
    with pytest.raises(CorruptionError, match="rows of a table"):
        read_file(b"PAR1", nobody_knows)


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 80))
def test_bitmaps(bits, count):
    """A bitmap gives back its bits; what it leaves out is 0."""
    packed = pack(np.array(bits, np.bool_))
    found = unpack(packed, count).tolist()
    assert (bits + [False] * count)[:count] == found


async def test_some_columns_without_the_others(tmp_path, store):
    """Of a large file little is read; a damaged page, another length, no file: each is refused."""
    table = rows_of(records(2_000), "orders")
    builder = Builder("none")
    builder.add(table.set_column(6, SCHEMA.field("body"), pa.array([b"x" * 1_000] * 2_000)))
    file, data = builder.finish(PATH)
    meter = MeteredStore(MemoryStore())
    await meter.put(f"t/{PATH}", data)
    found = await get_columns(meter, "t", file, ["key", "offset"])
    assert table.select(["key", "offset"]) == found
    assert meter.snapshot().operations["get_range"].bytes_down < len(data) / 10
    directory = cordwood.Store(f"file://{tmp_path}")
    await directory.put(f"t/{PATH}", data)
    assert found == await get_columns(directory, "t", file, ["key", "offset"])
    for place in (data.index(b"k77"), len(data) - 5):
        changed = data[:place] + b"!" + data[place + 1 :]
        await store.put(f"t/{PATH}", changed)
        with pytest.raises(CorruptionError, match="is damaged"):
            await get_columns(store, "t", file, ["key"])
    await store.put(f"t/{PATH}", data + b"x")
    with pytest.raises(CorruptionError, match="is damaged"):
        await get_columns(store, "t", file, ["key"])
    await store.delete([f"t/{PATH}"])
    with pytest.raises(CorruptionError, match="does not exist"):
        await get_columns(store, "t", file, ["key"])


def test_a_file_in_parts():
    """Reads, seeks and ends as a file does."""
    content = bytes(range(256)) * 1_000
    file = RangedFile(lambda start, length: content[start : start + length], len(content))
    assert content == file.read()
    assert (0, content[:5]) == (file.seek(0), file.read(5))
    assert (7, content[7:9], 9) == (file.seek(2, 1), file.read(2), file.tell())
    assert (len(content) - 3, content[-3:], b"") == (file.seek(-3, 2), file.read(9), file.read(9))
    assert (True, True) == (file.readable(), file.seekable())
    with pytest.raises(OSError, match="has not 9 bytes"):
        RangedFile(lambda start, length: content[start : start + length], 9)
