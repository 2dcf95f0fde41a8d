"""The setsum: its vectors, its algebra, its strict texts, and the hashing of fragments."""

from __future__ import annotations

import copy
import hashlib
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base import setsum
from cordwood.base.errors import InvalidInputError
from cordwood.base.setsum import PRIMES, Setsum, hash_items

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
THREE_BODIES = [b"\x01\x02\x03", b"\x04\x05\x06", b"\x07\x08\x09"]
STAMP = 1234567890123456

A = "4eec78e0b5cd15df7b36fd42cdc3aecb1986ffa3655c338201db88f80d855465"
B = "dd901afef0e5d336aaa52a2df7f785c909091fd0aa011980de443a61a889d3e1"
C = "3b82c2baba815ec0f7ead22dc91939cc31bf338bb599ff0435251380fd0722ad"

setsums = st.tuples(*(st.integers(0, prime - 1) for prime in PRIMES)).map(Setsum.of_columns)
items = st.binary(max_size=300)


@pytest.fixture(params=["hashlib", "numba"])
def kernel(request):
    """Run the test with each kernel."""
    if request.param == "numba":
        pytest.importorskip("numba")
    before = setsum.use_kernel(request.param)
    yield request.param
    setsum.use_kernel(before)


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


def reference_sum(contents):
    """The setsum of items, column by column, as its definition says."""
    columns = [0] * 8
    for content in contents:
        digest = hashlib.sha3_256(content).digest()
        for index, prime in enumerate(PRIMES):
            number = int.from_bytes(digest[4 * index : 4 * index + 4], "little")
            columns[index] = (columns[index] + number) % prime
    return b"".join(number.to_bytes(4, "little") for number in columns).hex()


def reference_of(table):
    """The setsum of a fragment, row by row."""
    extras = not {"stream", "key", "headers"}.isdisjoint(table.schema.names)
    return reference_sum(reference_item(row, extras=extras) for row in table.to_pylist())


class TestVectors:
    """Numbers that other implementations of the setsum agree on."""

    def test_the_empty_setsum_is_zero(self):
        """Nothing inserted is 64 zeros."""
        expected = "0" * 64
        assert expected == Setsum().hexdigest()

    def test_the_empty_item(self):
        """The empty item is an item too."""
        expected = "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
        assert expected == Setsum().insert().hexdigest()
        assert expected == Setsum().insert(b"").hexdigest()

    def test_seven_values_in_any_order(self):
        """Seven strings give the same sum in every order."""
        words = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
        values = [f"this is the {word} value".encode() for word in words]
        expected = "c5b3fd4d01f2b8040f54ab7412ca53bbfc990e272a40add1c4ceba6b2fe472d5"
        for order in itertools.islice(itertools.permutations(values), 0, 5040, 97):
            total = Setsum()
            for value in order:
                total.insert(value)
            assert expected == total.hexdigest()

    def test_sums_of_three(self):
        """A + B and A + B + C are the published sums."""
        two = "307d93deb6b3e91525dc277027bc34958d8f1e74965e4c027820c3596e0f2847"
        three = "70ff5599703548d61cc7fa9d53d66d61be4e52ff4bf84b07ad45d6d96b174af4"
        a, b, c = Setsum.from_hex(A), Setsum.from_hex(B), Setsum.from_hex(C)
        assert two == (a + b).hexdigest()
        assert three == (a + b + c).hexdigest()
        assert three == Setsum.sum([A, B, C]).hexdigest()

    def test_column_arithmetic(self):
        """Columns that add up to their primes give zero."""
        left = (3146800025, 1792545563, 417324692, 3444237760)
        left += (2812742746, 1608771649, 1661742866, 3220115897)
        right = (1148167266, 2502421716, 3877642539, 850729437)
        right += (1482224443, 2686195512, 2633224277, 1074851214)
        assert Setsum() == Setsum.of_columns(left) + Setsum.of_columns(right)
        assert Setsum.of_columns(left) == -Setsum.of_columns(right)

    def test_one_record(self):
        """A record is hashed as offset, timestamp and body."""
        expected = "36484a70e5a11426140320bf0955fe4732bf8a956c2695586553ed9ee053d632"
        preimage = bytes.fromhex("0000000000000064 000462d53c8abac0 010203")
        assert expected == Setsum().insert(preimage).hexdigest()
        parts = (100).to_bytes(8, "big"), STAMP.to_bytes(8, "big"), b"\x01\x02\x03"
        assert expected == Setsum().insert(*parts).hexdigest()

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


class TestAlgebra:
    """A setsum is an element of a commutative group."""

    @given(setsums, setsums, setsums)
    def test_group_laws(self, a, b, c):
        """Addition is associative and commutative, with zero and inverses."""
        assert (a + b) + c == a + (b + c)
        assert a + b == b + a
        assert a == a + Setsum()
        assert Setsum() == a + -a
        assert a - b == a + -b
        negative = -a
        assert a == -negative

    @given(setsums, setsums)
    def test_results_are_canonical(self, a, b):
        """Whatever is computed can be written and read strictly."""
        for result in (a + b, a - b, -a):
            assert result == Setsum.from_hex(result.hexdigest())

    @given(st.lists(items, max_size=8), st.randoms(use_true_random=False))
    def test_order_does_not_matter(self, contents, random):
        """Inserting in another order, or one part elsewhere, gives the same sum."""
        shuffled = random.sample(contents, len(contents))
        total, left, right = Setsum(), Setsum(), Setsum()
        for content in contents:
            total.insert(content)
        for index, content in enumerate(shuffled):
            (left if index % 2 else right).insert(content)
        assert total == left + right
        assert reference_sum(contents) == total.hexdigest()

    @given(st.lists(items, max_size=5), items)
    def test_remove_undoes_insert(self, contents, extra):
        """What is inserted and removed leaves no trace, in either order."""
        total = Setsum()
        for content in contents:
            total.insert(content)
        assert total == total.copy().insert(extra).remove(extra)
        assert total == total.copy().remove(extra).insert(extra)

    @given(st.lists(items, max_size=4))
    def test_parts_are_one_item(self, parts):
        """Parts are hashed as their concatenation."""
        assert Setsum().insert(b"".join(parts)) == Setsum().insert(*parts)

    def test_it_counts(self):
        """An item inserted twice is not the item inserted once."""
        once, twice = Setsum().insert(b"x"), Setsum().insert(b"x").insert(b"x")
        assert once != twice
        assert once == twice - once

    def test_the_inverse_of_zero_is_zero(self):
        """The prime itself never appears as a column."""
        zeros, expected = (0,) * 8, (0, *(prime - 1 for prime in PRIMES[1:]))
        assert zeros == (-Setsum()).columns
        assert expected == (-Setsum.of_columns([0] + [1] * 7)).columns

    @given(st.lists(setsums, max_size=40))
    def test_sum_of_texts(self, several):
        """The sum of many texts is the sum of the setsums."""
        total = Setsum()
        for one in several:
            total = total + one
        assert total == Setsum.sum(one.hexdigest() for one in several)


class TestObject:
    """Setsum as a Python object."""

    def test_insert_works_in_place(self):
        """Insert and remove change the setsum and return it."""
        total = Setsum()
        assert total is total.insert(b"a")
        assert total is total.remove(b"b")
        assert Setsum().insert(b"a") - Setsum().insert(b"b") == total

    def test_operators_make_new_ones(self):
        """Operators leave their operands alone, += included."""
        a, b = Setsum().insert(b"a"), Setsum().insert(b"b")
        alias = a
        a += b
        assert Setsum().insert(b"a") == alias
        assert alias is not a
        assert b is not -b

    def test_copies_are_independent(self):
        """A copy does not follow its original."""
        original = Setsum().insert(b"a")
        for made in (original.copy(), copy.copy(original), copy.deepcopy(original)):
            made.insert(b"b")
            assert Setsum().insert(b"a") == original

    def test_it_cannot_be_hashed(self):
        """A mutable value is no dictionary key."""
        with pytest.raises(TypeError):
            hash(Setsum())

    def test_truth(self):
        """Only the empty sum is false."""
        assert not Setsum()
        assert Setsum().insert()
        assert not Setsum().insert(b"a").remove(b"a")

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickling(self, protocol):
        """A setsum survives pickling with every protocol."""
        original = Setsum.from_hex(A)
        assert original == pickle.loads(pickle.dumps(original, protocol))

    def test_repr_is_an_expression(self):
        """The repr makes an equal setsum."""
        assert f"Setsum.from_hex('{A}')" == repr(Setsum.from_hex(A))
        assert Setsum.from_hex(A) == eval(repr(Setsum.from_hex(A)))

    def test_it_equals_nothing_else(self):
        """Comparing or adding other things is not defined."""
        assert Setsum() != "0" * 64
        assert Setsum() != 0
        with pytest.raises(TypeError):
            Setsum() + 1  # type: ignore[operator]
        with pytest.raises(TypeError):
            Setsum() - b""  # type: ignore[operator]

    def test_importing_it_loads_neither_pyarrow_nor_numba(self):
        """The module itself imports neither pyarrow nor numba, however it is reached."""
        source = setsum.__file__
        code = (
            "import importlib.util, sys, types\n"
            "for name in ('cordwood', 'cordwood.base'):\n"
            "    sys.modules[name] = types.ModuleType(name)\n"
            f"sys.modules['cordwood.base'].__path__ = [{source.rpartition('/')[0]!r}]\n"
            "import cordwood.base.setsum\n"
            "print(sorted({'pyarrow', 'numba'} & set(sys.modules)))\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        expected = "[]\n"
        assert expected == run.stdout


class TestStrictness:
    """Only canonical setsums are read."""

    def test_round_trip(self):
        """Digest and text are each other's inverse."""
        text, digest = A, bytes.fromhex(A)
        assert text == Setsum.from_hex(text).hexdigest()
        assert digest == Setsum.from_hex(text).digest()
        assert Setsum.from_hex(text) == Setsum.from_digest(digest)

    @pytest.mark.parametrize(
        "text",
        [
            "", A[:-1], A[:-2], A + "0", A + "00", A.upper(), "A" + A[1:], "g" + A[1:],
            " " + A, A + "\n", A[:62] + "\n ", A[:8] + "  " + A[10:], A[:-1] + "é", "0x" + A[2:],
            A[:-1] + "١",
        ],
    )  # fmt: skip
    def test_other_texts_are_refused(self, text):
        """Anything but 64 lower-case hexadecimal digits is refused, alone or among others."""
        with pytest.raises(InvalidInputError, match="64 lower-case hexadecimal digits"):
            Setsum.from_hex(text)
        with pytest.raises(InvalidInputError, match="64 lower-case hexadecimal digits"):
            Setsum.sum([A, text, B])

    def test_texts_that_only_fit_together_are_refused(self):
        """Two texts of wrong lengths do not make up for each other."""
        with pytest.raises(InvalidInputError):
            Setsum.sum([A + B[:8], B[8:]])

    @pytest.mark.parametrize("size", [0, 31, 33, 64])
    def test_other_lengths_are_refused(self, size):
        """A digest has 32 bytes."""
        with pytest.raises(InvalidInputError, match=f"32 bytes, {size} were given"):
            Setsum.from_digest(bytes(size))

    @pytest.mark.parametrize("index", range(8))
    def test_columns_reach_up_to_their_primes(self, index):
        """A column may be its prime less one, and no more."""
        columns = [0] * 8
        columns[index] = PRIMES[index] - 1
        largest = b"".join(number.to_bytes(4, "little") for number in columns)
        assert tuple(columns) == Setsum.from_digest(largest).columns
        for number in (PRIMES[index], 2**32 - 1):
            columns[index] = number
            digest = b"".join(number.to_bytes(4, "little") for number in columns)
            with pytest.raises(InvalidInputError, match=f"column {index} is {number}"):
                Setsum.from_digest(digest)
            with pytest.raises(InvalidInputError, match=f"column {index} is {number}"):
                Setsum.from_hex(digest.hex())
            with pytest.raises(InvalidInputError, match=f"column {index} is {number}"):
                Setsum.sum([A, digest.hex()])

    @pytest.mark.parametrize("count", [0, 7, 9])
    def test_there_are_eight_columns(self, count):
        """Seven or nine numbers are not a setsum."""
        with pytest.raises(InvalidInputError, match=f"8 columns, {count} were given"):
            Setsum.of_columns([1] * count)

    def test_columns_are_reduced(self):
        """Columns given as numbers of any size are reduced."""
        assert Setsum() == Setsum.of_columns(PRIMES)
        ones = (1,) * 8
        assert ones == Setsum.of_columns([7 * prime + 1 for prime in PRIMES]).columns


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
        monkeypatch.setattr(setsum, "_PIECE_BYTES", 700)
        assert reference_of(table) == Setsum.of_fragment(table).hexdigest()
        monkeypatch.setattr(setsum, "_PIECE_BYTES", 1)
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
                assert expected == hash_items(numbers, numbers, values, places).hexdigest()

    def test_strided_and_unaligned_arrays(self):
        """Arrays that are not contiguous or not aligned are copied first."""
        numbers = np.arange(20, dtype=np.uint64)
        places = np.arange(0, 11, dtype=np.int64) * 3
        expected = hash_items(numbers[::2].copy(), numbers[::2].copy(), bytes(30), places)
        assert expected == hash_items(numbers[::2], numbers[::2], bytes(30), places)
        raw = bytearray(1 + 80)
        unaligned = np.frombuffer(raw, np.uint64, count=10, offset=1)
        unaligned[:] = numbers[::2]
        assert not unaligned.flags.aligned
        assert expected == hash_items(unaligned, unaligned, bytes(30), places)
        wide = np.zeros(22, np.int64)
        wide[::2] = places
        assert expected == hash_items(unaligned, unaligned, bytes(30), wide[::2])

    def test_nothing(self):
        """No records sum to nothing."""
        none = np.array([], np.uint64)
        assert Setsum() == hash_items(none, none, b"", np.array([0], np.int32))

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
