"""Records and their columns: what is accepted, what is refused, and the way there and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.base.errors import Code, InvalidInputError, LimitError
from cordwood.base.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from cordwood.log.fragment import build_table
from cordwood.log.records import (
    FULL_SCHEMA,
    HEADERS,
    PLAIN_SCHEMA,
    Content,
    Record,
    check_batch,
    check_record,
    concat,
    content_of_arrow,
    content_of_bodies,
    content_of_rows,
    iter_records,
)

LOOSE_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
"""Headers as most programs have them: everything nullable."""


def headers_table(*rows):
    """A table with headers, one row per argument."""
    return pa.table({"body": [b""] * len(rows), "headers": pa.array(rows, LOOSE_HEADERS)})


def listed(content):
    """A content's columns as plain lists."""
    return {"body": content.body.to_pylist()} | {
        name: column.to_pylist() for name, column in content.extra.items()
    }


# Single records.


@pytest.mark.parametrize("body", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_a_body_is_bytes_of_any_kind(body):
    """Bytes, bytearrays and views are accepted and counted."""
    assert 3 == check_record(body)


def test_a_view_is_counted_in_bytes():
    """A view of wider items counts its bytes, not its items."""
    assert 8 == check_record(memoryview(b"12345678").cast("I"))


def test_everything_a_record_brings_is_counted():
    """Body, key, stream and headers add up, text by its UTF-8 length."""
    headers = {"ä": b"123", "b": b""}
    assert 2 + 1 + 2 + (2 + 3) + 1 == check_record(b"bo", b"k", headers, "ß")


def test_an_empty_record_is_a_record():
    """Empty bodies, keys, values and maps are allowed."""
    assert 0 == check_record(b"", b"", {}, None)


@pytest.mark.parametrize(
    "fields",
    [
        ("text",),
        (None,),
        (3,),
        ([b"a"],),
        (b"", "key"),
        (b"", bytearray(b"key")),
        (b"", None, [("a", b"b")]),
        (b"", None, {"a": "b"}),
        (b"", None, {b"a": b"b"}),
        (b"", None, {"a": None}),
        (b"", None, None, b"stream"),
        (b"", None, None, ""),
        (b"", None, None, 7),
        (b"", None, None, "\ud800"),
        (b"", None, {"\ud800": b""}),
    ],
    ids=repr,
)
def test_a_field_of_the_wrong_kind_is_refused(fields):
    """The error is an InvalidInputError before anything is queued."""
    with pytest.raises(InvalidInputError):
        check_record(*fields)


@pytest.mark.parametrize(
    "fields",
    [
        (b"", b"k" * (KEY_BYTES_MAX + 1)),
        (b"", None, {"n" * (KEY_BYTES_MAX + 1): b""}),
        (b"", None, {"n": b"v" * (KEY_BYTES_MAX + 1)}),
        (b"", None, {str(i): b"" for i in range(HEADERS_MAX + 1)}),
        (b"", None, None, "s" * (KEY_BYTES_MAX + 1)),
        (b"", None, None, "ß" * (KEY_BYTES_MAX // 2 + 1)),
    ],
    ids=["key", "header name", "header value", "headers", "stream", "stream in UTF-8"],
)
def test_a_field_beyond_its_limit_is_refused(fields):
    """Each limit of base/limits.py gives a LimitError with the code too_large."""
    with pytest.raises(LimitError) as caught:
        check_record(*fields)
    assert Code.TOO_LARGE == caught.value.code


def test_a_body_at_the_limit_is_accepted_and_one_byte_more_is_not():
    """The limit itself is allowed."""
    body = bytes(RECORD_BYTES_MAX + 1)
    assert RECORD_BYTES_MAX == check_record(memoryview(body)[1:])
    with pytest.raises(LimitError, match=str(RECORD_BYTES_MAX)):
        check_record(body)


# Columns from rows.


def test_bodies_alone_stay_plain():
    """Without keys, headers and streams there are no extra columns."""
    content = content_of_rows([b"a", b""], num_bytes=1)
    assert {"body": [b"a", b""]} == listed(content)
    assert (2, 1) == (len(content), content.num_bytes)


def test_one_extra_field_brings_all_three_columns():
    """A fragment has three columns or six."""
    content = content_of_rows([b"a", b"b"], keys=[None, b"k"], num_bytes=3)
    assert ["body", "key", "headers", "stream"] == list(listed(content))
    assert [None, b"k"] == content.extra["key"].to_pylist()
    assert [None, None] == content.extra["headers"].to_pylist()


def test_no_headers_and_empty_headers_are_different():
    """Null and an empty map are told apart."""
    content = content_of_rows([b"", b""], headers=[None, {}], num_bytes=0)
    assert [None, []] == content.extra["headers"].to_pylist()


# Columns from bodies.


@pytest.mark.parametrize("bodies", [[b"a", b"b"], (b"a", b"b"), iter([b"a", b"b"])])
def test_many_bodies_come_from_any_iterable(bodies):
    """Lists, tuples and generators alike."""
    content = content_of_bodies(bodies)
    assert ([b"a", b"b"], 2) == (content.body.to_pylist(), content.num_bytes)


@pytest.mark.parametrize("bodies", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_an_empty_batch_is_refused(bodies):
    """An atomic batch has at least one record."""
    with pytest.raises(InvalidInputError, match="empty batch"):
        content_of_bodies(bodies)


@pytest.mark.parametrize(
    "bodies",
    [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", ["a"], [b"a", "b"], [b"a", None], [1]],
    ids=lambda bodies: type(bodies).__name__,
)
def test_a_batch_of_something_else_is_refused(bodies):
    """One body instead of several, or a body that is not bytes."""
    with pytest.raises(InvalidInputError):
        content_of_bodies(bodies)


def test_one_body_beyond_the_limit_refuses_the_whole_batch():
    """All or nothing."""
    with pytest.raises(LimitError, match=str(RECORD_BYTES_MAX)):
        content_of_bodies([b"small", bytes(RECORD_BYTES_MAX + 1)])


def test_batches_are_bounded_in_records_and_bytes():
    """The limits themselves are allowed."""
    check_batch(BATCH_RECORDS_MAX, BATCH_BYTES_MAX)
    for numbers in ((BATCH_RECORDS_MAX + 1, 1), (1, BATCH_BYTES_MAX + 1)):
        with pytest.raises(LimitError) as caught:
            check_batch(*numbers)
        assert Code.TOO_LARGE == caught.value.code


# Columns from Arrow.


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(2),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_bodies_of_every_binary_type_are_taken(kind):
    """Whatever binary type a producer has, the column becomes plain binary."""
    content = content_of_arrow(pa.table({"body": pa.array([b"ab", b"cd"], kind)}))
    assert pa.binary() == content.body.type
    assert [b"ab", b"cd"] == content.body.to_pylist()


def test_text_bodies_are_taken_as_utf_8():
    """A string column is bytes already."""
    content = content_of_arrow(pa.table({"body": ["ä", ""]}))
    assert ["ä".encode(), b""] == content.body.to_pylist()


def test_chunks_and_slices_are_taken_as_they_look():
    """Only the rows that are seen count, wherever they lie."""
    table = pa.concat_tables([pa.table({"body": [b"a", b"b"]}), pa.table({"body": [b"c"]})])
    assert [b"a", b"b", b"c"] == content_of_arrow(table).body.to_pylist()
    assert [b"b", b"c"] == content_of_arrow(table.slice(1)).body.to_pylist()
    batch = table.combine_chunks().to_batches()[0]
    assert [b"b"] == content_of_arrow(batch.slice(1, 1)).body.to_pylist()


def test_missing_extra_columns_are_null():
    """One of key, headers and stream brings the other two as nulls."""
    content = content_of_arrow(pa.table({"body": [b"a", b"b"], "stream": ["s", None]}))
    assert ["s", None] == content.extra["stream"].to_pylist()
    assert 2 == content.extra["key"].null_count == content.extra["headers"].null_count


def test_extra_columns_of_nulls_only_leave_the_log_plain():
    """A record without key, headers and stream needs no feature, however it was spelt."""
    table = pa.table({"body": [b"a"], "key": pa.nulls(1), "stream": pa.nulls(1, pa.string())})
    assert {} == content_of_arrow(table).extra


def test_headers_are_taken_from_lists_and_from_maps():
    """A list of nullable structs, fields in any order, and a map column all do."""
    expected = [[{"name": "n", "value": b"v"}], None]
    swapped = pa.list_(pa.struct([("value", pa.binary()), ("name", pa.string())]))
    for kind, rows in (
        (LOOSE_HEADERS, expected),
        (swapped, expected),
        (pa.map_(pa.string(), pa.binary()), [[("n", b"v")], None]),
    ):
        table = pa.table({"body": [b"a", b"b"], "headers": pa.array(rows, kind)})
        assert expected == content_of_arrow(table).extra["headers"].to_pylist()


@pytest.mark.parametrize(
    "data",
    [
        {"body": [b"a"]},
        [b"a"],
        None,
        pa.table({"key": [b"a"]}),
        pa.table({"body": [b"a"], "offset": [1]}),
        pa.table({"body": [b"a"], "topic": ["t"]}),
        pa.table({"body": [1]}),
        pa.table({"body": [b"a", None]}),
        pa.table({"body": pa.nulls(1)}),
        pa.table({"body": pa.array([], pa.binary())}),
        pa.table({}),
        pa.table({"body": [b"a"], "key": [1]}),
        pa.table({"body": [b"a"], "stream": [[b"s"]]}),
        pa.table({"body": [b"a"], "stream": [b"\xff"]}),
        pa.table({"body": [b"a"], "headers": ["h"]}),
        pa.table({"body": [b"a"], "headers": [["h"]]}),
        pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["body", "body"]),
        headers_table([{"name": "n", "value": None}]),
        headers_table([{"name": None, "value": b"v"}]),
        headers_table([None]),
        pa.table({"body": [b"a"], "stream": [""]}),
    ],
    ids=[
        "a dict",
        "a list",
        "nothing",
        "no body",
        "an offset",
        "an unknown column",
        "numbers",
        "a null body",
        "only nulls",
        "no rows",
        "no columns",
        "a number as key",
        "a list as stream",
        "a stream that is not UTF-8",
        "text as headers",
        "a list of text as headers",
        "two columns named body",
        "a null header value",
        "a null header name",
        "a null header",
        "an empty stream name",
    ],
)
def test_arrow_data_that_is_no_records_is_refused(data):
    """What a single append would refuse is refused here too, before anything is queued."""
    with pytest.raises(InvalidInputError):
        content_of_arrow(data)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"body": [b"a"], "key": [b"k" * (KEY_BYTES_MAX + 1)]}),
        pa.table({"body": [b"a"], "stream": ["s" * (KEY_BYTES_MAX + 1)]}),
        headers_table([{"name": "n" * (KEY_BYTES_MAX + 1), "value": b""}]),
        headers_table([{"name": "n", "value": b"v" * (KEY_BYTES_MAX + 1)}]),
        headers_table([], [{"name": str(i), "value": b""} for i in range(HEADERS_MAX + 1)]),
    ],
    ids=["key", "stream", "header name", "header value", "headers"],
)
def test_arrow_data_beyond_a_limit_is_refused(table):
    """The limits are those of single appends."""
    with pytest.raises(LimitError) as caught:
        content_of_arrow(table)
    assert Code.TOO_LARGE == caught.value.code


# Together and back.


def test_concat_keeps_order_and_fills_with_nulls():
    """Plain and full contents side by side become one full one."""
    plain = content_of_bodies([b"a", b"b"])
    full = content_of_rows([b"c"], keys=[b"k"], num_bytes=2)
    joined = concat([plain, full, plain])
    assert [b"a", b"b", b"c", b"a", b"b"] == joined.body.to_pylist()
    assert [None, None, b"k", None, None] == joined.extra["key"].to_pylist()
    assert 2 + 2 + 2 == joined.num_bytes


def test_concat_of_one_is_itself():
    """Nothing is copied where nothing needs to be."""
    content = content_of_bodies([b"a"])
    assert content is concat([content])


def test_a_repeated_header_name_is_refused():
    """A record's headers are a map: of two values under one name only one could be read back."""
    twice = [{"name": "n", "value": b"1"}, {"name": "n", "value": b"2"}]
    once = [{"name": "m", "value": b"1"}, {"name": "n", "value": b"2"}]
    with pytest.raises(InvalidInputError, match="two headers of one name"):
        content_of_arrow(headers_table(once, twice))
    assert 3 == len(content_of_arrow(headers_table(once, None, once)))


def test_a_plain_batch_gives_plain_records():
    """Three columns in, three fields out."""
    table = build_table(content_of_bodies([b"a", b"b"]), 7, 99)
    assert PLAIN_SCHEMA == table.schema
    assert [Record(7, 99, b"a"), Record(8, 99, b"b")] == list(iter_records(table))
    assert [Record(8, 99, b"b")] == list(iter_records(table.slice(1).to_batches()[0]))


optional_bytes = st.none() | st.binary(max_size=9)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
rows = st.lists(
    st.tuples(
        st.binary(max_size=20),
        optional_bytes,
        st.none() | st.dictionaries(names, st.binary(max_size=5), max_size=3),
        st.none() | names.filter(bool),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80)
@given(rows)
def test_records_survive_the_columns(appended):
    """What is appended is what is read: body, key, headers and stream, null or empty alike."""
    bodies, keys, headers, streams = (list(column) for column in zip(*appended, strict=True))
    content = content_of_rows(bodies, keys, headers, streams, num_bytes=0)
    table = build_table(content, 5, 17)
    assert FULL_SCHEMA == table.schema
    expected = [Record(5 + i, 17, *row) for i, row in enumerate(appended)]
    assert expected == list(iter_records(table))


@settings(max_examples=40)
@given(rows)
def test_arrow_data_and_rows_make_the_same_columns(appended):
    """Reading a log and appending what was read gives the same columns again."""
    bodies, keys, headers, streams = (list(column) for column in zip(*appended, strict=True))
    content = content_of_rows(bodies, keys, headers, streams, num_bytes=0)
    table = build_table(content, 1, 1).drop_columns(["offset", "timestamp_us"])
    again = content_of_arrow(table)
    if again.extra:
        assert listed(content) == listed(again)
    else:
        assert bodies == again.body.to_pylist()
        assert all(row[1:] == (None, None, None) for row in appended)


def test_a_record_is_a_value():
    """Records compare by content and cannot be changed."""
    record = Record(1, 2, b"a")
    assert Record(1, 2, b"a", None, None, None) == record
    with pytest.raises(AttributeError):
        record.body = b"b"


def test_a_content_knows_its_length():
    """Its length is its number of records."""
    # EVIDENCE-OF: G-26
    # EVIDENCE-OF: G-26
    assert 2 == len(Content(pa.array([b"a", b"b"]), {}, 2))


def test_headers_as_views_of_lists():
    """Arrow cannot cast them: one clear error, when they are given."""
    pairs = pa.array([[("a", b"1")], None, []], HEADERS.type)
    views = pa.array(pairs.to_pylist(), pa.list_view(HEADERS.type.value_type))
    table = pa.table({"body": [b"a", b"b", b"c"], "headers": views})
    with pytest.raises(InvalidInputError, match="headers"):
        content_of_arrow(table)
