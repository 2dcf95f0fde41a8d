"""Fetch and pull: what others published comes here. And what to do when both have written.

::

    fetch    the local copy learns of new versions; what readers see stays as it is
    pull     the newest version is what readers see

A pull moves the head only if nothing local would be left hanging over a version that it was not
made upon. Else the volume has *diverged*, and there are three ways out: `reset` takes theirs, a
branch keeps ours elsewhere (volume/operations.py), and `rebase` puts ours on top of theirs. Pages
have no meaning here, so a rebase is refused where both wrote the same page, or where one side cut
off pages.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pyroaring import BitMap

from cordwood.base.errors import ConflictError, ContendedError, StateError
from cordwood.volume.desk import Desk
from cordwood.volume.format import NO_HASH
from cordwood.volume.overlay import View
from cordwood.volume.pagesets import pages_of
from cordwood.volume.push import check_name, diverged, resolve
from cordwood.volume.snapshot import Snapshot

_NAMED_MAX = 5


class Moved(NamedTuple):
    """What a fetch or pull did."""

    before: int
    """The LSN before."""
    lsn: int
    """The newest LSN of the store."""


async def fetch(desk: Desk) -> Moved:
    """Learn what is new in the store. A GET, a LIST, and a GET for each new commit.

    Raises:
        StoreError: the store cannot be reached.
    """
    async with desk.remote_work():
        newest = await desk.history.fetch(desk.log)
    with desk.local.snapshot() as view:
        return Moved(view.lsn, newest.lsn)


async def pull(desk: Desk) -> Moved:
    """Let the newest published version be what is seen here.

    Raises:
        DivergedError: there are local commits, and others published: nothing was changed.
        StateError: the name means another log now.
        StoreError: the store cannot be reached.
    """
    async with desk.remote_work():
        await resolve(desk)
        await check_name(desk)
        newest = await _newest(desk)
        while True:
            with desk.local.snapshot() as view:
                if newest.lsn == view.lsn:
                    return Moved(view.lsn, view.lsn)
                if view.unpushed:
                    raise diverged(desk, view)
                with suppress(ContendedError):  # a commit was made just now: look again
                    await _move(desk, view, newest, watermark=view.entry)
                    return Moved(view.lsn, newest.lsn)


async def reset(desk: Desk) -> Moved:
    """Take the newest published version; local commits that were not pushed are gone.

    Raises:
        StoreError: the store cannot be reached.
    """
    async with desk.remote_work():
        await resolve(desk)
        newest = await _newest(desk)
        with desk.local.snapshot() as view:
            before = view.lsn
        await desk.publish(newest.lsn, newest.hash or NO_HASH, None, newest.page_count)
    desk.tidy()
    return Moved(before, newest.lsn)


async def rebase(desk: Desk) -> Moved:
    """Put local commits on top of what others published, where they do not touch the same pages.

    Raises:
        ConflictError: they do; nothing was changed.
        StoreError: the store cannot be reached.
    """
    async with desk.remote_work():
        await resolve(desk)
        newest = await _newest(desk)
        while True:
            with desk.local.snapshot() as view:
                if newest.lsn == view.lsn:
                    return Moved(view.lsn, view.lsn)
                await _check_apart(desk, view, newest)
                is_ours = view.page_count != view.published_count
                count = view.page_count if is_ours else newest.page_count
                with suppress(ContendedError):
                    await _move(desk, view, newest, watermark=view.watermark, page_count=count)
                    return Moved(view.lsn, newest.lsn)


async def follow(desk: Desk) -> str:
    """Look up what the name means now, for whoever opens it next; the log. One GET.

    Raises:
        StateError: it means another log, and there are local commits to this one, which nobody
            would find under the name any more.
        NotFoundError: it means nothing any more.
    """
    tag = (await desk.remote.get_tag(desk.name)).tag
    if tag.log != desk.log:
        with desk.local.snapshot() as view:
            if view.unpushed:
                raise StateError(
                    f"{desk.name!r} means another volume now, and {view.unpushed} local changes "
                    "belong to what it meant before",
                    hint="keep them on a branch (branch with unpushed=True), or let them go "
                    "(reset); then follow",
                )
    desk.history.keep_tag(desk.name, tag)
    return tag.log


async def _newest(desk: Desk) -> Snapshot:
    """The newest version of the store, which cannot be older than what is known here."""
    newest = await desk.history.fetch(desk.log)
    with desk.local.snapshot() as view:
        if newest.lsn < view.lsn:
            raise StateError(
                f"the store has LSN {newest.lsn} of {desk.name!r}, and {view.lsn} was seen before",
                hint="the store was brought back from an old copy, or is another one",
            )
    return newest


async def give_way(desk: Desk, view: View) -> Moved:
    """Take the newest published version instead of the local commits of a snapshot, and no others.

    The remote-operation lock is held.

    Raises:
        ContendedError: somebody committed since the snapshot; nothing was changed.
    """
    newest = await _newest(desk)
    await _move(desk, view, newest, watermark=view.entry)
    return Moved(view.lsn, newest.lsn)


async def _move(
    desk: Desk, view: View, newest: Snapshot, *, watermark: int, page_count: int | None = None
) -> None:
    """Move the head, unless somebody committed since the snapshot."""
    await desk.publish(
        newest.lsn,
        newest.hash or NO_HASH,
        watermark,
        newest.page_count,
        local_page_count=page_count,
        only_at=view.entry,
    )


async def _check_apart(desk: Desk, view: View, newest: Snapshot) -> None:
    """Raise unless what both sides wrote can lie on top of each other."""
    theirs = BitMap()
    smallest = newest.page_count
    for lsn in range(view.lsn + 1, newest.lsn + 1):
        commit = await desk.commit(desk.log, lsn)
        theirs |= commit.pages
        smallest = min(smallest, commit.cut)
    mine = pages_of(view.overlay()[0])
    both = theirs & mine
    if both:
        named = ", ".join(map(str, both[:_NAMED_MAX]))
        more = f" and {len(both) - _NAMED_MAX} more" if len(both) > _NAMED_MAX else ""
        raise ConflictError(
            f"both sides wrote page {named}{more}",
            hint="keep yours on a branch (branch with unpushed=True), or take theirs (reset)",
        )
    is_cut = view.cut is not None or smallest < view.published_count
    is_resized = view.page_count != view.published_count != newest.page_count
    if is_cut or is_resized:
        raise ConflictError(
            "both sides changed how many pages there are, or one cut some off",
            hint="keep yours on a branch (branch with unpushed=True), or take theirs (reset)",
        )
