"""The manifest tree, as pure functions: append, fold, substitute, select.

The root of a log would grow with every fragment, and it is rewritten on every append. Folding keeps
it small: `FANOUT` neighbours of one level become one node of the next, an immutable object, so the
root is like a number written in base `FANOUT`::

    root  = [ d3 d3 | d2 d2 d2 | d1 | f f f f f f ]     nodes by falling depth, then fragments
              └── 8 x d2 ──┘ ...

At a million fragments six levels of at most seven nodes and twenty fragments are left in the root:
less than 16 kB.

Rules:

1. The newest fragment is never folded (LOG-8), so a reader at the tail reads no node.
2. A node has `FANOUT` children, all of one depth, and at least two: a lone child would have its
   parent's setsum and therefore its parent's name.
3. A node is written before a manifest names it. `fold` says which nodes would help; the writer puts
   them beside the hot path and `substitute`s them into a later manifest, when they are durable.
   Until then the longer root is just as true.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from cordwood.base.errors import InternalError
from cordwood.base.setsum import Setsum
from cordwood.log import paths
from cordwood.log.format import (
    CHAIN,
    FORK,
    GAPS,
    GRACE,
    GRACE_S_DEFAULT,
    PRODUCERS,
    SEAL,
    ZERO,
    Ancestor,
    Extension,
    Fragment,
    Manifest,
    Node,
    NodePointer,
    Position,
)
from cordwood.log.tag import WriterTag

FANOUT = 8
"""Children of a node. Smaller makes deeper trees, larger makes a larger root; see the header."""

APPENDED_MAX = 12
"""Fragments one manifest may add, so that the root stays small: what is left of the last fold (at
most `FANOUT`) and these are all the fragments it holds."""

FOLD_NODES_MAX = 16
"""Nodes one fold may ask for, so that taking over a huge flat root does not flood the store."""


def empty(tag: WriterTag, *, grace_s: int = GRACE_S_DEFAULT) -> Manifest:
    """The manifest of a log that holds nothing."""
    extension = (
        UNSET if grace_s == GRACE_S_DEFAULT else Extension(features=(GRACE,), grace_s=grace_s)
    )
    return Manifest(
        setsum_hex=ZERO,
        acc_bytes=0,
        writer=str(tag),
        nodes=(),
        fragments=(),
        cordwood=extension,
    )


def heir(
    manifest: Manifest,
    pointers: Sequence[NodePointer | Fragment],
    oldest: int,
    first_seq_no: int,
    tag: WriterTag,
    ancestors: tuple[Ancestor, ...] | UnsetType = UNSET,
) -> Manifest:
    """The first manifest of a log that begins with the end of another: a copy, or a fork.

    Offsets and slots go on from there. Nothing of it was collected, and it is not sealed. It knows
    who committed in bulk: what is in it already must not come in again.
    """
    # Its place in a chain is its own; whoever creates it gives it one.
    features = manifest.features - {CHAIN, FORK, SEAL}
    features |= {FORK} if ancestors is not UNSET else set()
    extension = Extension(
        features=tuple(sorted(features)),
        grace_s=manifest.grace_s if GRACE in features else UNSET,
        fork=ancestors,
        producers=manifest.producers if PRODUCERS in features else UNSET,
    )
    is_first = (oldest, first_seq_no) == (1, 1)
    return Manifest(
        setsum_hex=Setsum.sum([p.setsum_hex for p in pointers] or [ZERO]).hexdigest(),
        acc_bytes=sum(p.num_bytes for p in pointers),
        writer=str(tag),
        nodes=tuple(p for p in pointers if isinstance(p, NodePointer)),
        fragments=tuple(p for p in pointers if isinstance(p, Fragment)),
        initial_offset_position=UNSET if is_first else Position(oldest),
        initial_seq_no=UNSET if is_first else first_seq_no,
        cordwood=extension if features else UNSET,
    )


def with_features(manifest: Manifest, features: Iterable[str]) -> Manifest:
    """The manifest with these features declared as well."""
    wanted = manifest.features | set(features)
    if wanted == manifest.features:
        return manifest
    extension = Extension() if manifest.cordwood is UNSET else manifest.cordwood
    extension = msgspec.structs.replace(extension, features=tuple(sorted(wanted)))
    return msgspec.structs.replace(manifest, cordwood=extension)


def append(
    manifest: Manifest, fragments: Sequence[Fragment], tag: WriterTag, features: Iterable[str] = ()
) -> Manifest:
    """The manifest with these fragments behind its tail.

    A jump in sequence numbers declares the feature `gaps`; a jump in offsets is our own bug.
    """
    offset, seq_no = manifest.next_offset, manifest.next_seq_no
    wanted = set(features)
    for fragment in fragments:
        if fragment.start != offset or fragment.seq_no < seq_no:
            raise InternalError(
                f"append at {offset} (slot {seq_no}) of a fragment that starts at "
                f"{fragment.start} (slot {fragment.seq_no})"
            )
        if fragment.seq_no > seq_no and (manifest.fragments or fragment is not fragments[0]):
            wanted.add(GAPS)
        offset, seq_no = fragment.limit, fragment.seq_no + 1
    added = Setsum.sum([manifest.setsum_hex, *(f.setsum_hex for f in fragments)])
    return with_features(
        msgspec.structs.replace(
            manifest,
            setsum_hex=added.hexdigest(),
            acc_bytes=manifest.acc_bytes + sum(f.num_bytes for f in fragments),
            writer=str(tag),
            fragments=(*manifest.fragments, *fragments),
        ),
        wanted,
    )


def make_node(children: Sequence[NodePointer] | Sequence[Fragment], writer: str) -> Node:
    """A node over these neighbours.

    Its name is unique because the setsums of slots know their places. Those of uploads do not, so
    there the name does.
    """
    setsum_hex = Setsum.sum([c.setsum_hex for c in children]).hexdigest()
    nodes = tuple(c for c in children if isinstance(c, NodePointer))
    place = children[0].start, children[-1].limit
    is_placed = any(map(_is_placed, children))
    return Node(
        path=paths.placed_node(setsum_hex, *place) if is_placed else paths.node(setsum_hex),
        depth=1 + max((c.depth for c in nodes), default=0),
        setsum_hex=setsum_hex,
        writer=writer,
        nodes=nodes,
        fragments=tuple(c for c in children if isinstance(c, Fragment)),
    )


def _is_placed(child: NodePointer | Fragment) -> bool:
    if isinstance(child, Fragment):
        return paths.is_bulk(child.path)
    return child.path != paths.node(child.setsum_hex)


def fold(
    manifest: Manifest,
    writer: str,
    fanout: int = FANOUT,
    taken: Container[str] = (),
    most: int = FOLD_NODES_MAX,
) -> list[Node]:
    """Nodes that would make the root smaller, children before parents.

    Substituting all of them, in order, gives the folded root. Where a node's path is `taken` (by
    one of another shape, or by something damaged) it gets a child more, if there is one to spare.
    """
    made: list[Node] = []
    fragments = list(manifest.fragments)
    nodes = list(manifest.nodes)
    while len(made) < most:
        # No more of them than one node can have: there may be tens of thousands.
        node = _node_over(fragments[: min(len(fragments) - 1, 2 * fanout)], writer, fanout, taken)
        if node is None:
            break
        del fragments[: len(node.children)]
        made.append(node)
        nodes.append(node.pointer())
    begin = 0
    while len(made) < most and begin < len(nodes):
        end = begin
        while end < len(nodes) and nodes[end].depth == nodes[begin].depth:
            end += 1
        node = _node_over(nodes[begin:end], writer, fanout, taken)
        if node is None:
            begin = end
            continue
        nodes[begin : begin + len(node.children)] = [node.pointer()]
        made.append(node)
        begin = 0
    return made


def _node_over(
    neighbours: Sequence[NodePointer] | Sequence[Fragment],
    writer: str,
    fanout: int,
    taken: Container[str],
) -> Node | None:
    """The node over the first `fanout` neighbours, or a few more to have a name of its own."""
    for count in range(fanout, min(len(neighbours), 2 * fanout) + 1):
        node = make_node(neighbours[:count], writer)
        if node.path not in taken:
            return node
    return None


def substitute(manifest: Manifest, node: Node) -> Manifest | None:
    """The manifest with the node in place of its children, or None if it does not fit.

    It fits where its children, two or more, stand side by side in the root, and a fragment stays
    behind them. Children are compared whole: equal records in other slots add up to an equal sum.
    """
    pointers, children = roots(manifest), node.children
    begin = next((i for i, p in enumerate(pointers) if p == children[0]), len(pointers))
    end = begin + len(children)
    if len(children) < 2 or end >= len(pointers) or pointers[begin:end] != children:
        return None
    if begin > len(manifest.nodes):
        # Fragments would be left in front of a node.
        return None
    nodes, fragments = manifest.nodes, manifest.fragments
    return msgspec.structs.replace(
        manifest,
        nodes=(*nodes[:begin], node.pointer(), *nodes[end:]),
        fragments=fragments[max(0, end - len(nodes)) :],
    )


def overlapping(
    pointers: Iterable[NodePointer | Fragment], start: int, limit: int
) -> list[NodePointer | Fragment]:
    """Those that hold any offset of `[start, limit)`."""
    return [p for p in pointers if max(start, p.start) < min(limit, p.limit)]


def roots(manifest: Manifest) -> tuple[NodePointer | Fragment, ...]:
    """Every pointer of the root, oldest first."""
    return (*manifest.nodes, *manifest.fragments)
