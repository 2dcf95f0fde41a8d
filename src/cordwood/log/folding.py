"""Folding beside the hot path: nodes are made durable before a manifest needs them.

While a manifest is being swapped, the nodes that would make the next one smaller are put. They
depend only on their children, which are immutable, so it does not matter whether that swap
succeeds, or who swaps the manifest that names them. A node that is ready is offered to every
manifest until the log has passed it by; if it is late, the root is longer until then. Where the log
has streams, a node's filters (log/sieve.py) are put right behind it, before a manifest names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from cordwood.base.errors import AlreadyExistsError, CordwoodError, CorruptionError
from cordwood.log import tree
from cordwood.log.filters import StreamSet
from cordwood.log.format import STREAMS, Fragment, Manifest, Node
from cordwood.log.objects import LogObjects
from cordwood.log.sieve import FilterWriter, with_filters

Spawn = Callable[..., "asyncio.Task[None]"]
"""Starts a task that its writer owns: `spawn(function, *args)`."""

PASSES_MAX = 64
"""Manifests that go by, at most, before nodes are tried again after a store refused some."""


class Folder:
    """Writes nodes ahead of the manifests that will name them, each in a task of its own."""

    def __init__(self, objects: LogObjects, spawn: Spawn) -> None:
        """Nothing under way."""
        self._objects = objects
        self._spawn = spawn
        self._pending: dict[str, Node] = {}
        """Being written, by path."""
        self._ready: dict[str, Node] = {}
        """Durable, by path; named by no manifest that we know to be durable."""
        self._taken: set[str] = set()
        """Names that belong to nodes of another shape, or to something damaged."""
        self._failures = 0
        self._passes = 0
        """Manifests still to let go by before the next try."""
        self._filters = FilterWriter(objects)
        self._has_streams = False
        """Whether nodes are to have filters."""
        self.tasks: set[asyncio.Task[None]] = set()

    def learn(self, found: Iterable[tuple[Fragment, StreamSet | None]]) -> None:
        """Which streams these fragments hold."""
        self._filters.learn(found)

    def with_filters(self, manifest: Manifest) -> Manifest:
        """The manifest with what is known of its fragments' streams."""
        return with_filters(manifest, self._filters.sets_of(manifest))

    def apply(self, manifest: Manifest) -> Manifest:
        """The manifest with every node that is ready and fits."""
        there = {pointer.path for pointer in tree.roots(manifest)}
        awaited = there | self._pending.keys() | self._ready.keys()
        reached = manifest.next_offset
        for node in _children_first(self._ready):
            manifest = tree.substitute(manifest, node) or manifest
            # A swap may yet be lost, so a node is kept until what it stands for is gone from the
            # root. What lies ahead of the root has landed, and somebody may still name it.
            is_due = all(child.path in awaited for child in node.children)
            if not is_due and node.pointer().limit <= reached:
                del self._ready[node.path]
        return manifest

    def start(self, manifest: Manifest) -> None:
        """Begin to write the nodes that would make this manifest's successor smaller."""
        if self._passes:
            self._passes -= 1
            return
        self._has_streams = STREAMS in manifest.features
        if self._has_streams:
            self._filters.learn_root(manifest)
        for node in _children_first(self._pending):
            manifest = tree.substitute(manifest, node) or manifest
        nodes = tree.fold(manifest, manifest.writer, taken=self._taken)
        for node in nodes[: tree.FOLD_NODES_MAX - len(self._pending)]:
            if node.path not in self._pending and node.path not in self._ready:
                self._pending[node.path] = node
                if self._has_streams:
                    self._filters.expect(node)
                task = self._spawn(self._write, node)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _write(self, node: Node) -> None:
        try:
            filters = await self._filters.prepare(node) if self._has_streams else None
            await self._objects.write_node(node)
            await self._filters.put(node, filters)
        except (AlreadyExistsError, CorruptionError):
            self._taken.add(node.path)
        except CordwoodError:
            # The root stays longer for now, and is folded when the store is well again.
            self._failures += 1
            self._passes = min(2**self._failures, PASSES_MAX)
        else:
            self._failures = 0
            self._ready[node.path] = node
        finally:
            del self._pending[node.path]


def _children_first(nodes: dict[str, Node]) -> list[Node]:
    return sorted(nodes.values(), key=lambda node: (node.depth, node.pointer().start))
