"""The volume, blocking: what is at hand is read here, the rest on the background loop."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from cordwood.base import portal
from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.pipeline import volumes as async_tending
from cordwood.pipeline.engine import Engine, Progress
from cordwood.pipeline.volumes import Action, Tended
from cordwood.store.api import Buffer
from cordwood.store.url import Store
from cordwood.volume import volume as async_volume
from cordwood.volume.cache import Progress as Fetching
from cordwood.volume.checkpoints import Made
from cordwood.volume.checkpoints import Progress as Checkpointing
from cordwood.volume.collect import KEEP_S, CollectReport
from cordwood.volume.collect import Progress as Collecting
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.format import GRACE_S
from cordwood.volume.moments import Moment
from cordwood.volume.operations import VolumeStatus
from cordwood.volume.pull import Moved
from cordwood.volume.push import Progress as Pushing
from cordwood.volume.transaction import Draft
from cordwood.volume.versions import Version
from cordwood.volume.volume import PAGE_SIZE

T = TypeVar("T")


class Volume:
    """Pages with versions. See `cordwood.Volume`."""

    def __init__(
        self,
        store: Store | str,
        name: str,
        *,
        directory: str | os.PathLike[str],
        durable_cache: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        entropy: Entropy = SYSTEM_ENTROPY,
    ) -> None:
        """Name a volume; no I/O."""
        self._portal = portal.current()
        self._volume = async_volume.Volume(
            store,
            name,
            directory=directory,
            durable_cache=durable_cache,
            clock=clock,
            entropy=entropy,
        )
        self.store = self._volume.store
        self.name = self._volume.name
        self.directory = self._volume.directory

    def create(
        self, page_size: int = PAGE_SIZE, *, grace_s: float = GRACE_S, exist_ok: bool = False
    ) -> None:
        """Make the volume, without pages."""
        self._run(self._volume.create(page_size, grace_s=grace_s, exist_ok=exist_ok))

    def desk(self) -> Desk:
        """The volume, open; the first call opens it."""
        return self._run(self._volume.desk())

    def close(self) -> None:
        """Close the files; the next call opens them again."""
        self._run(self._volume.close())

    def __enter__(self) -> Self:
        """Open it."""
        self.desk()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def snapshot(self, at: Moment | None = None) -> VolumeSnapshot:
        """What is there now, local commits and all; or a published version by LSN or time."""
        return VolumeSnapshot(self._run(self._volume.snapshot(at)).sight, self._portal)

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """A transaction: leaving the block commits it locally, an error in it rolls it back."""
        draft = self.draft()
        try:
            yield Transaction(draft, self._portal)
            if draft.is_open:
                draft.commit()
        finally:
            draft.rollback()

    def draft(self) -> Draft:
        """The right to write, when the one before is done: what `begin` holds."""
        return self._run(self._volume.draft())

    def push(self, message: str = "", progress: Pushing | None = None) -> int | None:
        """Publish what is locally committed as one version; its LSN, None if there is nothing."""
        return self._run(self._volume.push(message, progress))

    def pull(self) -> Moved:
        """Let the newest published version be what is seen here."""
        return self._run(self._volume.pull())

    def fetch(self) -> Moved:
        """Learn what is new in the store, and change nothing that is seen."""
        return self._run(self._volume.fetch())

    def reset(self) -> Moved:
        """Take theirs: the newest published version; local commits not pushed are gone."""
        return self._run(self._volume.reset())

    def rebase(self) -> Moved:
        """Put local commits on top of what others published."""
        return self._run(self._volume.rebase())

    def follow(self) -> bool:
        """Go where the name points now, if its tag was moved; whether it was."""
        return self._run(self._volume.follow())

    def hydrate(self, at: Moment | None = None, progress: Fetching | None = None) -> int:
        """Bring every page of a version to this machine; how many bytes were fetched."""
        return self._run(self._volume.hydrate(at, progress))

    def status(self, *, offline: bool = False) -> VolumeStatus:
        """How it stands: ahead, behind, diverged, cached."""
        return self._run(self._volume.status(offline=offline))

    def log(self, limit: int | None = None) -> Sequence[Version]:
        """The published versions that are known here, the newest first."""
        return self._run(self._volume.log(limit))

    def diff(self, before: Moment, after: Moment | None = None) -> Sequence[int]:
        """The pages that differ between two published versions."""
        return self._run(self._volume.diff(before, after))

    def branch(
        self, name: str, at: Moment | None = None, *, unpushed: bool = False, message: str = ""
    ) -> Volume:
        """A branch, from what is published here or from any version; no page is copied."""
        self._run(self._volume.branch(name, at, unpushed=unpushed, message=message))
        return self.named(name)

    def tag(self, name: str, *, force: bool = False, instead_of: str | None = None) -> None:
        """Give the volume another name in the store."""
        self._run(self._volume.tag(name, force=force, instead_of=instead_of))

    def tags(self) -> dict[str, str]:
        """All names in the store, and the log that each means."""
        return self._run(self._volume.tags())

    def delete(self) -> None:
        """Take the name away; a collection removes the log once nothing needs it."""
        self._run(self._volume.delete())

    def restore(self, at: Moment) -> int:
        """Make what is seen here an older version, by a local commit; how many pages changed."""
        return self._run(self._volume.restore(at))

    def checkpoint(self, at: Moment | None = None, progress: Checkpointing | None = None) -> Made:
        """Name every page of a published version in one document, so that reads stop there."""
        return self._run(self._volume.checkpoint(at, progress))

    def discover(self) -> Sequence[int]:
        """Add checkpoints that were made, and whose makers died before they said so."""
        return self._run(self._volume.discover())

    def collect(
        self,
        *,
        keep_s: float = KEEP_S,
        grace_s: float | None = None,
        progress: Collecting | None = None,
    ) -> CollectReport:
        """Remove old versions and what nothing needs, of all volumes of the store."""
        return self._run(self._volume.collect(keep_s=keep_s, grace_s=grace_s, progress=progress))

    def named(self, name: str) -> Volume:
        """Another volume of the same store, in the same directory. No I/O."""
        same = self._volume
        return Volume(
            same.store,
            name,
            directory=same.directory,
            durable_cache=same.durable_cache,
            clock=same.clock,
            entropy=same.entropy,
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            portal.check_same(self._portal, f"volume {self.name!r}")
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)


class VolumeSnapshot:
    """A version that stays as it is until it is closed. See `cordwood.VolumeSnapshot`."""

    def __init__(self, sight: Sight, home: portal.Portal) -> None:
        """Made by `Volume.snapshot`."""
        self._sight = sight
        self._portal = home

    @property
    def sight(self) -> Sight:
        """What is read through."""
        return self._sight

    @property
    def lsn(self) -> int:
        """The published version that it is, or that local commits of it build upon."""
        return self._sight.lsn

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return self._sight.num_pages

    def read(self, page: int) -> bytes:
        """A page; zeros behind the end, or where nothing was written."""
        found = self._sight.peek(page)
        if found is None:
            found = portal.check_same(self._portal, "the snapshot").run(self._sight.read(page))
        return bytes(found)

    def close(self) -> None:
        """Let go what it held; twice is no error."""
        self._sight.close()

    def __enter__(self) -> Self:
        """It is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self._sight.close()


class Transaction:
    """Pages written and cut off, seen by nobody else before they are committed."""

    def __init__(self, draft: Draft, home: portal.Portal) -> None:
        """Made by `Volume.begin`."""
        self._draft = draft
        self._portal = home

    @property
    def num_pages(self) -> int:
        """How many pages the volume will have."""
        return self._draft.num_pages

    def write(self, page: int, data: Buffer) -> None:
        """Let a page have these bytes; behind the end the volume grows."""
        self._draft.write(page, data)

    def truncate(self, num_pages: int) -> None:
        """Let the volume have so many pages; what is behind is gone, new ones are zeros."""
        self._draft.truncate(num_pages)

    def read(self, page: int) -> bytes:
        """A page as the transaction sees it."""
        found = self._draft.peek(page)
        if found is None:
            found = portal.check_same(self._portal, "the transaction").run(self._draft.read(page))
        return bytes(found)

    def rollback(self) -> None:
        """Forget everything; the block may go on, and commits nothing."""
        self._draft.rollback()


def tend_volumes(
    store: Store | str,
    action: Action,
    volumes: Sequence[str] = (),
    *,
    directory: str | os.PathLike[str] | None = None,
    keep_s: float = KEEP_S,
    grace_s: float | None = None,
    engine: str | Engine = "local",
    progress: Progress | None = None,
) -> list[Tended]:
    """Make checkpoints of volumes, bring their pages here, or collect all of a store."""
    work = async_tending.tend_volumes(
        store,
        action,
        volumes,
        directory=directory,
        keep_s=keep_s,
        grace_s=grace_s,
        engine=engine,
        progress=progress,
    )
    return portal.current().run(work)
