"""What a user holds: a volume by its name, on a store and in a directory.

Two states of what is written: *locally committed*, durable in the directory, when a transaction
ends; and *published*, a version that everybody can read, when it was pushed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from cordwood.base.clock import SYSTEM_CLOCK, SYSTEM_ENTROPY, Clock, Entropy
from cordwood.base.errors import (
    AlreadyExistsError,
    ContendedError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
)
from cordwood.store.api import Buffer
from cordwood.store.url import Store
from cordwood.volume import operations, pull, versions
from cordwood.volume.branches import create_volume
from cordwood.volume.cache import Progress as Fetching
from cordwood.volume.checkpoints import Made, discover, make_checkpoint
from cordwood.volume.checkpoints import Progress as Checkpointing
from cordwood.volume.collect import KEEP_S, Collector, CollectReport
from cordwood.volume.collect import Progress as Collecting
from cordwood.volume.desk import Desk, Sight, open_desk
from cordwood.volume.format import GRACE_S
from cordwood.volume.history import History
from cordwood.volume.moments import Moment
from cordwood.volume.operations import VolumeStatus
from cordwood.volume.paths import check_name
from cordwood.volume.pull import Moved
from cordwood.volume.push import Progress as Pushing
from cordwood.volume.push import push
from cordwood.volume.remote import Remote
from cordwood.volume.snapshot import Absent
from cordwood.volume.tags import delete_tag
from cordwood.volume.transaction import Draft, begin
from cordwood.volume.versions import Version

WRITE_WAIT_S = 5.0
"""So long a transaction waits for the one before it."""
_PAUSE_S = 0.002
PAGE_SIZE = 4096


class Volume:
    """Pages with versions. No I/O until something is asked; may be used with `async with`."""

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
        """Name a volume.

        Args:
            store: where versions are published.
            name: the volume's, or a branch's.
            directory: local state: commits that are not published, and copies of what is. Several
                volumes and any number of processes may share one.
            durable_cache: sync pages that were fetched: slower, and after a power cut they need
                not be fetched again. What is committed is durable in any case.
            clock: what time it is.
            entropy: where ids come from.

        Raises:
            InvalidInputError: the name cannot be one.
        """
        self.store = store if isinstance(store, Store) else Store(store)
        self.name = check_name(name)
        self.directory = os.path.abspath(os.fspath(directory))
        self.durable_cache = durable_cache
        self.clock = clock
        self.entropy = entropy
        self._desk: Desk | None = None
        self._opening = asyncio.Lock()

    # Its life.

    async def create(
        self, page_size: int = PAGE_SIZE, *, grace_s: float = GRACE_S, exist_ok: bool = False
    ) -> None:
        """Make the volume, without pages.

        Raises:
            AlreadyExistsError: the name is taken, and `exist_ok` is not set.
        """
        remote = Remote(self.store, self.clock, self.entropy)
        try:
            await create_volume(remote, self.name, page_size=page_size, grace_s=grace_s)
        except AlreadyExistsError as error:
            if not exist_ok:
                raise AlreadyExistsError(
                    f"the volume {self.name!r} exists already",
                    hint="open it, or choose another name",
                ) from error
        else:
            # A volume of this name may have been here before, and be gone from the store.
            History(remote, self.directory).drop_tag(self.name)

    async def desk(self) -> Desk:
        """The volume, open; the first call opens it."""
        async with self._opening:
            if self._desk is None:
                self._desk = await open_desk(
                    self.store,
                    self.name,
                    self.directory,
                    clock=self.clock,
                    entropy=self.entropy,
                    durable_cache=self.durable_cache,
                )
            return self._desk

    async def close(self) -> None:
        """Close the files; the next call opens them again."""
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.close()

    async def __aenter__(self) -> Self:
        """Open it."""
        await self.desk()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    # Reading and writing.

    async def snapshot(self, at: Moment | None = None) -> VolumeSnapshot:
        """What is there now, local commits and all; or a published version by LSN or time.

        Raises:
            NotFoundError: there is no such version.
            CollectedError: it is gone.
        """
        desk = await self.desk()
        if at is None:
            return VolumeSnapshot(await desk.fetch_sight())
        return VolumeSnapshot(Sight(None, await desk.at_hand(await self._lsn(at))))

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A transaction: leaving the block commits it locally, an error in it rolls it back.

        Raises:
            ContendedError: another one has been writing for too long.
        """
        draft = await self.draft()
        try:
            yield Transaction(draft)
            if draft.is_open:
                await draft.finish()
        finally:
            draft.rollback()

    async def draft(self) -> Draft:
        """The right to write, when the one before is done: what `begin` holds."""
        desk = await self.desk()
        waited_s = 0.0
        while True:
            try:
                return begin(desk)
            except Absent as absent:
                await desk.history.fetch_absent(absent)
            except ContendedError:
                if waited_s >= WRITE_WAIT_S:
                    raise
                await asyncio.sleep(_PAUSE_S)
                waited_s += _PAUSE_S

    # With the store.

    async def push(self, message: str = "", progress: Pushing | None = None) -> int | None:
        """Publish what is locally committed as one version; its LSN, None if there is nothing.

        Raises:
            DivergedError: somebody else published first; local commits stay as they are.
        StateError: the name means another volume now.
        """
        commit = await push(await self.desk(), message, progress)
        return None if commit is None else commit.lsn

    async def pull(self) -> Moved:
        """Let the newest published version be what is seen here.

        Raises:
            DivergedError: there are local commits, and others published: nothing was changed.
        """
        return await pull.pull(await self.desk())

    async def fetch(self) -> Moved:
        """Learn what is new in the store, and change nothing that is seen."""
        return await pull.fetch(await self.desk())

    async def reset(self) -> Moved:
        """Take theirs: the newest published version; local commits not pushed are gone."""
        return await pull.reset(await self.desk())

    async def rebase(self) -> Moved:
        """Put local commits on top of what others published.

        Raises:
            ConflictError: both sides wrote the same page; nothing was changed.
        """
        return await pull.rebase(await self.desk())

    async def follow(self) -> bool:
        """Go where the name points now, if its tag was moved; whether it was.

        What is here of the old log stays in the directory.

        Raises:
            StateError: there are local commits, which nobody would find under the name any more.
        """
        desk = await self.desk()
        is_moved = await pull.follow(desk) != desk.log
        if is_moved:
            await self.close()
        return is_moved

    async def hydrate(self, at: Moment | None = None, progress: Fetching | None = None) -> int:
        """Bring every page of a version to this machine; how many bytes were fetched."""
        desk = await self.desk()
        with desk.local.snapshot() as view:
            lsn = view.lsn
        reader = await desk.at_hand(lsn if at is None else await self._lsn(at))
        return await reader.hydrate(progress)

    # Versions.

    async def status(self, *, offline: bool = False) -> VolumeStatus:
        """How it stands: ahead, behind, diverged, cached."""
        return await operations.status(await self.desk(), offline=offline)

    async def log(self, limit: int | None = None) -> Sequence[Version]:
        """The published versions that are known here, the newest first; `fetch` learns of more."""
        if limit is not None and limit < 0:
            raise InvalidInputError(f"a limit of {limit}", hint="give a number from 0 up, or none")
        desk = await self.desk()
        found: list[Version] = []
        async for version in versions.versions(desk, await self._newest(desk)):
            if limit is not None and len(found) >= limit:
                break
            found.append(version)
        return found

    async def diff(self, before: Moment, after: Moment | None = None) -> Sequence[int]:
        """The pages that differ between two published versions; the second is the newest known."""
        desk = await self.desk()
        first = await desk.at_hand(await self._lsn(before))
        newest = await self._newest(desk)
        second = await desk.at_hand(newest if after is None else await self._lsn(after))
        return [int(page) for page in await versions.diff(first, second)]

    async def branch(
        self, name: str, at: Moment | None = None, *, unpushed: bool = False, message: str = ""
    ) -> Volume:
        """A branch, from what is published here or from any version; no page is copied.

        With `unpushed`, what is committed here and not published goes to the branch, and this
        volume takes what others published.

        Raises:
            AlreadyExistsError: the name is taken.
            CollectedError: the version is gone, or going.
            StateError: there are local commits, and neither a version nor `unpushed` was given.
        """
        desk = await self.desk()
        if unpushed:
            if at is not None:
                raise InvalidInputError("local changes are of no older version", hint="omit `at`")
            await operations.branch_unpushed(desk, name, message)
        else:
            await operations.branch(desk, name, None if at is None else await self._lsn(at))
        return self.named(name)

    async def tag(self, name: str, *, force: bool = False, instead_of: str | None = None) -> None:
        """Give the volume another name in the store.

        Args:
            name: the name.
            force: take it from whatever it means.
            instead_of: take it from this log (see `tags`), and from no other.

        Raises:
            AlreadyExistsError: the name means another volume, and it is not forced.
            ContendedError: it does not mean that log any more.
        """
        await operations.tag(await self.desk(), name, force=force, instead_of=instead_of)

    async def tags(self) -> dict[str, str]:
        """All names in the store, and the log that each means."""
        remote = Remote(self.store, self.clock, self.entropy)
        return {name: tag.log for name, tag in sorted((await remote.list_tags()).items())}

    async def delete(self) -> None:
        """Take the name away; a collection removes the log once no name and no branch needs it.

        Raises:
            NotFoundError: there is no such name, in the store or here.
            StateError: the name means another volume than this directory knows by it.
        """
        remote = Remote(self.store, self.clock, self.entropy)
        history = History(remote, self.directory)
        known = history.tag(self.name)
        try:
            is_moved = (await remote.get_tag(self.name)).tag.log != (known and known.log)
        except NotFoundError:
            if known is None:
                raise
            is_moved = False  # somebody was first; here it is still known
        if known is not None and is_moved:
            raise StateError(
                f"{self.name!r} means another volume now: its tag was moved",
                hint="follow it first, if that one is to lose its name",
            )
        await delete_tag(remote, self.name)
        await self.close()
        history.drop_tag(self.name)

    async def restore(self, at: Moment) -> int:
        """Make what is seen here an older version, by a local commit; how many pages changed.

        `push` publishes it. To keep both, `branch(name, at=…)` instead.

        Raises:
            LimitError: more pages differ than one transaction may have; a branch has no limit.
        """
        desk = await self.desk()
        lsn = await self._lsn(at)
        draft = await self.draft()
        try:
            changed = await operations.restore(desk, lsn, draft)
            await draft.finish()
        except LimitError as error:
            raise LimitError(
                f"to restore LSN {lsn} changes too many pages for one transaction",
                hint=f"make a branch of it (branch with at={lsn}) and go on with that",
            ) from error
        finally:
            draft.rollback()
        return changed

    async def checkpoint(
        self, at: Moment | None = None, progress: Checkpointing | None = None
    ) -> Made:
        """Name every page of a published version in one document, so that reads stop there.

        `progress` is called with pages written and pages to write.

        Raises:
            StateError: nothing was published yet.
        """
        desk = await self.desk()
        lsn = await self._newest(desk) if at is None else await self._lsn(at)
        if not lsn:
            raise StateError(f"volume {self.name!r} has no published version", hint="push first")
        reader = await desk.published(lsn)
        return await make_checkpoint(desk.history, reader, desk.log, progress)

    async def discover(self) -> Sequence[int]:
        """Add checkpoints that were made, and whose makers died before they said so."""
        desk = await self.desk()
        return await discover(desk.history, desk.log)

    async def collect(
        self,
        *,
        keep_s: float = KEEP_S,
        grace_s: float | None = None,
        progress: Collecting | None = None,
    ) -> CollectReport:
        """Remove old versions and what nothing needs, of all volumes of the store.

        Args:
            keep_s: how far back every version is kept.
            grace_s: wait longer between marking and deleting than the volumes say; never shorter.
            progress: is told how much is done.
        """
        remote = Remote(self.store, self.clock, self.entropy)
        return await Collector(remote, keep_s=keep_s, grace_s=grace_s).collect(progress)

    def named(self, name: str) -> Volume:
        """Another volume of the same store, in the same directory. No I/O."""
        return Volume(
            self.store,
            name,
            directory=self.directory,
            durable_cache=self.durable_cache,
            clock=self.clock,
            entropy=self.entropy,
        )

    # What these share.

    async def _newest(self, desk: Desk) -> int:
        """The newest published version that is known here."""
        with desk.local.snapshot() as view:
            return max(view.lsn, desk.history.newest_known(desk.log))

    async def _lsn(self, at: Moment) -> int:
        desk = await self.desk()
        return await versions.resolve_moment(desk, at, await self._newest(desk))


class VolumeSnapshot:
    """A version that stays as it is until it is closed."""

    def __init__(self, sight: Sight) -> None:
        """Made by `Volume.snapshot`."""
        self._sight = sight

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

    async def read(self, page: int) -> bytes:
        """A page; zeros behind the end, or where nothing was written."""
        return bytes(await self._sight.read(page))

    async def close(self) -> None:
        """Let go what it held; twice is no error."""
        self._sight.close()

    async def __aenter__(self) -> Self:
        """It is open already."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self._sight.close()


class Transaction:
    """Pages written and cut off, seen by nobody else before they are committed."""

    def __init__(self, draft: Draft) -> None:
        """Made by `Volume.begin`."""
        self._draft = draft

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

    async def read(self, page: int) -> bytes:
        """A page as the transaction sees it."""
        return bytes(await self._draft.read(page))

    def rollback(self) -> None:
        """Forget everything; the block may go on, and commits nothing."""
        self._draft.rollback()
