"""The local copy of what volumes are: manifests, commits, checkpoints, filters. And how it grows.

Files are below `{directory}/{log}/`, each replaced by a rename, so any number of processes may
write them at once: what they write is the same. Nothing here needs a sync. All of it can be deleted
and fetched again, and a file that a power cut tore does not match its hash and is fetched again.

A fetch, in steps:

1. The manifest of the log, as it is now; its newest commit, if no version was asked for: what
   `list(start_after=…)` gives behind the newest that is here.
2. The path of the version (volume/snapshot.py): the newest checkpoint at or below it ends the path,
   else it goes on in the parent; manifests are asked for on the way.
3. The checkpoint and the commits of the path that are not here, several at a time. Each must have
   the hash of the one before, so what is fetched is the history that the newest commit vouches for.
4. Filters of the ranges of 32 commits that are now complete.

Should a sweep take something away meanwhile, it begins again from 1, and finds another path or
that the version was collected.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import TypeVar

import msgspec

from cordwood.base.errors import (
    Code,
    CollectedError,
    ContendedError,
    CorruptionError,
    FormatError,
    NotFoundError,
)
from cordwood.journal.failures import told
from cordwood.store.disk import Disk
from cordwood.volume import paths
from cordwood.volume.filters import RANGE, Filter, make_filter, open_filter, range_start
from cordwood.volume.folders import replace_file
from cordwood.volume.format import (
    Commit,
    Manifest,
    Tag,
    decode_document,
    encode_document,
    open_commit,
)
from cordwood.volume.remote import Fetched, Remote, gather_some
from cordwood.volume.snapshot import Absent, Path, Snapshot, Span, path_of

COMMITS_MAX = 4_096
"""Decoded commits in memory; and as many filters."""
CHECKPOINTS_MAX = 8
"""Decoded checkpoints in memory: each may have a table of every page."""
TRIES_MAX = 8
"""Times a fetch begins again because a sweep took something away."""

K = TypeVar("K")
V = TypeVar("V")


class History:
    """What is known here of the logs of a store. Blocking, but for what fetches."""

    def __init__(self, remote: Remote, directory: str, disk: Disk | None = None) -> None:
        """No I/O."""
        self.remote = remote
        self.directory = directory
        self.disk = disk or Disk()
        self._manifests: dict[str, Manifest] = {}
        self.changes = 0
        """Grows when a manifest is another one: paths may be shorter then."""
        self._commits: OrderedDict[tuple[str, int], Commit] = OrderedDict()
        self._checkpoints: OrderedDict[tuple[str, int], Commit] = OrderedDict()
        self._filters: OrderedDict[tuple[str, int], Filter | None] = OrderedDict()

    # What is here.

    def folder(self, log: str) -> str:
        """Where the files of a log are."""
        return os.path.join(self.directory, log)

    def manifest(self, log: str) -> Manifest:
        """A log's manifest as it was when it was fetched last."""
        if log not in self._manifests:
            path = os.path.join(self.folder(log), "manifest")
            try:
                manifest = decode_document(Manifest, self._read(path), path)
            except (FormatError, FileNotFoundError) as error:
                raise Absent("manifest", log) from error
            self._manifests[log] = manifest
        return self._manifests[log]

    def commit(self, log: str, lsn: int) -> Commit:
        """A commit. See `Source.commit`."""
        commit = self._commits.get((log, lsn))
        if commit is None:
            commit = self._open("commit", log, lsn)
            _remember(self._commits, (log, lsn), commit, COMMITS_MAX)
        return commit

    def checkpoint(self, log: str, lsn: int) -> Commit:
        """A checkpoint. See `Source.checkpoint`."""
        checkpoint = self._checkpoints.get((log, lsn))
        if checkpoint is None:
            checkpoint = self._open("checkpoint", log, lsn)
            _remember(self._checkpoints, (log, lsn), checkpoint, CHECKPOINTS_MAX)
        return checkpoint

    def filter(self, log: str, start: int) -> Filter | None:
        """The filter of a range, if there is one. See `Source.filter`."""
        key = log, start
        if key not in self._filters:
            path = self._filter_path(log, start)
            try:
                found = open_filter(self._read(path), path)
            except (FormatError, FileNotFoundError):
                found = None
            is_right = found is None or (found.start, found.end) == (start, start + RANGE - 1)
            _remember(self._filters, key, found if is_right else None, COMMITS_MAX)
        return self._filters[key]

    def snapshot(self, log: str, lsn: int) -> Snapshot:
        """A version that was fetched before.

        Raises:
            Absent: something of it is not here.
            CollectedError: it is known to be gone.
        """
        return Snapshot(self, path_of(self.manifest, log, lsn))

    def remembered(self, log: str, lsn: int) -> Snapshot:
        """A version that may be gone from the store, from what is left of it here.

        Raises:
            Absent: its newest commit is not here.
        """

        def manifest_of(name: str) -> Manifest:
            kept = tuple(sorted(self._here("checkpoint", name)))
            changes = {"checkpoints": kept, "collected": 0, "watermark": None, "swept": False}
            return msgspec.structs.replace(self.manifest(name), **changes)

        return Snapshot(self, path_of(manifest_of, log, lsn))

    def tag(self, name: str) -> Tag | None:
        """What a name meant when it was looked up last."""
        path = os.path.join(self.directory, paths.tag(name))
        try:
            return decode_document(Tag, self._read(path), path)
        except (FormatError, FileNotFoundError):
            return None

    def newest_known(self, log: str) -> int:
        """The newest LSN of a log that is known here, whether its commit is or not."""
        manifest = self._manifests.get(log)
        base = manifest.first - 1 if manifest else 0
        return max(base, *self._here("commit", log), 0)

    def drop_tag(self, name: str) -> None:
        """Forget what a name meant."""
        with suppress(FileNotFoundError):
            self.disk.unlink(os.path.join(self.directory, paths.tag(name)))

    # Keeping.

    def keep(self, fetched: Fetched) -> None:
        """Write down a commit that is in the store, and its range's filter if that is complete."""
        commit, data = fetched
        self._keep(self._path("commit", commit.log, commit.lsn), data)
        _remember(self._commits, (commit.log, commit.lsn), commit, COMMITS_MAX)
        if commit.lsn % RANGE == 0:
            # Where a branch begins within the range, its first commits are another log's.
            self._make_filter(commit.log, range_start(commit.lsn))

    def keep_checkpoint(self, fetched: Fetched) -> None:
        """Write down a checkpoint that is in the store."""
        commit, data = fetched
        self._keep(self._path("checkpoint", commit.log, commit.lsn), data)
        _remember(self._checkpoints, (commit.log, commit.lsn), commit, CHECKPOINTS_MAX)

    def keep_manifest(self, manifest: Manifest) -> None:
        """Write down a manifest that is in the store."""
        self._keep(os.path.join(self.folder(manifest.log), "manifest"), encode_document(manifest))
        if self._manifests.get(manifest.log) != manifest:
            self._manifests[manifest.log] = manifest
            self.changes += 1

    def keep_tag(self, name: str, tag: Tag) -> None:
        """Write down what a name means, for when the store cannot be asked."""
        self._keep(os.path.join(self.directory, paths.tag(name)), encode_document(tag))

    # Fetching.

    async def refresh(self, log: str) -> Manifest:
        """A log's manifest as it is now. One GET."""
        manifest = (await self.remote.load(log)).manifest
        self.keep_manifest(manifest)
        return manifest

    async def head(self, log: str) -> int:
        """The newest LSN of a log in the store. One GET, one LIST for each thousand that are new.

        Raises:
            CorruptionError: a commit is missing in between.
        """
        manifest = await self.refresh(log)
        base = manifest.parent.lsn if manifest.parent else 0
        # The commit that collection went up to is kept, so a list from there has no gap.
        newest = max(base, manifest.collected - 1, *self._here("commit", log), 0)
        async for lsn, meta in self.remote.list_commits(log, newest):
            if lsn != newest + 1:
                now = (await self.remote.load(log)).manifest
                if newest + 1 < now.collected:
                    return await self.head(log)
                raise CorruptionError(
                    f"log {log}: commit {newest + 1} is missing, {lsn} is there",
                    where=meta.key,
                    hint="bring it back from a copy of the store",
                )
            newest = lsn
        return newest

    async def fetch(self, log: str, lsn: int | None = None) -> Snapshot:
        """Bring here what a version is made of, without its pages; the newest by default.

        A GET for each manifest, commit and checkpoint that is not here, several at a time.

        Raises:
            CollectedError: the version is gone.
            NotFoundError: there is no such log, or no such version yet.
            CorruptionError: the history does not hold together.
        """
        for _ in range(TRIES_MAX):
            wanted = await self.head(log) if lsn is None else lsn
            try:
                return await self._fetch_mending(log, wanted, is_sure=lsn is None)
            except _Vanished as gone:
                self._explain(gone, await self.refresh(gone.log))
        raise ContendedError(
            f"log {log}: it is collected faster than it can be fetched", hint="try again"
        )

    async def _fetch_mending(self, log: str, lsn: int, *, is_sure: bool) -> Snapshot:
        """A version; each file here that turns out to be damaged is fetched again.

        One that may not be there is looked for before what leads to it, which may be much.
        """
        fetched: set[tuple[str, int]] = set()
        while True:
            try:
                return await self._fetch(log, lsn, fetched, is_sure=is_sure)
            except _Vanished:
                raise
            except Absent as damaged:
                # From now on it is in memory as well, so this ends whatever the disk does.
                await self._bring(damaged.kind, damaged.log, damaged.lsn)
                fetched.add((damaged.log, damaged.lsn))

    @staticmethod
    def _explain(gone: _Vanished, manifest: Manifest) -> None:
        """Raise unless it was collected just now."""
        if gone.kind == "commit" and gone.lsn >= manifest.collected:
            raise NotFoundError(
                f"log {gone.log} has no LSN {gone.lsn}",
                hint="pull, or ask for a version that there is",
            ) from gone
        if gone.lsn in manifest.checkpoints:
            raise CorruptionError(
                f"checkpoint {gone.lsn} of log {gone.log} is missing",
                code=Code.MISSING_OBJECT,
                where=paths.checkpoint(gone.log, gone.lsn),
                hint="bring it back from a copy of the store",
            ) from gone

    async def fetch_absent(self, absent: Absent) -> None:
        """Bring here one thing that was not at hand."""
        if absent.kind == "manifest":
            await self.refresh(absent.log)
            return
        try:
            await self._bring(absent.kind, absent.log, absent.lsn)
        except _Vanished as gone:
            raise CollectedError(
                f"LSN {gone.lsn} of log {gone.log} is gone", hint="take a newer snapshot"
            ) from gone

    async def _fetch(
        self, log: str, lsn: int, fetched: set[tuple[str, int]], *, is_sure: bool
    ) -> Snapshot:
        """A version; what is brought here is added to `fetched`, and must hold together."""
        path = await self._path_of(log, lsn)
        newest = path.spans[0] if path.spans else None
        if newest is not None and newest.low <= newest.high and not is_sure:
            name, _, at = newest
            if at not in self._here("commit", name):
                await self._bring("commit", name, at)
                fetched.add((name, at))
        wanted: list[tuple[str, str, int]] = []
        if path.checkpoint is not None:
            name, at = path.checkpoint
            if at not in self._here("checkpoint", name):
                wanted.append(("checkpoint", name, at))
        for name, low, high in path.spans:
            here = self._here("commit", name)
            wanted += [("commit", name, at) for at in range(low, high + 1) if at not in here]
        await gather_some(lambda one: self._bring(*one), wanted)
        fetched |= {(name, at) for _, name, at in wanted}
        if fetched:
            self._check_chain(path, fetched)
        for span in path.spans:
            self._make_filters(span)
        return Snapshot(self, path)

    async def _path_of(self, log: str, lsn: int) -> Path:
        """The path by manifests as they are now."""
        fresh: dict[str, Manifest] = {}

        def manifest_of(name: str) -> Manifest:
            if name not in fresh:
                raise Absent("manifest", name)
            return fresh[name]

        while True:
            try:
                return path_of(manifest_of, log, lsn)
            except Absent as absent:
                fresh[absent.log] = await self.refresh(absent.log)

    async def _bring(self, kind: str, log: str, lsn: int) -> None:
        try:
            if kind == "commit":
                self.keep(await self.remote.get_commit(log, lsn))
            else:
                self.keep_checkpoint(await self.remote.get_checkpoint(log, lsn))
        except NotFoundError as error:
            raise _Vanished(kind, log, lsn) from error

    def _check_chain(self, path: Path, fetched: set[tuple[str, int]]) -> None:
        """Raise if a commit that was fetched does not follow the one before it."""
        parents = [self.manifest(span.log).parent for span in path.spans]
        roots = {(root.log, root.lsn): bytes.fromhex(root.hash) for root in parents if root}
        expected = b""
        name = ""
        ends = [(span.log, at) for span in path.spans for at in range(span.high, span.low - 1, -1)]
        if path.checkpoint is not None:
            ends.append(path.checkpoint)
        for place in ends:
            is_last = place == path.checkpoint
            if not expected and place in roots:
                expected, name = roots[place], "a branch"
            if place not in fetched and not expected and not is_last:
                continue
            commit = self.checkpoint(*place) if is_last else self.commit(*place)
            if expected and commit.commit_hash != expected:
                raise CorruptionError(
                    f"LSN {place[1]} of log {place[0]} is not the commit that {name} follows",
                    where=paths.commit(*place),
                    expected=expected.hex(),
                    got=commit.commit_hash.hex(),
                    hint="bring the store's objects back from a copy",
                )
            expected = commit.parent_hash if place in fetched else b""
            name = f"LSN {place[1]} of log {place[0]}"

    def _make_filters(self, span: Span) -> None:
        start = range_start(span.low + RANGE - 1)
        for first in range(start, span.high - RANGE + 2, RANGE):
            if self.filter(span.log, first) is None:
                self._make_filter(span.log, first)

    def _make_filter(self, log: str, start: int) -> None:
        """Write the filter of a range if all of it is here."""
        try:
            commits = [self.commit(log, start + i) for i in range(RANGE)]
        except Absent:
            return
        made = make_filter(commits)
        self._keep(self._filter_path(log, start), made.encode())
        _remember(self._filters, (log, start), made, COMMITS_MAX)

    # Files.

    def _here(self, kind: str, log: str) -> set[int]:
        """The LSNs of the files that are here; some may turn out to be damaged."""
        try:
            names = self.disk.scan(os.path.join(self.folder(log), f"{kind}s"))
        except FileNotFoundError:
            return set()
        return {lsn for name, _ in names if (lsn := paths.lsn_of(name)) is not None}

    def _path(self, kind: str, log: str, lsn: int) -> str:
        return os.path.join(self.folder(log), f"{kind}s", paths.lsn_text(lsn))

    def _filter_path(self, log: str, start: int) -> str:
        ends = f"{paths.lsn_text(start)}-{paths.lsn_text(start + RANGE - 1)}"
        return os.path.join(self.folder(log), "commit-filter", ends)

    def _open(self, kind: str, log: str, lsn: int) -> Commit:
        path = self._path(kind, log, lsn)
        try:
            commit = open_commit(self._read(path), path)
        except FileNotFoundError as error:
            raise Absent(kind, log, lsn) from error
        except FormatError as error:
            self._drop(path)
            raise Absent(kind, log, lsn) from error
        if (commit.log, commit.lsn) != (log, lsn):
            self._drop(path)
            raise Absent(kind, log, lsn)
        return commit

    def _drop(self, path: str) -> None:
        """Away with a damaged file: its bytes are in the store, there is nothing to be saved."""
        with suppress(OSError):
            self.disk.unlink(path)

    def _read(self, path: str) -> bytes:
        return bytes(self.disk.read(path)[1])

    def _keep(self, path: str, data: bytes) -> None:
        """Write a file under its name, whole or not at all."""
        with told("keep", path):
            replace_file(self.disk, path, data, self.remote.entropy)


class _Vanished(Absent):
    """It is not in the store either."""


def _remember(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value, and let the oldest go where there are too many."""
    memory[key] = value
    while len(memory) > most:
        with suppress(KeyError):
            memory.popitem(last=False)
