"""Collections: a search sees what was acknowledged, through compactions and collection."""

from __future__ import annotations

import asyncio
import mmap

import numpy as np
import pyarrow as pa
import pytest

from cordwood import Collection, Store, sync
from cordwood.base.errors import (
    AlreadyExistsError,
    CordwoodError,
    CorruptionError,
    InvalidInputError,
    LimitError,
    NotFoundError,
)
from cordwood.index import operations
from cordwood.index.query import parse
from cordwood.index.tokens import terms_of, tokenizer
from cordwood.testing import indexmodel as model

WORDS = tokenizer("words")


@pytest.fixture
def docs():
    """An empty collection in memory."""
    made = sync.Collection("memory:", "docs")
    made.create(grace_s=1)
    with made:
        yield made


def test_add_update_delete(docs):
    """Each is found, or not, by the next search."""
    assert 1 == docs.add(b"a", "quick fox")
    docs.add(b"a", "lazy dog")
    docs.add(b"b", "quick dog")
    assert {b"a", b"b"} == docs.match("quick")
    assert [b"b"] == [hit.id for hit in docs.search("quick AND dog")]
    docs.update(b"a", "slow")
    assert {b"b"} == docs.match("quick dog")
    docs.delete(b"b")
    assert set() == docs.match("quick dog")
    assert {b"a"} == docs.match("slow")


def test_many_at_once(docs):
    """Arrow arrays or lists; all or none."""
    docs.add_arrow(pa.array(["a", "b"]), pa.array(["one", "two"]))
    docs.update_arrow([b"b", b"b"], ["three", "four"])
    docs.delete_arrow([b"a"])
    assert {b"b"} == docs.match("four")
    assert set() == docs.match("one two three")
    with pytest.raises(InvalidInputError, match="2 ids came with 1 documents"):
        docs.add_arrow([b"x", b"y"], ["one"])
    for nothing in (lambda: docs.add_arrow([], []), lambda: docs.delete_arrow([])):
        with pytest.raises(InvalidInputError, match="no documents came"):
            nothing()


def test_answers_are_the_models_through_compactions(docs):
    """Two users of one collection; operations, compactions, collections as chance has it."""
    other = sync.Collection(docs.store, "docs")
    chance = np.random.default_rng(7)
    words = [f"w{number}" for number in range(20)]
    content: dict[bytes, list[str]] = {}
    with other:
        for step in range(200):
            user = (docs, other)[chance.integers(2)]
            user_id = b"id%d" % chance.integers(20)
            text = " ".join(chance.choice(words, chance.integers(0, 8)))
            kind = chance.choice(
                ["add", "update", "delete", "compact", "collect", "search"],
                p=[0.35, 0.15, 0.1, 0.05, 0.05, 0.3],
            )
            if kind == "add":
                user.add(user_id, text)
                content.setdefault(user_id, []).append(text)
            elif kind == "update":
                user.update(user_id, text)
                content[user_id] = [text]
            elif kind == "delete":
                user.delete(user_id)
                content.pop(user_id, None)
            elif kind == "compact":
                user.compact("local")
            elif kind == "collect":
                user.log.collect()
            query = " ".join(chance.choice(words, 2))
            documents = [(i, terms_of(WORDS, t)) for i, ts in content.items() for t in ts]
            tree = parse(query, WORDS)
            assert model.match(documents, tree) == user.match(query), step
            expected = model.search(documents, tree, 10)
            assert [i for i, _ in expected] == [hit.id for hit in user.search(query)], step
        assert docs.check().ok


async def test_searches_while_others_write_compact_and_collect():
    """An acknowledged add is found by the next search, and an acknowledged delete is not."""
    store = Store("memory:")
    async with Collection(store, "docs") as one, Collection(store, "docs") as two:
        await one.create(grace_s=1)
        done = asyncio.Event()

        async def write(collection, name):
            for number in range(25):
                user_id = b"%s%d" % (name, number)
                await collection.add(user_id, f"common {name.decode()}{number}")
                assert user_id in await collection.match("common")
                if number % 3 == 0:
                    await collection.delete(user_id)
                    assert user_id not in await collection.match("common")

        async def keep_house():
            while not done.is_set():
                await two.compact("local")
                await two.log.collect()
                await asyncio.sleep(0.01)

        house = asyncio.ensure_future(keep_house())
        await asyncio.gather(write(one, b"x"), write(two, b"y"), write(one, b"z"))
        done.set()
        await house
        left = 3 * 25 - 3 * 9
        assert left == len(await one.match("common")) == len(await two.match("common"))
        assert (await one.check()).ok


def test_what_waits_is_not_worked_out_again_and_again(docs, monkeypatch):
    """A few operations behind very many do not make those be cut into words once more."""
    counts = []
    settle = operations.settle
    monkeypatch.setattr(
        operations, "settle", lambda some: (counts.append(len(some.ids)), settle(some))[1]
    )
    docs.add_arrow([b"%d" % number for number in range(5_000)], ["word"] * 5_000)
    for number in range(60):
        docs.update(b"%d" % number, f"word n{number}")
        assert {b"%d" % number} == docs.match(f"n{number}")
    assert sum(counts) < 6_000
    assert (5_000, 60) == (len(docs.match("word")), len(docs.match("n*")))


def test_a_compaction_moves_the_mark_and_the_cursor_once(docs):
    """Made again it does nothing; collection frees what it took in."""
    docs.add_arrow([b"a", b"b"], ["one", "two"])
    first = docs.compact("local")
    assert (1, 3, 2, 2) == (first.start, first.limit, first.records, first.documents)
    again = docs.compact("local")
    assert (3, 3, 0) == (again.start, again.limit, again.records)
    assert 3 == docs.log.cursors.load("index").offset
    state = docs.state()
    assert (2, 1, 0) == (state.documents, state.segments, state.waiting)


def test_a_compaction_that_died_before_its_cursor_is_made_up_for(docs, monkeypatch):
    """The mark is in the transaction; the cursor follows with the next run."""
    from cordwood.pipeline import indexing

    async def dies(*_):
        raise CordwoodError("the process dies here")

    docs.add(b"a", "one")
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "move_up", dies)
        with pytest.raises(CordwoodError, match="dies here"):
            docs.compact("local")
    assert 1 == docs.log.cursors.load("index").offset
    assert {b"a"} == docs.match("one")
    assert 0 == docs.compact("local").records
    assert 2 == docs.log.cursors.load("index").offset


def test_two_compactions_at_once_count_once(docs):
    """The slower one sees that it was overtaken."""
    docs.add_arrow([b"a", b"b"], ["one", "two"])

    async def both():
        async with Collection(docs.store, "docs") as one, Collection(docs.store, "docs") as two:
            return await asyncio.gather(one.compact("local"), two.compact("local"))

    reports = asyncio.run(both())
    assert 2 == sum(report.documents for report in reports)
    assert {b"a", b"b"} == docs.match("one two")
    assert 2 == docs.state().documents


def test_what_cannot_be(docs):
    """One clear error each."""
    with pytest.raises(AlreadyExistsError, match="exists already"):
        docs.create()
    docs.create(exist_ok=True)
    with pytest.raises(NotFoundError, match="there is no collection"):
        sync.Collection(docs.store, "nothing").add(b"a", "one")
    with pytest.raises(NotFoundError, match="there is no collection"):
        sync.Collection(docs.store, "nothing").search("one")
    with pytest.raises(InvalidInputError, match="cannot name a collection"):
        sync.Collection(docs.store, "")
    with pytest.raises(InvalidInputError, match="an id is a str"):
        docs.add("a", "one")
    with pytest.raises(InvalidInputError, match="a text is a int"):
        docs.add(b"a", 7)
    with pytest.raises(InvalidInputError, match="query: "):
        docs.search("AND")


def test_more_than_fits_into_one_append(docs):
    """One clear error; nothing was appended."""
    size = (2 << 30) + 1
    offsets = pa.py_buffer(np.array([0, 1, size], np.int64))
    data = pa.py_buffer(mmap.mmap(-1, size))  # Never touched, so it takes no memory.
    texts = pa.Array.from_buffers(pa.large_binary(), 2, [None, offsets, data])
    with pytest.raises(LimitError, match="2 documents have more than 2 GiB together"):
        docs.add_arrow([b"a", b"b"], texts)
    assert 1 == docs.state().next_offset


def test_a_record_that_is_no_operation(docs):
    """Somebody appended to the log itself: that is said, with the offset."""
    docs.add(b"a", "one")
    with docs.log.writer() as writer:
        writer.append(b"stray")
    with pytest.raises(CorruptionError, match="record 2 is no operation on a document"):
        docs.search("one")


def test_strange_texts(docs):
    """Any bytes, nothing, and ids of any bytes."""
    docs.add(b"", "")
    docs.add(b"\x00\xff", b"\xff\xfe word")
    assert {b"\x00\xff"} == docs.match("word")
    docs.compact("local")
    assert {b"\x00\xff"} == docs.match("word")
    assert {b"", b"\x00\xff"} == docs.match("NOT nothing")


def test_a_log_that_was_forked_is_taken_in(tmp_path):
    """Its first records lie in the folder of the log that it was forked from."""
    store = sync.Store(f"file://{tmp_path}/wood")
    with sync.Collection(store, "docs") as docs:
        docs.create()
        docs.add(b"a", "one")
    docs.log.fork(sync.Log(store, "twin/log"))
    with sync.Collection(store, "twin") as twin:
        twin.create(exist_ok=True)
        twin.add(b"b", "two")
        assert 2 == twin.compact("local").documents
        assert {b"a", b"b"} == twin.match("one two")
        assert 0 == twin.state().waiting
