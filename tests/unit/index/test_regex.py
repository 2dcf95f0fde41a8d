"""From patterns to trigrams: a plan may ask for too little, and never for what a match lacks."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cordwood.base.errors import InvalidInputError
from cordwood.index import regex
from cordwood.index.lines import Finder
from cordwood.index.query import And, Term
from cordwood.index.regex import ANYTHING, ODD_CASES, compiled, plan


def holds(query, data):
    """Whether a text has what a query of trigrams asks for."""
    if isinstance(query, Term):
        return query.term in data
    every = all if isinstance(query, And) else any
    return every(holds(part, data) for part in query.parts)


def asks(pattern, *, flags=0):
    """A plan's query, written short."""

    def shown(query):
        if isinstance(query, Term):
            return query.term.decode("utf-8", "backslashreplace")
        inner = [shown(part) for part in query.parts]
        return f"({(' & ' if isinstance(query, And) else ' | ').join(inner)})"

    return shown(plan(pattern, flags).query)


@pytest.mark.parametrize(
    ("pattern", "query"),
    [
        ("abc", "abc"),
        ("abcd", "(abc & bcd)"),
        ("ab", "()"),
        ("", "()"),
        (".*", "()"),
        ("abc|abd", "(abc | abd)"),
        ("abc|ab", "()"),
        ("foo.*bar", "(foo & bar)"),
        ("foo.*bar.*baz", "(foo & bar & baz)"),
        ("(foo|bar)baz", "((bar & arb & rba & baz) | (foo & oob & oba & baz))"),
        ("ab[cd]", "(abc | abd)"),
        ("ab[^c]d", "()"),
        ("abc?d", "((abc & bcd) | abd)"),
        ("(abc)*", "()"),
        ("(abc)+", "abc"),
        ("(?:abc){2}", "(abc & bca & cab)"),
        ("(?:abc){2,}x", "(abc & bca & cab & bcx)"),
        ("abc{0}d", "abd"),
        ("^abc$", "abc"),
        (r"\babc\b", "abc"),
        ("(?=.*foo)(?=.*bar)", "(foo & bar)"),
        ("(?!foo)bar", "bar"),
        ("(?<=foo)bar", "(foo & bar)"),
        (r"(abc)\1", "abc"),
        ("(?>abc)d", "(abc & bcd)"),
        ("(a)?(?(1)bcd|bce)", "((abc & bcd) | (abc & bce) | bcd | bce)"),
        ("(?x) a b c # no", "abc"),
        ("é", "()"),
        ("éa", "éa"),
        ("(?i)é", "()"),
        ("(?i)a-b", "(A-B | A-b | a-B | a-b)"),
        ("(?i:a)-b", "(A-b | a-b)"),
        (r"\w{3}", "()"),
        ("(?!)", "()"),
    ],
)
def test_what_a_pattern_asks_for(pattern, query):
    """Each construct of the language, in the smallest pattern that shows it."""
    assert asks(pattern) == query


def test_large_classes_ask_for_nothing_themselves():
    """They do not take from what stands beside them."""
    assert asks("foo[a-zA-Z0-9_]bar") == "(foo & bar)"
    assert "_00" in asks("_[0-9][0-9][0-9][0-9]")


def test_case_is_folded_as_re_does_it():
    """For every ASCII letter, exactly the characters that `re` takes for it."""
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    for code in range(128):
        letter = chr(code)
        same = set(re.findall(re.escape(letter), everything, re.IGNORECASE))
        known = {letter, letter.lower(), letter.upper(), *ODD_CASES.get(letter.lower(), "")}
        assert same == known, letter


@pytest.mark.parametrize(
    ("pattern", "literals", "folded"),
    [
        ("foo.*barrier", (b"barrier",), False),
        (r"\bTODO\b.*lock", (b"TODO",), False),
        ("(?i)mutex", (b"mutex",), True),
        ("zipfile|tarfile", (b"tarfile", b"zipfile"), False),
        (r"\w+", (), False),
        ("|".join(f"{chr(97 + n)}{n:02d}x" for n in range(20)), (), False),
    ],
)
def test_literals(pattern, literals, folded):
    """The longest text that every match has, or a few of them; none if they are too many."""
    found = plan(pattern)
    assert (found.literals, found.folded) == (literals, folded)


@pytest.mark.parametrize(
    ("pattern", "crosses"),
    [
        ("abc", False),
        ("a.b", False),
        ("(?s)a.b", True),
        (r"a\sb", True),
        (r"a[^b]c", True),
        (r"a[^\n]c", False),
        (r"a[^\s]c", False),
        (r"\S\w\d", False),
        (r"\W", True),
        ("^a$", False),
        (r"\Aa", True),
        (r"a\Z", True),
        (r"a\B", True),
        ("(?-m:^)a", True),
        (r"a(?!\s)", True),
        (r"a(?!\w)", False),
    ],
)
def test_what_can_see_the_end_of_a_line(pattern, crosses):
    """Only what cannot may be looked for in all lines at once."""
    assert plan(pattern, re.MULTILINE).crosses is crosses


def test_many_alternatives_take_no_time_to_speak_of():
    """Thousands of words are planned, and each of them is found."""
    words = [f"word{number:05d}end" for number in range(3_000)]
    query = plan("|".join(words)).query
    assert holds(query, b"a word01234end b")
    assert not holds(query, b"nothing of the kind")


@pytest.mark.parametrize(
    ("pattern", "place"), [("zz(qqq", 3), ("a**", 3), ("[", 1), ("(?P<n>a)(?P<n>b)", 13)]
)
def test_what_is_no_pattern_is_refused(pattern, place):
    """The message has the place, with a mark under it."""
    with pytest.raises(InvalidInputError) as caught:
        compiled(pattern)
    assert f"(character {place})" in caught.value.message
    assert caught.value.message.splitlines()[-1] == " " * (place + 1) + "^"


def test_a_pattern_too_deep_is_refused():
    """Whatever Python makes of it, the answer is one of our errors."""
    with pytest.raises(InvalidInputError):
        compiled("(" * 50_000 + ")" * 50_000)


def test_a_parser_that_is_not_there_means_a_scan(monkeypatch):
    """Another Python may not have it: then everything is a candidate, line by line."""

    def absent():
        """No such module."""
        raise ImportError("re._parser")

    monkeypatch.setattr(regex, "_parser", absent)
    assert plan("abc") == (ANYTHING, (), False, True)


def test_an_unknown_construct_can_be_anything(monkeypatch):
    """What a later Python adds to the language is not misunderstood."""
    monkeypatch.delattr(regex._Walk, "_atomic_group")
    found = plan("abc(?>def)ghi")
    assert found.crosses
    assert asks("abc(?>def)ghi") == "(abc & ghi)"


ATOMS = st.sampled_from(
    [
        *"abcABkKsSiI01_ éſ",
        *(r"\w", r"\d", r"\s", r"\S", r"\W", ".", r"\b", "^", "$", r"\B", r"\A", r"\Z", r"\n"),
        *("[abc]", "[^a]", "[a-c]", "[0-9]", "[éa]", r"[^\n]", r"[^\s]", "(?i:ab)", "(?s:.)"),
        *("abc", "kis", "(?:)", "(?<=a)", "(?<!b)", "(?<=abc)", "(?-m:^)"),
    ]
)


def larger(inner):
    """Patterns made of patterns."""
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.builds(
            "(?:{}){}".format,
            inner,
            st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,2}", "{3,}", "*?", "+?", "*+", "?+"]),
        ),
        inner.map("({})".format),
        inner.map("(?=({}))".format),
        inner.map("(?!{})".format),
        inner.map("(?>{})".format),
        st.builds("(?P<g>{}){}(?P=g)".format, inner, inner),
        st.builds("(?P<h>a)?{}(?(h){}|b)".format, inner, inner),
    )


PATTERNS = st.recursive(ATOMS, larger, max_leaves=10)
TEXTS = st.text("abcABCkKsSiI01_ \néſKİı\udcff", max_size=30)


@settings(max_examples=600, deadline=None)
@given(PATTERNS, TEXTS, st.booleans(), st.booleans())
@example("a[^b]c", "a\nc", False, False)
@example(r"x\s*+$", "x \n  y", False, False)
@example("k", "K", True, True)
def test_what_re_finds_is_found(pattern, text, ignore_case, words):
    """In each line by itself, and no more; and the text has what the plan asks for."""
    try:
        finder = Finder(pattern, ignore_case=ignore_case, words=words)
    except InvalidInputError:
        return  # A group twice.
    data = text.encode("utf-8", "surrogateescape")
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if not lines[-1]:
        lines.pop()
    expected = [
        (number, line) for number, line in enumerate(lines, 1) if finder.expression.search(line)
    ]
    assert [tuple(line) for line in finder.lines(data)] == expected
    if expected:
        assert holds(finder.plan.query, data)
