"""`cordwood index bench`: what it compares, and what it says where an engine is missing."""

from __future__ import annotations

import pytest

from cordwood.cli.bench import corpus, peers

SMALL = ("index", "bench", "--documents", "short", "--megabytes", "1", "--queries", "2")


def test_figures_for_programs(run):
    """One object: the corpus, building, queries of every class, and what we want."""
    found = run(*SMALL, "--repeats", "1", "--json")
    part = found["short"]
    assert 1_000 < part["corpus"]["documents"] < part["corpus"]["tokens"]
    assert {"cordwood", "tantivy", "fts5", "bm25s"} == set(part["build"])
    assert [] == part["missing"]
    assert all(0 < figures["bytes_per_token"] for figures in part["build"].values())
    assert 11 == len(part["queries"])
    for row in part["queries"].values():
        assert {"equal": 2, "of": 2} == row["equal_counts"]["tantivy"]
        assert {"equal": 2, "of": 2} == row["equal_counts"]["fts5"]
    assert {"reached", "at least"} == set(found["bars"]["build, short"])
    assert {"reached", "at most"} == set(found["bars"]["ten best, all queries"])


def test_an_engine_that_is_missing(run, monkeypatch):
    """Is named, and the others are compared; without tantivy nothing is held against a bar."""
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    said = run(*SMALL, "--repeats", "1")
    assert "not installed: tantivy, bm25s" in said
    assert "fts5 finds as many documents as we do for 22 of 22 queries" in said
    assert "at least" not in said


@pytest.mark.parametrize("length", ["short", "long"])
def test_the_corpus(length):
    """Documents differ, have the words they should, and numbers for ids."""
    found = corpus.documents(length, 300_000)
    assert 300_000 <= sum(len(one.text) for one in found)
    assert len(found) == len({one.text for one in found})
    assert [b"%08d" % place for place in range(len(found))] == [one.id for one in found]
    most = corpus.WORDS_MAX if length == "short" else corpus.LONG_WORDS_MAX
    assert all(corpus.WORDS_MIN <= len(one.text.split()) <= most for one in found)
