"""Queries: what they mean, and where they cannot be read."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.base.errors import InvalidInputError, LimitError
from cordwood.index.query import And, Not, Or, Prefix, Term, parse
from cordwood.index.tokens import tokenizer

A, B, C, D = (Term(name) for name in (b"a", b"b", b"c", b"d"))
WORDS = tokenizer("words")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("A", A),
        ("a b", Or((A, B))),
        ("a OR b", Or((A, B))),
        ("a AND b", And((A, B))),
        ("a AND b AND c", And((A, B, C))),
        ("a AND b OR c", Or((And((A, B)), C))),
        ("a AND (b OR c)", And((A, Or((B, C))))),
        ("a b NOT c", And((Or((A, B)), Not(C)))),
        ("a AND b NOT c", And((And((A, B)), Not(C)))),
        ("a AND (b OR c) NOT d", And((And((A, Or((B, C)))), Not(D)))),
        ("a AND NOT b", And((A, Not(B)))),
        ("a OR NOT b", Or((A, Not(B)))),
        ("NOT a", And((Not(A),))),
        ("NOT NOT a", A),
        ("NOT (a b)", And((Not(Or((A, B))),))),
        ("a-b", And((A, B))),
        ('"a b"', And((A, B))),
        ('"AND"', Term(b"and")),
        ("and or not", Or((Term(b"and"), Term(b"or"), Term(b"not")))),
        ('"(" a', Or((Or(()), A))),
        ("...", Or(())),
        ("ab*", Prefix(b"ab")),
        ("a-b*", And((A, Prefix(b"b")))),
        ('"a"*', Prefix(b"a")),
        ("(((a)))", A),
        (r'"a \" b"', And((A, B))),
    ],
)
def test_meaning(text, tree):
    """NOT before AND before OR; words side by side are alternatives."""
    assert tree == parse(text, WORDS)


@pytest.mark.parametrize(
    ("text", "why", "place"),
    [
        ("", "the query is empty", None),
        ("  ", "the query is empty", None),
        ("a AND", "nothing follows this AND", 3),
        ("AND a", "nothing stands before this AND", 1),
        ("a OR OR b", "nothing follows this OR", 3),
        ("OR a", "nothing stands before this OR", 1),
        ("a NOT", "nothing follows this NOT", 3),
        ("(a", "this '(' is not closed", 1),
        ("a AND (", "this '(' is not closed", 7),
        ("a)", "this ')' closes nothing", 2),
        ("()", "these parentheses are empty", 2),
        ('"a', "this quote is not closed", 1),
        ("a AND ) b", "nothing follows this AND", 3),
    ],
)
def test_what_cannot_be_read(text, why, place):
    """The message points at the place."""
    with pytest.raises(InvalidInputError) as caught:
        parse(text, WORDS)
    assert why in str(caught.value)
    if place is not None:
        assert f"(character {place};" in str(caught.value)
        assert str(caught.value).splitlines()[-1].index("^") == place + 1


@given(st.text(st.sampled_from('ab AND OR NOT()"* \\'), max_size=60))
def test_any_text_is_read_or_refused(text):
    """Never anything else."""
    with suppress(InvalidInputError):
        parse(text, WORDS)


def test_limits():
    """Ten thousand words are fine; a hundred thousand parentheses are not."""
    assert 10_000 == len(parse(" ".join(f"w{n}" for n in range(10_000)), WORDS).parts)
    with pytest.raises(LimitError, match="nests more than 200 deep"):
        parse("(" * 100_000 + "a" + ")" * 100_000, WORDS)
    assert A == parse("NOT " * 10_000 + "a", WORDS)


def test_beginnings_need_words():
    """An n-gram has none."""
    with pytest.raises(InvalidInputError, match="has no beginnings"):
        parse("ab*", tokenizer("ngrams"))
