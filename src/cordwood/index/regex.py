"""What a file must have for a regular expression to match in it: a query of trigrams, and literals.

Every part of a pattern says of what it can match

* `exact`: all there is, if that is few; else
* `prefix` and `suffix`: how each match begins and ends, as far as that is known,

and beside that, what a text must have for it to match at all: a query, and the best set of literals
of which each match has one. Parts in a row, alternatives and repetitions put these together. What
is not understood (a back reference, a large class, anything new in the language) can match
anything, which asks for nothing: a plan may let too many files through and never too few.

Patterns are text, and files bytes of UTF-8; bytes that are none stand for themselves, as surrogates
(PEP 383), in both. The pattern is read with the parser of Python's own `re`, so that they agree on
the syntax; it has no public name. Where it is gone, everything is a candidate.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cordwood.base.errors import InvalidInputError
from cordwood.index.query import And, Or, Query, Term

SET_MAX = 128
"""How many strings are told apart; more are cut shorter until they are fewer."""

CLASS_MAX = 32
"""A class of more characters can be anything."""

UNROLLED_MAX = 8
"""So many repetitions are looked at one by one."""

LITERALS_MAX = 8
"""With more literals than this, looking for them would take longer than matching."""

ANYTHING: Query = And(())

ODD_CASES = {"i": "\u0130\u0131", "k": "\u212a", "s": "\u017f"}
"""What else, beyond ASCII, is the same as a letter without regard to case."""

Strings = frozenset[bytes]
EMPTY: Strings = frozenset({b""})


class Plan(NamedTuple):
    """How to look for a pattern."""

    query: Query
    """What a file's trigrams must say; ANYTHING if the pattern asks for nothing."""
    literals: tuple[bytes, ...]
    """One of these stands in each match; none if that is not known."""
    folded: bool
    """Whether the literals are in lower case, to be looked for without regard to it."""
    crosses: bool
    """Whether it might see the end of a line, so that lines must be looked at one by one."""


class Part(NamedTuple):
    """What is known of the matches of a part of a pattern."""

    exact: Strings | None
    prefix: Strings
    suffix: Strings
    query: Query = ANYTHING
    must: Strings = EMPTY
    """Each match has one of these in it."""


ANY = Part(None, EMPTY, EMPTY)
NONE = Part(EMPTY, EMPTY, EMPTY)
"""What takes no room: anchors, and assertions but for what stands in them."""


def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """The pattern, for matching lines.

    Raises:
        InvalidInputError: it is no pattern; the message shows where.
    """
    try:
        return re.compile(pattern, flags | re.MULTILINE)
    except re.error as error:
        place = error.pos or 0
        start = max(0, place - 40)
        shown = pattern[start : place + 40].replace("\n", " ").replace("\t", " ")
        raise InvalidInputError(
            f"pattern: {error.msg} (character {place + 1})\n  {shown}\n  {' ' * (place - start)}^",
            hint="-F looks for the text as it stands",
        ) from error
    except (RecursionError, OverflowError) as error:
        raise InvalidInputError(f"pattern: it is too deep or too large: {error}") from error


def plan(pattern: str, flags: int = 0) -> Plan:
    """What a text must have for a pattern that compiles."""
    try:
        tree = _parser().parse(pattern, flags | re.MULTILINE)
        walk = _Walk()
        part = walk.parts(tree, tree.state.flags)
    except (ImportError, AttributeError, TypeError, ValueError, RecursionError):
        return Plan(ANYTHING, (), folded=False, crosses=True)
    literals, folded = _chosen(part.must)
    return Plan(_asked(part), literals, folded=folded, crosses=walk.crosses)


@functools.cache
def _parser() -> Any:
    return importlib.import_module("re._parser")


class _Walk:
    """Goes through the tree of a pattern."""

    def __init__(self) -> None:
        self.crosses = False
        """Whether something in it could see a newline, or where a text begins and ends."""

    def parts(self, tree: Iterable[tuple[Any, Any]], flags: int) -> Part:
        """Parts in a row."""
        return functools.reduce(_joined, (self.part(*node, flags) for node in tree), NONE)

    def part(self, kind: Any, value: Any, flags: int) -> Part:
        """One node. What this version does not know can match anything, everywhere."""
        known: Callable[[Any, int], Part] | None = getattr(self, f"_{kind!s}".lower(), None)
        if known is None:
            self.crosses = True
            return ANY
        return known(value, flags)

    def _literal(self, value: int, flags: int) -> Part:
        self.crosses |= value == 10
        return _characters([value], flags)

    def _not_literal(self, value: int, _: int) -> Part:
        self.crosses |= value != 10
        return ANY

    def _any(self, _: None, flags: int) -> Part:
        self.crosses |= bool(flags & re.DOTALL)
        return ANY

    def _in(self, items: list[tuple[Any, Any]], flags: int) -> Part:
        found: list[int] | None = []
        has_newline = is_negated = False
        for kind, value in items:
            name = str(kind)
            if name == "NEGATE":
                is_negated = True
                continue
            if name == "LITERAL":
                low = high = value
            elif name == "RANGE":
                low, high = value
            else:
                has_newline |= str(value) in _WITH_NEWLINE
                self.crosses |= str(value) not in _WITH_NEWLINE | _WITHOUT_NEWLINE
                found = None
                continue
            has_newline |= low <= 10 <= high
            if found is not None and high - low < CLASS_MAX:
                found.extend(range(low, high + 1))
            else:
                found = None
        self.crosses |= has_newline != is_negated
        if found is None or is_negated or len(found) > CLASS_MAX:
            return ANY
        return _characters(found, flags)

    def _branch(self, value: tuple[Any, list[Any]], flags: int) -> Part:
        parts = [self.parts(tree, flags) for tree in value[1]]
        while len(parts) > 1:  # In pairs: there may be thousands.
            pairs = itertools.zip_longest(parts[::2], parts[1::2])
            parts = [one if other is None else _either(one, other) for one, other in pairs]
        return parts[0]

    def _subpattern(self, value: tuple[Any, int, int, Any], flags: int) -> Part:
        _, added, taken, tree = value
        return self.parts(tree, (flags | added) & ~taken)

    def _max_repeat(self, value: tuple[Any, Any, Any], flags: int) -> Part:
        least, most, tree = value
        once = self.parts(tree, flags)
        least, most = int(least), int(most)
        if (least, most) == (0, 1):
            return _either(once, NONE)
        if not least:
            return NONE if not most else ANY
        times = min(least, UNROLLED_MAX)
        row = functools.reduce(_joined, itertools.repeat(once, times))
        return row if times == most else _bounded(row._replace(exact=None))

    _min_repeat = _possessive_repeat = _max_repeat

    def _atomic_group(self, tree: Any, flags: int) -> Part:
        return self.parts(tree, flags)

    def _assert(self, value: tuple[int, Any], flags: int) -> Part:
        inner = self.parts(value[1], flags)
        return NONE._replace(query=_asked(inner), must=inner.must)

    def _assert_not(self, value: tuple[int, Any], flags: int) -> Part:
        self.parts(value[1], flags)  # For what it might see; it asks for nothing.
        return NONE

    def _at(self, value: Any, flags: int) -> Part:
        is_of_line = str(value) in {"AT_BEGINNING", "AT_END"} and flags & re.MULTILINE
        self.crosses |= not (is_of_line or str(value) == "AT_BOUNDARY")
        return NONE

    def _groupref(self, _: int, __: int) -> Part:
        return ANY

    def _groupref_exists(self, value: tuple[int, Any, Any], flags: int) -> Part:
        _, yes, no = value
        return _either(self.parts(yes, flags), NONE if no is None else self.parts(no, flags))

    def _failure(self, _: Any, __: int) -> Part:
        return ANY


_WITH_NEWLINE = {"CATEGORY_SPACE", "CATEGORY_NOT_DIGIT", "CATEGORY_NOT_WORD"}
_WITHOUT_NEWLINE = {"CATEGORY_DIGIT", "CATEGORY_WORD", "CATEGORY_NOT_SPACE"}


def _characters(points: Iterable[int], flags: int) -> Part:
    """One of some characters."""
    found: set[bytes] = set()
    for point in points:
        letter = chr(point)
        if not flags & re.IGNORECASE:
            letters = letter
        elif not letter.isascii():
            return ANY
        else:
            letters = letter + letter.swapcase() + ODD_CASES.get(letter.lower(), "")
        found.update(_bytes(one) for one in letters)
    strings = frozenset(found)
    return Part(strings, strings, strings, must=strings)


def _bytes(letter: str) -> bytes:
    try:
        return letter.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""  # Half a pair of surrogates: no text has it, and nothing is asked for.


def _joined(left: Part, right: Part) -> Part:
    """One behind the other."""
    query = _and([left.query, right.query])
    must = _better(left.must, right.must)
    if left.exact is not None and right.exact is not None:
        exact = _crossed(left.exact, right.exact)
        if exact is not None:
            return Part(exact, exact, exact, query, _better(must, exact))
    # What was known of the seam is lost from here on, so it is asked for now.
    seam = _crossed(left.suffix, right.prefix)
    if seam is None:
        query = _and([query, trigrams(left.suffix), trigrams(right.prefix)])
        for before in (1, 2):  # A trigram has one byte of one side and two of the other.
            heads = frozenset(one[-before:] for one in left.suffix)
            tails = frozenset(one[: 3 - before] for one in right.prefix)
            query = _and([query, trigrams(_crossed(heads, tails) or EMPTY)])
        must = _better(must, _better(left.suffix, right.prefix))
    else:
        query = _and([query, trigrams(seam)])
        must = _better(must, seam)
    prefix, suffix = left.prefix, right.suffix
    if left.exact is not None:
        prefix = _crossed(left.exact, right.prefix) or left.exact
    if right.exact is not None:
        suffix = _crossed(left.suffix, right.exact) or right.exact
    return _bounded(Part(None, prefix, suffix, query, must))


def _either(left: Part, right: Part) -> Part:
    """One or the other."""
    if left.exact is not None and right.exact is not None and left.query == right.query:
        both = left.exact | right.exact
        if len(both) <= SET_MAX:
            return Part(both, both, both, left.query, left.must | right.must)
    query = _or([_asked(left), _asked(right)])
    must = left.must | right.must
    prefix, suffix = left.prefix | right.prefix, left.suffix | right.suffix
    return _bounded(Part(None, prefix, suffix, query, must if len(must) <= SET_MAX else EMPTY))


def _bounded(part: Part) -> Part:
    """The same with shorter ends; what they say by themselves is asked for first."""
    query = _and([part.query, trigrams(part.prefix), trigrams(part.suffix)])
    prefix = _cut(part.prefix, lambda one, size: one[:size])
    suffix = _cut(part.suffix, lambda one, size: one[len(one) - min(size, len(one)) :])
    return part._replace(prefix=prefix, suffix=suffix, query=query)


def _cut(strings: Strings, cut: Callable[[bytes, int], bytes]) -> Strings:
    """A seam needs no more than two bytes of each side for its trigrams, but literals like more."""
    size = 16
    while True:
        shorter = frozenset(cut(one, size) for one in strings)
        if len(shorter) <= SET_MAX or not size:
            return EMPTY if b"" in shorter else shorter
        size = size // 2 if size > 2 else size - 1


def _crossed(left: Strings, right: Strings) -> Strings | None:
    if len(left) * len(right) > SET_MAX:
        return None
    return frozenset(a + b for a in left for b in right)


def _better(one: Strings, other: Strings) -> Strings:
    """Which set of literals is the better one to look for: long ones, and few."""
    return max(one, other, key=_worth)


def _worth(strings: Strings) -> float:
    shortest = min(map(len, strings))
    different = len({one.lower() for one in strings})
    return shortest - (different - 1) / 2 if shortest else -1e9


def _chosen(must: Strings) -> tuple[tuple[bytes, ...], bool]:
    """The literals to look for, and whether without regard to case."""
    if b"" in must:
        return (), False
    if len(must) <= 2:
        return tuple(sorted(must)), False
    folded = {one.lower() for one in must}
    if len(folded) > LITERALS_MAX:
        return (), False
    return (
        (tuple(sorted(folded)), True) if len(folded) < len(must) else (tuple(sorted(must)), False)
    )


def _asked(part: Part) -> Query:
    """All that a part asks for."""
    if part.exact is not None:
        return _and([part.query, trigrams(part.exact)])
    return _and([part.query, trigrams(part.prefix), trigrams(part.suffix)])


def trigrams(strings: Strings) -> Query:
    """A text that has one of these strings has these trigrams."""
    if any(len(one) < 3 for one in strings):
        return ANYTHING
    alike: dict[int, list[bytes]] = {}
    for one in sorted(strings):
        alike.setdefault(len(one), []).append(one)
    choices: list[Query] = []
    for size, some in alike.items():
        if len(some) <= 4:
            choices += [_and([Term(one[i : i + 3]) for i in range(size - 2)]) for one in some]
        else:
            # Many of one length are mostly ways to write the same: place by place is shorter.
            places = ({one[i : i + 3] for one in some} for i in range(size - 2))
            choices.append(_and([_or(map(Term, sorted(place))) for place in places]))
    return _or(choices)


def _and(parts: Iterable[Query]) -> Query:
    found: dict[Query, None] = {}
    for part in parts:
        if isinstance(part, And):
            found.update(dict.fromkeys(part.parts))
        else:
            found[part] = None
    return next(iter(found)) if len(found) == 1 else And(tuple(found))


def _or(parts: Iterable[Query]) -> Query:
    found: dict[Query, None] = {}
    for part in parts:
        if part == ANYTHING:
            return ANYTHING
        if isinstance(part, Or):
            found.update(dict.fromkeys(part.parts))
        else:
            found[part] = None
    return next(iter(found)) if len(found) == 1 else Or(tuple(found))
