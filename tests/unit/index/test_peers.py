"""The index beside other engines, on real text: they find as much, and rank alike.

The text is Python's own, and that of installed packages. tantivy leaves out words of more than 40
bytes, and takes marks and some symbols for other than we do: documents with any of those are not
used. It rounds lengths of more than 40 words, so scores are compared on shorter documents.
"""

from __future__ import annotations

import io
import unicodedata

import numpy as np
import pytest
from pyroaring import BitMap

from cordwood.cli.bench.corpus import Document, documents
from cordwood.cli.bench.peers import Fts5, Tantivy
from cordwood.cli.bench.questions import questions
from cordwood.index.build import Builder, as_ids
from cordwood.index.query import parse
from cordwood.index.segment import Segment, View
from cordwood.index.snapshot import Snapshot
from cordwood.index.tokens import as_texts, terms_of, tokenizer

WORDS = tokenizer("words")
PARTS = 3
"""Segments of our index: what is found does not depend on them."""


def is_alike(text):
    """Whether both take the text for the same words."""
    return not any(unicodedata.category(c)[0] in "MSC" for c in text if not c.isascii()) and all(
        len(term) <= 40 for term in terms_of(WORDS, text)
    )


def snapshot_of(texts):
    """Our index."""
    views = []
    for number in range(PARTS):
        builder = Builder(WORDS, frequencies=True)
        some = texts[number::PARTS]
        builder.add(as_ids([one.id for one in some]), as_texts([one.text for one in some]))
        sink = io.BytesIO()
        builder.write(sink)
        views.append(View(Segment(number, sink.getvalue(), f"segment.{number}"), BitMap()))
    return Snapshot(views, WORDS, 0, {})


@pytest.fixture(scope="module")
def corpus():
    """A few thousand documents, also some that are not ASCII."""
    plain = documents("short", 1_200_000)
    others = [
        Document(b"other%06d" % place, f"{text} Straße über ÉTÉ ǅ 数字")
        for place, (_, text) in enumerate(plain[::40])
    ]
    return [one for one in plain + others if is_alike(one.text)]


@pytest.fixture(scope="module")
def asked(corpus):
    """Our index, and hundreds of queries: by class, and some with parentheses and NOT."""
    snapshot = snapshot_of(corpus)
    classes = questions(snapshot, corpus, 30)
    texts = [question.text for group in classes.values() for question in group]
    words = [question.words for group in classes.values() for question in group]
    for first, second in zip(words[::2], words[1::2], strict=False):
        texts.append(f"({' OR '.join(first)}) AND ({' OR '.join(second)})")
        texts.append(f"({' AND '.join(first)}) OR ({' AND '.join(second)})")
        texts.append(f"({' OR '.join(first)}) NOT {second[0]}")
    return snapshot, [*texts, "straße", "über OR été", "数字 AND ǆ"]


@pytest.mark.parametrize("peer", [Tantivy, Fts5], ids=["tantivy", "fts5"])
def test_others_find_as_many(tmp_path, corpus, asked, peer):
    """For every query, whatever its operators."""
    snapshot, texts = asked
    assert 2_000 < len(corpus)
    assert 500 < len(texts)
    other = peer()
    other.build(corpus, tmp_path)
    different = {}
    for text in texts:
        ours = snapshot.match(text).documents
        theirs = other.count(other.asked(text))
        if ours != theirs:
            different[text] = (ours, theirs)
    assert {} == different


def test_tantivy_ranks_alike(tmp_path, corpus):
    """The ten best scores of single words, and of alternatives, within one in a hundred."""
    short = [one for one in corpus if len(terms_of(WORDS, one.text)) <= 40]
    snapshot = snapshot_of(short)
    other = Tantivy()
    other.build(short, tmp_path)
    classes = questions(snapshot, short, 40)
    compared = 0
    for name in ("single hi", "single mid", "single lo", "or hi mid", "or 5 natural", "and hi hi"):
        for question in classes[name]:
            ours = [hit.score for hit in snapshot.search(parse(question.text, WORDS))]
            theirs = [score for score, _ in other.best(other.asked(question.text))]
            np.testing.assert_allclose(ours, theirs, rtol=0.01, err_msg=question.text)
            compared += len(ours)
    assert 1_000 < compared
