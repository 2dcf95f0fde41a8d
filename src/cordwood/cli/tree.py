"""A picture of a manifest tree, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.tree import Tree

from cordwood.base import portal
from cordwood.cli.output import size
from cordwood.log.format import Fragment, Manifest, NodePointer
from cordwood.log.log import Log as AsyncLog
from cordwood.log.objects import LogObjects
from cordwood.sync import Log

SHOWN_MAX = 12
"""Children drawn of one node; the rest is counted."""


def draw(log: Log, manifest: Manifest, depth: int) -> Tree:
    """The tree, opened `depth` levels below the root. One GET per node opened."""
    picture = Tree(
        f"[bold]MANIFEST[/]  {len(manifest.nodes)} nodes, {len(manifest.fragments)} fragments"
    )
    objects = AsyncLog(log.store, log.name).objects
    _grow(picture, (*manifest.nodes, *manifest.fragments), depth, objects)
    return picture


def _grow(
    picture: Tree, pointers: Sequence[NodePointer | Fragment], depth: int, objects: LogObjects
) -> None:
    hidden = len(pointers) - SHOWN_MAX
    for i, pointer in enumerate(pointers):
        if hidden > 1 and SHOWN_MAX // 2 <= i < SHOWN_MAX // 2 + hidden:
            if i == SHOWN_MAX // 2:
                picture.add(f"[dim]… {hidden:,} more")
            continue
        where = f"[{pointer.start:,}, {pointer.limit:,})  {size(pointer.num_bytes)}"
        mark = f"[dim]{pointer.setsum_hex[:8]}"
        if isinstance(pointer, Fragment):
            picture.add(f"fragment {pointer.seq_no}  {where}  {mark}")
            continue
        branch = picture.add(f"[cyan]node[/] depth {pointer.depth}  {where}  {mark}")
        if depth > 1:
            node = portal.current().run(objects.read_node(pointer))
            _grow(branch, node.children, depth - 1, objects)
