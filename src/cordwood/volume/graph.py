"""The commits of a volume and of all its branches: a tree, from the newest down.

A log is one line of commits; a branch is another log, which begins at a commit of its parent. All
that come from one first log are a family.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from cordwood.base.errors import NotFoundError
from cordwood.volume import paths
from cordwood.volume.forest import Forest, survey
from cordwood.volume.remote import Remote, gather_some
from cordwood.volume.versions import Version


@dataclass(frozen=True, slots=True)
class Line:
    """A log of the family."""

    log: str
    parent: tuple[str, int] | None
    """Where it begins: a log and an LSN; None for the first, or if that was collected."""
    head: int
    """Its newest LSN, or where it begins if it has none of its own."""
    names: tuple[str, ...]
    """The tags that mean it."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A family of logs."""

    lines: tuple[Line, ...]
    """Parents before their branches."""
    commits: tuple[Version, ...]
    """The newest commits of all, each before the one it follows."""
    hidden: int
    """How many older ones there are."""


async def read_graph(remote: Remote, name: str, limit: int) -> Graph:
    """The family of a volume with its newest commits.

    A LIST of all logs and tags, a GET for each manifest, tag, and commit that is shown.

    Raises:
        NotFoundError: there is no such volume.
    """
    forest = await survey(remote)
    if name not in forest.tags:
        raise NotFoundError(f"there is no volume {paths.check_name(name)!r}")
    lines = _family(forest, forest.tags[name].log)
    order = _ordered(forest, lines)
    shown = await gather_some(lambda one: remote.get_commit(*one), order[:limit])
    firsts = {line.log: line.parent for line in lines}
    commits = tuple(
        Version.of(commit, is_branch_point=_follows(firsts[commit.log], commit.lsn))
        for commit, _ in shown
    )
    return Graph(lines, commits, max(0, len(order) - limit))


def _follows(parent: tuple[str, int] | None, lsn: int) -> bool:
    return parent is not None and parent[1] == lsn - 1


def _family(forest: Forest, log: str) -> tuple[Line, ...]:
    """The logs that have a first log in common, parents before branches."""
    parents: dict[str, tuple[str, int] | None] = {}
    for each, tree in forest.trees.items():
        if tree.seen is None or tree.manifest.swept:
            continue
        parent = tree.manifest.parent
        is_there = parent is not None and parent.log in forest.trees
        parents[each] = (parent.log, parent.lsn) if parent is not None and is_there else None

    def line_up(each: str) -> list[str]:
        """A log and all it comes from, the first log first."""
        found = [each]
        while (above := parents.get(found[0])) is not None and above[0] not in found:
            found.insert(0, above[0])
        return found

    lineages = {each: line_up(each) for each in parents}
    root = lineages[log][0] if log in lineages else log
    family = sorted(
        (each for each in parents if lineages[each][0] == root), key=lambda each: lineages[each]
    )
    names: dict[str, list[str]] = {}
    for name, tag in sorted(forest.tags.items()):
        names.setdefault(tag.log, []).append(name)
    made = []
    for each in family:
        begins = parents[each]
        head = max(forest.trees[each].commits, default=begins[1] if begins else 0)
        made.append(Line(each, begins, head, tuple(names.get(each, ()))))
    return tuple(made)


def _ordered(forest: Forest, lines: tuple[Line, ...]) -> list[tuple[str, int]]:
    """All commits of some logs by time, the newest first, and each before the one it follows."""
    commits = {line.log: sorted(forest.trees[line.log].commits.items()) for line in lines}
    waiting: dict[tuple[str, int], int] = {}
    """How many branches of a commit are still to come."""
    for line in lines:
        if line.parent is not None and commits[line.log]:
            waiting[line.parent] = waiting.get(line.parent, 0) + 1
    ready: list[tuple[int, int, str]] = []

    def offer(log: str) -> None:
        """The newest of a log that is left, if all that follow it have been taken."""
        if commits[log] and not waiting.get((log, commits[log][-1][0])):
            lsn, time_us = commits[log][-1]
            heapq.heappush(ready, (-time_us, -lsn, log))

    for line in lines:
        offer(line.log)
    parents = {line.log: line.parent for line in lines}
    order: list[tuple[str, int]] = []
    while ready:
        _, lsn, log = heapq.heappop(ready)
        order.append((log, -lsn))
        commits[log].pop()
        if commits[log]:
            offer(log)
        elif (parent := parents[log]) is not None and parent in waiting:
            waiting[parent] -= 1
            if (
                not waiting[parent]
                and commits[parent[0]]
                and commits[parent[0]][-1][0] == parent[1]
            ):
                offer(parent[0])
    return order
