"""From Arrow columns to items: fragments of every shape hash as their definition says."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from setsum_reference import reference_sum

from cordwood.base import items
from cordwood.base.errors import InvalidInputError
from cordwood.base.items import hash_fragment, hash_items
from cordwood.base.setsum import Setsum

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
THREE_BODIES = [b"\x01\x02\x03", b"\x04\x05\x06", b"\x07\x08\x09"]
STAMP = 1234567890123456


def setsum_of(*arrays):
    """The setsum of the four arguments of `hash_items`."""
    return Setsum.of_columns(hash_items(*arrays))


def plain_table(start, stamp, bodies, *, offset_name="offset", kind=None):
    """A fragment with the three plain columns."""
    return pa.table(
        {
            offset_name: pa.array(range(start, start + len(bodies)), pa.uint64()),
            "timestamp_us": pa.array([stamp] * len(bodies), pa.uint64()),
            "body": pa.array(bodies, kind or pa.binary()),
        }
    )


def reference_item(row, *, extras):
    """The bytes hashed for one row, written as plainly as possible."""

    def number(value):
        return value.to_bytes(8, "big")

    def field(content):
        return b"\x00" if content is None else b"\x01" + number(len(content)) + content

    item = number(row["offset"]) + number(row["timestamp_us"])
    if extras:
        stream = row.get("stream")
        item += field(None if stream is None else stream.encode())
        item += field(row.get("key"))
        headers = row.get("headers")
        if headers is None:
            item += b"\x00"
        else:
            item += b"\x01" + number(len(headers))
            for header in headers:
                name = header["name"].encode()
                item += number(len(name)) + name + number(len(header["value"])) + header["value"]
    return item + row["body"]


def reference_of(table):
    """The setsum of a fragment, row by row."""
    extras = not {"stream", "key", "headers"}.isdisjoint(table.schema.names)
    return reference_sum(reference_item(row, extras=extras) for row in table.to_pylist())


class TestVectors:
    """Fragments whose setsums other implementations agree on."""

    @pytest.mark.parametrize(
        ("expected", "start", "stamp", "bodies", "offset_name"),
        [
            (
                "36484a70e5a11426140320bf0955fe4732bf8a956c2695586553ed9ee053d632",
                100, STAMP, THREE_BODIES[:1], "offset",
            ),
            (
                "7751cc108d8a2a134d6e3c62d5a47499ca465d50d52841c8bf5c56e678e53320",
                100, STAMP, THREE_BODIES, "offset",
            ),
            (
                "8ab4181e47a93dd5fb9d21f9bae97f6b89a8addc734d3b261fe039d63e90869c",
                0, STAMP, THREE_BODIES, "relative_offset",
            ),
            (
                "5a5d464629dc8d19455cf744e8fba68b5e693915f11c0fb35dcd73e1c904f46c",
                0, STAMP, THREE_BODIES[:1], "relative_offset",
            ),
            (
                "cea837b99f9bd6e0175019e3c3fe73c1bc14a4c241a1f972d5f422cc2b4b1149",
                1, STAMP, THREE_BODIES, "offset",
            ),
            (
                "448707c78d7ab1e06a8a159a7aa89f4b6186c75796a7a9c77fafba1c3f5db6bf",
                4, STAMP + 1, [b"abc"], "offset",
            ),
            (
                "0f1724701658aa712af102bc3d07065f34160445f3a1d5040c1b668cb77c28aa",
                1, 1, [b"hello", b"world"], "offset",
            ),
        ],
    )  # fmt: skip
    def test_fragments(self, kernel, expected, start, stamp, bodies, offset_name):
        """Fragments with plain columns have the setsums computed for the same records elsewhere."""
        table = plain_table(start, stamp, bodies, offset_name=offset_name)
        assert expected == Setsum.of_fragment(table).hexdigest()

    def test_a_snapshot_of_two_fragments(self, kernel):
        """A snapshot's setsum is the sum of its fragments'."""
        first = Setsum.of_fragment(plain_table(1, STAMP, THREE_BODIES))
        second = Setsum.of_fragment(plain_table(4, STAMP + 1, [b"abc"]))
        expected = "17303f803d1688c1c2da2e7da0a7130d889b6b1a5e49a33a54a4dde823a9c708"
        assert expected == (first + second).hexdigest()


headers = st.fixed_dictionaries(
    {"name": st.text("aé流", max_size=5), "value": st.binary(max_size=140)}
)
rows = st.fixed_dictionaries(
    {
        "offset": st.integers(0, 2**64 - 1),
        "timestamp_us": st.integers(0, 2**64 - 1),
        "body": st.binary(max_size=300),
        "stream": st.none() | st.text("aé流", max_size=10),
        "key": st.none() | st.binary(max_size=150),
        "headers": st.none() | st.lists(headers, max_size=3),
    }
)
FULL_SCHEMA = pa.schema(
    [
        ("offset", pa.uint64()),
        ("timestamp_us", pa.uint64()),
        ("body", pa.binary()),
        ("stream", pa.string()),
        ("key", pa.binary()),
        ("headers", HEADERS),
    ]
)
WIDE_SCHEMA = pa.schema(
    [
        ("offset", pa.uint64()),
        ("timestamp_us", pa.uint64()),
        ("body", pa.large_binary()),
        ("stream", pa.large_string()),
        ("key", pa.large_binary()),
        (
            "headers",
            pa.large_list(pa.struct([("value", pa.large_binary()), ("name", pa.large_string())])),
        ),
    ]
)


def sample_table(schema=FULL_SCHEMA, count=60):
    """Rows with every mixture of present, empty and absent extra columns."""
    made = []
    for index in range(count):
        headers = [{"name": f"h{n}", "value": b"v" * (n * 50)} for n in range(index % 4)]
        made.append(
            {
                "offset": 2**40 + index,
                "timestamp_us": STAMP + index,
                "body": bytes([index]) * (index * 7),
                "stream": [None, "", "überfluss"][index % 3],
                "key": [None, b"", b"key", b"k" * 200][index % 4],
                "headers": None if index % 5 == 0 else headers,
            }
        )
    return pa.Table.from_pylist(made, schema=schema)


@pytest.mark.usefixtures("kernel")
class TestFragments:
    """The setsum of Arrow tables, with both kernels."""

    @pytest.mark.parametrize("schema", [FULL_SCHEMA, WIDE_SCHEMA])
    @pytest.mark.parametrize(
        "extras",
        [combination for n in range(4) for combination in itertools.combinations(
            ["stream", "key", "headers"], n)],
    )  # fmt: skip
    def test_every_combination_of_columns(self, schema, extras):
        """Each combination of extra columns, narrow or wide, hashes as the reference does."""
        table = sample_table(schema).select(["offset", "timestamp_us", "body", *extras])
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    @given(st.lists(rows, max_size=12))
    def test_any_rows(self, made):
        """Arbitrary rows hash as the reference does."""
        table = pa.Table.from_pylist(made, schema=FULL_SCHEMA)
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    def test_an_extra_column_of_nulls_counts(self):
        """A column that is there but null everywhere changes the sum; which one does not matter."""
        plain = sample_table().select(["offset", "timestamp_us", "body"])
        sums = set()
        for name, kind in (("stream", pa.string()), ("key", pa.binary()), ("headers", HEADERS)):
            for kind_of_null in (kind, pa.null()):
                table = plain.append_column(name, pa.nulls(plain.num_rows, kind_of_null))
                assert reference_of(table) == Setsum.of_fragment(table).hexdigest()
                sums.add(Setsum.of_fragment(table).hexdigest())
        (with_nulls,) = sums
        assert with_nulls != Setsum.of_fragment(plain).hexdigest()

    def test_null_and_empty_differ(self):
        """An empty key, stream or list of headers is not an absent one."""
        plain = plain_table(1, 1, [b"x"])
        for name, kind, empty in (
            ("stream", pa.string(), ""), ("key", pa.binary(), b""), ("headers", HEADERS, []),
        ):  # fmt: skip
            absent = plain.append_column(name, pa.array([None], kind))
            present = plain.append_column(name, pa.array([empty], kind))
            assert Setsum.of_fragment(absent) != Setsum.of_fragment(present)

    def test_bytes_cannot_move_between_columns(self):
        """The end of the key and the beginning of the body are not interchangeable."""
        left = plain_table(1, 1, [b"cd"]).append_column("key", pa.array([b"ab"], pa.binary()))
        right = plain_table(1, 1, [b"d"]).append_column("key", pa.array([b"abc"], pa.binary()))
        assert Setsum.of_fragment(left) != Setsum.of_fragment(right)

    def test_order_of_rows_and_columns(self):
        """Neither the order of the rows nor that of the columns matters, nor do other columns."""
        table = sample_table()
        expected = Setsum.of_fragment(table)
        assert expected == Setsum.of_fragment(table.take(list(range(table.num_rows))[::-1]))
        assert expected == Setsum.of_fragment(table.select(table.schema.names[::-1]))
        assert expected == Setsum.of_fragment(table.append_column("more", [[1] * table.num_rows]))

    @pytest.mark.parametrize("schema", [FULL_SCHEMA, WIDE_SCHEMA])
    @pytest.mark.parametrize("extras", [[], ["key", "headers", "stream"]])
    def test_slices(self, schema, extras):
        """Slices are hashed where they lie, as tables and as record batches."""
        table = sample_table(schema).select(["offset", "timestamp_us", "body", *extras])
        (batch,) = table.to_batches()
        for start, size in ((0, 60), (1, 58), (7, 9), (31, 1), (59, 1), (60, 0), (20, 0), (3, 40)):
            expected = reference_of(table.slice(start, size))
            assert expected == Setsum.of_fragment(table.slice(start, size)).hexdigest()
            assert expected == Setsum.of_fragment(batch.slice(start, size)).hexdigest()
            twice = batch.slice(start, size).slice(size // 3)
            assert (
                reference_of(table.slice(start + size // 3, size - size // 3))
                == Setsum.of_fragment(twice).hexdigest()
            )

    @pytest.mark.parametrize("extras", [[], ["key", "headers", "stream"]])
    def test_chunks(self, extras):
        """However the columns are chunked, also differently or with empty chunks, the sum stays."""
        table = sample_table().select(["offset", "timestamp_us", "body", *extras])
        expected = reference_of(table)
        chunked = pa.concat_tables([table.slice(0, 9), table.slice(9, 0), table.slice(9)])
        assert expected == Setsum.of_fragment(chunked).hexdigest()
        uneven = {}
        for cut, name in enumerate(table.schema.names, start=5):
            column = table[name].combine_chunks()
            uneven[name] = pa.chunked_array([column.slice(0, cut), column.slice(cut)])
        assert expected == Setsum.of_fragment(pa.table(uneven)).hexdigest()
        single = pa.concat_tables([table.slice(index, 1) for index in range(table.num_rows)])
        assert expected == Setsum.of_fragment(single).hexdigest()

    def test_large_chunks_stay_apart(self):
        """Chunks large enough to be worth hashing by themselves add up."""
        table = plain_table(1, STAMP, [index.to_bytes(3, "big") for index in range(1500)])
        chunked = pa.concat_tables([table.slice(0, 700), table.slice(700)])
        assert reference_of(table) == Setsum.of_fragment(chunked).hexdigest()

    def test_pieces(self, monkeypatch):
        """A batch with extra columns hashed in many small pieces gives the same sum."""
        table = sample_table()
        monkeypatch.setattr(items, "_PIECE_BYTES", 700)
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()
        monkeypatch.setattr(items, "_PIECE_BYTES", 1)
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    @pytest.mark.parametrize("schema", [FULL_SCHEMA, WIDE_SCHEMA])
    def test_empty_tables(self, schema):
        """No rows sum to nothing, with or without chunks."""
        for table in (schema.empty_table(), pa.Table.from_batches([], schema)):
            assert Setsum() == Setsum.of_fragment(table)
            assert Setsum() == Setsum.of_fragment(table.select(["offset", "timestamp_us", "body"]))
        assert Setsum() == Setsum.of_fragment(pa.RecordBatch.from_pylist([], schema=schema))

    def test_empty_bodies(self):
        """Records without a single byte of body are records."""
        table = plain_table(5, 6, [b""] * 20)
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    def test_headers_under_a_null_list_do_not_count(self):
        """Entries that lie beneath a null list in memory are not hashed."""
        entries = pa.array(
            [{"name": name, "value": b"v"} for name in ("a", "hidden", "c")], HEADERS.value_type
        )
        headers = pa.ListArray.from_arrays(
            pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([False, True, False])
        )
        table = plain_table(1, 1, THREE_BODIES).append_column("headers", headers)
        assert not table["headers"][1].is_valid
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    def test_many_records_of_mixed_sizes(self):
        """Thousands of records, small, large and empty, hash as the reference does."""
        generator = np.random.default_rng(7)
        sizes = np.concatenate((generator.integers(0, 300, 6000), generator.integers(0, 3000, 900)))
        table = plain_table(1, STAMP, [generator.bytes(int(size)) for size in sizes])
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()

    @pytest.mark.parametrize("size", [0, 1, 100, 119, 120, 121, 600, 5000])
    def test_records_of_one_size(self, size):
        """Records that all have the same size hash as the reference does."""
        table = plain_table(9, STAMP, [bytes([index]) * size for index in range(50)])
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()


class TestWrongFragments:
    """Tables that are no fragments are refused."""

    @pytest.mark.parametrize("name", ["offset", "timestamp_us", "body"])
    def test_a_missing_column(self, name):
        """Each plain column must be there."""
        with pytest.raises(InvalidInputError, match=name):
            Setsum.of_fragment(plain_table(1, 1, THREE_BODIES).drop_columns([name]))

    def test_both_kinds_of_offset(self):
        """Absolute and relative offsets together are ambiguous."""
        table = plain_table(1, 1, THREE_BODIES)
        with pytest.raises(InvalidInputError, match="one of the columns"):
            Setsum.of_fragment(table.append_column("relative_offset", table["offset"]))

    @pytest.mark.parametrize("name", ["offset", "timestamp_us", "body", "key"])
    def test_a_column_twice(self, name):
        """Two columns of one name are ambiguous."""
        table = plain_table(1, 1, THREE_BODIES)
        table = table.append_column("key", pa.array([b"k"] * 3, pa.binary()))
        with pytest.raises(InvalidInputError, match=f"column {name}, this one has 2"):
            Setsum.of_fragment(table.append_column(name, table[name]))

    @pytest.mark.parametrize("name", ["offset", "timestamp_us", "body"])
    def test_nulls_in_plain_columns(self, name):
        """Plain columns have no nulls."""
        table = plain_table(1, 1, THREE_BODIES)
        holes = pa.array([None, *table[name].to_pylist()[1:]], table[name].type)
        position = table.schema.get_field_index(name)
        with pytest.raises(InvalidInputError, match=f"column {name} has 1 nulls"):
            Setsum.of_fragment(table.set_column(position, name, holes))

    @pytest.mark.parametrize(
        ("name", "column"),
        [
            ("offset", pa.array([1, 2, 3], pa.int64())),
            ("timestamp_us", pa.array([1, 2, 3], pa.timestamp("us"))),
            ("body", pa.array(["a", "b", "c"])),
            ("body", pa.array([b"a", b"b", b"c"], pa.binary(1))),
            ("stream", pa.array([b"a", b"b", b"c"])),
            ("key", pa.array(["a", "b", "c"])),
            ("headers", pa.array([b"a", b"b", b"c"])),
            ("headers", pa.array([["a"], [], []])),
            ("headers", pa.array([[{"name": "a", "value": "text"}], [], []])),
            ("headers", pa.array([[{"name": b"a", "value": b"b"}], [], []])),
            ("headers", pa.array([[{"name": "a"}], [], []])),
            ("headers", pa.array([[{"name": "a", "value": b"b", "more": 1}], [], []])),
        ],
    )
    def test_other_types(self, name, column):
        """A column of another type is refused by name."""
        table = plain_table(1, 1, THREE_BODIES)
        position = table.schema.get_field_index(name)
        if position < 0:
            table = table.append_column(name, column)
        else:
            table = table.set_column(position, name, column)
        with pytest.raises(InvalidInputError, match=f"column {name}"):
            Setsum.of_fragment(table)

    @pytest.mark.parametrize(
        "header", [{"name": None, "value": b"v"}, {"name": "n", "value": None}, None]
    )
    def test_nulls_in_headers(self, header):
        """A header has a name and a value."""
        headers = pa.array([[], [{"name": "n", "value": b"v"}, header], None], HEADERS)
        table = plain_table(1, 1, THREE_BODIES).append_column("headers", headers)
        with pytest.raises(InvalidInputError, match="null"):
            Setsum.of_fragment(table)
        assert Setsum.of_fragment(table.slice(0, 1))

    def test_something_else(self):
        """Only Arrow tables and record batches are fragments."""
        with pytest.raises(InvalidInputError, match="not dict"):
            Setsum.of_fragment({"offset": [1]})


@pytest.mark.usefixtures("kernel")
class TestHashItems:
    """The function beneath of_fragment."""

    def test_values_that_share_a_buffer(self):
        """Value offsets may start later and end earlier than the buffer, in 32 or 64 bits."""
        numbers = np.array([3, 4, 5], np.uint64)
        content = b"--onetwothree--"
        expected = reference_sum(
            number.to_bytes(8, "big") * 2 + value
            for number, value in zip([3, 4, 5], [b"one", b"two", b"three"], strict=True)
        )
        for width in (np.int32, np.int64):
            places = np.array([2, 5, 8, 13], width)
            for values in (content, np.frombuffer(content, np.uint8), pa.py_buffer(content)):
                assert expected == setsum_of(numbers, numbers, values, places).hexdigest()

    def test_strided_and_unaligned_arrays(self):
        """Arrays that are not contiguous or not aligned are copied first."""
        numbers = np.arange(20, dtype=np.uint64)
        places = np.arange(0, 11, dtype=np.int64) * 3
        expected = setsum_of(numbers[::2].copy(), numbers[::2].copy(), bytes(30), places)
        assert expected == setsum_of(numbers[::2], numbers[::2], bytes(30), places)
        raw = bytearray(1 + 80)
        unaligned = np.frombuffer(raw, np.uint64, count=10, offset=1)
        unaligned[:] = numbers[::2]
        assert not unaligned.flags.aligned
        assert expected == setsum_of(unaligned, unaligned, bytes(30), places)
        wide = np.zeros(22, np.int64)
        wide[::2] = places
        assert expected == setsum_of(unaligned, unaligned, bytes(30), wide[::2])

    def test_nothing(self):
        """No records sum to nothing."""
        none = np.array([], np.uint64)
        zeros = [0] * 8
        assert zeros == hash_items(none, none, b"", np.array([0], np.int32))

    def test_columns_are_plain_numbers(self):
        """What comes back are eight Python numbers, larger than a column if there are many."""
        table = plain_table(0, 0, [b"x"] * 1000)
        for columns in (hash_fragment(table), hash_fragment(pa.concat_tables([table] * 2))):
            assert [int] * 8 == [type(number) for number in columns]
            assert max(columns) > 2**32
        twice = Setsum.of_fragment(table) + Setsum.of_fragment(table)
        assert twice == Setsum.of_columns(columns)

    @pytest.mark.parametrize(
        "places", [[0, 2, 1, 3], [-1, 0, 1, 2], [0, 1, 2, 4], [3, 2, 1, 0], [0, 2**31, 1, 2]]
    )
    def test_places_outside_the_values(self, places):
        """Value offsets that decrease or leave the buffer are refused, never followed."""
        numbers = np.arange(3, dtype=np.uint64)
        with pytest.raises(InvalidInputError, match="outside the 3 bytes"):
            hash_items(numbers, numbers, b"abc", np.array(places, np.int64))

    def test_wrong_shapes_and_types(self):
        """Lengths and types must fit together."""
        numbers, places = np.arange(3, dtype=np.uint64), np.arange(4, dtype=np.int64)
        with pytest.raises(InvalidInputError, match="as many timestamps"):
            hash_items(numbers, numbers[1:], b"abc", places)
        with pytest.raises(InvalidInputError, match="one more value offset"):
            hash_items(numbers, numbers, b"abc", places[1:])
        with pytest.raises(InvalidInputError, match="are uint64"):
            hash_items(numbers.astype(np.int64), numbers, b"abc", places)
        with pytest.raises(InvalidInputError, match="are uint64"):
            hash_items(numbers, numbers.astype(">u8"), b"abc", places)
        with pytest.raises(InvalidInputError, match="int32 or int64"):
            hash_items(numbers, numbers, b"abc", places.astype(np.uint32))
