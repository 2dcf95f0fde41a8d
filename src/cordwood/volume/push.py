"""Push: what is locally committed becomes one published commit.

::

    1  resolve        a push that was cut off before is brought to its end
    2  packs          the newest version of every page of the overlay, uploaded
    3  pending        the commit's bytes, on this disk, before anybody else can see them
    4  commit         put under the next LSN, if nobody has it
    5  publish        the version below is the new one; entries up to the watermark are in it
    6  pending away

Crash, or an answer lost, before 4: packs that nobody names, which a collection removes. At 4 or
later: `pending` says what was to be put. Whoever pushes or pulls next puts *the same bytes* under
the same LSN. If they are there already, they are ours, though they landed late; if another commit
is, the name is taken for ever, and ours can never come to life. So there is no moment in which a
commit is lost, or made twice.

Collection removes packs that no commit ever named once they are a day old. So a push that took half
a day gives up before its put. Who resolves one that was cut off looks whether its packs are there,
and brings back from the local cache those that are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from cordwood.base.errors import (
    CollectedError,
    ConflictError,
    CordwoodError,
    DivergedError,
    InvalidInputError,
    LimitError,
    UncertainError,
)
from cordwood.journal import document
from cordwood.journal.failures import told
from cordwood.store.api import Buffer
from cordwood.volume.base import load, save
from cordwood.volume.desk import Desk
from cordwood.volume.format import (
    MESSAGE_BYTES_MAX,
    NO_HASH,
    Commit,
    Provenance,
    Sealed,
    open_commit,
    seal,
)
from cordwood.volume.overlay import View
from cordwood.volume.pack import PackIndex, build_packs
from cordwood.volume.pagesets import PageArray
from cordwood.volume.remote import Fetched

PENDING = "pending"
ORPHAN_S = 24 * 3600
"""So old must a pack be that no commit ever named, to be collected."""
BATCH_PAGES = 256
"""Pages that are read together while packs are built."""

Progress = Callable[[int, int], None]
"""Is told how many pages were uploaded, and of how many."""


class Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A commit that may be in the store, or may come to be."""

    watermark: int
    data: bytes
    format: int = document.FORMAT


async def push(desk: Desk, message: str = "", progress: Progress | None = None) -> Commit | None:
    """Publish what is locally committed, as one commit; None if there is nothing.

    A PUT for each 64 MiB of pages, one for the commit, a GET.

    Raises:
        DivergedError: somebody else published first; local commits stay as they are.
        CollectedError: the log is being deleted.
        UncertainError, StoreError: it may be published or not; the next push or pull finds out.
    """
    check_message(message)
    async with desk.remote_work():
        await resolve(desk)
        with desk.local.snapshot() as view:
            if not view.unpushed:
                return None
            await desk.remote.claim(desk.log)
            sealed = await prepare(desk, view, desk.log, message, progress)
            await _put(desk, view, sealed)
    return sealed.commit


def check_message(message: object) -> str:
    """A commit's message, if it can be one.

    Raises:
        InvalidInputError: it is no text, or too long.
    """
    if isinstance(message, str):
        text = message.encode(errors="replace")
        if len(text) <= MESSAGE_BYTES_MAX:
            return text.decode()
    raise InvalidInputError(f"a message is text of at most {MESSAGE_BYTES_MAX} bytes")


async def prepare(
    desk: Desk,
    view: View,
    log: str,
    message: str,
    progress: Progress | None,
) -> Sealed:
    """The commit of a snapshot's overlay over its published version, in a log; packs uploaded."""
    remote = desk.remote
    started_us = remote.clock.now_us()
    pages, _ = view.overlay()
    packs: list[PackIndex] = []
    done = 0
    ids = iter(remote.new_id, "")
    for built in build_packs(desk.page_size, _batches(view, pages), ids, log):
        await remote.put_pack(built)
        with suppress(OSError):  # a full disk only costs reading it back
            desk.cache.add(built.pack, built.data)
        packs.append(built.pack)
        done += len(built.pack.own)
        if progress is not None:
            progress(done, len(pages))
    if remote.clock.now_us() - started_us > ORPHAN_S * 1_000_000 // 2:
        raise LimitError(
            f"the upload took more than {ORPHAN_S / 7200:.0f} hours, "
            "and what it uploaded may be collected by now",
            hint="push more often, or from where the store is nearer",
        )
    below = await desk.at_hand(view.lsn)
    cut = min(view.published_count, view.page_count)
    if view.cut is not None:
        cut = min(cut, view.cut)
    commit = Commit(
        log=log,
        lsn=view.lsn + 1,
        parent_hash=view.hash if view.lsn else NO_HASH,
        timestamp_us=max(remote.clock.now_us(), below.snapshot.timestamp_us),
        message=check_message(message),
        provenance=Provenance(desk.client, view.entry, remote.entropy.token()),
        page_size=desk.page_size,
        page_count=view.page_count,
        cut=cut if view.lsn else 0,
        packs=tuple(packs),
    )
    return seal(commit)


async def resolve(desk: Desk) -> Commit | None:
    """Bring a push that was cut off to its end; what it published, if it did.

    The remote-operation lock is held. Nothing is asked of the store if there is none.

    Raises:
        UncertainError, StoreError: the store cannot be reached; everything is as it was.
    """
    path = f"{desk.folder}/{PENDING}"
    with told("read", path):
        pending = load(desk.history.disk, path, PENDING, Pending)
    if pending is None:
        return None
    sealed = Sealed(open_commit(pending.data, path), pending.data)
    with desk.local.snapshot() as view:
        is_done = view.watermark >= pending.watermark
    if is_done:
        _forget(desk)
        return None
    try:
        await desk.remote.put_commit(sealed)
    except ConflictError as error:
        if isinstance(error, UncertainError):
            raise
        _forget(desk)
        return None
    await _check_packs(desk, list(sealed.commit.packs))
    _finish(desk, sealed, pending.watermark)
    return sealed.commit


async def _put(desk: Desk, view: View, sealed: Sealed) -> None:
    """Steps 3 to 6."""
    commit = sealed.commit
    path = f"{desk.folder}/{PENDING}"
    with told("push from", desk.folder):
        save(desk.history.disk, path, PENDING, Pending(view.entry, sealed.data))
    started_us = desk.remote.clock.now_us()
    try:
        await desk.remote.put_commit(sealed)
    except UncertainError:
        raise
    except ConflictError as error:
        # Its LSN is another's for ever: ours cannot land any more.
        _forget(desk)
        raise diverged(desk, view) from error
    if desk.remote.clock.now_us() - started_us > ORPHAN_S * 1_000_000 // 4:
        # This machine slept meanwhile.
        await _check_packs(desk, list(commit.packs))
    _finish(desk, sealed, view.entry)


def _finish(desk: Desk, sealed: Sealed, watermark: int) -> None:
    """Steps 5 and 6: the commit is in the store."""
    commit = sealed.commit
    with suppress(CordwoodError):  # a full disk: it is fetched again
        desk.history.keep(Fetched(commit, sealed.data))
    desk.local.publish(commit.lsn, commit.hash, watermark, commit.page_count, own=True)
    _forget(desk)


def _forget(desk: Desk) -> None:
    """Away with `pending`: its commit was published, or never will be."""
    disk = desk.history.disk
    with told("push from", desk.folder), suppress(FileNotFoundError):
        disk.unlink(f"{desk.folder}/{PENDING}")
        disk.fsync_dir(desk.folder)


def diverged(desk: Desk, view: View) -> DivergedError:
    """The error for a volume to which both we and somebody else have written."""
    return DivergedError(
        f"volume {desk.name!r} has diverged: somebody published LSN {view.lsn + 1}, "
        f"and {view.unpushed} local changes build upon LSN {view.lsn}",
        hint="keep yours on a branch (branch with unpushed=True), take theirs (reset), "
        "or put yours on top if no page is in both (rebase)",
    )


async def _check_packs(desk: Desk, packs: list[PackIndex]) -> None:
    """Make sure that the packs of a push that took long are there; bring back those that are not.

    Raises:
        CollectedError: one is gone, and not at hand either: the pages are still local.
    """
    missing = set(await desk.remote.missing_packs(pack.id for pack in packs))
    for pack in packs:
        if pack.id in missing:
            built = desk.cache.whole(pack)
            if built is None:
                raise CollectedError(
                    f"pack {pack.id} of a push was collected before its commit was made",
                    hint="push again; use a longer grace for volumes that are pushed slowly",
                )
            await desk.remote.put_pack(built)


def _batches(view: View, pages: PageArray) -> Iterator[tuple[PageArray, Buffer]]:
    """The pages of an overlay, some at a time, with their bytes one after the other."""
    for start in range(0, len(pages), BATCH_PAGES):
        some = pages[start : start + BATCH_PAGES]
        yield np.asarray(some, np.uint32), b"".join(_page(view, page) for page in some.tolist())


def _page(view: View, page: int) -> Buffer:
    found = view.read(page)
    assert found is not None  # it is in the overlay
    return found


def has_pending(desk: Desk) -> bool:
    """Whether a push was cut off, and nobody knows yet what became of it."""
    return os.path.exists(f"{desk.folder}/{PENDING}")
