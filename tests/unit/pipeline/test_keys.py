"""Which rows lose: all but the newest of each key of a log, found without bodies."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cordwood
from cordwood import CorruptionError, InternalError, InvalidInputError
from cordwood.pipeline.columns import unpack
from cordwood.pipeline.keys import SCHEMA, FragmentKeys, Keys, KeysSettings, KeysUnit, losers
from cordwood.pipeline.local import LocalEngine

RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=2), st.integers(0, 3)), max_size=60
)


def table(records):
    """Rows of a question: record n of a log has offset n; rows of a source are counted."""
    rows, counts = [], {}
    for offset, (log, key, source) in enumerate(records):
        row = counts[source] = counts.get(source, -1) + 1
        rows.append({"log": log, "key": key, "offset": offset, "source": source, "row": row})
    return pa.Table.from_pylist(rows, schema=SCHEMA), rows


@given(RECORDS, st.randoms())
def test_all_but_the_newest_lose(records, chance):
    """Against a dictionary, in any order of the rows."""
    whole, rows = table(records)
    newest = {(row["log"], row["key"]): row["offset"] for row in rows}
    expected = {
        (row["source"], row["row"])
        for row in rows
        if row["offset"] != newest[row["log"], row["key"]]
    }
    order = list(range(len(rows)))
    chance.shuffle(order)
    found = losers(whole.take(pa.array(order, pa.int64())))
    assert expected == {
        (source, int(row))
        for source, bits in found.items()
        for row in np.flatnonzero(unpack(bits, 99))
    }


async def question(store, log, start=1, keyless="refuse"):
    """The question about one log, and its unit."""
    settings = KeysSettings(store.url, (log.name,), store.url, "t", keyless)
    fragments = await log.reader().scan()
    parts = tuple(FragmentKeys(i, 0, fragment, start) for i, fragment in enumerate(fragments))
    return Keys(settings, [store]), KeysUnit(fragments=parts), fragments


async def test_rows_of_fragments(store, append):
    """Offsets are counted from the pointer; what lies before the start is left out."""
    log = await append("a", [(b"k%d" % (n % 3), b"v") for n in range(20)], batch_bytes=20)
    job, unit, fragments = await question(store, log, start=5)
    found = pa.Table.from_batches([batch async for batch in job.rows(unit)])
    assert SCHEMA == found.schema
    assert list(range(5, 21)) == found.column("offset").to_pylist()
    assert [b"k%d" % ((n - 1) % 3) for n in range(5, 21)] == found.column("key").to_pylist()
    for row in found.to_pylist():
        assert row["row"] == row["offset"] - fragments[row["source"]].start
    drops = await LocalEngine().losers(job, [unit], [])
    lost = sum(int(unpack(bits, 99).sum()) for bits in drops.values())
    assert 16 - 3 == lost


async def test_a_record_without_a_key(store, append):
    """Is refused by its offset, unless the table takes such records; then it is not asked about."""
    log = await append("a", [(b"k", b"v"), (None, b"v"), (b"k", b"w")])
    job, unit, _ = await question(store, log)
    with pytest.raises(InvalidInputError, match="the record 2 of log 'a' has no key"):
        [batch async for batch in job.rows(unit)]
    job, unit, _ = await question(store, log, start=3)
    assert [1] == [batch.num_rows async for batch in job.rows(unit)]
    job, unit, _ = await question(store, log, keyless="keep")
    assert [2] == [batch.num_rows async for batch in job.rows(unit)]


async def test_a_plain_log_has_no_keys(store, append):
    """Its fragments have no such column."""
    log = await append("a", [(None, b"v")])
    job, unit, _ = await question(store, log, keyless="skip")
    assert [0] == [batch.num_rows async for batch in job.rows(unit)]
    with pytest.raises(InvalidInputError, match="the record 1"):
        await LocalEngine().losers((await question(store, log))[0], [unit], [])


async def test_a_damaged_fragment_is_named(store, memory, append):
    """What cannot be read says so, and by its name."""
    log = await append("a", [(b"k", b"v")])
    job, unit, (fragment,) = await question(store, log)
    await memory.put(f"a/{fragment.path}", b"spoiled")
    with pytest.raises(CorruptionError, match=fragment.path):
        [batch async for batch in job.rows(unit)]
    await memory.delete([f"a/{fragment.path}"])
    with pytest.raises(CorruptionError, match=fragment.path):
        [batch async for batch in job.rows(unit)]


async def test_a_question_is_not_a_job():
    """Who asks plans it, and it has no results."""
    job = Keys(KeysSettings("memory:", (), "memory:", "t"))
    for call in (job.plan(LocalEngine()), job.work(KeysUnit()), job.finish([])):
        with pytest.raises(InternalError):
            await call
    assert cordwood.Store("memory:x").url == job.store("memory:x").url
