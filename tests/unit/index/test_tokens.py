"""How texts become terms: each rule, and against Python text by text."""

from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.base.errors import InvalidInputError
from cordwood.index import letters
from cordwood.index.tokens import TERM_BYTES_MAX, as_texts, terms_of, tokenizer


def words_of(text):
    """The words of a text, one character after the other."""
    found, word = [], ""
    for character in text.encode(errors="replace").decode():
        for lower in character.lower():
            if unicodedata.category(lower)[0] in "LNM":
                word += lower
            else:
                found.append(word)
                word = ""
    return [word.encode() for word in (*found, word) if word]


def is_settled(text):
    """Whether the rules, of Unicode 14, and this Python's agree about a text."""
    rules = letters.letters()
    return all(
        rules.is_word[ord(c)] == (unicodedata.category(c)[0] in "LNM")
        and (len(c.lower()) > 1 or rules.lower[ord(c)] == ord(c.lower()))
        for c in text
    )


@given(st.lists(st.text()))
@example(["\u24b6", "a\u24b6b"])
def test_words_are_unicode_words(texts):
    """Letters, numbers and marks, in lower case, never across two texts."""
    texts = [text for text in texts if is_settled(text)]
    cut = tokenizer("words").cut(as_texts(texts))
    assert [word for text in texts for word in words_of(text)] == cut.tokens.to_pylist()
    assert [len(words_of(text)) for text in texts] == cut.counts.tolist()


@given(st.lists(st.text()))
def test_whitespace_separates_and_nothing_else(texts):
    """As Python splits."""
    for text in texts:
        plain = text.encode(errors="replace").decode().replace("\0", " ")
        assert [word.encode() for word in plain.split()] == terms_of(tokenizer("whitespace"), text)


@given(st.text(), st.sampled_from([1, 2, 3]))
def test_grams_are_windows_of_characters(text, size):
    """A shorter text is one gram."""
    if not is_settled(text):
        return
    lower = "".join(c.lower() for c in text.encode(errors="replace").decode())
    grams = [lower[at : at + size] for at in range(max(1, len(lower) - size + 1))]
    expected = [gram.encode() for gram in grams if gram]
    assert expected == terms_of(tokenizer(f"ngrams:{size}"), text)


@given(st.text())
def test_edges_are_beginnings_of_words(text):
    """From three characters on, or the whole word."""
    expected = []
    for word in words_of(text) if is_settled(text) else []:
        plain = word.decode()
        lengths = range(min(3, len(plain)), min(5, len(plain)) + 1)
        expected += [plain[:length].encode() for length in lengths]
    if is_settled(text):
        assert expected == terms_of(tokenizer("edges:5"), text)


@given(st.binary())
def test_trigrams_are_bytes(text):
    """Each different one once."""
    expected = {text[at : at + 3] for at in range(len(text) - 2)}
    assert sorted(expected) == terms_of(tokenizer("trigrams"), text)


def test_lower_case_of_another_length():
    """A few characters grow or shrink, and one becomes two."""
    assert [b"k", "i\u0307x".encode(), "\u2c65".encode()] == terms_of(
        tokenizer("words"), "\u212a \u0130X \u023a"
    )


def test_text_that_is_no_text():
    """Bytes that are no UTF-8 separate words; null is refused."""
    assert [b"ab", b"cd"] == terms_of(tokenizer("words"), b"ab\xff\xfecd")
    assert [b"ab", b"cd"] == terms_of(tokenizer("words"), "ab\ud800cd")
    with pytest.raises(InvalidInputError, match="1 of 2 texts are null"):
        as_texts(pa.array(["x", None]))
    with pytest.raises(InvalidInputError, match="a text is a int"):
        as_texts([3])
    with pytest.raises(InvalidInputError, match="texts are int64"):
        as_texts(pa.array([3]))


def test_a_term_beyond_all_measure_is_cut_off():
    """Two that differ only behind that are one."""
    long = "x" * (TERM_BYTES_MAX + 5)
    cut = tokenizer("words").cut(as_texts([f"{long}a {long}b short"]))
    assert [TERM_BYTES_MAX, TERM_BYTES_MAX, 5] == list(map(len, cut.tokens.to_pylist()))


class Commas:
    """A tokenizer of a user's."""

    name = "commas"

    def split(self, text):
        """At commas."""
        return text.split(",") if text else []


def test_a_tokenizer_of_your_own():
    """Anything with a name and a split."""
    assert [b"a b", b"c"] == terms_of(tokenizer(Commas()), "a b,c")
    for wrong in ("word", "ngrams:9", "edges:2", "words:3", "", object()):
        with pytest.raises(InvalidInputError, match="is none that we know"):
            tokenizer(wrong)


def test_slices_of_arrays_are_cut_as_they_are():
    """An Arrow array may begin in the middle of its buffers."""
    texts = pa.array(["drop this", "one two", "", "three", "and this"], pa.large_binary())
    cut = tokenizer("words").cut(texts.slice(1, 3))
    assert [b"one", b"two", b"three"] == cut.tokens.to_pylist()
    assert [2, 0, 1] == cut.counts.tolist()


@given(st.text(st.characters(max_codepoint=0x7F), max_size=40))
def test_a_query_is_cut_as_a_text_is(text):
    """Plain words take a shorter way, to the same terms."""
    words = tokenizer("words")
    assert words.cut(as_texts([text])).tokens.to_pylist() == terms_of(words, text)


@pytest.mark.parametrize("name", ["", None, 7, "words", "edges:9", "ngrams", "x" * 201, "a\n"])
def test_a_tokenizer_of_your_own_has_a_name_of_its_own(name):
    """By one of ours, ours would be used by whoever opens the index without it."""

    class Mine:
        def split(self, text):
            return [text]

    Mine.name = name
    with pytest.raises(InvalidInputError, match="is none that we know"):
        tokenizer(Mine())


@pytest.mark.parametrize("terms", [[3], [None], None, ["\ud800"]])
def test_a_tokenizer_of_your_own_that_gives_no_terms(terms):
    """A number is not so many zeros."""

    class Mine:
        name = "mine"

        def split(self, text):
            return terms

    with pytest.raises(InvalidInputError, match="gave terms that are no text"):
        terms_of(tokenizer(Mine()), "a")
