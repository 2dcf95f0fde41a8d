"""Tokenizers: how a text becomes terms, a batch of Arrow texts at a time.

========================  ======================================================================
`words`                   runs of letters, numbers and marks (Unicode), in lower case
`whitespace`              what stands between white space, as it is
`ngrams:3`                every three characters in a row, in lower case; a shorter text is one gram
`edges:8`                 how each word begins: its first three to eight characters, in lower case
`trigrams`                every three bytes in a row, as they are: for searching source by pattern
========================  ======================================================================

A tokenizer hands out *tokens*: one Arrow value for each occurrence of a term. They need not be the
terms themselves, only as many different values as there are terms (n-grams are numbers, which are
quicker to tell apart); `spell` turns each different one into its term at the end. So no code here
runs once for each token.

A tokenizer of your own is any object with a `name` and a `split(text)` that gives terms; it is
called once for each text. The name is kept with the index, which refuses to be opened with another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordwood.base.errors import InvalidInputError
from cordwood.index import letters as unicode

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]

TERM_BYTES_MAX = 32_768
"""A longer term is cut off here: nobody types it, and it would be kept whole."""

NAME_MAX = 200
"""Characters of the name of a tokenizer."""

EDGE_MIN, EDGE_MAX = 3, 64
"""The shortest beginning of a word that `edges` keeps, unless the word is shorter; the longest."""


class Cut(NamedTuple):
    """The tokens of a batch of texts."""

    tokens: pa.Array
    """All of them, text after text."""
    counts: Places
    """How many each text has."""


class Tokenizer(Protocol):
    """Cuts texts."""

    @property
    def name(self) -> str:
        """What the index calls it."""
        ...

    @property
    def takes_bytes(self) -> bool:
        """Whether it takes any bytes; the others take UTF-8."""
        ...

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """The tokens of texts, each at most TERM_BYTES_MAX long."""
        ...

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """The terms that tokens stand for."""
        ...


class Splitter(Protocol):
    """A tokenizer of the user's."""

    name: str

    def split(self, text: str) -> Sequence[str | bytes]:
        """The terms of a text, in any order, repeated as they repeat."""
        ...


_PLAIN_WORD = re.compile(rb"[0-9a-z]+")


def tokenizer(named: str | Splitter) -> Tokenizer:
    """The tokenizer of this name, or the user's own.

    Raises:
        InvalidInputError: there is none.
    """
    if isinstance(named, str):
        kind, _, size = named.partition(":")
        if kind in _PLAIN and not size:
            return _PLAIN[kind]
        if kind == "ngrams" and (size or "3") in {"1", "2", "3"}:
            return Ngrams(int(size or 3))
        if kind == "edges" and (size or "8").isdecimal() and 3 <= int(size or 8) <= EDGE_MAX:
            return Edges(int(size or 8))
    elif _is_name(getattr(named, "name", "")) and callable(getattr(named, "split", None)):
        return Plugged(named)
    raise InvalidInputError(
        f"tokenizer {named!r} is none that we know",
        hint="use words, whitespace, ngrams:3, edges:8, trigrams, or an object with a name of its "
        "own and a method split(text)",
    )


def _is_name(name: object) -> bool:
    """Whether a tokenizer of the user's may be called so: by one of ours, ours would be opened."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX or not name.isprintable():
        return False
    return name.partition(":")[0] not in {*_PLAIN, "ngrams", "edges"}


def terms_of(cutter: Tokenizer, text: str | bytes) -> list[bytes]:
    """The terms of one text, in order, repeated as they repeat."""
    if isinstance(cutter, Words) and isinstance(text, str) and text.isascii():
        # A word of a query: not worth an array.
        return [term[:TERM_BYTES_MAX] for term in _PLAIN_WORD.findall(text.lower().encode())]
    texts = as_texts([text], takes_bytes=cutter.takes_bytes)
    spelled: list[bytes] = cutter.spell(cutter.cut(texts).tokens).to_pylist()
    return spelled


def as_texts(
    texts: pa.Array | pa.ChunkedArray | Sequence[str | bytes], *, takes_bytes: bool = False
) -> pa.LargeBinaryArray:
    """Texts as valid UTF-8 in one Arrow array; what is no UTF-8 becomes U+FFFD, as Python does it.

    With `takes_bytes` they stay as they are.

    Raises:
        InvalidInputError: these are no texts, or one is null.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    elif not isinstance(texts, pa.Array):
        if not isinstance(texts, Iterable):
            raise InvalidInputError(f"texts are a {type(texts).__name__}", hint="give a list")
        texts = pa.array([_raw(text) for text in texts], pa.large_binary())
    kind = texts.type
    if not any(is_kind(kind) for is_kind in _TEXT_KINDS):
        raise InvalidInputError(f"texts are {kind}", hint="give strings, or bytes of UTF-8")
    if texts.null_count:
        raise InvalidInputError(
            f"{texts.null_count} of {len(texts)} texts are null", hint="give '' for no text"
        )
    raw = texts.cast(pa.large_binary())
    if takes_bytes:
        return raw
    try:
        raw.cast(pa.large_string())  # Looks whether it is UTF-8, and copies nothing.
    except pa.ArrowInvalid:
        return pa.array(
            [text.decode(errors="replace").encode() for text in raw.to_pylist()], pa.large_binary()
        )
    return raw


def as_terms(terms: Any) -> pa.LargeListArray:
    """Lists of terms that somebody else has made, one for each document, as one Arrow array.

    Raises:
        InvalidInputError: these are none, or one is null.
    """
    kind = pa.large_list(pa.large_binary())
    try:
        if not isinstance(terms, pa.Array | pa.ChunkedArray):
            # Of text, each letter would be taken for a term.
            lists = [some if isinstance(some, str | bytes) else list(some) for some in terms]
            terms = pa.array(lists) if any(lists) else pa.array(lists, kind)
        found = terms.combine_chunks() if isinstance(terms, pa.ChunkedArray) else terms
        found = found.cast(kind)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidInputError(
            f"terms are no lists of terms: {error}", hint="give a list of bytes for each id"
        ) from error
    if found.null_count or found.flatten().null_count:
        raise InvalidInputError("a term, or a list of terms, is null")
    return found


_TEXT_KINDS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string_view,
    pa.types.is_binary_view,
)


def _raw(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode(errors="replace")  # A lone surrogate is no character.
    if not isinstance(text, bytes | bytearray | memoryview):
        raise InvalidInputError(f"a text is a {type(text).__name__}", hint="give str or bytes")
    return bytes(text)


class _Runs:
    """Cuts out runs of bytes that belong together."""

    takes_bytes = False

    def __init__(self, name: str, table: Bytes) -> None:
        """`table` says of each byte what it becomes; 0 stands between tokens."""
        self.name = name
        self._table = table.tobytes()

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`."""
        data, offsets = _prepared(texts)
        # Bytes translate themselves several times quicker than numpy looks them up.
        kept = np.frombuffer(bytearray(data).translate(self._table), np.uint8)
        if len(data) and int(data.max()) >= 0x80:
            self._settle(data, kept)
        return _runs(kept, offsets)

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """Tokens are terms."""
        return tokens

    def _settle(self, data: Bytes, kept: Bytes) -> None:
        """Decide about characters beyond ASCII: nothing to do unless a subclass says so."""


class Words(_Runs):
    """`words`."""

    def __init__(self) -> None:
        """The ASCII half of the rules; the other half is in letters.py."""
        table = np.zeros(256, np.uint8)
        for byte in b"0123456789abcdefghijklmnopqrstuvwxyz":
            table[byte] = byte
            table[ord(chr(byte).upper())] = byte
        table[0x80:] = np.arange(0x80, 0x100)
        super().__init__("words", table)

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`."""
        return super().cut(lowered_where_it_moves(texts))

    def _settle(self, data: Bytes, kept: Bytes) -> None:
        rules = unicode.letters()
        starts = np.flatnonzero(data >= 0xC0)
        points, lengths = unicode.decode(data, starts)
        others = np.flatnonzero(~rules.is_word[points])
        for place in range(4):
            some = others[lengths[others] > place]
            kept[starts[some] + place] = 0
        small = rules.lower[points]
        # Some have a lower case and are no letters, as those in circles.
        changed = np.flatnonzero((small != points) & rules.is_word[points])
        # Of the same length: the others were exchanged before.
        bytes_of, sizes = unicode.encode(small[changed])
        ends = np.cumsum(sizes)
        for place in range(4):
            some = np.flatnonzero(sizes > place)
            kept[starts[changed[some]] + place] = bytes_of[ends[some] - sizes[some] + place]


class Whitespace(_Runs):
    """`whitespace`: Unicode's white space of one byte, and of more."""

    def __init__(self) -> None:
        """Everything stands for itself, but for white space."""
        table = np.arange(256, dtype=np.uint8)
        table[np.frombuffer(b"\0\t\n\v\f\r \x1c\x1d\x1e\x1f", np.uint8)] = 0
        super().__init__("whitespace", table)

    def _settle(self, data: Bytes, kept: Bytes) -> None:
        starts = np.flatnonzero(data >= 0xC0)
        points, lengths = unicode.decode(data, starts)
        spaces = np.flatnonzero(np.isin(points, _SPACES))
        for place in range(3):
            some = spaces[lengths[spaces] > place]
            kept[starts[some] + place] = 0


_SPACES = np.array(
    [0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000], np.uint32
)


class Ngrams:
    """`ngrams:n`: windows of n characters. A token is its code points in one number."""

    takes_bytes = False

    def __init__(self, size: int) -> None:
        """Of up to three characters: more do not go into a number."""
        self.name = f"ngrams:{size}"
        self._size = size

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`."""
        points, counts = _characters(texts)
        return _windows(points, counts, self._size)

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """Numbers back to characters."""
        return _spelled(tokens)


class Edges:
    """`edges:n`: the beginnings of words, from three characters up to n, or the word if shorter."""

    takes_bytes = False

    def __init__(self, size: int) -> None:
        """Up to `size` characters."""
        self.name = f"edges:{size}"
        self._size = size

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`."""
        words = _PLAIN["words"].cut(texts)
        data, offsets = _prepared(words.tokens)
        heads = np.flatnonzero((data & 0xC0) != 0x80)
        first = np.searchsorted(heads, offsets)
        characters = np.diff(first)
        shortest = np.minimum(characters, EDGE_MIN)
        each = np.minimum(characters, self._size) - shortest + 1  # beginnings of each word
        word = np.repeat(np.arange(len(each)), each)
        length = shortest[word] + np.arange(len(word)) - np.repeat(np.cumsum(each) - each, each)
        heads = np.append(heads, len(data))
        sizes = heads[first[word] + length] - offsets[word]
        places = np.repeat(offsets[word] - (np.cumsum(sizes) - sizes), sizes)
        tokens = _of_sizes(data[places + np.arange(len(places))], sizes)
        limits = np.concatenate([[0], np.cumsum(words.counts)])
        return Cut(tokens, np.diff(np.concatenate([[0], np.cumsum(each)])[limits]))

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """Tokens are terms."""
        return tokens


class Trigrams:
    """`trigrams`: three bytes in a row, each different one once for each text."""

    name = "trigrams"
    takes_bytes = True

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`; a text of fewer than three bytes has none."""
        data, offsets = _prepared(texts)
        wide = data.astype(np.uint32)
        keys = (wide[:-2] << np.uint32(16)) | (wide[1:-1] << np.uint32(8)) | wide[2:]
        found: list[npt.NDArray[np.uint32]] = []
        for start, limit in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            # Sorting one text's keys is quicker than all at once, and needs less room.
            found.append(_distinct(keys[start : max(start, limit - 2)]))
        counts = np.array([len(some) for some in found], np.intp)
        tokens = np.concatenate(found) if found else np.empty(0, np.uint32)
        return Cut(pa.array(tokens), counts)

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """Numbers back to bytes."""
        keys = np.asarray(tokens).astype(">u4")
        data = keys.view(np.uint8).reshape(-1, 4)[:, 1:].copy()
        return _of_sizes(data.reshape(-1), np.full(len(keys), 3, np.intp))


class Plugged:
    """A user's tokenizer: called text by text."""

    takes_bytes = False

    def __init__(self, splitter: Splitter) -> None:
        """Around what the user gave."""
        self.name = splitter.name
        self._splitter = splitter

    def cut(self, texts: pa.LargeBinaryArray) -> Cut:
        """See `Tokenizer`."""
        split = [self._split(text.decode()) for text in texts.to_pylist()]
        tokens = pa.array([term for terms in split for term in terms], pa.large_binary())
        tokens = _clipped(tokens)
        return Cut(tokens, np.array([len(terms) for terms in split], np.intp))

    def spell(self, tokens: pa.Array) -> pa.LargeBinaryArray:
        """Tokens are terms."""
        return tokens

    def _split(self, text: str) -> list[bytes]:
        terms = self._splitter.split(text)
        try:
            return [
                # A view of bytes: a number would be so many zeros.
                term.encode() if isinstance(term, str) else bytes(memoryview(term))
                for term in terms
            ]
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"tokenizer {self.name!r} gave terms that are no text: {error}",
                hint="split(text) gives a list of str or bytes",
            ) from error


def lowered_where_it_moves(texts: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Exchange the few characters whose lower case has another length: the others stay in place."""
    data, _ = _prepared(texts)
    if not len(data) or int(data.max()) < 0x80:
        return texts
    rules = unicode.letters()
    points, _ = unicode.decode(data, np.flatnonzero(data >= 0xC0))
    moving = np.unique(points[rules.moves[points]])
    for point in moving.tolist():
        letter = chr(point)
        texts = pc.replace_substring(texts, letter.encode(), letter.lower().encode())
    return texts


def _prepared(texts: pa.LargeBinaryArray) -> tuple[Bytes, Places]:
    """The bytes of all texts back to back, and where each begins and the last ends."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.intp)
    values = texts.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(values, np.uint8)[first:last] if last else np.empty(0, np.uint8)
    return data, offsets - first


def _runs(kept: Bytes, offsets: Places) -> Cut:
    """Runs of bytes other than 0, none across the end of a text."""
    if not len(kept):
        return Cut(_of_sizes(kept, np.empty(0, np.intp)), np.zeros(len(offsets) - 1, np.intp))
    inside = kept != 0
    begins = inside.copy()
    np.greater(inside[1:], inside[:-1], out=begins[1:])
    edges = offsets[:-1][offsets[:-1] < offsets[1:]]  # Where texts begin that are not empty.
    begins[edges] = inside[edges]
    ends = inside.copy()
    np.greater(inside[:-1], inside[1:], out=ends[:-1])
    last = edges[1:] - 1
    ends[last] = inside[last]
    starts = np.flatnonzero(begins)
    sizes = np.flatnonzero(ends) + 1 - starts
    counts = np.diff(np.searchsorted(starts, offsets))
    tokens = _of_sizes(kept.compress(inside), sizes)
    if len(sizes) and int(sizes.max()) > TERM_BYTES_MAX:
        tokens = _clipped(tokens)
    return Cut(tokens, counts)


def _of_sizes(data: Bytes, sizes: Places) -> pa.LargeBinaryArray:
    """An Arrow array over bytes that lie back to back."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)


def _characters(texts: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint64], Places]:
    """The characters of all texts in lower case, and how many each text has."""
    data, offsets = _prepared(lowered_where_it_moves(texts))
    starts = np.flatnonzero((data & 0xC0) != 0x80)
    points, _ = unicode.decode(data, starts)
    is_ascii = not len(points) or int(points.max()) < 0x80
    lower = _ASCII_LOWER if is_ascii else unicode.letters().lower
    return lower[points].astype(np.uint64), np.diff(np.searchsorted(starts, offsets))


_ASCII_LOWER = np.array([ord(chr(byte).lower()) for byte in range(0x80)], np.uint32)


def _windows(points: npt.NDArray[np.uint64], counts: Places, size: int) -> Cut:
    """All windows of `size` characters; a shorter text, if it is not empty, is one by itself."""
    windows = np.where(counts >= size, counts - size + 1, np.minimum(counts, 1))
    starts = np.cumsum(counts) - counts
    first = np.cumsum(windows) - windows
    places = np.repeat(starts - first, windows) + np.arange(int(windows.sum()))
    length = np.repeat(np.minimum(counts, size), windows)
    padded = np.concatenate([points, np.zeros(size, np.uint64)])
    # Up to three code points, each one more than it is, in 21 bits each; 0 is none.
    tokens = np.zeros(len(places), np.uint64)
    for place in range(size):
        part = np.where(length > place, padded[places + place] + np.uint64(1), np.uint64(0))
        tokens = (tokens << np.uint64(21)) | part
    return Cut(pa.array(tokens), windows)


def _spelled(tokens: pa.Array) -> pa.LargeBinaryArray:
    """The characters in the numbers of `_windows`."""
    keys = np.asarray(tokens).astype(np.uint64)
    parts = [(keys >> np.uint64(21 * place)) & np.uint64(0x1FFFFF) for place in (2, 1, 0)]
    table = np.stack(parts, axis=1)
    data, sizes = unicode.encode((table[table > 0] - 1).astype(np.uint32))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    limits = np.concatenate([[0], np.cumsum((table > 0).sum(axis=1))])
    return _of_sizes(data, np.diff(ends[limits]))


def _distinct(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    ordered = np.sort(keys)
    if not len(ordered):
        return ordered
    is_new = np.empty(len(ordered), np.bool_)
    is_new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def _clipped(terms: pa.Array) -> pa.LargeBinaryArray:
    if len(terms) and pc.max(pc.binary_length(terms)).as_py() > TERM_BYTES_MAX:
        return pc.binary_slice(terms, 0, TERM_BYTES_MAX)
    return terms


_PLAIN: dict[str, Tokenizer] = {
    "words": Words(),
    "whitespace": Whitespace(),
    "trigrams": Trigrams(),
}
