"""Collection of volumes, in two gated steps that can each be repeated.

::

    mark     look at all logs ─▶ swap into manifests: a watermark, or that the log is condemned
    sweep    a grace interval later, by the store's clock: look again ─▶ swap: collected, or swept
             ─▶ delete commits and checkpoints below, whole logs, and packs that nothing names

Why nothing that is needed can go:

1. **The manifest decides.** Nothing of a log is deleted before a swap of its manifest said so, of
   the very manifest that was read *before* children and tags were listed.
2. A branch puts its manifest, then reads its parent's (volume/branches.py). Had the sweep listed
   before that put, the mark, which is older than the listing, is what the branch reads: it
   withdraws. A tag is put, then the manifest is read and a condemnation taken back by a swap: it
   succeeds, and the sweep's swap fails; or the sweep's came first, and the tag is withdrawn.
3. A watermark that turns out to be above a branch point, or a condemned log that is held again, is
   taken back.
4. A pack is deleted if it is older than the grace, and if then no commit and no checkpoint of any
   log names it, of all that are in the store. Whoever uploads packs names them within half the
   grace, or left a note before (volume/notes.py): packs are listed, then notes, then commits, and
   what is younger than the oldest note is kept.

Crash at any point: what was to be deleted is below `collected`, or of a swept log, and the next
sweep deletes it. Two at once delete twice, which is deleting once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cordwood.base.errors import FormatError, InvalidInputError, NotFoundError
from cordwood.store.timekeeping import age_us
from cordwood.volume import paths
from cordwood.volume.checkpoints import announce
from cordwood.volume.forest import SECOND_US, Forest, Tree, survey
from cordwood.volume.format import Manifest, Watermark
from cordwood.volume.ids import is_id
from cordwood.volume.notes import kept_since_us
from cordwood.volume.remote import Remote, gather_some

KEEP_S = 7 * 24 * 3600.0
"""The history window, unless another is asked for."""
DELETES_AT_ONCE = 1_000

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much."""


@dataclass(slots=True)
class CollectReport:
    """What a collection did."""

    announced: dict[str, list[int]] = field(default_factory=dict)
    """Checkpoints that were found in the store, and whose makers died before they said so."""
    marked: dict[str, int] = field(default_factory=dict)
    """Logs that have a new watermark, and where."""
    condemned: list[str] = field(default_factory=list)
    """Logs that nothing holds."""
    pardoned: list[str] = field(default_factory=list)
    """Logs whose mark was taken back: something needs them."""
    collected: dict[str, int] = field(default_factory=dict)
    """Logs whose older versions were deleted, and up to where."""
    removed: list[str] = field(default_factory=list)
    """Logs that were deleted."""
    headless: list[str] = field(default_factory=list)
    """Logs that have objects and no manifest: they are left alone."""
    packs: int = 0
    """Packs that were deleted."""
    deleted: int = 0
    """Objects that were deleted, packs included."""
    due_s: float = 0.0
    """How long until all that is marked may be deleted."""
    skipped: str = ""
    """Why packs were left alone, if they were."""


Key = tuple[str, int, bool]
"""A log, an LSN, and whether its commit is meant, or its checkpoint."""


@dataclass(slots=True)
class Swept:
    """A sweep that has yet to delete packs."""

    report: CollectReport
    unnamed: set[str]
    """Packs that go, unless something names them."""
    keys: list[Key]
    """What may name them."""


class Collector:
    """Collects all volumes of a store. Holds no state: everything is in the store."""

    def __init__(
        self, remote: Remote, *, keep_s: float = KEEP_S, grace_s: float | None = None
    ) -> None:
        """No I/O.

        Args:
            remote: the store.
            keep_s: how far back every version is kept.
            grace_s: wait longer than the volumes' own grace; never shorter.

        Raises:
            InvalidInputError: a time is negative or not a number.
        """
        if not 0 <= keep_s < 1e12 or (grace_s is not None and not 0 <= grace_s < 1e9):
            raise InvalidInputError(
                f"keep {keep_s!r} s, a grace of {grace_s!r} s", hint="give seconds, from 0 up"
            )
        self._remote = remote
        self._keep_s = keep_s
        self._grace_s = grace_s or 0.0

    async def collect(self, progress: Progress | None = None) -> CollectReport:
        """Sweep what is due, then mark what can go."""
        return await self.mark_after(await self.sweep(progress))

    async def mark_after(self, report: CollectReport) -> CollectReport:
        """Mark what can go, and say so in the report of a sweep."""
        marked = await self.mark()
        report.marked, report.condemned = marked.marked, marked.condemned
        report.announced = marked.announced
        report.due_s = max(report.due_s, marked.due_s)
        return report

    async def mark(self) -> CollectReport:
        """Write down what may go, in the manifests. Deletes nothing.

        A log whose manifest turns out to lack a checkpoint gets that first, and is marked the next
        time.
        """
        report = CollectReport()
        now_us = await self._remote.now_us()
        forest = await survey(self._remote)
        for log, tree in forest.trees.items():
            if tree.seen is None or tree.manifest.swept:
                continue
            if await self._announce(log, tree, now_us, report):
                continue
            changed = self._marked(forest, log, now_us)
            if changed is None or await self._remote.swap_once(tree.seen, changed) is None:
                continue
            if changed.condemned_us != tree.manifest.condemned_us:
                report.condemned.append(log)
            elif changed.watermark is not None:
                report.marked[log] = changed.watermark.lsn
            report.due_s = max(report.due_s, self._grace_of(changed))
        return report

    async def _announce(self, log: str, tree: Tree, now_us: int, report: CollectReport) -> bool:
        """Add checkpoints that the manifest lacks; whether there were any."""
        if not tree.checkpoints.keys() - {*tree.manifest.checkpoints}:
            return False
        try:
            added = await announce(self._remote, tree.manifest, tree.checkpoints, now_us)
        except (FormatError, NotFoundError):  # a damaged one; or the log is gone by now
            return False
        if added:
            report.announced[log] = [fetched.commit.lsn for fetched in added]
        return bool(added)

    async def sweep(self, progress: Progress | None = None) -> CollectReport:
        """Delete what was marked a grace interval ago, and what nothing names."""
        swept = await self.begin_sweep()
        try:
            named = await packs_named(self._remote, swept.keys, progress)
        except FormatError as error:
            swept.report.skipped = f"packs were left alone: {error}"
            return swept.report
        return await self.end_sweep(swept, named)

    async def begin_sweep(self) -> Swept:
        """Delete versions and logs; find packs that may go unless one of `keys` names them."""
        report = CollectReport()
        now_us = await self._remote.now_us()
        before = await survey(self._remote)
        # Once more: children and tags must be listed after the marks were read.
        forest = await survey(self._remote)
        for log, tree in before.trees.items():
            if tree.seen is None:
                # A push that came too late to a log that is gone; or somebody lost a manifest, and
                # may bring it back.
                report.headless.append(log)
                continue
            await self._sweep_log(log, tree, forest, now_us, report)
        return await self._old_packs(report, [*before.trees], now_us)

    async def end_sweep(self, swept: Swept, named: set[str]) -> CollectReport:
        """Delete the packs that none of the keys names."""
        unnamed = swept.unnamed - named
        swept.report.packs += len(unnamed)
        await self._delete([paths.pack(name) for name in sorted(unnamed)], swept.report)
        return swept.report

    # One log.

    def _marked(self, forest: Forest, log: str, now_us: int) -> Manifest | None:
        manifest = forest.trees[log].manifest
        if not forest.is_held(log):
            if manifest.condemned_us is not None:
                return None
            return msgspec.structs.replace(manifest, condemned_us=now_us)
        lsn = forest.watermark(log, now_us, self._keep_s)
        if not lsn or manifest.watermark is not None:
            return None
        return msgspec.structs.replace(manifest, watermark=Watermark(lsn, now_us))

    async def _sweep_log(
        self, log: str, tree: Tree, forest: Forest, now_us: int, report: CollectReport
    ) -> None:
        manifest = tree.manifest
        if manifest.swept:
            await self._remove(log, report)
            return
        if manifest.condemned_us is not None:
            due_s = self._due_s(manifest, manifest.condemned_us, now_us)
            if forest.is_held(log):
                await self._swap(log, tree, {"condemned_us": None}, report.pardoned)
            elif due_s <= 0:
                if await self._swap(log, tree, {"swept": True}, []):
                    await self._remove(log, report)
                return
            report.due_s = max(report.due_s, due_s)
            return
        if manifest.watermark is not None:
            await self._sweep_versions(log, tree, forest, now_us, report)
        if manifest.collected:
            await self._delete_below(log, manifest.collected, report)

    async def _sweep_versions(
        self, log: str, tree: Tree, forest: Forest, now_us: int, report: CollectReport
    ) -> None:
        manifest = tree.manifest
        assert manifest.watermark is not None
        lsn = manifest.watermark.lsn
        if any(begin < lsn for begin in forest.children(log)):
            await self._swap(log, tree, {"watermark": None}, report.pardoned)
            return
        due_s = self._due_s(manifest, manifest.watermark.marked_us, now_us)
        if due_s > 0:
            report.due_s = max(report.due_s, due_s)
            return
        kept = tuple(at for at in manifest.checkpoints if at >= lsn)
        changes = {"watermark": None, "collected": lsn, "checkpoints": kept}
        if await self._swap(log, tree, changes, []):
            await self._delete_below(log, lsn, report)
            report.collected[log] = lsn

    async def _swap(
        self, log: str, tree: Tree, changes: Mapping[str, object], done: list[str]
    ) -> bool:
        """Change the manifest that was seen; whether it still was that one."""
        assert tree.seen is not None
        changed = msgspec.structs.replace(tree.manifest, **changes)
        if await self._remote.swap_once(tree.seen, changed) is None:
            return False
        # Somebody else's may be seen before it is durable, and what follows is final.
        await self._remote.store.sync([paths.manifest(log)])
        done.append(log)
        return True

    async def _delete_below(self, log: str, lsn: int, report: CollectReport) -> None:
        """Commits and checkpoints that were collected."""
        keys: list[str] = []
        for prefix in (paths.commits(log), paths.checkpoints(log)):
            async for meta in self._remote.store.list(prefix):
                at = paths.lsn_of(meta.key.removeprefix(prefix))
                if at is not None and at >= lsn:
                    break
                if at is not None:
                    keys.append(meta.key)
        await self._delete(keys, report)

    async def _remove(self, log: str, report: CollectReport) -> None:
        """Everything of a log that was swept, its manifest last."""
        prefix = f"{paths.LOGS}{log}/"
        last = paths.manifest(log)
        keys = [meta.key async for meta in self._remote.store.list(prefix) if meta.key != last]
        await self._delete(keys, report)
        await self._delete([last], report)
        report.removed.append(log)

    def _grace_of(self, manifest: Manifest) -> float:
        return max(manifest.grace_s, self._grace_s)

    def _due_s(self, manifest: Manifest, marked_us: int, now_us: int) -> float:
        return self._grace_of(manifest) - age_us(marked_us, now_us) / SECOND_US

    # Packs.

    async def _old_packs(self, report: CollectReport, logs: list[str], now_us: int) -> Swept:
        """Packs that were old when this began, and everything that may name one of them now.

        The order is what keeps those of a push under way: packs, notes, commits. Packs that are old
        enough are of logs that were there when this began, and so are their notes.
        """
        old = [
            (name, meta.modified_us)
            async for meta in self._remote.store.list(paths.PACKS)
            if is_id(name := meta.key.removeprefix(paths.PACKS))
        ]
        since_us = await kept_since_us(self._remote, logs, now_us)
        if since_us is not None:
            old = [(name, put_us) for name, put_us in old if put_us < since_us]
        forest = await survey(self._remote)
        graces = [self._grace_of(t.manifest) for t in forest.trees.values() if t.seen is not None]
        grace_us = int(max([self._grace_s, *graces]) * SECOND_US)
        unnamed = {name for name, put_us in old if age_us(put_us, now_us) > grace_us}
        if not unnamed:
            return Swept(report, unnamed, [])
        keys = [(log, at, True) for log, tree in forest.trees.items() for at in tree.commits]
        keys += [(log, at, False) for log, tree in forest.trees.items() for at in tree.checkpoints]
        return Swept(report, unnamed, keys)

    async def _delete(self, keys: list[str], report: CollectReport) -> None:
        for start in range(0, len(keys), DELETES_AT_ONCE):
            await self._remote.store.delete(keys[start : start + DELETES_AT_ONCE])
        report.deleted += len(keys)


async def packs_named(
    remote: Remote, keys: Sequence[Key], progress: Progress | None = None
) -> set[str]:
    """Every pack that one of these commits and checkpoints names. A GET for each.

    Raises:
        FormatError: one is damaged: nobody knows what it names.
    """
    done = 0

    async def packs(key: Key) -> set[str]:
        nonlocal done
        log, lsn, is_commit = key
        get = remote.get_commit if is_commit else remote.get_checkpoint
        try:
            found = await get(log, lsn)
        except NotFoundError:
            return set()
        done += 1
        if progress is not None:
            progress(done, len(keys))
        return {pack.id for pack in found.commit.packs}

    return set().union(*await gather_some(packs, keys))
