r"""Which files a `.gitignore` leaves out.

Honoured are the `.gitignore` files of the tree itself, each for its folder and what is below: `#`
comments, `!` that takes a file in again, `*`, `?`, `[a-z]`, `**` for any number of folders, a `/`
in front or within that ties a pattern to the folder of its file, a `/` at the end for folders
alone, `\` before a sign that is meant. Of several rules the last one counts, and files deeper in
the tree count more. Not looked at: files above the tree, `.git/info/exclude`, and what is set for
the user. As in Git, what lies in a folder that is left out cannot be taken in again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_GLOB = re.compile(rb"\\(.)|(\*\*/)|(\*+)|(\?)|\[([!^]?)(\]?[^\]]*)\]|(.)", re.DOTALL)
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
        for line in text.splitlines():
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
    glob = re.sub(rb"(?<!\\)[ \t]+$", b"", line)
    if not glob or glob.startswith(b"#"):
        return glob, None
    ignores = not glob.startswith(b"!")
    glob = glob if ignores else glob[1:]
    folders_only = glob.endswith(b"/")
    glob = glob.rstrip(b"/") if folders_only else glob
    by_path = b"/" in glob
    glob = glob.removeprefix(b"/")
    try:
        pattern = re.compile(_translated(glob), re.DOTALL)
    except re.error:
        return glob, None
    return glob, _Rule(pattern, by_path, folders_only, ignores)


def _translated(glob: bytes) -> bytes:
    """A pattern for paths as a regular expression."""
    if glob.endswith(b"/**"):
        return _translated(glob[:-3]) + b"/.+"
    parts: list[bytes] = []
    for found in _GLOB.finditer(glob):
        escaped, folders, stars, mark, negated, letters, other = found.groups()
        is_at_name = found.start() == 0 or glob[found.start() - 1 : found.start()] == b"/"
        if folders and is_at_name:
            parts.append(rb"(?:.*/)?")
        elif folders:
            parts.append(rb"[^/]*/")
        elif stars:
            parts.append(rb"[^/]*")
        elif mark:
            parts.append(rb"[^/]")
        elif letters:
            inner = letters.replace(b"\\", b"\\\\").replace(b"[", b"\\[")
            parts.append(b"(?!/)[" + (b"^" if negated else b"") + inner + b"]")
        else:
            parts.append(re.escape(escaped or other or b""))
    return b"(?:" + b"".join(parts) + b")"
