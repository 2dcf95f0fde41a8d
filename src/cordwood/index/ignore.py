r"""Which files a `.gitignore` leaves out.

Honoured are the `.gitignore` files of the tree itself, each for its folder and what is below: `#`
comments, `!` that takes a file in again, `*`, `?`, `[a-z]`, `[[:alpha:]]`, `**` for any number of
folders, a `/` in front or within that ties a pattern to the folder of its file, a `/` at the end
for folders alone, `\` before a sign that is meant. Of several rules the last one counts, and files
deeper in the tree count more. Not looked at: files above the tree, `.git/info/exclude`, and what is
set for the user. As in Git, what lies in a folder that is left out cannot be taken in again, and a
pattern that cannot be read, as one with a bracket that is not closed, leaves nothing out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MAGIC = re.compile(rb"[*?\[\\]")


class _Rule(NamedTuple):
    pattern: re.Pattern[bytes]
    by_path: bool
    """Whether it looks at the path from the folder of the rules, not at the name."""
    folders_only: bool
    ignores: bool


class Rules:
    """The rules of one file, on top of those of the folders above it."""

    def __init__(self, text: bytes, depth: int, above: Rules | None) -> None:
        """`depth` is how long the path of their folder is."""
        self._depth = depth
        self._above = above
        self._rules: list[_Rule] = []
        # Most names match no rule at all, and that is to be seen at once.
        self._names: set[bytes] = set()
        endings: list[bytes] = []
        others: list[bytes] = []
        paths: list[bytes] = []
        for line in text.split(b"\n"):
            glob, rule = _read(line)
            if rule is None:
                continue
            self._rules.append(rule)
            if rule.by_path:
                paths.append(rule.pattern.pattern)
            elif not _MAGIC.search(glob):
                self._names.add(glob)
            elif glob[:1] == b"*" and not _MAGIC.search(glob, 1):
                endings.append(glob[1:])
            else:
                others.append(rule.pattern.pattern)
        self._rules.reverse()
        self._endings = tuple(endings)
        self._others = _any_of(others)
        self._paths = _any_of(paths)

    def ignore(self, path: bytes, name: bytes, *, is_folder: bool) -> bool:
        """Whether what lies at this path, from the root of the tree, is left out."""
        if self._may_decide(path, name):
            within = path[self._depth :]
            for rule in self._rules:
                if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(
                    within if rule.by_path else name
                ):
                    return rule.ignores
        return self._above is not None and self._above.ignore(path, name, is_folder=is_folder)

    def _may_decide(self, path: bytes, name: bytes) -> bool:
        return (
            name in self._names
            or name.endswith(self._endings)
            or bool(self._others and self._others.fullmatch(name))
            or bool(self._paths and self._paths.fullmatch(path, self._depth))
        )


def _any_of(patterns: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(patterns), re.DOTALL) if patterns else None


def _read(line: bytes) -> tuple[bytes, _Rule | None]:
    """A line's pattern and rule; no rule if it is empty, a comment, or no pattern."""
    glob = re.sub(rb"(?<!\\) +$", b"", line.removesuffix(b"\r"))
    if not glob or glob.startswith(b"#"):
        return glob, None
    ignores = not glob.startswith(b"!")
    glob = glob if ignores else glob[1:]
    folders_only = glob.endswith(b"/")
    glob = glob[:-1] if folders_only else glob
    by_path = b"/" in glob
    glob = glob.removeprefix(b"/")
    translated = _translated(glob)
    if translated is None:
        return glob, None
    return glob, _Rule(re.compile(translated, re.DOTALL), by_path, folders_only, ignores)


def _translated(glob: bytes) -> bytes | None:
    """A pattern for paths as a regular expression; None if it is none, and matches nothing."""
    parts: list[bytes] = []
    at = 0
    while at < len(glob):
        sign = glob[at : at + 1]
        if sign == b"*":
            stars = len(glob) - at - len(glob[at:].lstrip(b"*"))
            part, at = _starred(glob, at, at + stars)
        elif sign == b"?":
            part, at = b"[^/]", at + 1
        elif sign == b"[":
            found = _one_of(glob, at + 1)
            if found is None:
                return None
            part, at = found
        elif sign == b"\\":
            if at + 1 == len(glob):
                return None
            part, at = re.escape(glob[at + 1 : at + 2]), at + 2
        else:
            part, at = re.escape(sign), at + 1
        parts.append(part)
    return b"(?:" + b"".join(parts) + b")"


def _starred(glob: bytes, start: int, limit: int) -> tuple[bytes, int]:
    """What stars stand for, and where the pattern goes on: several alone in a step are folders."""
    is_step = glob[max(0, start - 1) : start] in {b"", b"/"}
    if limit - start == 1 or not is_step or glob[limit : limit + 1] not in {b"", b"/"}:
        return b"[^/]*", limit
    return (b".*", limit) if limit == len(glob) else (b"(?:.*/)?", limit + 1)


def _one_of(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """The characters between brackets, from behind the first; None if they are not closed."""
    negated = glob[at : at + 1] in {b"!", b"^"}
    at += negated
    wanted: set[int] = set()
    first, low = at, -1
    while at < len(glob) and (at == first or glob[at] != ord("]")):
        one = glob[at]
        if one == ord("[") and (named := _NAMED.match(glob, at)):
            if named[1] not in _KINDS:
                return None
            wanted.update(_KINDS[named[1]])
            at, low = named.end(), -1
            continue
        is_range = one == ord("-") and low >= 0 and glob[at + 1 : at + 2] not in {b"", b"]"}
        at += is_range
        at += glob[at] == ord("\\")
        if at == len(glob):
            return None
        wanted.update(range(low if is_range else glob[at], glob[at] + 1))
        low = -1 if is_range else glob[at]
        at += 1
    if at >= len(glob):
        return None
    chosen = set(range(256)) - wanted if negated else wanted
    listed = b"".join(b"\\x%02x" % one for one in sorted(chosen - {ord("/")}))
    return (b"[" + listed + b"]" if listed else b"(?!)"), at + 1


_NAMED = re.compile(rb"\[:([^\]]*):\]")
_ASCII = [bytes([one]) for one in range(128)]
_KINDS = {
    b"alnum": {ord(one) for one in _ASCII if one.isalnum()},
    b"alpha": {ord(one) for one in _ASCII if one.isalpha()},
    b"blank": {*b" \t"},
    b"cntrl": {*range(32), 127},
    b"digit": {*b"0123456789"},
    b"graph": {*range(33, 127)},
    b"lower": {ord(one) for one in _ASCII if one.islower()},
    b"print": {*range(32, 127)},
    b"punct": {one for one in range(33, 127) if not chr(one).isalnum()},
    b"space": {*b" \t\n\v\f\r"},
    b"upper": {ord(one) for one in _ASCII if one.isupper()},
    b"xdigit": {*b"0123456789abcdefABCDEF"},
}
