"""Names like a name: rare grams find, frequent ones only add; the best name of an id counts."""

from __future__ import annotations

import numpy as np
import pytest

from cordwood.base.errors import InvalidInputError
from cordwood.index import names
from cordwood.index.query import And, Or, Prefix, Term
from cordwood.sync import Index


def index_of(place, pairs, parts=1):
    """An index of (id, name), in so many segments."""
    index = Index(place)
    index.create(names.TOKENIZER)
    for part in range(parts):
        some = pairs[part::parts]
        with index.begin() as txn:
            txn.add_arrow(*names.documents([one for one, _ in some], [name for _, name in some]))
    return index


@pytest.fixture
def crowd(tmp_path):
    """A thousand people called something with `the`, and two who are not."""
    pairs = [(f"{n}", f"the no{n:04d}") for n in range(1_000)]
    pairs += [("x", "zebra the"), ("y", "zebra"), ("y", "the the the")]
    return index_of(tmp_path / "ix", pairs)


def test_frequent_grams_only_add(crowd):
    """Who has nothing but them is not found; who has them too comes first."""
    with crowd.snapshot() as snapshot:
        query = names.like(snapshot, "zebra the")
        assert isinstance(query, And)
        rare, frequent = query.parts
        assert Term(b"zeb") in rare.parts
        assert {Term(b"the")} == set(frequent.parts) - {And(())}
        assert [one.id for one in names.search(snapshot, "zebra the", 100)] == ["x", "y"]


def test_frequent_grams_have_to_do_if_there_are_no_others(crowd):
    """Or if no name has the rare ones."""
    with crowd.snapshot() as snapshot:
        assert isinstance(names.like(snapshot, "the"), Or)
        assert names.search(snapshot, "the", 1)[0].id == "y"
        assert len(names.search(snapshot, "qqqthe", 50)) == 50


def test_a_short_query_is_a_beginning(crowd):
    """Of any three characters in a row."""
    with crowd.snapshot() as snapshot:
        assert names.like(snapshot, "ze") == Prefix(b"ze")
        assert {one.id for one in names.search(snapshot, "ze")} == {"x", "y"}


@pytest.mark.parametrize("text", ["", "   ", "x" * 1_001])
def test_what_is_no_name_is_refused(crowd, text):
    """Empty, or longer than anybody is called."""
    with crowd.snapshot() as snapshot, pytest.raises(InvalidInputError):
        names.search(snapshot, text)


def test_ids_with_many_names_do_not_crowd_out_others(tmp_path):
    """An id of a hundred names is one hit, and there are as many as were asked for."""
    pairs = [("many", f"zebra number {n}") for n in range(100)]
    pairs += [(f"one{n}", f"a zebra {n}") for n in range(5)]
    index = index_of(tmp_path / "ix", pairs)
    with index.snapshot() as snapshot:
        found = names.search(snapshot, "zebra number 7", 4)
        assert len({one.id for one in found}) == 4
        assert found[0] == ("many", "zebra number 7", 1.0)


def test_pruning_changes_no_answer(tmp_path):
    """The same ids and scores as weighing every name that a rare gram finds, in any segments."""
    chance = np.random.default_rng(11)
    letters = np.array(list("abcdeth "))
    made = ["".join(chance.choice(letters, chance.integers(3, 14))).strip() for _ in range(3_000)]
    pairs = [(str(n // 2), name) for n, name in enumerate(made) if name]
    index = index_of(tmp_path / "ix", pairs, parts=3)
    with index.snapshot() as snapshot:
        kinds = set()
        for text in made[:60]:
            if not text:
                continue
            query = names.like(snapshot, text)
            kinds.add(type(query))
            if not isinstance(query, And):
                continue
            # The same in a shape that ranking knows no short cut for.
            plain = And((query.parts[0], And((query.parts[1],))))
            fast, slow = snapshot.search(query, 20), snapshot.search(plain, 20)
            assert [hit.id for hit in fast] == [hit.id for hit in slow]
            np.testing.assert_allclose(
                [hit.score for hit in fast], [hit.score for hit in slow], rtol=1e-6
            )
        assert And in kinds


def test_documents_are_checked():
    """Names without ids, ids with a NUL, and what is no text."""
    ids, texts = names.documents(["1", "2", "3"], [" a ", "", None])
    assert (ids.to_pylist(), texts.to_pylist()) == ([b"1\0a"], ["a"])
    for keys, values in ((["a\0b"], ["x"]), ([""], ["x"]), ([None], ["x"]), (["a"], [["x"]])):
        with pytest.raises(InvalidInputError):
            names.documents(keys, values)
