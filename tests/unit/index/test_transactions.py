"""Transactions as users write them: one document at a time, in any order, and with bad input."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cordwood import Index, sync
from cordwood.base.errors import InvalidInputError, LimitError, StateError, StoreError
from cordwood.index import build, engine
from cordwood.index.query import And, Not, Or, Prefix, Term


@pytest.fixture
def index(tmp_path):
    """An index with a document."""
    made = sync.Index(tmp_path / "index")
    made.create()
    with made.begin() as transaction:
        transaction.add(b"a", "first word")
    return made


@pytest.mark.parametrize("rows", [1, 3, 4_096])
def test_one_by_one_they_count_in_their_order(index, monkeypatch, rows):
    """However many are gathered, and wherever a segment ends; mixed with many at once."""
    monkeypatch.setattr(engine, "ROWS_AT_ONCE", rows)
    index._engine.segment_bytes = 60
    chance = np.random.default_rng(rows)
    content = {b"a": ["first word"]}
    for _ in range(6):
        with index.begin() as transaction:
            for step in range(40):
                user_id, text = b"%d" % chance.integers(6), f"word n{step}"
                kind = chance.choice(["add", "update", "delete", "add_arrow", "delete_arrow"])
                if kind.startswith("delete"):
                    content.pop(user_id, None)
                elif kind == "update":
                    content[user_id] = [text]
                else:
                    content.setdefault(user_id, []).append(text)
                values = {"delete": (), "update": (text,), "add": (text,)}[kind.split("_")[0]]
                if kind.endswith("_arrow"):
                    getattr(transaction, kind)([user_id], *([value] for value in values))
                else:
                    getattr(transaction, kind)(user_id, *values)
        assert set(content) == index.match("word")
        assert sum(map(len, content.values())) == index.state().documents
        for step in range(40):
            there = {one for one, texts in content.items() if f"word n{step}" in texts}
            assert there == index.match(f"n{step}")
    assert index.check().ok


def test_updates_one_by_one_are_looked_for_once(index, monkeypatch):
    """Not once for each of those before it: a thousand took seven seconds."""
    calls = []
    discard = build.Builder.discard
    monkeypatch.setattr(
        build.Builder, "discard", lambda self, ids: (calls.append(len(ids)), discard(self, ids))
    )
    with index.begin() as transaction:
        for number in range(1_000):
            transaction.update(b"%d" % number, "word")
            transaction.delete(b"%d" % (number // 2))
    assert [1_000] == calls
    assert 501 == len(index.match("word"))


async def test_the_async_twin_does_the_same(tmp_path):
    """In the same order."""
    index = Index(tmp_path / "index")
    await index.create()
    async with index.begin() as transaction:
        await transaction.add(b"a", "one")
        await transaction.delete(b"a")
        await transaction.add(b"a", "two")
        await transaction.update(b"b", "three")
        await transaction.update(b"b", "four")
    assert {b"a", b"b"} == await index.match("two four")
    assert set() == await index.match("one three")
    await index.close()


BAD_CALLS = {
    "no text": (lambda txn: txn.add(b"a", None), "a text is a NoneType"),
    "no id": (lambda txn: txn.update(None, "x"), "an id is a NoneType"),
    "an id that is text": (lambda txn: txn.delete("a"), "an id is a str"),
    "no ids": (lambda txn: txn.add_arrow(None, ["x"]), "ids are a NoneType"),
    "no texts": (lambda txn: txn.add_arrow([b"a"], None), "texts are a NoneType"),
    "no ids to delete": (lambda txn: txn.delete_arrow(None), "ids are a NoneType"),
    "a null id": (lambda txn: txn.add_arrow(pa.array([None], pa.binary()), ["x"]), "are null"),
    "ids that are numbers": (lambda txn: txn.add_arrow(pa.array([1]), ["x"]), "ids are int64"),
    "no terms": (lambda txn: txn.add_terms(b"a", None), "no lists of terms"),
    "terms that are text": (lambda txn: txn.add_terms(b"a", "text"), "no lists of terms"),
    "terms that are numbers": (lambda txn: txn.add_terms(b"a", [1]), "no lists of terms"),
    "a null term": (lambda txn: txn.add_terms(b"a", [b"x", None]), "is null"),
    "a mark that is a number": (lambda txn: txn.mark("a", 4), "the mark 'a' is a int"),
    "a mark without a name": (lambda txn: txn.mark(3, b"4"), "3 cannot name a mark"),
    "a mark with an odd name": (lambda txn: txn.mark("\ud800", b""), "cannot name a mark"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_what_is_refused_leaves_no_trace(index, what):
    """One clear error; the transaction does not count, and the index goes on."""
    call, why = BAD_CALLS[what]
    transaction = index.begin()
    transaction.add(b"b", "word")
    with pytest.raises(InvalidInputError, match=why), transaction:
        call(transaction)
    assert {b"a"} == index.match("word")
    assert index.check().ok


@pytest.mark.parametrize("after", ["add", "leave"])
def test_what_fails_half_way_takes_the_rest_with_it(index, monkeypatch, after):
    """Whoever went on after a full disk got the texts of later documents under earlier ids."""
    monkeypatch.setattr(index._engine, "segment_bytes", 40)
    cut = build.cut_slices
    full = [OSError(errno.ENOSPC, "full")]

    def once(*args):
        if full:
            raise full.pop()
        return cut(*args)

    monkeypatch.setattr(build, "cut_slices", once)
    transaction = index.begin()
    with pytest.raises(StateError, match="nothing of it counts"), transaction:
        with pytest.raises(StoreError, match="full"):
            transaction.add_arrow([b"b", b"c"], ["word", 10 * "and more "])
        if after == "add":
            transaction.add_arrow([b"d", b"e"], ["word", 10 * "and more "])
    assert {b"a"} == index.match("word")
    with index.begin() as another:
        another.add_arrow([b"d", b"e"], ["word", 10 * "and more "])
    assert {b"a", b"d"} == index.match("word")
    assert index.check().ok
    index.close()
    assert [] == [*Path(index.name, "spool").iterdir(), *Path(index.name, "handles").iterdir()]


@pytest.mark.parametrize("given", [{"marks": {"a": 3}}, {"expected": {"a": "x"}}])
def test_marks_that_nobody_could_read_back(index, given):
    """They are refused at once: in the ledger, they made the index unreadable for ever."""
    with pytest.raises(InvalidInputError, match="the mark 'a' is a"):
        index.begin(**given)
    with index.begin(marks={"a": b"3"}, expected={"a": None}) as transaction:
        transaction.mark("b", b"")
    with index.snapshot() as then:
        assert {"a": b"3", "b": b""} == then.marks


def nested(kind, depth):
    """A tree that is deep."""
    tree = Term(b"word")
    for _ in range(depth):
        tree = Not(tree) if kind is Not else kind((tree,))
    return tree


def doubled(depth):
    """A tree that is small and seems huge."""
    tree = Term(b"word")
    for _ in range(depth):
        tree = And((tree, tree))
    return tree


@pytest.mark.parametrize(
    "query",
    [None, b"word", 7, Term("word"), Prefix(None), And([Term(b"a")]), Or(("a",)), Not(None)],
)
def test_a_query_that_is_none(index, query):
    """Whatever it is instead."""
    for ask in (index.match, index.search):
        with pytest.raises(InvalidInputError, match="a query has no parts like this"):
            ask(query)


@pytest.mark.parametrize("kind", [And, Or, Not])
def test_trees_of_programs_have_limits_too(index, kind):
    """As deep as a query that is written, and no deeper; however it is put together."""
    for ask in (index.match, index.search):
        ask(nested(kind, 200))
        with pytest.raises(LimitError, match="nests more than 200 deep"):
            ask(nested(kind, 5_000))
        with pytest.raises(LimitError, match="more than 1048576 parts"):
            ask(doubled(60))


def test_a_written_query_that_is_deep_in_the_tree(index):
    """Each of its parentheses stands for several levels."""
    query = "word"
    for _ in range(150):
        query = f"w OR y AND NOT ({query}) NOT z"
    for ask in (index.match, index.search):
        with pytest.raises(LimitError, match="nests more than 200 deep"):
            ask(query)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", None])
def test_a_number_of_hits_that_is_none(index, k):
    """One or more."""
    with pytest.raises(InvalidInputError, match="k is"):
        index.search("word", k)
    assert [b"a"] == [hit.id for hit in index.search("word", np.int64(3))]
    with pytest.raises(InvalidInputError, match="scoring is"):
        index.search("word", scoring=[])


@pytest.mark.parametrize("name", ["..", ".", "../x", "/x", "a/../b", "a//b", "a/", "a\0b"])
def test_a_name_does_not_lead_out_of_its_directory(tmp_path, name):
    """Nor to another than it seems to."""
    with pytest.raises(InvalidInputError, match="cannot name an index"):
        sync.Index(tmp_path / "base", name)
    assert [] == list(tmp_path.iterdir())
    assert str(tmp_path / "base/team/..a") == sync.Index(tmp_path / "base", "team/..a").name


@pytest.mark.parametrize("name", [None, 5, "", "a/b", "..", "x" * 65])
def test_generators_have_plain_names(index, name):
    """Which become names of files."""
    with pytest.raises(InvalidInputError, match="generator"):
        index.new_id(name)


def test_ids_of_no_bytes_and_of_very_many(index):
    """Are ids like others, also through a merge."""
    ids = [b"", b"x" * (1 << 20), b"a\0b", b"\xff"]
    with index.begin() as transaction:
        for user_id in ids:
            transaction.update(user_id, "word odd")
    index.merge()
    assert set(ids) == index.match("odd")
    assert sorted(ids) == [hit.id for hit in index.search("odd")]
    with index.begin() as transaction:
        transaction.delete(ids[0])
        transaction.delete(ids[1])
    assert {b"a", *ids[2:]} == index.match("word")
    assert index.check().ok
