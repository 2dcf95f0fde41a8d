"""What is done with whole versions: branches, names, restoring, and how a volume stands."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from cordwood.base.errors import (
    AlreadyExistsError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
)
from cordwood.volume import paths
from cordwood.volume.branches import create_branch
from cordwood.volume.desk import Desk
from cordwood.volume.format import Manifest
from cordwood.volume.history import History
from cordwood.volume.pull import reset
from cordwood.volume.push import has_pending, prepare, resolve
from cordwood.volume.remote import LoadedTag
from cordwood.volume.snapshot import changed_pages
from cordwood.volume.tags import set_tag
from cordwood.volume.transaction import Draft


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """How a volume stands here and in the store."""

    name: str
    log: str
    lsn: int
    """The published version that lies below what is seen here."""
    num_pages: int
    page_size: int
    ahead: int
    """Pages that are committed here and not published: only this directory has them."""
    behind: int | None
    """Versions in the store that are not seen here; None if the store was not asked."""
    diverged: bool
    """Whether there are both."""
    uncertain: bool
    """Whether a push was cut off, and the next push or pull finds out what became of it."""
    cached_share: float
    """The part of the published pages that is on this machine, from 0 to 1."""
    wal_bytes: int
    lag_s: float | None
    """How long ago the oldest version was published that is not seen here."""
    directory: str

    @property
    def is_safe_to_delete(self) -> bool:
        """Whether everything in the directory can be fetched again."""
        return self.ahead == 0


async def branch(desk: Desk, name: str, lsn: int | None = None) -> Manifest:
    """A branch of a published version, the one seen here by default. No page is copied.

    Raises:
        AlreadyExistsError: the name is taken.
        CollectedError: the version is gone, or going.
        StateError: there are local commits, and no version was named: they would not be in it.
    """
    paths.check_name(name)
    with desk.local.snapshot() as view:
        if lsn is None and view.unpushed:
            raise StateError(
                f"volume {desk.name!r} has {view.unpushed} local changes that are not published",
                hint="push first, name a version (at=…), or take them along (unpushed=True)",
            )
        wanted = view.lsn if lsn is None else lsn
    reader = await desk.at_hand(wanted)
    manifest = await create_branch(desk.remote, desk.log, reader.snapshot, name)
    _know(desk.history, manifest)
    return manifest


async def branch_unpushed(desk: Desk, name: str, message: str = "") -> Manifest:
    """A branch with what was committed here and not published; the volume then takes theirs.

    Crash in between, and both have it: the branch, published; this directory, not published.

    Raises:
        AlreadyExistsError: the name is taken.
        InvalidInputError: there is nothing that is not published.
    """
    paths.check_name(name)
    async with desk.remote_work():
        await resolve(desk)
        with suppress(NotFoundError):
            await desk.remote.get_tag(name)
            raise AlreadyExistsError(f"{name!r} means a volume already", hint="choose another name")
        with desk.local.snapshot() as view:
            if not view.unpushed:
                raise InvalidInputError(
                    f"volume {desk.name!r} has no local changes", hint="branch without unpushed"
                )
            below = await desk.at_hand(view.lsn)

            async def fill(manifest: Manifest) -> None:
                await desk.remote.put_commit(await prepare(desk, view, manifest.log, message, None))

            manifest = await create_branch(
                desk.remote, desk.log, below.snapshot, name, before_tag=fill
            )
            _know(desk.history, manifest)
    await reset(desk)
    return manifest


async def tag(desk: Desk, name: str, *, force: bool = False, seen: LoadedTag | None = None) -> None:
    """Give the volume's log another name.

    Raises:
        AlreadyExistsError: the name means another log, and it is not forced.
    """
    await set_tag(desk.remote, name, desk.log, seen=seen, force=force)


async def restore(desk: Desk, lsn: int, draft: Draft) -> int:
    """Write into a transaction what makes it an older version; how many pages that changes."""
    target = await desk.at_hand(lsn)
    current = draft.sight
    pages = changed_pages(await current.published.resolve(), await target.resolve())
    view = current.view
    assert view is not None
    pages = np.union1d(pages, view.overlay()[0])
    num_pages = target.snapshot.page_count
    if num_pages < draft.num_pages:
        draft.truncate(num_pages)
    changed = 0
    for page in pages[pages <= num_pages].tolist():
        wanted = await target.read(page)
        if await draft.read(page) != wanted:
            draft.write(page, wanted)
            changed += 1
    if num_pages > draft.num_pages:
        draft.truncate(num_pages)
    return changed


async def status(desk: Desk, *, offline: bool = False) -> VolumeStatus:
    """How the volume stands; the store is asked unless that is not wanted, or it is away."""
    newest: int | None = None
    lag_s: float | None = None
    if not offline:
        try:
            newest = await desk.history.head(desk.log)
        except StoreError:
            newest = None
    with desk.local.snapshot() as view:
        below = await desk.at_hand(view.lsn)
        behind = None if newest is None else max(0, newest - view.lsn)
        if behind:
            commit = await desk.commit(desk.log, view.lsn + 1)
            lag_s = max(0.0, (desk.remote.clock.now_us() - commit.timestamp_us) / 1e6)
        elif behind == 0:
            lag_s = 0.0
        return VolumeStatus(
            name=desk.name,
            log=desk.log,
            lsn=view.lsn,
            num_pages=view.page_count,
            page_size=desk.page_size,
            ahead=len(view.overlay()[0]) or int(view.unpushed > 0),
            behind=behind,
            diverged=bool(behind and view.unpushed),
            uncertain=has_pending(desk),
            cached_share=await below.cached_share(),
            wal_bytes=desk.local.wal_bytes(),
            lag_s=lag_s,
            directory=desk.history.directory,
        )


def _know(history: History, manifest: Manifest) -> None:
    """Write down a branch's manifest, so that it opens without asking; if that fails, it asks."""
    try:
        history.keep_manifest(manifest)
    except CordwoodError:
        return
