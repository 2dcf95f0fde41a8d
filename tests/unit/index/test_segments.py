"""Segments: built, searched and merged, against a model and against each other."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from cordwood.base.errors import CordwoodError, CorruptionError
from cordwood.index import ids as id_tables
from cordwood.index import merge as merging
from cordwood.index import postings, rank
from cordwood.index.build import Builder, as_ids
from cordwood.index.merge import IdMap, merge
from cordwood.index.query import And, Not, Or, Term, parse
from cordwood.index.segment import Segment, View
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import as_texts, terms_of, tokenizer
from cordwood.testing import indexmodel as model

WORDS = tokenizer("words")


def built(documents, cutter=WORDS, *, frequencies=True):
    """A segment's bytes."""
    builder = Builder(cutter, frequencies=frequencies)
    texts = as_texts([text for _, text in documents], takes_bytes=cutter.takes_bytes)
    builder.add(as_ids([user_id for user_id, _ in documents]), texts)
    sink = io.BytesIO()
    builder.write(sink)
    return sink.getvalue()


def in_order(documents):
    """As a segment numbers them."""
    return sorted(documents, key=lambda document: document[0])


def views_of(parts, deleted=(), cutter=WORDS, *, frequencies=True):
    """A view for each list of documents."""
    views = []
    for number, documents in enumerate(parts, 1):
        data = built(documents, cutter, frequencies=frequencies)
        gone = BitMap(deleted[number - 1] if deleted else ())
        views.append(View(Segment(number, data, f"segment.{number}"), gone))
    return views


def live(parts, deleted, cutter=WORDS):
    """The documents that are left, with their terms."""
    return [
        (user_id, terms_of(cutter, text))
        for documents, gone in zip(parts, deleted, strict=True)
        for number, (user_id, text) in enumerate(in_order(documents), 1)
        if number not in gone
    ]


ids = st.binary(max_size=3) | st.sampled_from([b"one", b"two", b"three"])
TEXTS = ["a", "b", "c", "d", "ab", "abc", "é", "x"]
texts = st.lists(st.sampled_from(TEXTS), max_size=12).map(" ".join)
documents = st.lists(st.tuples(ids, texts), max_size=30)
queries = st.sampled_from(
    ["a", "a b", "a AND b", "ab*", "a NOT b", "NOT a", "a b c d x", "(a OR x) AND NOT ab*", "a a é"]
)


@given(st.lists(documents, max_size=4), queries, st.integers(1, 8), st.data())
@settings(max_examples=150)
def test_answers_are_the_models(parts, query, k, data):
    """Whatever is in which segment, and whatever was deleted."""
    deleted = [
        data.draw(st.sets(st.integers(1, len(part)), max_size=5)) if part else set()
        for part in parts
    ]
    snapshot = Snapshot(views_of(parts, deleted), WORDS, 0, {})
    left = live(parts, deleted)
    tree = parse(query, WORDS)
    assert model.match(left, tree) == snapshot.match(query)
    hits = snapshot.search(query, k)
    expected = model.search(left, tree, k)
    assert [user_id for user_id, _ in expected] == [hit.id for hit in hits]
    assert [score for _, score in expected] == pytest.approx([hit.score for hit in hits], rel=1e-6)


def corpus(seed, count, vocabulary=300):
    """Documents with words of very different frequency, some ids several times."""
    chance = np.random.default_rng(seed)
    ids = chance.integers(count, size=count)
    sizes = chance.integers(41, size=count)
    words = np.minimum(chance.exponential(50, (count, 40)), vocabulary - 1).astype(int)
    return [
        (b"id%05d" % user_id, " ".join(f"w{word}" for word in row[:size]))
        for user_id, size, row in zip(ids, sizes, words, strict=True)
    ]


@pytest.mark.parametrize("parts", [1, 3])
def test_long_lists_are_ranked_as_the_model_ranks(parts):
    """Lists of hundreds of documents, with pruning, one segment or several, with deletes."""
    chance = np.random.default_rng(parts)
    lists = [corpus(seed, 1500) for seed in range(parts)]
    deleted = [set(chance.integers(1, 1501, 300).tolist()) for _ in lists]
    snapshot = Snapshot(views_of(lists, deleted), WORDS, 0, {})
    left = live(lists, deleted)
    ranks_as_the_model(snapshot, left, chance, 60)


# How lists are gone through: what is quicker for few documents must be right for many, and back.
WAYS = {
    "pruned": {"_SMALL": 0, "_BLOCK": 2},
    "narrowed": {"_SMALL": 0, "_CANDIDATES": 0, "_BLOCK": 2},
    "looked up": {"_SMALL": 0, "_CANDIDATES": 0, "_DENSE": 0},
    "looked up one by one": {"_SMALL": 0, "_CANDIDATES": 0, "_DENSE": 0, "_WHOLE": 0, "_SPARSE": 0},
    "spread out": {"_SMALL": 0, "_CANDIDATES": 0, "_DENSE": 1 << 40},
    "added up": {"_SMALL": 1 << 40},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_the_lists_ranks_as_the_model(monkeypatch, way):
    """Whichever is taken."""
    for name, value in WAYS[way].items():
        monkeypatch.setattr(rank, name, value)
    if way == "looked up one by one":
        monkeypatch.setattr(postings, "_ALL", 0)
        monkeypatch.setattr(postings, "_EACH", 0)
    chance = np.random.default_rng(len(way))
    lists = [corpus(seed, 900, vocabulary=60) for seed in range(2)]
    # So often that it does not fit among the others' frequencies.
    lists[0] += [(b"often%d" % number, f"w{number} " * 400) for number in range(60)]
    deleted = [set(), set(chance.integers(1, 901, 200).tolist())]
    snapshot = Snapshot(views_of(lists, deleted), WORDS, 0, {})
    ranks_as_the_model(snapshot, live(lists, deleted), chance, 25)


def ranks_as_the_model(snapshot, left, chance, times):
    """Random queries get the model's answers."""
    for _ in range(times):
        numbers = chance.exponential(50, chance.integers(1, 6)).astype(int) % 300
        query = chance.choice([" ", " AND ", " NOT "]).join(f"w{number}" for number in numbers)
        tree = parse(query, WORDS)
        expected = model.search(left, tree, 10)
        hits = snapshot.search(query)
        assert [user_id for user_id, _ in expected] == [hit.id for hit in hits], query
        scores = [score for _, score in expected]
        assert scores == pytest.approx([hit.score for hit in hits], rel=1e-6)
        assert model.match(left, tree) == snapshot.match(query)
        words = tuple(Term(b"w%d" % number) for number in dict.fromkeys(numbers.tolist()))
        boosted = And((Or(words[:1]), Or((And(()), *words[1:]))))
        expected = model.search(left, boosted, 10)
        assert [user_id for user_id, _ in expected] == [h.id for h in snapshot.search(boosted)]


@pytest.mark.parametrize("scoring", ["bm25", "tfidf"])
@pytest.mark.parametrize("named", ["words", "whitespace", "ngrams:2", "ngrams:3", "edges:5"])
def test_every_tokenizer_is_ranked_as_the_model_ranks(named, scoring):
    """Letters of every length, several segments, ids several times, deletes; both scorings."""
    cutter = tokenizer(named)
    chance = np.random.default_rng(len(named))
    words = ["".join(chance.choice(list("abcdéßİ字😀"), chance.integers(1, 7))) for _ in range(90)]
    lists = [
        [
            (b"%d" % user_id, " ".join(chance.choice(words, chance.integers(0, 25))))
            for user_id in chance.integers(0, 2 * size, size)
        ]
        for size in (400, 90, 1)
    ]
    deleted = [set(chance.integers(1, 401, 100).tolist()), set(), set()]
    snapshot = Snapshot(views_of(lists, deleted, cutter), cutter, 0, {})
    left = live(lists, deleted, cutter)
    terms = sorted({term for _, found in left for term in found})
    for step in range(12):
        some = tuple(Term(terms[place]) for place in chance.integers(0, len(terms), 4))
        shapes = (
            Or(some),
            And(some[:2]),
            And((Or(some[1:]), Not(some[0]))),
            Or((And(some), *some)),
        )
        tree = shapes[step % 4]
        expected = model.search(left, tree, 7, scoring)
        hits = snapshot.search(tree, 7, scoring=scoring)
        assert [score for _, score in expected] == pytest.approx([h.score for h in hits], rel=1e-6)
        assert [user_id for user_id, _ in expected] == [hit.id for hit in hits], tree
        assert model.match(left, tree) == snapshot.match(tree)


@pytest.mark.parametrize("named", ["words", "ngrams:3", "trigrams"])
@pytest.mark.parametrize("ranges", [(7, 5), (65_536, 16_384)])
def test_a_merge_is_a_fresh_build(tmp_path, monkeypatch, named, ranges):
    """Byte for byte, however it is cut into ranges; and the idmap tells where documents went."""
    monkeypatch.setattr(merging, "IDS_AT_ONCE", ranges[0])
    monkeypatch.setattr(merging, "TERMS_AT_ONCE", ranges[1])
    cutter = tokenizer(named)
    frequencies = named != "trigrams"
    lists = [corpus(seed, 200) for seed in range(3)]
    deleted = [set(range(1, 201, 3)), set(), set(range(1, 201))]
    views = views_of(lists, deleted, cutter, frequencies=frequencies)
    (tmp_path / "spool").mkdir()
    sink = io.BytesIO()
    merge(views, sink, tmp_path / "idmap", tmp_path / "spool")
    left = [
        document
        for documents, gone in zip(lists, deleted, strict=True)
        for number, document in enumerate(in_order(documents), 1)
        if number not in gone
    ]
    assert built(left, cutter, frequencies=frequencies) == sink.getvalue()
    idmap = IdMap((tmp_path / "idmap").read_bytes(), "idmap")
    merged = Segment(9, sink.getvalue(), "merged")
    assert [] == merged.check()
    for view, documents, gone in zip(views, lists, deleted, strict=True):
        for number, (user_id, _) in enumerate(in_order(documents), 1):
            moved = idmap.moved(view.segment.number, [number]).tolist()
            assert (number in gone) == (not moved)
            if moved:
                ordinal = merged.ids.find(user_id)
                start, limit = merged.ids.documents(ordinal)
                assert start <= moved[0] < limit


def test_every_flipped_byte_is_found():
    """Or changes nothing: never a wrong answer, never a crash."""
    documents = corpus(1, 120, vocabulary=30)
    data = built(documents)
    right = Snapshot([View(Segment(1, data, "s"), BitMap())], WORDS, 0, {})
    query = "w1 w2 w3"
    hits, ids = right.search(query, 20), set(right.match(query))
    found = 0
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 0x41
        try:
            view = View(Segment(1, bytes(flipped), "s"), BitMap())
            snapshot = Snapshot([view], WORDS, 0, {})
            assert hits == snapshot.search(query, 20)
            assert ids == snapshot.match(query)
            assert view.segment.check(), place
        except CordwoodError:
            found += 1
    assert found > 0


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -1])
def test_a_file_that_is_not_whole(cut):
    """Is refused when it is opened."""
    data = built(corpus(2, 50))
    with pytest.raises(CorruptionError, match="is damaged"):
        Segment(1, data[:cut], "s")


def test_empty_and_strange_documents():
    """No documents, no words, ids of any bytes, one document that is huge."""
    assert 0 == Segment(1, built([]), "s").documents
    strange = [
        (b"", ""),
        (b"\x00\xff", "..."),
        (b"\xff" * 300, "word " * 100_000),
        (b"a/b", "word"),
    ]
    segment = Segment(1, built(strange), "s")
    assert [] == segment.check()
    snapshot = Snapshot([View(segment, BitMap())], WORDS, 0, {})
    assert {b"\xff" * 300, b"a/b"} == snapshot.match("word")
    assert {b"", b"\x00\xff"} == snapshot.match("NOT word")
    assert [b"\xff" * 300, b"a/b"] == [hit.id for hit in snapshot.search("word", scoring="tfidf")]


def test_sets_of_ids_from_several_segments():
    """An id that is in two of them is there once, wherever its range begins and ends."""
    low = [(b"id%03d" % number, "a") for number in range(100)]
    high = [(b"id%03d" % number, "a") for number in range(100, 200)]
    apart = Snapshot(views_of([high, low]), WORDS, 0, {}).match("a")
    assert (200, 200) == (len(apart), len(set(apart)))
    assert {user_id for user_id, _ in low + high} == apart
    touching = Snapshot(views_of([low, high, [(b"id099", "a b"), (b"id100", "b")]]), WORDS, 0, {})
    assert (200, 201) == (len(touching.match("a")), touching.match("a").documents)
    assert {b"id099", b"id100"} == touching.match("b")
    twice = Snapshot(views_of([[*low, (b"id000", "a")], high]), WORDS, 0, {}).match("a")
    assert (200, 201) == (len(twice), twice.documents)
    assert 200 == len(list(twice))


@pytest.mark.parametrize("walked", [7, 65_536])
def test_a_set_of_very_many_ids_is_not_listed_to_be_counted(monkeypatch, walked):
    """Nor to be gone through, asked or deleted from: ids stay in their FST."""
    monkeypatch.setattr(id_tables, "_WALKED", walked)
    parts = [
        [(b"path/to/some/file/%05d" % number, "a") for number in numbers]
        for numbers in (range(3_000), range(1_000, 1_200), [*range(2_990, 3_090), 2_990])
    ]
    views = views_of(parts, [{1}, set(), set()])
    snapshot = Snapshot(views, WORDS, 0, {})
    right = {user_id for documents in parts for user_id, _ in documents} - {parts[0][0][0]}
    found = snapshot.match("a")
    assert (len(right), 3_299) == (len(found), found.documents - 1)
    assert parts[1][7][0] in found
    assert parts[0][0][0] not in found
    given = list(found)
    assert (len(right), right) == (len(given), set(given))
    wanted = [user_id for user_id, _ in parts[0][:100]] * 2 + [b"none"]
    assert {1: BitMap(range(2, 101))} == snapshot.documents_of(as_ids(wanted))
    doubled = snapshot.documents_of(as_ids([b"path/to/some/file/02990"]))
    assert {1: BitMap([2_991]), 3: BitMap([1, 2])} == doubled
    assert [True] * 3 == [view.segment.ids._is_fst for view in views]
    assert [None] * 3 == [view.segment.ids._table for view in views]
    assert sorted(right) == sorted(found.to_arrow().to_pylist())
    assert given == list(found)
