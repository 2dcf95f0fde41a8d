"""Branches: a log that begins as a version of another one, and shares everything below it.

In steps, each of which a collection may run between:

1. the child's manifest is put, with the parent's log, LSN and hash;
2. the parent's manifest is read again. A collection that has marked versions at or past the branch
   point, or the whole log, lists children after its mark: so either it sees the child, or we see
   its mark here, and withdraw;
3. the tag is created, and the child's own manifest is looked at once more (volume/tags.py).

Crash after 1 and a log without a tag is left, which a collection removes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cordwood.base.errors import (
    AlreadyExistsError,
    CollectedError,
    InvalidInputError,
    NotFoundError,
)
from cordwood.volume import paths
from cordwood.volume.format import GRACE_S, Manifest, Parent
from cordwood.volume.pack import check_page_size
from cordwood.volume.remote import Remote
from cordwood.volume.snapshot import Snapshot
from cordwood.volume.tags import set_tag

Filling = Callable[[Manifest], Awaitable[None]]


async def create_volume(
    remote: Remote,
    name: str,
    *,
    page_size: int = 4096,
    grace_s: float = GRACE_S,
    before_tag: Filling | None = None,
) -> Manifest:
    """A volume without pages, under a name. Five requests.

    `before_tag` is awaited with its manifest before anybody can find it: its first commit.

    Raises:
        AlreadyExistsError: the name is taken.
        InvalidInputError: the name, the page size or the grace cannot be.
    """
    paths.check_name(name)
    check_page_size(page_size)
    if not 0 < grace_s < 1e9:
        raise InvalidInputError(f"a grace of {grace_s!r} s", hint="give seconds, 600 is usual")
    manifest = Manifest(
        log=remote.new_id(),
        page_size=page_size,
        grace_s=float(grace_s),
        created_us=remote.clock.now_us(),
        nonce=remote.entropy.token(),
    )
    await _begin(remote, manifest, name, before_tag)
    return manifest


async def create_branch(
    remote: Remote, log: str, at: Snapshot, name: str, *, before_tag: Filling | None = None
) -> Manifest:
    """A log that begins as a version of `log`, under a name. Seven requests, whatever its size.

    Args:
        remote: the store.
        log: the parent.
        at: the version, of the parent or of one of its ancestors.
        name: the branch's.
        before_tag: is awaited with its manifest before anybody can find it: its first commit.

    Raises:
        AlreadyExistsError: the name is taken.
        CollectedError: the version is being collected.
    """
    paths.check_name(name)
    owner = _owner(at, log)
    parent = (await remote.load(owner)).manifest
    manifest = Manifest(
        log=remote.new_id(),
        page_size=parent.page_size,
        grace_s=parent.grace_s,
        created_us=remote.clock.now_us(),
        nonce=remote.entropy.token(),
        parent=Parent(owner, at.lsn, at.hash.hex()) if at.lsn else None,
    )
    await _begin(remote, manifest, name, before_tag)
    return manifest


def _owner(at: Snapshot, log: str) -> str:
    """The log that a version's newest commit is in: a branch hangs there, and not higher."""
    for span in at.path.spans:
        if span.low <= span.high:
            return span.log
    return at.path.checkpoint[0] if at.path.checkpoint else log


async def _begin(
    remote: Remote, manifest: Manifest, name: str, before_tag: Filling | None = None
) -> None:
    """The steps in the module's header; what fails is withdrawn."""
    await remote.create(manifest)
    try:
        if manifest.parent is not None:
            await _check_parent(remote, manifest.parent)
        if before_tag is not None:
            await before_tag(manifest)
        await set_tag(remote, name, manifest.log)
    except (AlreadyExistsError, CollectedError, NotFoundError):
        # Of any other failure it is not known whether the tag is there, or will be.
        await remote.store.delete([paths.manifest(manifest.log)])
        raise


async def _check_parent(remote: Remote, parent: Parent) -> None:
    """Raise if the parent is being collected past the branch point."""
    manifest = (await remote.load(parent.log)).manifest
    if manifest.condemned_us is not None or parent.lsn < manifest.floor:
        raise CollectedError(
            f"LSN {parent.lsn} of log {parent.log} is being collected",
            hint=f"branch from LSN {manifest.floor} or later"
            if manifest.condemned_us is None
            else "give the log a tag first, then branch",
        )
