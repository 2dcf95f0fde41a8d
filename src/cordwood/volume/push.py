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

Packs and collection. A collection removes packs that no commit names once they are older than the
grace. So

* a push of many pages puts a note before its packs (volume/notes.py), and deletes it after 6;
* one of few pages does without, if half the grace is left when it comes to 4. Else it starts over:
  a note, fresh packs. So it does if the disk had no room for a copy of its packs;
* one that finds after 4 that too much time has gone by all the same (this machine slept, the put
  took long) looks for its packs, and brings back from the local copy those that are gone;
* so does who resolves a push that was cut off, before he puts its commit and after. Are packs gone
  for good, and the commit is not in the store, it is dropped: the pages are still here, and the
  next push takes its LSN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
import numpy as np

from cordwood.base.errors import (
    CollectedError,
    ConflictError,
    CordwoodError,
    DivergedError,
    InternalError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    StateError,
    UncertainError,
)
from cordwood.base.workers import in_worker
from cordwood.journal import document
from cordwood.journal.failures import told
from cordwood.store.api import Buffer
from cordwood.volume.base import load, save
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.format import (
    MESSAGE_BYTES_MAX,
    NO_HASH,
    Commit,
    Provenance,
    Sealed,
    open_commit,
    seal,
)
from cordwood.volume.notes import NOTE_PAGES, NOTE_S, Watch, drop_note, put_note
from cordwood.volume.overlay import View
from cordwood.volume.pack import Built, PackIndex, build_packs
from cordwood.volume.pagesets import PageArray
from cordwood.volume.remote import Fetched

PENDING = "pending"
ORPHAN_S = NOTE_S
"""So old must a pack be that a note kept, to be collected."""
BATCH_PAGES = 256
"""Pages that are read together while packs are built."""

Progress = Callable[[int, int], None]
"""Is told how many pages were uploaded, and of how many."""
Reading = Callable[[int], Buffer | None]
"""Gives a page that is at hand."""


class Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A commit that may be in the store, or may come to be."""

    watermark: int
    data: bytes
    note: str = ""
    """The nonce of the note that keeps its packs, if there is one."""
    format: int = document.FORMAT


class Prepared(NamedTuple):
    """A commit whose packs are in the store, and how long they have been."""

    sealed: Sealed
    note: str
    watch: Watch
    grace_s: float

    @property
    def is_late(self) -> bool:
        """Whether its packs may be gone by now."""
        return self.watch.elapsed_s > (ORPHAN_S if self.note else self.grace_s) / 2


async def push(desk: Desk, message: str = "", progress: Progress | None = None) -> Commit | None:
    """Publish what is locally committed, as one commit; None if there is nothing.

    A push that was cut off before is brought to its end first; if nothing is left then, its commit
    is the answer.

    A PUT for each 64 MiB of pages, one for the commit, three GETs; a PUT and a DELETE more for a
    push of many pages.

    Raises:
        DivergedError: somebody else published first; local commits stay as they are.
        StateError: the name means another log now: what is pushed here nobody would find.
        CollectedError: the log is being deleted.
        UncertainError, StoreError: it may be published or not; the next push or pull finds out.
    """
    check_message(message)
    async with desk.remote_work():
        resolved = await resolve(desk)
        with desk.local.snapshot() as view:
            if not view.unpushed:
                return resolved
            await check_name(desk)
            await desk.remote.claim(desk.log)
            prepared = await prepare(desk, view, desk.log, message, progress)
            await _put(desk, view, prepared)
    desk.tidy()
    return prepared.sealed.commit


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


async def check_name(desk: Desk) -> None:
    """Make sure that the name still means this log. One GET.

    Raises:
        NotFoundError: somebody deleted it.
        StateError: somebody moved it.
    """
    tag = (await desk.remote.get_tag(desk.name)).tag
    if tag.log != desk.log:
        raise StateError(
            f"{desk.name!r} means another volume now: its tag was moved",
            hint="give what is here another name (tag) and open that, or follow the tag (follow)",
        )


async def prepare(
    desk: Desk,
    view: View,
    log: str,
    message: str,
    progress: Progress | None,
    *,
    whole: Sight | None = None,
) -> Prepared:
    """The commit of a snapshot's overlay over its published version, in a log; packs uploaded.

    With `whole`, all of whose pages are at hand, it is the first commit of a log of its own.

    Raises:
        LimitError: the upload took half a day.
    """
    remote = desk.remote
    grace_s = desk.history.manifest(desk.log).grace_s
    pages, _ = view.overlay()
    read: Reading = view.read
    if whole is not None:
        below = (await whole.published.resolve()).pages
        pages, read = np.union1d(pages, below[below <= view.page_count]), whole.peek
    note, watch = "", Watch(remote.clock)
    packs: list[PackIndex] | None = None
    if len(pages) <= NOTE_PAGES:
        packs = await _upload(desk, read, pages, log, progress)
        if watch.elapsed_s > grace_s / 2:
            packs = None
    if packs is None:
        note, watch = await put_note(remote, log), Watch(remote.clock)
        packs = await _upload(desk, read, pages, log, progress, must_keep=False)
        assert packs is not None
    if watch.elapsed_s > ORPHAN_S / 2:
        await drop_note(remote, log, note)
        raise LimitError(
            f"the upload took more than {ORPHAN_S / 7200:.0f} hours, "
            "and what it uploaded may be collected by now",
            hint="push more often, or from where the store is nearer",
        )
    timestamp_us = (await desk.below(view.lsn)).snapshot.timestamp_us
    is_first = whole is not None or not view.lsn
    cut = min(view.published_count, view.page_count)
    if view.cut is not None:
        cut = min(cut, view.cut)
    commit = Commit(
        log=log,
        lsn=1 if is_first else view.lsn + 1,
        parent_hash=NO_HASH if is_first else view.hash,
        timestamp_us=max(remote.clock.now_us(), timestamp_us),
        message=check_message(message),
        provenance=Provenance(desk.client, view.entry, remote.entropy.token()),
        page_size=desk.page_size,
        page_count=view.page_count,
        cut=0 if is_first else cut,
        packs=tuple(packs),
    )
    return Prepared(seal(commit), note, watch, grace_s)


async def settle(desk: Desk, prepared: Prepared) -> None:
    """The commit is in the store: see to its packs, and take the note away.

    Raises:
        CollectedError: packs are gone, and not at hand either.
    """
    commit = prepared.sealed.commit
    if prepared.is_late:
        await _bring_back(desk, commit.packs)
    await drop_note(desk.remote, commit.log, prepared.note)


async def _upload(
    desk: Desk,
    read: Reading,
    pages: PageArray,
    log: str,
    progress: Progress | None,
    *,
    must_keep: bool = True,
) -> list[PackIndex] | None:
    """Pages as packs, in the store and in the local copy; None if that has no room and must."""
    packs: list[PackIndex] = []
    done = 0
    ids = iter(desk.remote.new_id, "")
    building = build_packs(desk.page_size, _batches(read, pages), ids, log)
    while (built := await _next(desk, building)) is not None:
        try:
            desk.cache.add(built.pack, built.data)
        except OSError:  # a full disk costs reading it back, and the safety of a short push
            if must_keep:
                return None
        await desk.remote.put_pack(built)
        packs.append(built.pack)
        done += len(built.pack.own)
        if progress is not None:
            progress(done, len(pages))
    return packs


async def resolve(desk: Desk) -> Commit | None:
    """Bring a push that was cut off to its end; what it published, if it did.

    The remote-operation lock is held. Nothing is asked of the store if there is none.

    Raises:
        CollectedError, NotFoundError: the log is being deleted, or gone; everything is as it was.
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
        await _drop(desk, sealed.commit, pending.note)
        return None
    commit = sealed.commit
    await desk.remote.claim(commit.log)  # in a log that is gone nobody would ever find it
    try:
        await _bring_back(desk, commit.packs)
    except CollectedError:
        if await _is_there(desk, commit):
            raise
        # It can never be read. The pages are still here, and the next push takes its LSN.
        await _drop(desk, commit, pending.note)
        return None
    try:
        await desk.remote.put_commit(sealed)
    except UncertainError:
        raise
    except ConflictError:
        await _drop(desk, commit, pending.note)
        return None
    await _bring_back(desk, commit.packs)
    await _finish(desk, sealed, pending.watermark)
    await drop_note(desk.remote, commit.log, pending.note)
    return commit


async def _put(desk: Desk, view: View, prepared: Prepared) -> None:
    """Steps 3 to 6."""
    sealed = prepared.sealed
    path = f"{desk.folder}/{PENDING}"
    with told("push from", desk.folder):
        save(desk.history.disk, path, PENDING, Pending(view.entry, sealed.data, prepared.note))
    try:
        await desk.remote.put_commit(sealed)
    except UncertainError:
        raise
    except ConflictError as error:
        # Its LSN is another's for ever: ours cannot land any more.
        await _drop(desk, sealed.commit, prepared.note)
        raise diverged(desk, view) from error
    await settle(desk, prepared)
    await _finish(desk, sealed, view.entry)


async def _drop(desk: Desk, commit: Commit, note: str) -> None:
    """Away with a commit that never will be."""
    _forget(desk)
    await drop_note(desk.remote, commit.log, note)


async def _is_there(desk: Desk, commit: Commit) -> bool:
    """Whether the store has this very commit."""
    try:
        found = await desk.remote.get_commit(commit.log, commit.lsn)
    except NotFoundError:
        return False
    return found.commit.hash == commit.hash


async def _finish(desk: Desk, sealed: Sealed, watermark: int) -> None:
    """Steps 5 and 6: the commit is in the store."""
    commit = sealed.commit
    with suppress(CordwoodError):  # a full disk: it is fetched again
        desk.history.keep(Fetched(commit, sealed.data))
    await desk.publish(commit.lsn, commit.hash, watermark, commit.page_count, own=True)
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


async def _bring_back(desk: Desk, packs: tuple[PackIndex, ...]) -> None:
    """Make sure that the packs of a push that took long are there; bring back those that are not.

    Raises:
        CollectedError: one is gone, and not at hand either.
    """
    missing = set(await desk.remote.missing_packs(pack.id for pack in packs))
    for pack in packs:
        if pack.id in missing:
            built = desk.cache.whole(pack)
            if built is None:
                raise CollectedError(
                    f"pack {pack.id} of a push was collected before its commit was made",
                    hint="bring the pack back from a copy of the store, or take an older version "
                    "(restore); use a longer grace for volumes that are pushed slowly",
                )
            await desk.remote.put_pack(built)


async def _next(desk: Desk, building: Iterator[Built]) -> Built | None:
    """The next pack. To compress 64 MiB takes a while, so the loop goes on meanwhile."""
    if desk.history.disk.inline:
        return next(building, None)
    return await in_worker(next, building, None)


def _batches(read: Reading, pages: PageArray) -> Iterator[tuple[PageArray, Buffer]]:
    """Pages, some at a time, with their bytes one after the other."""
    for start in range(0, len(pages), BATCH_PAGES):
        some = pages[start : start + BATCH_PAGES]
        yield np.asarray(some, np.uint32), b"".join(_page(read, page) for page in some.tolist())


def _page(read: Reading, page: int) -> Buffer:
    found = read(page)
    if found is None:
        raise InternalError(f"page {page} is not at hand")
    return found


def has_pending(desk: Desk) -> bool:
    """Whether a push was cut off, and nobody knows yet what became of it."""
    with suppress(FileNotFoundError):
        desk.history.disk.stat(f"{desk.folder}/{PENDING}")
        return True
    return False
