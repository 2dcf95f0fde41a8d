"""What is done with whole versions: branches, names, restoring, and how a volume stands."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    ContendedError,
    CordwoodError,
    InvalidInputError,
    NotFoundError,
    StateError,
    StoreError,
)
from cordwood.volume import paths
from cordwood.volume.branches import create_branch, create_volume
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.format import Manifest, Tag
from cordwood.volume.history import History
from cordwood.volume.ids import is_id
from cordwood.volume.local import Local
from cordwood.volume.overlay import View
from cordwood.volume.pull import give_way
from cordwood.volume.push import check_message, has_pending, prepare, resolve, settle
from cordwood.volume.reader import BATCH_BYTES, PageReader
from cordwood.volume.recovery import WAL
from cordwood.volume.remote import LoadedTag
from cordwood.volume.snapshot import Absent, changed_pages
from cordwood.volume.tags import set_tag
from cordwood.volume.transaction import Draft

_LOOK_WAIT_S = 1.0
"""So long a look at another volume of the directory waits for who recovers it."""


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
    ahead_elsewhere: tuple[str, ...] = ()
    """Other logs in the directory that have commits which are not published, or may have."""

    @property
    def is_safe_to_delete(self) -> bool:
        """Whether everything in the directory can be fetched again, of all volumes in it."""
        return self.ahead == 0 and not self.ahead_elsewhere


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
    _know(desk.history, manifest, name)
    return manifest


async def branch_unpushed(desk: Desk, name: str, message: str = "") -> Manifest:
    """A branch with what was committed here and not published; the volume then takes theirs.

    Crash in between, and both have it: the branch, published; this directory, not published. Where
    the version below is not kept any more, the branch has no history: it is a volume of its own.
    Where the whole log is gone, there is nothing to take, and local commits stay here as well.

    Raises:
        AlreadyExistsError: the name is taken.
        CollectedError: what local commits build upon is gone, and not here either.
        ContendedError: somebody committed here meanwhile. The branch is there, without that; here
            everything is as it was.
        InvalidInputError: there is nothing that is not published.
    """
    paths.check_name(name)
    check_message(message)
    async with desk.remote_work():
        with suppress(CollectedError, NotFoundError):  # a push to a log that is gone is over
            await resolve(desk)
        with suppress(NotFoundError):
            await desk.remote.get_tag(name)
            raise AlreadyExistsError(f"{name!r} means a volume already", hint="choose another name")
        with desk.local.snapshot() as view:
            if not view.unpushed:
                raise InvalidInputError(
                    f"volume {desk.name!r} has no local changes", hint="branch without unpushed"
                )
            below = await desk.below(view.lsn)

            manifest = await _branch_out(desk, view, below, name, message)
            _know(desk.history, manifest, name)
            try:
                with suppress(CollectedError, NotFoundError):
                    await give_way(desk, view)
            except ContendedError as error:
                raise ContendedError(
                    f"somebody committed to {desk.name!r} while the branch {name!r} was made, "
                    "and that is not in it",
                    hint=f"nothing is lost: branch again under another name, or take theirs "
                    f"(reset) if {name!r} has all you need",
                ) from error
    return manifest


async def _branch_out(
    desk: Desk, view: View, below: PageReader, name: str, message: str
) -> Manifest:
    """The branch; where the version below is being collected, a volume of its own instead.

    Raises:
        CollectedError: pages of that version are gone, and not here either.
    """

    async def fill(manifest: Manifest) -> None:
        whole = Sight(view, below) if manifest.parent is None and view.lsn else None
        prepared = await prepare(desk, view, manifest.log, message, None, whole=whole)
        await desk.remote.put_commit(prepared.sealed)
        await settle(desk, prepared)

    try:
        return await create_branch(desk.remote, desk.log, below.snapshot, name, before_tag=fill)
    except (CollectedError, NotFoundError):
        await below.hydrate()
        grace_s = desk.history.manifest(desk.log).grace_s
        return await create_volume(
            desk.remote, name, page_size=desk.page_size, grace_s=grace_s, before_tag=fill
        )


async def tag(desk: Desk, name: str, *, force: bool = False, instead_of: str | None = None) -> None:
    """Give the volume's log another name.

    Raises:
        AlreadyExistsError: the name means another log, and it is not forced.
        ContendedError: it does not mean the log any more that it should be taken from.
        InvalidInputError: both are asked for.
    """
    seen: LoadedTag | None = None
    if instead_of is not None:
        if force:
            raise InvalidInputError("force takes a name from whatever it means", hint="choose one")
        seen = await desk.remote.get_tag(name)
        if seen.tag.log != instead_of:
            raise ContendedError(
                f"{name!r} means log {seen.tag.log}, not {instead_of!r}", hint="look again (tags)"
            )
    await set_tag(desk.remote, name, desk.log, seen=seen, force=force)


async def restore(desk: Desk, lsn: int, draft: Draft) -> int:
    """Write into a transaction what makes it an older version; how many pages that changes."""
    target = await desk.at_hand(lsn)
    published, view = draft.sight.published, draft.sight.view
    assert view is not None
    version = await target.resolve()
    pages = np.union1d(changed_pages(await published.resolve(), version), view.overlay()[0])
    if view.cut is not None:
        # What was cut off here is gone, though both versions have it.
        pages = np.union1d(pages, version.pages[version.pages > view.cut])
    pages = pages[pages <= version.page_count].astype(np.uint32)
    if version.page_count < draft.num_pages:
        draft.truncate(version.page_count)
    size = desk.page_size
    step = max(1, BATCH_BYTES // size)
    changed = 0
    for start in range(0, len(pages), step):
        some = pages[start : start + step]
        wanted = await target.read_many(some)
        now = await published.read_many(some)
        for index, page in enumerate(some.tolist()):
            here = view.read(page) if page <= draft.num_pages else bytes(size)
            at = slice(index * size, (index + 1) * size)
            if wanted[at] != (now[at] if here is None else here):
                draft.write(page, wanted[at])
                changed += 1
    if version.page_count > draft.num_pages:
        draft.truncate(version.page_count)
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
        below = await desk.below(view.lsn)
        behind = None if newest is None else max(0, newest - view.lsn)
        if behind:
            oldest = max(view.lsn + 1, desk.history.manifest(desk.log).collected)
            commit = await desk.commit(desk.log, oldest)
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
            ahead_elsewhere=_ahead_elsewhere(desk),
        )


def _ahead_elsewhere(desk: Desk) -> tuple[str, ...]:
    """Other logs of the directory that have what is nowhere else, as far as can be told."""
    history = desk.history
    found: list[str] = []
    for log, kind in sorted(history.disk.scan(history.directory)):
        if kind != "folder" or log == desk.log or not is_id(log) or not _has_wal(history, log):
            continue
        try:
            page_size = history.manifest(log).page_size
            opened = Local.open(
                history.folder(log), page_size, disk=history.disk, lock_wait_s=_LOOK_WAIT_S
            )
            with opened, opened.snapshot() as view:
                is_ahead = view.unpushed > 0
        except (Absent, CordwoodError):
            is_ahead = True
        if is_ahead:
            found.append(log)
    return tuple(found)


def _has_wal(history: History, log: str) -> bool:
    """Whether the log was ever opened here: of a branch's parent there are only copies."""
    with suppress(FileNotFoundError):
        history.disk.stat(os.path.join(history.folder(log), WAL))
        return True
    return False


def _know(history: History, manifest: Manifest, name: str) -> None:
    """Write down what a branch is; where that fails, whoever opens it asks the store.

    What the name meant before does not count any more in any case.
    """
    with suppress(OSError, CordwoodError):
        history.drop_tag(name)
        history.keep_manifest(manifest)
        history.keep_tag(name, Tag(manifest.log, manifest.nonce))
