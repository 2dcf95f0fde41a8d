"""Checkpoints: every page of a version named in one document, so that nothing below it is asked.

A checkpoint is metadata where it can be: packs that are mostly live are named again, with the pages
that count; only what is live of the others, and small packs, is written into new packs. It is put
beside the commits (nobody's push waits for it), then added to the manifest by a swap. Crash between
the two, and `discover` finds it on the store and adds it; so does every collection.

Why collection cannot take a pack from under it: each pack that it names again is named by a commit
or checkpoint at or above what was collected, as long as the manifest lets us add ours; new packs
are young until ours names them, or kept by a note if there are many (volume/notes.py). That took
too long if half the grace has passed: then the packs are looked for once more before anybody is
told of the checkpoint. So they are if somebody else's was there first. A checkpoint whose packs are
gone is deleted: nobody was told of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np

from cordwood.base.errors import CollectedError, InvalidInputError, NotFoundError, StateError
from cordwood.store.api import Buffer
from cordwood.store.timekeeping import age_us
from cordwood.volume import paths
from cordwood.volume.format import Commit, Manifest, seal
from cordwood.volume.history import History
from cordwood.volume.notes import NOTE_PAGES, Watch, drop_note, put_note
from cordwood.volume.pack import Built, PackBuilder, PackIndex, frame_pages
from cordwood.volume.pagesets import PageArray, pages_of
from cordwood.volume.reader import PageReader
from cordwood.volume.remote import Fetched, Remote
from cordwood.volume.snapshot import Resolution

Progress = Callable[[int, int], None]

LIVE_MIN = 0.5
"""A pack of which less counts is written anew."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a checkpoint took."""

    checkpoint: Commit
    packs_reused: int
    packs_written: int
    bytes_written: int


async def make_checkpoint(
    history: History, reader: PageReader, log: str, progress: Progress | None = None
) -> Made:
    """A checkpoint of a reader's version in a log, made and announced.

    Two PUTs and a GET if all packs are mostly live; else the pages of the others are read and put:
    `progress` is called with how many are, and how many there are.

    Raises:
        InvalidInputError: the version has no commit, or is not one of this log.
        CollectedError: the version was collected meanwhile.
        StateError: packs of it were collected because it took too long; try again.
    """
    remote = history.remote
    watch = Watch(remote.clock)
    # By a path of now: an older one may lead to packs that a checkpoint made since does not need,
    # and that are swept already.
    snapshot = await history.fetch(log, reader.snapshot.lsn)
    reader = PageReader(snapshot, history, reader.cache, reader.page_size)
    manifest = history.manifest(log)
    if snapshot.newest is None or snapshot.lsn < manifest.first - 1:
        raise InvalidInputError(
            f"LSN {snapshot.lsn} is not of log {log}", hint="make it in the log that it is of"
        )
    version = await reader.resolve()
    kept, moved = _divide(version)
    note = await put_note(remote, log) if len(moved) > NOTE_PAGES else ""
    written: list[PackIndex] = []
    num_bytes = num_pages = 0
    async for built in _written(reader, version, moved, log):
        await remote.put_pack(built)
        written.append(built.pack)
        num_bytes += len(built.data)
        num_pages += len(built.pack.own)
        if progress is not None:
            progress(num_pages, len(moved))
    sealed = seal(
        replace(
            snapshot.newest,
            log=log,
            cut=0,
            packs=(*kept, *written),
            checkpoint_of=snapshot.hash,
            hash=b"",
        )
    )
    found = await remote.put_checkpoint(sealed)
    is_ours = found.hash == sealed.commit.hash
    if not is_ours or watch.elapsed_s > manifest.grace_s / 2:
        await _check_packs(history, found)
    await drop_note(remote, log, note)
    changed = await remote.swap(log, lambda now: with_checkpoint(now, snapshot.lsn))
    if snapshot.lsn < changed.collected:
        raise CollectedError(
            f"LSN {snapshot.lsn} of log {log} was collected", hint="make it of a newer version"
        )
    history.keep_manifest(changed)
    if is_ours:
        history.keep_checkpoint(Fetched(sealed.commit, sealed.data))
    else:
        history.keep_checkpoint(await remote.get_checkpoint(log, snapshot.lsn))
    return Made(found, len(kept), len(written), num_bytes)


async def discover(history: History, log: str) -> list[int]:
    """Add checkpoints that are in the store and not in the manifest: their makers died.

    One LIST; if there are any, three requests for the time; then as `announce`.
    """
    remote = history.remote
    manifest = await history.refresh(log)
    after = max(manifest.collected, manifest.first - 1, 1) - 1
    found = {lsn: meta.modified_us async for lsn, meta in remote.list_checkpoints(log, after)}
    if not {*found} - {*manifest.checkpoints}:
        return []
    added = await announce(remote, manifest, found, await remote.now_us())
    if added:
        await history.refresh(log)
    for fetched in added:
        history.keep_checkpoint(fetched)
    return [fetched.commit.lsn for fetched in added]


async def announce(
    remote: Remote, manifest: Manifest, found: Mapping[int, int], now_us: int
) -> list[Fetched]:
    """Add to a manifest those of the checkpoints in the store that it lacks, and should have.

    Their makers are dead: who lives does it within a grace interval, or finds that packs are gone,
    and deletes it. A GET for each, a HEAD for each of its packs, a GET and a PUT.

    Args:
        remote: the store.
        manifest: the log's.
        found: the checkpoints that a listing found, and when they were put.
        now_us: what time it is by the store's clock.
    """
    lowest = max(manifest.collected, manifest.first - 1, 1)
    added: list[Fetched] = []
    for lsn, put_us in sorted(found.items()):
        is_old = age_us(put_us, now_us) > manifest.grace_s * 1e6
        if lsn in manifest.checkpoints or lsn < lowest or not is_old:
            continue
        try:
            fetched = await remote.get_checkpoint(manifest.log, lsn)
        except NotFoundError:
            continue
        if await remote.missing_packs(pack.id for pack in fetched.commit.packs):
            continue
        changed = await remote.swap(manifest.log, partial(with_checkpoint, lsn=lsn))
        if lsn in changed.checkpoints:
            added.append(fetched)
    return added


def with_checkpoint(manifest: Manifest, lsn: int) -> Manifest | None:
    """A manifest that knows a checkpoint; None if it does, or nobody may use it any more."""
    if lsn in manifest.checkpoints or lsn < manifest.collected:
        return None
    return msgspec.structs.replace(
        manifest, checkpoints=tuple(sorted((*manifest.checkpoints, lsn)))
    )


def _divide(version: Resolution) -> tuple[list[PackIndex], PageArray]:
    """The packs that are named again, with what counts of them; and the pages of the others."""
    if not len(version.pages):
        return [], version.pages
    numbers: dict[str, int] = {}
    packs: list[PackIndex] = []
    for pack in version.packs:
        if numbers.setdefault(pack.id, len(packs)) == len(packs):
            packs.append(pack)
    # A checkpoint may have named a pack before, and a commit it too: each counts once.
    which = np.array([numbers[pack.id] for pack in version.packs])[version.pack]
    live = np.bincount(which, minlength=len(packs))
    own = np.array([len(pack.own) for pack in packs])
    moved = live < LIVE_MIN * own
    small = ~moved & (live < frame_pages(packs[0].page_size))
    # Many small packs would be many requests; a single one is not worth writing again.
    if moved.any() or small.sum() > 1:
        moved |= small
    order = np.argsort(which, kind="stable")
    parts = np.split(version.pages[order], np.cumsum(live)[:-1])
    kept = [
        pack.keeping(pages_of(part))
        for pack, part, goes in zip(packs, parts, moved.tolist(), strict=True)
        if not goes
    ]
    return kept, version.pages[moved[which]]


async def _written(
    reader: PageReader, version: Resolution, pages: PageArray, log: str
) -> AsyncIterator[Built]:
    """New packs of these pages, one at a time in memory."""
    remote = reader.history.remote
    builder = PackBuilder(reader.page_size)
    async for numbers, data in reader.batches(version, pages):
        for part, piece in _pieces(builder.room, reader.page_size, numbers, data):
            builder.add(part, piece)
            if not builder.room:
                yield builder.finish(remote.new_id(), log)
                builder = PackBuilder(reader.page_size)
    if builder.num_pages:
        yield builder.finish(remote.new_id(), log)


def _pieces(
    room: int, page_size: int, numbers: PageArray, data: Buffer
) -> Iterator[tuple[PageArray, Buffer]]:
    """A batch, cut where a pack is full."""
    view = memoryview(data)
    for start, limit in ((0, min(room, len(numbers))), (room, len(numbers))):
        if start < limit:
            yield numbers[start:limit], view[start * page_size : limit * page_size]


async def _check_packs(history: History, checkpoint: Commit) -> None:
    """Raise if packs of a checkpoint are gone, of which nobody was told yet."""
    remote = history.remote
    missing = await remote.missing_packs(pack.id for pack in checkpoint.packs)
    if not missing:
        return
    if checkpoint.lsn not in (await history.refresh(checkpoint.log)).checkpoints:
        await remote.store.delete([paths.checkpoint(checkpoint.log, checkpoint.lsn)])
    raise StateError(
        f"checkpoint {checkpoint.lsn} of log {checkpoint.log} took so long that "
        f"{len(missing)} of its packs were collected",
        hint="make it again",
    )
