"""Whole files in and out of a volume: a database becomes a version, a version a file.

Neither is ever whole in memory. A file comes in by many local commits, from its end to its
beginning: as long as page 1 is missing there is no database, so one that was cut off is seen by
nobody and is begun again. A file goes out under another name, and gets its own when it is complete.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO

import numpy as np

from cordwood.base.errors import InvalidInputError, StateError
from cordwood.journal.failures import told
from cordwood.volume.desk import Desk, Sight
from cordwood.volume.moments import Moment
from cordwood.volume.pagesets import PageArray
from cordwood.volume.volume import Volume

COMMIT_BYTES = 16 * 2**20
"""What one local commit brings in."""
MAGIC = b"SQLite format 3\0"
_HEAD_BYTES = 100
_WRITE_VERSION, _READ_VERSION = 18, 19
_LEGACY = b"\1\1"

Progress = Callable[[int, int], None]
"""Is told how many bytes are done, and of how many."""


def page_size_of(head: bytes, path: str) -> int:
    """The page size of a SQLite file, by its first bytes.

    Raises:
        InvalidInputError: it is no SQLite file.
    """
    found = int.from_bytes(head[16:18])
    found = 65536 if found == 1 else found
    is_size = 512 <= found <= 65536 and not found & (found - 1)
    if len(head) < _HEAD_BYTES or not head.startswith(MAGIC) or not is_size:
        raise InvalidInputError(
            f"{path} is no SQLite database", hint="an encrypted one cannot be imported either"
        )
    return found


async def import_file(volume: Volume, path: str, progress: Progress | None = None) -> int:
    """Make a SQLite file the content of a volume without versions; how many pages.

    Nobody may write to the file meanwhile. What was imported is locally committed: push it.

    Raises:
        InvalidInputError: the file is no database, or its pages are of another size.
        StateError: the volume has a database already.
    """
    with told("import", path), open(path, "rb") as file:  # noqa: ASYNC230 - all of this is reading
        size = page_size_of(file.read(_HEAD_BYTES), path)
        length = os.fstat(file.fileno()).st_size
        desk = await volume.desk()
        if desk.page_size != size:
            raise InvalidInputError(
                f"{path} has pages of {size} bytes, volume {volume.name!r} of {desk.page_size}",
                hint="import it under another name",
            )
        if length % size:
            raise InvalidInputError(f"{path} ends within a page", hint="check it with SQLite")
        await _check_empty(volume, desk)
        num_pages = length // size
        step = max(1, COMMIT_BYTES // size)
        for limit in range(num_pages, 0, -step):
            start = max(0, limit - step)
            await _bring(volume, file, range(start + 1, limit + 1), num_pages)
            if progress is not None:
                progress(length - start * size, length)
        return num_pages


async def export_file(
    volume: Volume, path: str, at: Moment | None = None, progress: Progress | None = None
) -> int:
    """Write a version to a file, byte for byte; how many bytes. What is there now by default.

    The file appears under its name when it is complete, in place of what had the name.

    Raises:
        InvalidInputError: something has the name that is no file, such as a device.
    """
    _check_file(path)
    snapshot = await volume.snapshot(at)
    sight, size = snapshot.sight, (await volume.desk()).page_size
    length = sight.num_pages * size
    draft = f"{path}.{volume.entropy.token()}.tmp"
    try:
        with told("export to", path):
            with open(draft, "xb") as file:  # noqa: ASYNC230 - all of this is writing
                file.truncate(length)  # what no version holds is zeros
                await _take(sight, file, size, progress)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        sight.close()
    return length


def _check_file(path: str) -> None:
    """Raise if something has the name that a file must not take the place of."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InvalidInputError(f"{path} is no file", hint="a file is written anew, and renamed")


async def _check_empty(volume: Volume, desk: Desk) -> None:
    """Make sure that there is no database, and take away what an import left that was cut off."""
    async with await volume.snapshot() as snapshot:
        has_page_1 = any(await snapshot.read(1)) if snapshot.num_pages else False
        if snapshot.lsn or has_page_1:
            raise StateError(
                f"volume {volume.name!r} is not empty", hint="import under another name"
            )
        is_left = snapshot.num_pages
    if is_left:
        draft = await volume.draft()
        draft.truncate(0)
        await asyncio.to_thread(draft.commit)


async def _bring(volume: Volume, file: IO[bytes], pages: range, num_pages: int) -> None:
    """Some pages of a file, in one commit."""
    draft = await volume.draft()
    try:
        size = (await volume.desk()).page_size
        file.seek((pages[0] - 1) * size)
        data = file.read(len(pages) * size)
        if len(data) != len(pages) * size:
            raise StateError("the file became shorter meanwhile", hint="let nobody write to it")
        if pages[0] == 1:
            # A database in WAL mode, without a WAL file: the same in any other mode.
            data = b"".join((data[:_WRITE_VERSION], _LEGACY, data[_READ_VERSION + 1 :]))
        view = memoryview(data)
        for index, page in enumerate(pages):
            draft.write(page, view[index * size : (index + 1) * size])
        draft.truncate(num_pages)
        await asyncio.to_thread(draft.commit)
    finally:
        draft.rollback()


async def _take(sight: Sight, file: IO[bytes], size: int, progress: Progress | None) -> None:
    """Write all pages of a snapshot at their places."""
    version = await sight.published.resolve()
    view = sight.view
    chosen = version.pages
    mine = np.zeros(0, np.uint32)
    if view is not None:
        mine = view.overlay()[0]
        limit = sight.num_pages if view.cut is None else min(view.cut, sight.num_pages)
        chosen = np.setdiff1d(chosen[chosen <= limit], mine, assume_unique=True)
    total, done = (len(chosen) + len(mine)) * size, 0
    async for pages, data in sight.published.batches(version, chosen):
        _put(file, pages, data, size)
        done += len(data)
        if progress is not None:
            progress(done, total)
    for page in mine.tolist():
        file.seek((page - 1) * size)
        file.write(await sight.read(page))
    if progress is not None:
        progress(total, total)


def _put(file: IO[bytes], pages: PageArray, data: bytes, size: int) -> None:
    """Pages at their places, those that follow each other in one write."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    firsts = [0, *breaks.tolist()]
    for first, limit in zip(firsts, [*firsts[1:], len(pages)], strict=True):
        file.seek((int(pages[first]) - 1) * size)
        file.write(data[first * size : limit * size])
