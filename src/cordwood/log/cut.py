"""Cutting a tree: everything before an offset goes, and what straddles it is made anew.

::

    root   [        d3        ][ d2 ] f f          cut here: |
             [ d2 ][ d2 ][ d2 ]                        ^
                   [ d1 ][ d1 ][ d1 ]                  |
                          f f f f f f      ◀───────────┘ rounded down to a fragment

    dropped: whole subtrees to the left.   made: one smaller node per level, along one path.

Only that path is read, and it is written again with fewer children: a few objects for each level,
however large the log and the cut.

A node keeps at least two children (its name is the sum of them: a lone child would have the same).
So where one node would be left of several, it takes its parent's place; and where one fragment
would be left in a node, the one before it stays as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cordwood.base.errors import AlreadyExistsError, CorruptionError, InvalidInputError
from cordwood.base.setsum import Setsum
from cordwood.log import tree
from cordwood.log.format import STREAMS, ZERO, Fragment, Manifest, Node, NodePointer
from cordwood.log.holds import collected
from cordwood.log.objects import LogObjects
from cordwood.log.sieve import FilterWriter

Pointer = NodePointer | Fragment

NODES_AT_ONCE = 16


@dataclass(slots=True)
class Cut:
    """A tree without its oldest part."""

    first_to_keep: int
    first_seq_no: int
    """The slot of the first fragment that stays; the next free one if none does."""
    kept: tuple[Pointer, ...]
    """The root afterwards."""
    dropped: list[Pointer] = field(default_factory=list)
    """Subtrees that go whole, oldest first."""
    replaced: list[NodePointer] = field(default_factory=list)
    """Nodes on the path, of which a part stays."""
    made: list[Node] = field(default_factory=list)
    """What takes their place, children first."""

    @property
    def node_for_root(self) -> NodePointer | None:
        """What stands in the root in the place of a node that was cut."""
        return self.kept[0] if self.replaced and isinstance(self.kept[0], NodePointer) else None

    @property
    def discarded(self) -> Setsum:
        """The sum of what goes."""
        return Setsum.sum([pointer.setsum_hex for pointer in self.dropped])

    @property
    def setsum_hex(self) -> str:
        """The sum of what stays."""
        return Setsum.sum([pointer.setsum_hex for pointer in self.kept] or [ZERO]).hexdigest()


async def plan_cut(
    objects: LogObjects,
    manifest: Manifest,
    offset: int,
    writer: str,
    max_fragments: int | None = None,
) -> Cut | None:
    """How to cut a log so that `offset` and everything after it stays; None if nothing would go.

    With `max_fragments` about so many go at most: a node counts as full, and one may be added so
    that none is left alone. Reads one node per level.
    """
    cut = Cut(0, 0, ())
    budget = max_fragments if max_fragments is not None else 2**63
    cut.kept = tuple(await _keep(objects, tree.roots(manifest), offset, writer, cut, budget))
    if not cut.dropped:
        return None
    cut.first_to_keep = cut.dropped[-1].limit
    cut.first_seq_no = manifest.next_seq_no
    if cut.kept:
        cut.first_seq_no = (await _first_fragment(objects, cut)).seq_no
    return cut


async def make_cut(
    objects: LogObjects,
    manifest: Manifest,
    offset: int,
    writer: str,
    max_fragments: int | None = None,
    into: LogObjects | None = None,
) -> Cut | None:
    """`plan_cut`, with what it makes written: into the log itself, or into another one."""
    target = objects if into is None else into
    sieve = FilterWriter(objects, into)
    budget = max_fragments
    while True:
        cut = await plan_cut(objects, manifest, offset, writer, budget)
        if cut is None:
            return None
        num_slots = cut.first_seq_no - manifest.first_seq_no
        if max_fragments and budget and budget > 1 and num_slots > 2 * max_fragments:
            # Nodes that another program made hold more than ours would.
            budget //= 2
            continue
        try:
            for node in cut.made:
                filters = await sieve.prepare(node) if STREAMS in manifest.features else None
                await target.write_node(node)
                await sieve.put(node, filters)
        except (AlreadyExistsError, CorruptionError):
            # A node of another shape, or something damaged, has the name: keep a fragment more.
            offset = cut.dropped[-1].start
        else:
            return cut


def first_wanted(log: str, manifest: Manifest, start: int | None) -> int:
    """The offset from which a fork or a copy begins.

    Raises:
        CollectedError: `start` has been collected.
        InvalidInputError: it is no offset, or lies behind the end.
    """
    oldest, limit = manifest.oldest_offset, manifest.next_offset
    if start is None:
        return oldest
    if type(start) is not int or not 0 <= start <= limit:
        raise InvalidInputError(
            f"{start!r} is no offset of log {log!r}, which ends at {limit}",
            hint=f"start at an offset from {oldest} to {limit}",
        )
    if start == 0 and oldest == 1:
        # As for a reader: before the first record of a log that starts at 1.
        return oldest
    if start < oldest:
        raise collected(log, start, oldest)
    return start


async def cut_for(
    objects: LogObjects, manifest: Manifest, start: int | None, into: LogObjects, writer: str
) -> Cut:
    """What another log holds that begins here, at `start` rounded down to a fragment.

    The nodes that it needs and this log does not have are written into it.
    """
    wanted = first_wanted(objects.name, manifest, start)
    whole = Cut(manifest.oldest_offset, manifest.first_seq_no, tree.roots(manifest))
    return await make_cut(objects, manifest, wanted, writer, into=into) or whole


async def _keep(
    objects: LogObjects,
    pointers: Sequence[Pointer],
    offset: int,
    writer: str,
    cut: Cut,
    budget: int,
) -> list[Pointer]:
    """What stays of neighbours; what goes is noted in `cut`."""
    for i, pointer in enumerate(pointers):
        if pointer.limit <= offset and _size(pointer) <= budget:
            cut.dropped.append(pointer)
            budget -= _size(pointer)
            continue
        rest = list(pointers[i:])
        if isinstance(pointer, Fragment) or pointer.start >= offset or budget <= 0:
            return rest
        before = len(cut.dropped)
        node = await objects.read_node(pointer)
        below = await _keep(objects, node.children, offset, writer, cut, budget)
        if len(below) == 1 and isinstance(below[0], Fragment) and len(cut.dropped) > before:
            if below[0].limit <= offset:
                # Only the budget kept it. It goes as well, or the next cut would stand here again.
                below = []
            else:
                below.insert(0, cut.dropped.pop())
        if not below:
            # It had less in it than it might have: it goes whole.
            cut.dropped[before:] = [pointer]
            budget -= _size(pointer)
            continue
        if len(cut.dropped) == before:
            return rest
        cut.replaced.append(pointer)
        if len(below) == 1:
            return [below[0], *rest[1:]]
        made = tree.make_node(_neighbours(below), writer)
        cut.made.append(made)
        return [made.pointer(), *rest[1:]]
    return []


def _size(pointer: Pointer) -> int:
    """How many fragments there are below, if it is full."""
    return tree.FANOUT**pointer.depth if isinstance(pointer, NodePointer) else 1


def _neighbours(pointers: list[Pointer]) -> list[NodePointer] | list[Fragment]:
    nodes = [p for p in pointers if isinstance(p, NodePointer)]
    return nodes or [p for p in pointers if isinstance(p, Fragment)]


async def _first_fragment(objects: LogObjects, cut: Cut) -> Fragment:
    made = {node.path: node for node in cut.made}
    pointer = cut.kept[0]
    while isinstance(pointer, NodePointer):
        node = made.get(pointer.path) or await objects.read_node(pointer)
        pointer = node.children[0]
    return pointer


async def nodes_below(objects: LogObjects, pointers: Sequence[Pointer]) -> list[NodePointer]:
    """Every node of these subtrees. Reads those that have nodes below them: one in `FANOUT`."""
    found: list[NodePointer] = []
    level = [p for p in pointers if isinstance(p, NodePointer)]
    while level:
        found += level
        inner = [p for p in level if p.depth > 1]
        level = []
        for i in range(0, len(inner), NODES_AT_ONCE):
            some = inner[i : i + NODES_AT_ONCE]
            for node in await asyncio.gather(*(objects.read_node(p) for p in some)):
                level += node.nodes
    return found


async def fragments_below(objects: LogObjects, pointers: Sequence[Pointer]) -> list[Fragment]:
    """Every fragment of these subtrees. Reads all of their nodes."""
    found = [p for p in pointers if isinstance(p, Fragment)]
    level = [p for p in pointers if isinstance(p, NodePointer)]
    while level:
        some, level = level[:NODES_AT_ONCE], level[NODES_AT_ONCE:]
        for node in await asyncio.gather(*(objects.read_node(p) for p in some)):
            found += node.fragments
            level += node.nodes
    return found
