"""A picture of a volume's commits and those of its branches, for people.

::

    ● 9  exp  2 minutes ago  try it  3 pages
    │ ● 9  app  1 minute ago  ...

Each log has a column, parents left of their branches; a branch's column joins its parent's below
the branch's first commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.volume.graph import Graph
from cordwood.volume.versions import Version


def drawn(graph: Graph) -> Iterator[tuple[str, Version | None]]:
    """Rows from the top: the picture, and the commit that is to be told of beside it, if any."""
    columns = {line.log: number for number, line in enumerate(_with_commits(graph))}
    begins = {line.log: line.parent for line in graph.lines}
    left: dict[str, int] = {}
    for commit in graph.commits:
        left[commit.log] = left.get(commit.log, 0) + 1
    joining: dict[tuple[str, int], list[str]] = {}
    """Branches whose commits were all drawn, by where they begin."""
    is_open: set[str] = set()
    for commit in graph.commits:
        place = commit.log, commit.lsn
        if joining.get(place):
            is_open.add(commit.log)
            yield _join(columns, is_open, commit.log, joining.pop(place)), None
        is_open.add(commit.log)
        yield _row(columns, is_open, commit.log), commit
        left[commit.log] -= 1
        if not left[commit.log] and not graph.hidden:
            begin = begins[commit.log]
            if begin is None or begin[0] not in columns:
                is_open.discard(commit.log)
            else:
                joining.setdefault(begin, []).append(commit.log)


def _with_commits(graph: Graph) -> list:  # type: ignore[type-arg]
    drawn_logs = {commit.log for commit in graph.commits}
    return [line for line in graph.lines if line.log in drawn_logs]


def _row(columns: dict[str, int], is_open: set[str], log: str) -> str:
    """A commit in its column, and the lines that go past it."""
    signs = [" "] * len(columns)
    for each in is_open:
        signs[columns[each]] = "│"
    signs[columns[log]] = "●"
    return " ".join(signs).rstrip()


def _join(columns: dict[str, int], is_open: set[str], log: str, branches: list[str]) -> str:
    """The columns of branches, brought to that of the commit they begin at; they end here."""
    signs = [" "] * (2 * len(columns))
    for each in is_open:
        signs[2 * columns[each]] = "│"
    start, ends = 2 * columns[log], sorted(2 * columns[branch] for branch in branches)
    for at in range(start, ends[-1]):
        signs[at] = "┼" if signs[at] == "│" else "─"
    for end in ends[:-1]:
        signs[end] = "┴"
    signs[start], signs[ends[-1]] = "├", "╯"
    is_open.difference_update(branches)
    return "".join(signs).rstrip()
