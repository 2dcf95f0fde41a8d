"""All logs of a store at one look, and what may go: pure decisions over what was listed.

What holds a version of a log:

* the history window: whatever was the newest version at some moment of the last `keep_s`;
* a branch that begins there, as long as the branch itself needs what is below its own commits;
* the newest version always, as long as a tag or a branch holds the log.

A log that no tag names and no branch needs is held by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.volume import paths
from cordwood.volume.format import Manifest, Tag
from cordwood.volume.ids import is_id
from cordwood.volume.remote import Loaded, Remote, gather_some

SECOND_US = 1_000_000


@dataclass(slots=True)
class Tree:
    """One log, as a listing found it."""

    seen: Loaded | None = None
    """None: there are objects of it, and no manifest (any more)."""
    commits: dict[int, int] = field(default_factory=dict)
    """LSN to the time of its put, by the store's clock."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """The same of its checkpoints, announced or not."""

    @property
    def manifest(self) -> Manifest:
        """Its manifest, if it has one."""
        assert self.seen is not None
        return self.seen.manifest


@dataclass(slots=True)
class Forest:
    """The logs and tags of a store."""

    trees: dict[str, Tree]
    tags: dict[str, Tag]

    def children(self, log: str) -> list[int]:
        """Where the branches begin that need a log; a branch collected past that needs nothing."""
        return [
            tree.manifest.parent.lsn
            for tree in self.trees.values()
            if tree.seen is not None
            and tree.manifest.parent is not None
            and tree.manifest.parent.log == log
            and not tree.manifest.collected
        ]

    def is_held(self, log: str) -> bool:
        """Whether a tag names a log or a branch needs it."""
        return any(tag.log == log for tag in self.tags.values()) or bool(self.children(log))

    def watermark(self, log: str, now_us: int, keep_s: float) -> int:
        """The newest checkpoint below which nothing is held; 0 if there is none."""
        tree = self.trees[log]
        until_us = now_us - int(keep_s * SECOND_US)
        # The newest of these is what a reader saw when the window began.
        old = [lsn for lsn, modified_us in tree.commits.items() if modified_us <= until_us]
        floor = min([max(old, default=0), *self.children(log)])
        below = [lsn for lsn in tree.manifest.checkpoints if lsn <= floor]
        best = below[-1] if below else 0
        return best if best > tree.manifest.collected else 0


async def survey(remote: Remote) -> Forest:
    """Look at everything. A LIST of all logs and of all tags, a GET for each manifest and tag."""
    trees: dict[str, Tree] = {}
    async for meta in remote.store.list(paths.LOGS):
        log, _, rest = meta.key.removeprefix(paths.LOGS).partition("/")
        if not is_id(log):
            continue
        tree = trees.setdefault(log, Tree())
        kind, _, name = rest.partition("/")
        lsn = paths.lsn_of(name)
        if lsn is not None and kind == "commits":
            tree.commits[lsn] = meta.modified_us
        elif lsn is not None and kind == "checkpoints":
            tree.checkpoints[lsn] = meta.modified_us
    manifests = await gather_some(remote.load_if_there, trees)
    for tree, seen in zip(trees.values(), manifests, strict=True):
        tree.seen = seen
    return Forest(trees, await remote.list_tags())
