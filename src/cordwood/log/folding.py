"""Folding beside the hot path: nodes are made durable before a manifest needs them.

While a manifest is being swapped, the nodes that would make the next one smaller are put. They depend
only on their children, which are immutable, so it does not matter whether that swap succeeds. The
next manifest takes them; if they are late, a later one does, and the root is longer until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cordwood.base.errors import CordwoodError
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
        self.task: asyncio.Task[None] | None = None

    def apply(self, manifest: Manifest) -> Manifest:
        """The manifest with every node that is ready and fits."""
        for node in self._ready:
            manifest = tree.substitute(manifest, node.pointer()) or manifest
        self._ready = []
        return manifest

    def start(self, manifest: Manifest) -> None:
        """Begin to write the nodes that would make this manifest's successor smaller."""
        if self.task is None and (nodes := tree.fold(manifest, manifest.writer)):
            self.task = self._spawn(self._write, nodes)

    def forget(self) -> None:
        """What is ready was meant for another root."""
        self._ready = []

    async def _write(self, nodes: list[Node]) -> None:
        writes: list[Coroutine[Any, Any, Node]] = [self._objects.write_node(n) for n in nodes]
        try:
            self._ready = list(await asyncio.gather(*writes))
        except CordwoodError:
            # The root stays longer for now; the next manifest tries again.
            self._ready = []
        finally:
            self.task = None
