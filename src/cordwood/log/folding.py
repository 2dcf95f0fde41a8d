"""Folding beside the hot path: nodes are made durable before a manifest needs them.

While a manifest is being swapped, the nodes that would make the next one smaller are put. They
depend only on their children, which are immutable, so it does not matter whether that swap
succeeds. The next manifest takes them; if they are late, a later one does, and the root is longer
until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cordwood.base.errors import AlreadyExistsError, CordwoodError
from cordwood.log import tree
from cordwood.log.format import Manifest, Node
from cordwood.log.objects import LogObjects

Spawn = Callable[..., "asyncio.Task[None]"]
"""Starts a task that its writer owns: `spawn(function, *args)`."""


class Folder:
    """Writes nodes ahead of the manifests that will name them."""

    def __init__(self, objects: LogObjects, spawn: Spawn) -> None:
        """Nothing under way."""
        self._objects = objects
        self._spawn = spawn
        self._ready: list[Node] = []
        """Durable, and not yet named."""
        self._taken: set[str] = set()
        """Names that belong to nodes of another shape."""
        self.task: asyncio.Task[None] | None = None

    def apply(self, manifest: Manifest) -> Manifest:
        """The manifest with every node that is ready and fits."""
        for node in self._ready:
            manifest = tree.substitute(manifest, node.pointer()) or manifest
        self._ready = []
        return manifest

    def start(self, manifest: Manifest) -> None:
        """Begin to write the nodes that would make this manifest's successor smaller."""
        if self.task is None:
            nodes = tree.fold(manifest, manifest.writer, taken=self._taken)
            if nodes:
                self.task = self._spawn(self._write, nodes)

    def forget(self) -> None:
        """What is ready was meant for another root."""
        self._ready = []

    async def _write(self, nodes: list[Node]) -> None:
        writes = [self._objects.write_node(node) for node in nodes]
        results = await asyncio.gather(*writes, return_exceptions=True)
        self.task = None
        self._ready = []
        for node, result in zip(nodes, results, strict=True):
            if isinstance(result, AlreadyExistsError):
                self._taken.add(node.path)
            elif isinstance(result, BaseException) and not isinstance(result, CordwoodError):
                raise result
        # A parent needs its children. If one failed, the root stays longer for now, and the next
        # manifest tries again.
        if all(result is None for result in results):
            self._ready = nodes
