"""Queries: what people write, and what it means.

::

    quick fox                either, or both; both is better
    quick AND fox            both
    quick OR fox             as the first
    quick NOT fox            the first without the second
    (quick OR fast) AND fox  parentheses group
    fox*                     any word that begins so
    "AND"                    what stands in quotes is plain text: here the word "and"

NOT binds closest, then AND, then OR. A NOT that follows other words without AND or OR takes away
from all that stands in the same parentheses. A word that the tokenizer cuts into several terms
means all of them; one that it leaves nothing of finds nothing. Operators are written in capitals.

A parsed query is a tree of the classes here, which programs may also build themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from cordwood.base.errors import InvalidInputError, LimitError

if TYPE_CHECKING:
    from cordwood.index.tokens import Tokenizer

DEPTH_MAX = 200
"""How deep parentheses nest, and so does a tree."""

NODES_MAX = 1 << 20
"""How large a tree is; a part of it that is in two places counts twice."""


class _Node:
    """A part of a query, which is what it holds: a frozen dataclass in all but name.

    What makes dataclasses takes as long to load as a search through a source tree takes to answer.
    """

    __slots__ = ("_held",)

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._held == self._held

    def __hash__(self) -> int:
        return hash((type(self), self._held))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._held!r})"


class Term(_Node):
    """Documents that have this term."""

    __slots__ = ()
    __match_args__ = ("term",)
    _held: bytes

    def __init__(self, term: bytes) -> None:
        """The term as the index has it."""
        super().__init__(term)

    @property
    def term(self) -> bytes:
        """The term."""
        return self._held


class Prefix(_Node):
    """Documents that have a term that begins so."""

    __slots__ = ()
    __match_args__ = ("prefix",)
    _held: bytes

    def __init__(self, prefix: bytes) -> None:
        """How the terms begin."""
        super().__init__(prefix)

    @property
    def prefix(self) -> bytes:
        """How the terms begin."""
        return self._held


class And(_Node):
    """Documents that all of these find; of none, all documents there are."""

    __slots__ = ()
    __match_args__ = ("parts",)
    _held: tuple[Query, ...]

    def __init__(self, parts: tuple[Query, ...]) -> None:
        """Its parts, in any order."""
        super().__init__(parts)

    @property
    def parts(self) -> tuple[Query, ...]:
        """What has to find a document, each of them."""
        return self._held


class Or(_Node):
    """Documents that any of these finds; of none, no document."""

    __slots__ = ()
    __match_args__ = ("parts",)
    _held: tuple[Query, ...]

    def __init__(self, parts: tuple[Query, ...]) -> None:
        """Its parts, in any order."""
        super().__init__(parts)

    @property
    def parts(self) -> tuple[Query, ...]:
        """What has to find a document, one of them."""
        return self._held


class Not(_Node):
    """Documents that this does not find."""

    __slots__ = ()
    __match_args__ = ("part",)
    _held: Query

    def __init__(self, part: Query) -> None:
        """What must not find a document."""
        super().__init__(part)

    @property
    def part(self) -> Query:
        """What must not find a document."""
        return self._held


Query = Term | Prefix | And | Or | Not

_PIECE = r'(?s)\s+|([()])|"((?:[^"\\]|\\.)*)"(\*?)|("?[^\s()"]+)|(")'


class _Piece(NamedTuple):
    kind: str
    """`(`, `)`, AND, OR, NOT, `text` or `prefix`."""
    text: str
    place: int


def parse(text: str, cutter: Tokenizer) -> Query:
    """The tree of a query.

    Raises:
        InvalidInputError: it cannot be read; the message shows where.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"a query is a {type(text).__name__}", hint="give a string")
    return _Parser(text, cutter).parse()


def checked(query: Query) -> Query:
    """A tree, whoever built it.

    Raises:
        InvalidInputError: it is none.
        LimitError: it is too deep or too large.
    """
    level: list[object] = [query]
    seen = 0
    for _ in range(DEPTH_MAX + 1):
        seen += len(level)
        if seen > NODES_MAX:
            raise LimitError(f"the query has more than {NODES_MAX} parts")
        deeper: list[object] = []
        for one in level:
            match one:
                case Term(bytes()) | Prefix(bytes()):
                    pass
                case And(tuple(parts)) | Or(tuple(parts)):
                    deeper.extend(parts)
                case Not(part):
                    deeper.append(part)
                case _:
                    raise InvalidInputError(
                        f"a query has no parts like this {type(one).__name__}",
                        hint="give a string, or And, Or, Not, Term and Prefix, with tuples of "
                        "parts and terms of bytes",
                    )
        if not deeper:
            return query
        level = deeper
    raise LimitError(f"the query nests more than {DEPTH_MAX} deep")


def positive(query: Query) -> Iterator[Term | Prefix]:
    """The leaves that documents are wanted for, again as often as they are written."""
    if isinstance(query, Term | Prefix):
        yield query
    elif isinstance(query, And | Or):
        for part in query.parts:
            yield from positive(part)


class _Parser:
    def __init__(self, text: str, cutter: Tokenizer) -> None:
        self._text = text
        self._cutter = cutter
        self._pieces = list(self._cut())
        self._next = 0

    def parse(self) -> Query:
        if not self._pieces:
            raise InvalidInputError("the query is empty", hint="write a word to look for")
        query = self._group(0)
        if (piece := self._peek()) is not None:
            self._refuse(piece.place, "this ')' closes nothing")
        return query

    def _cut(self) -> Iterator[_Piece]:
        for found in re.finditer(_PIECE, self._text):
            place = found.start()
            if found[1]:
                yield _Piece(found[1], found[1], place)
            elif found[2] is not None:
                plain = re.sub(r"\\(.)", r"\1", found[2], flags=re.DOTALL)
                yield _Piece("prefix" if found[3] else "text", plain, place)
            elif found[4]:
                word = found[4]
                if word in {"AND", "OR", "NOT"}:
                    yield _Piece(word, word, place)
                elif word.startswith('"'):
                    self._refuse(place, "this quote is not closed")
                elif word.endswith("*") and word.strip("*"):
                    yield _Piece("prefix", word.rstrip("*"), place)
                else:
                    yield _Piece("text", word, place)
            elif found[5]:
                self._refuse(place, "this quote is not closed")

    def _peek(self) -> _Piece | None:
        return self._pieces[self._next] if self._next < len(self._pieces) else None

    def _group(self, depth: int) -> Query:
        """What stands between parentheses: chains, each wanted or, behind a bare NOT, not."""
        if depth > DEPTH_MAX:
            raise LimitError(f"the query nests more than {DEPTH_MAX} deep")
        wanted: list[Query] = []
        unwanted: list[Query] = []
        while (piece := self._peek()) is not None and piece.kind != ")":
            has_or = piece.kind == "OR"
            if has_or:
                self._next += 1
                if not wanted and not unwanted:
                    self._refuse(piece.place, "nothing stands before this OR")
                self._expect_operand(piece)
            chain = self._chain(depth)
            if isinstance(chain, Not) and not has_or:
                unwanted.append(chain)
            else:
                wanted.append(chain)
        if not wanted and not unwanted:
            if piece is None:
                return Or(())  # Behind a parenthesis that is not closed: who opened it says so.
            self._refuse(piece.place, "these parentheses are empty")
        found = wanted[0] if len(wanted) == 1 else Or(tuple(wanted))
        if not unwanted:
            return found
        return And((*((found,) if wanted else ()), *unwanted))

    def _chain(self, depth: int) -> Query:
        """Operands joined by AND."""
        parts = [self._operand(depth)]
        while (piece := self._peek()) is not None and piece.kind == "AND":
            self._next += 1
            self._expect_operand(piece)
            parts.append(self._operand(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _operand(self, depth: int) -> Query:
        piece = self._peek()
        assert piece is not None
        self._next += 1
        if piece.kind == "NOT":
            times = 1
            while (after := self._peek()) is not None and after.kind == "NOT":
                self._next += 1
                times += 1
            self._expect_operand(piece)
            inner = self._operand(depth)
            return Not(inner) if times % 2 else inner
        if piece.kind == "(":
            query = self._group(depth + 1)
            if self._peek() is None:
                self._refuse(piece.place, "this '(' is not closed")
            self._next += 1
            return query
        if piece.kind in {"AND", "OR"}:
            self._refuse(piece.place, f"nothing stands before this {piece.kind}")
        return self._words(piece)

    def _words(self, piece: _Piece) -> Query:
        # Who hands in a tree of terms does not wait for what cuts texts.
        from cordwood.index.tokens import terms_of  # noqa: PLC0415

        terms = terms_of(self._cutter, piece.text)
        if piece.kind == "prefix" and terms:
            if self._cutter.name not in {"words", "whitespace"}:
                self._refuse(piece.place, f"an index of {self._cutter.name} has no beginnings")
            leaves: list[Query] = [*map(Term, terms[:-1]), Prefix(terms[-1])]
        else:
            leaves = list(map(Term, terms))
        if len(leaves) == 1:
            return leaves[0]
        return And(tuple(leaves)) if leaves else Or(())

    def _expect_operand(self, piece: _Piece) -> None:
        after = self._peek()
        if after is None or after.kind in {")", "AND", "OR"}:
            self._refuse(piece.place, f"nothing follows this {piece.kind}")

    def _refuse(self, place: int, why: str) -> NoReturn:
        start = max(0, place - 40)
        shown = self._text[start : place + 40].replace("\n", " ").replace("\t", " ")
        raise InvalidInputError(
            f"query: {why} (character {place + 1}; plain text may stand in quotes)\n"
            f"  {shown}\n  {' ' * (place - start)}^"
        )
