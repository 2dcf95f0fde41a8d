"""Batches: what is encoded is decoded, whatever columns there are, in whole or in part."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import CorruptionError
from cordwood.log.records import HEADERS_TYPE
from cordwood.topics.batch import (
    Columns,
    Producer,
    Row,
    decoded,
    encoded,
    encoded_row,
    iter_topic_records,
    joined,
    producer_of,
)
from cordwood.topics.batch import columns_of as columns_of_rows

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3)
ROWS = st.lists(st.tuples(BYTES, BYTES, HEADERS, st.integers(-(2**60), 2**60)), max_size=12)


def columns_of(rows, *, times=True):
    """The columns of rows: key, value, headers, time."""
    keys, values, headers, stamps = zip(*rows, strict=True) if rows else ((), (), (), ())
    pairs = [None if one is None else list(one.items()) for one in headers]
    return Columns(
        pa.array(values, pa.binary()),
        pa.array(keys, pa.binary()),
        pa.array(pairs, HEADERS_TYPE),
        np.array(stamps, np.int64) if times else None,
    )


def read(columns, **how):
    """What comes back."""
    payload = b"".join(bytes(part) for part in encoded(columns, **how))
    assert len(payload) % 8 == 0
    batch = decoded(payload, 100, 7)
    batch.validate(full=True)
    return [tuple(record) for record in iter_topic_records(3, batch)]


def expected(rows, first=100):
    """What should come back."""
    return [
        (3, first + place, time, key, value, headers or {})
        for place, (key, value, headers, time) in enumerate(rows)
    ]


@given(ROWS)
def test_what_is_encoded_is_decoded(rows):
    """All rows, all columns."""
    assert expected(rows) == read(columns_of(rows))


@given(ROWS, st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_larger_columns(rows, begin, count):
    """Is encoded as if it were all there is."""
    part = columns_of(rows).slice(min(begin, len(rows)), count)
    assert expected(rows[begin : begin + count]) == read(part)
    picked = list(range(len(rows)))[::-2]
    taken = columns_of(rows).take(np.array(picked, np.int64))
    assert expected([rows[place] for place in picked]) == read(taken)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_several_appends_in_one_batch(appends):
    """One after the other; those without columns that others have, without."""
    parts = [columns_of(rows) for rows in appends]
    assert expected([row for rows in appends for row in rows]) == read(joined(parts, 5))
    bare = Columns(pa.array([b"x"], pa.binary()))
    mixed = read(joined([bare, *parts], 5))
    assert (3, 100, 5, None, b"x", {}) == mixed[0]
    assert expected([row for rows in appends for row in rows], 101) == mixed[1:]


@given(BYTES, BYTES, st.none() | st.integers(0, 2**60), st.booleans())
def test_one_record_by_itself(key, value, time, named):
    """Is the same bytes as a batch of one."""
    producer = Producer(7, 8) if named else None
    row = Row(value, key, None, time, 0)
    alone = encoded_row(row, producer=producer)
    columns = columns_of_rows([row], 5)
    assert alone == b"".join(bytes(part) for part in encoded(columns, producer=producer))


def test_offsets_with_gaps_and_the_producer():
    """What a compaction leaves; and whose it was."""
    columns = Columns(pa.array([b"a", b"b"], pa.binary()))
    deltas = np.array([2, 5], np.uint32)
    assert [102, 105] == [row[1] for row in read(columns, deltas=deltas)]
    payload = b"".join(bytes(part) for part in encoded(columns, producer=Producer(2**63, 9)))
    assert Producer(2**63, 9) == producer_of(payload)
    assert producer_of(b"".join(bytes(part) for part in encoded(columns))) is None


def test_what_is_no_batch_is_refused():
    """Cut at every byte, or with columns of a later version."""
    rows = [(b"k", b"v", {"h": b"x"}, 5), (None, None, None, 6)]
    payload = b"".join(bytes(part) for part in encoded(columns_of(rows)))
    for size in range(0, len(payload) - 8, 8):
        with pytest.raises(CorruptionError):
            decoded(payload[:size], 0, 0)
    with pytest.raises(CorruptionError, match="update"):
        decoded(payload[:4] + b"\xff" + payload[5:], 0, 0)
