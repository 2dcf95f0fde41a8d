"""The setsum as a value: its vectors, its algebra, its strict texts."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from setsum_reference import reference_sum

from cordwood.base import kernels, setsum
from cordwood.base.errors import InvalidInputError
from cordwood.base.setsum import PRIMES, Setsum

STAMP = 1234567890123456

A = "4eec78e0b5cd15df7b36fd42cdc3aecb1986ffa3655c338201db88f80d855465"
B = "dd901afef0e5d336aaa52a2df7f785c909091fd0aa011980de443a61a889d3e1"
C = "3b82c2baba815ec0f7ead22dc91939cc31bf338bb599ff0435251380fd0722ad"

setsums = st.tuples(*(st.integers(0, prime - 1) for prime in PRIMES)).map(Setsum.of_columns)
items = st.binary(max_size=300)


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

    def test_str_is_the_hexdigest(self):
        """Printed or formatted it is the text that is written down."""
        assert A == str(Setsum.from_hex(A))
        assert f"sum {A}" == f"sum {Setsum.from_hex(A)}"

    @given(setsums, setsums)
    def test_it_equals_its_text(self, a, b):
        """The text of a manifest's pointer compares from either side, as the setsum would."""
        text, other = a.hexdigest(), b.hexdigest()
        assert a == text
        assert text == a
        assert (a == b) == (a == other) == (other == a)
        assert (a != b) == (a != other) == (other != a)

    @pytest.mark.parametrize(
        "text",
        ["", A[:-1], A + "0", A.upper(), " " + A, A + "\n", B, repr(Setsum.from_hex(A)), "f" * 64],
    )
    def test_it_equals_no_other_text(self, text):
        """A text that is not its hexdigest, canonical or not, is unequal and never an error."""
        assert Setsum.from_hex(A) != text
        assert text != Setsum.from_hex(A)

    def test_it_equals_nothing_else(self):
        """Comparing or adding other things is not defined."""
        assert Setsum() != 0
        assert Setsum() != Setsum().digest()
        assert Setsum() != None  # noqa: E711
        with pytest.raises(TypeError):
            Setsum() + 1  # type: ignore[operator]
        with pytest.raises(TypeError):
            Setsum() - b""  # type: ignore[operator]

    def test_what_the_module_offers(self):
        """Beside the value, only the choice of the kernel."""
        offered = ["DIGEST_BYTES", "PRIMES", "Setsum", "kernel_name", "use_kernel"]
        assert offered == sorted(setsum.__all__)
        assert kernels.kernel_name is setsum.kernel_name
        assert kernels.use_kernel is setsum.use_kernel

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
